/* Tensors: what AI.TENSORSET stores and kernels read and make. */
#ifndef TENSOR_H
#define TENSOR_H
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

/* A tensor of zeros, with memory of its own (blob NULL). NULL, and *error has
 * the reason. */
struct tensor *tensor_zeros(enum type type, const long long *shape, int dims,
                            const char **error);
struct tensor *tensor_hold(struct tensor *tensor);
void tensor_drop(struct tensor *tensor);

extern const char *const type_names[TYPES];
size_t type_size(enum type type);

/* "FLOAT 1 x 3 x 224 x 224" */
void tensor_words(const struct tensor *tensor, char *text, size_t size);

/* From argv[2] on: type, shape, data. */
struct tensor *tensor_parse(String **argv, int argc, const char **error);
/* Its type, shape and data, as AI.TENSORGET answers. */
void tensor_reply(Context *context, const struct tensor *tensor);
extern Type *tensor_type;
int tensor_register(Context *context);
/* A type of keys whose values are in no snapshot. */
Type *type_new(Context *context, const char *name,
               size_t (*size_of)(const void *), void (*drop)(void *));

/* Is the word the string, whatever the case of its letters? */
int is_word(const String *string, const char *word);
void reply_word(Context *context, const char *word);

#endif
