#include "tensor.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* The largest string that a client can send; zeros take no more either. */
#define MAX_BYTES ((size_t)512 << 20)

const char *const type_names[TYPES] = {
    "FLOAT", "DOUBLE", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16",
    "BOOL"};
static const unsigned char sizes[TYPES] = {4, 8, 1, 2, 4, 8, 1, 2, 1};
static const char mismatch[] =
    "ERR data length does not match tensor shape and type";
Type *tensor_type;

/* --- types of keys: values are in memory only ----------------------------- */

/* The server calls these two for each key, whether a module has them or not.
 */
static void save(Io *io, void *value)
{
    (void)io, (void)value;
}

static void rewrite(Io *io, String *key, void *value)
{
    (void)io, (void)key, (void)value;
}

static void *load(Io *io, int version)
{
    (void)version;
    RM_LogIOError(io, "warning", "plumbline ai: this snapshot has keys of the "
                  "module, but not their values, which are in memory only: "
                  "remove the snapshot, and start the server with save ''");
    return NULL;
}

Type *type_new(Context *context, const char *name,
               size_t (*size_of)(const void *), void (*drop)(void *))
{
    Methods methods = {.version = 3, .load = load, .save = save,
                       .rewrite = rewrite, .size = size_of, .free = drop};
    return RM_CreateDataType(context, name, 0, &methods);
}

/* --- tensors -------------------------------------------------------------- */

size_t type_size(enum type type)
{
    return sizes[type];
}

int is_word(const String *string, const char *word)
{
    size_t size;
    const char *text = RM_StringPtrLen(string, &size);
    return size == strlen(word) && !strncasecmp(text, word, size);
}

/* Without data. */
static struct tensor *tensor_new(enum type type, const long long *shape,
                                 int dims, const char **error)
{
    size_t length = 1, bytes;
    for (int i = 0; i < dims; i++)
        if (shape[i] <= 0 ||
            __builtin_mul_overflow(length, (size_t)shape[i], &length)) {
            *error = "ERR invalid or negative value found in tensor shape";
            return NULL;
        }
    if (__builtin_mul_overflow(length, type_size(type), &bytes)) {
        *error = "ERR invalid or negative value found in tensor shape";
        return NULL;
    }
    struct tensor *t = RM_Alloc(sizeof *t + dims * sizeof *shape);
    *t = (struct tensor){.refs = 1, .type = type, .dims = dims,
                         .length = length, .bytes = bytes};
    if (dims)
        memcpy(t->shape, shape, dims * sizeof *shape);
    return t;
}

/* Does the data fit its shape and type? */
static const char *fault(const struct tensor *t, const char *data,
                         size_t size)
{
    if (size != t->bytes)
        return mismatch;
    if (t->type == BOOL)
        for (size_t i = 0; i < size; i++)
            if (data[i] & ~1)
                return "ERR BOOL tensor elements must be 0 or 1";
    return NULL;
}

/* A tensor that holds a client's string. NULL, and *error has the reason. */
static struct tensor *tensor_of(enum type type, const long long *shape, int dims,
                                String *blob, const char **error)
{
    struct tensor *t = tensor_new(type, shape, dims, error);
    if (!t)
        return NULL;
    size_t size;
    const char *data = RM_StringPtrLen(blob, &size);
    if ((*error = fault(t, data, size))) {
        RM_Free(t);
        return NULL;
    }
    /* No copy: as SET does, the key keeps what the client sent. */
    t->blob = RM_HoldString(NULL, blob);
    t->data = (char *)RM_StringPtrLen(t->blob, &t->bytes);
    return t;
}

struct tensor *tensor_zeros(enum type type, const long long *shape, int dims,
                            const char **error)
{
    struct tensor *t = tensor_new(type, shape, dims, error);
    if (!t)
        return NULL;
    if (t->bytes > MAX_BYTES) {
        *error = "ERR a tensor has at most 512 MiB";
        RM_Free(t);
        return NULL;
    }
    t->data = RM_Calloc(1, t->bytes);
    return t;
}

struct tensor *tensor_hold(struct tensor *tensor)
{
    __atomic_add_fetch(&tensor->refs, 1, __ATOMIC_RELAXED);
    return tensor;
}

void tensor_drop(struct tensor *tensor)
{
    if (!tensor || __atomic_sub_fetch(&tensor->refs, 1, __ATOMIC_ACQ_REL))
        return;
    if (tensor->blob)
        RM_FreeString(NULL, tensor->blob);
    else
        RM_Free(tensor->data);
    RM_Free(tensor);
}

void tensor_words(const struct tensor *tensor, char *text, size_t size)
{
    size_t used = snprintf(text, size, "%s", type_names[tensor->type]);
    for (int i = 0; i < tensor->dims && used < size; i++)
        used += snprintf(text + used, size - used, "%s%lld",
                         i ? " x " : " ", tensor->shape[i]);
}

struct tensor *tensor_parse(String **argv, int argc, const char **error)
{
    int type = 0, dims = 0, at = 3;
    while (type < TYPES && !is_word(argv[2], type_names[type]))
        type++;
    if (type == TYPES) {
        *error = "ERR invalid data type";
        return NULL;
    }
    long long shape[MAX_DIMS], size;
    unsigned long long length = 1;
    for (; at < argc; at++) {
        if (RM_StringToLongLong(argv[at], &size) != GOOD) {
            if (is_word(argv[at], "BLOB")) {
                if (argc - at == 2)
                    return tensor_of(type, shape, dims, argv[at + 1], error);
                *error = "ERR a single binary string should come after the "
                         "BLOB argument in 'AI.TENSORSET' command";
                return NULL;
            }
            size = 0;
        }
        if (size <= 0 || __builtin_mul_overflow(length, size, &length)) {
            *error = "ERR invalid or negative value found in tensor shape";
            return NULL;
        }
        if (dims == MAX_DIMS) {
            *error = "ERR a tensor has at most 32 dimensions";
            return NULL;
        }
        shape[dims++] = size;
    }
    /* No data: zeros. */
    return tensor_zeros(type, shape, dims, error);
}

void reply_word(Context *context, const char *word)
{
    RM_ReplyWithStringBuffer(context, word, strlen(word));
}

void tensor_reply(Context *context, const struct tensor *t)
{
    RM_ReplyWithArray(context, 6);
    reply_word(context, "dtype");
    reply_word(context, type_names[t->type]);
    reply_word(context, "shape");
    RM_ReplyWithArray(context, t->dims);
    for (int i = 0; i < t->dims; i++)
        RM_ReplyWithLongLong(context, t->shape[i]);
    reply_word(context, "blob");
    if (t->blob)
        RM_ReplyWithString(context, t->blob);
    else
        RM_ReplyWithStringBuffer(context, t->data, t->bytes);
}

static size_t size_of(const void *value)
{
    const struct tensor *t = value;
    return sizeof *t + t->dims * sizeof *t->shape + t->bytes;
}

static void free_value(void *value)
{
    tensor_drop(value);
}

int tensor_register(Context *context)
{
    tensor_type = type_new(context, "AI-TENSOR", size_of, free_value);
    return tensor_type ? GOOD : BAD;
}
