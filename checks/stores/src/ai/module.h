/* Tensors, models and scripts as keys hold them, and what runs them. */
#ifndef MODULE_H
#define MODULE_H
#include "api.h"

enum type { FLOAT, DOUBLE, INT8, INT16, INT32, INT64, UINT8, UINT16, BOOL,
            TYPES };
enum { MAX_DIMS = 32 };

extern Type *tensor_type, *model_type, *script_type;

/* Every value of a key begins with this. A value is never changed once it is in a
 * key; a user holds a reference. */
struct value {
    Type *of;
    int refs;
};
void *hold(void *value);
void drop(void *value);                 /* or NULL */

struct tensor {
    struct value value;
    unsigned char type, dims;
    /* The server's string that holds the data, or NULL: it is our own. */
    String *blob;
    char *data;
    size_t bytes, length;
    long long shape[];
};

extern const char *const type_names[TYPES];
/* A tensor that holds the string, or without one has zeros in memory of its
 * own. NULL, and *error has the reason. */
struct tensor *tensor_new(enum type type, const long long *shape, int dims,
                          String *blob, const char **error);

/* A model or a script. */
struct object {
    struct value value;
    struct queue *queue;
    long long batch;                    /* rows of a run; 0: no batches */
    struct program *program;
    void (*drop)(struct program *);
};

/* A request that a queue runs: one input and one output, as the applications
 * of SmartSim-Scaling send them. */
struct job {
    struct job *next;
    Blocked *client;
    struct object *object;
    String *name;                       /* of the output */
    struct tensor *in, *out;
    char function[128];                 /* of a script; empty: a model */
    char error[300];
};

/* The functions of the server: the name of a missing one, or NULL. */
const char *take_api(Context *context);
/* Whether the word is the string, whatever the case of its letters. */
int is_word(const String *string, const char *word);

/* NAME n pairs behind the path of the module; RedisAI's names. An error, or NULL. */
extern struct settings {
    long long threads_per_queue, inter_op, intra_op;
} settings;
const char *take_settings(String **argv, int argc);

/* Creates the types of keys; GOOD or BAD. */
int types_register(Context *context);
Command tensor_set, tensor_get, model_store, script_set, model_execute,
    script_run;

/* The key takes the reference to the value, which is dropped if this is an error.
 * Replies to the client. */
int put(Context *context, String *name, void *value);
/* The value of a key of the type, or NULL; *error has the reason, `empty` if
 * there is no such key. */
void *value_at(Context *context, String *name, Type *type, const char *empty,
               const char **error);

/* The queue of "CPU" or "CPU:2", made if new. NULL, and *error. */
struct queue *queue_named(const String *name, const char **error);

/* --- programs: torch.cpp with libtorch, standin.c without ------------------ */

/* "libtorch 1.13.0" or "stand-in" */
const char *program_version(void);
/* Applies the settings of the process, and of a thread of a queue. An error, or
 * NULL. */
const char *programs_begin(void);
void programs_begin_thread(void);
/* From a model's blob or a script's source. NULL, and *error, which is good until
 * this thread's next call. */
struct program *program_of_model(const char *blob, size_t size,
                                 const char **error);
struct program *program_of_script(const char *source, size_t size,
                                  const char **error);
void program_drop(struct program *program);
/* Runs a model, or the function of a script: the outputs of jobs of one object,
 * whose inputs differ only in their rows. An error, as above, or NULL. */
const char *program_run(struct program *program, struct job *jobs);

#endif
