/* Tensors, models and scripts as keys hold them, and what runs them. */
#ifndef MODULE_H
#define MODULE_H
#include "api.h"

enum type { FLOAT, DOUBLE, INT8, INT16, INT32, INT64, UINT8, UINT16, BOOL,
            TYPES };
enum { MAX_DIMS = 32 };

/* Never changed once it is in a key; a user holds a reference. */
struct tensor {
    int refs;
    unsigned char type, dims;
    /* The server's string that holds the data, or NULL: it is our own. */
    String *blob;
    char *data;
    size_t bytes, length;
    long long shape[];
};

extern const char *const type_names[TYPES];
size_t type_size(enum type type);
/* A tensor that holds the string, or without one has zeros in memory of its
 * own. NULL, and *error has the reason. */
struct tensor *tensor_new(enum type type, const long long *shape, int dims,
                          String *blob, const char **error);
struct tensor *tensor_hold(struct tensor *tensor);
void tensor_drop(struct tensor *tensor);

/* A model or a script. Never changed; a user holds a reference. */
struct object {
    int refs, script;
    struct queue *queue;
    String *text;                       /* a blob or a source */
    long long batch;                    /* rows of a run; 0: no batches */
    const struct network *network;      /* of the stand-in, or NULL */
    int marked;                         /* the script names kernels */
    struct program *program;            /* of libtorch, or NULL */
};
void object_drop(struct object *object);

/* A request that a queue runs. */
struct job {
    struct job *next;
    Blocked *client;
    struct object *object;
    String *function;                   /* of a script */
    int inputs, outputs;
    const char *error;
    char words[300];                    /* of an error that is no constant */
    String **names;                     /* of the outputs */
    struct tensor **in, **out;
};

/* Settings behind the path of the module. */
struct settings {
    long long threads_per_queue, inter_op, intra_op;
};
extern struct settings settings;

extern Type *tensor_type, *model_type, *script_type;
/* Creates the types of keys; GOOD or BAD. */
int types_register(Context *context);
Command tensor_set, tensor_get, model_store, script_set, model_execute,
    script_run;

/* The key becomes the tensor, which the key holds from then on. An error, or
 * NULL. */
const char *put_tensor(Context *context, String *name, struct tensor *tensor);
/* The same for a model or a script, whose reference the key takes. */
const char *put_object(Context *context, String *name, struct object *object);
/* The value of a key of the type, or NULL; *error has the reason, `empty` if
 * there is no such key. */
void *value_at(Context *context, String *name, Type *type, const char *empty,
               const char **error);
/* Whether the word is the string, whatever the case of its letters. */
int is_word(const String *string, const char *word);

/* The queue of "CPU" or "CPU:2", made if new. NULL, and *error. */
struct queue *queue_named(const String *name, const char **error);
void queue_add(struct queue *queue, struct job *job);

/* --- the stand-in without libtorch ---------------------------------------- */

struct network;
/* The network that a blob names, or NULL; *error if it names one that does
 * not exist. */
const struct network *network_of_blob(const String *blob, const char **error);
/* Outputs of jobs of one model. An error, or NULL. */
const char *network_run(const struct network *network, struct job *jobs);
/* Whether the source's first line says that its functions name kernels. */
int names_kernels(const String *source);
const char *kernel_run(struct job *job);

/* --- with libtorch -------------------------------------------------------- */

#ifdef WITH_TORCH
/* NULL, and *error; the text is good until this thread's next call. */
struct program *torch_model(const char *blob, size_t size,
                            const char **error);
struct program *torch_script(const char *source, size_t size,
                             const char **error);
void torch_drop(struct program *program);
/* Runs the function of a script, or of a model `forward`. Several jobs are one
 * run: their inputs follow each other along the first dimension. An error, as
 * above, or NULL. Outputs that were made are there either way. */
const char *torch_run(const struct program *program, const char *function,
                      struct job *jobs);
/* Operations of a run at once, in the whole process; before the first run. */
void torch_operations(int inter);
/* Threads that share the work of one operation of this thread. */
void torch_threads(int intra);
/* "1.13.0" */
const char *torch_version(void);
#endif

#endif
