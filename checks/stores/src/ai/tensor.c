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

struct tensor *tensor_of(enum type type, const long long *shape, int dims,
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

static void reply_word(Context *context, const char *word)
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

static void shape_strings(const struct tensor *t, String **shape)
{
    for (int i = 0; i < t->dims; i++) {
        char text[24];
        int size = snprintf(text, sizeof text, "%lld", t->shape[i]);
        shape[i] = RM_CreateString(NULL, text, size);
    }
}

static void shape_free(const struct tensor *t, String **shape)
{
    for (int i = 0; i < t->dims; i++)
        RM_FreeString(NULL, shape[i]);
}

void tensor_replicate(Context *context, String *key, const struct tensor *t)
{
    String *shape[MAX_DIMS];
    shape_strings(t, shape);
    RM_Replicate(context, "AI.TENSORSET", "scvcb", key, type_names[t->type],
                 shape, (size_t)t->dims, "BLOB", t->data, t->bytes);
    shape_free(t, shape);
}

static void rewrite(Io *io, String *key, void *value)
{
    const struct tensor *t = value;
    String *shape[MAX_DIMS];
    shape_strings(t, shape);
    RM_EmitAOF(io, "AI.TENSORSET", "scvcb", key, type_names[t->type], shape,
               (size_t)t->dims, "BLOB", t->data, t->bytes);
    shape_free(t, shape);
}

/* A snapshot holds type, number of dimensions, shape, data. */
static void save(Io *io, void *value)
{
    const struct tensor *t = value;
    RM_SaveUnsigned(io, t->type);
    RM_SaveUnsigned(io, t->dims);
    for (int i = 0; i < t->dims; i++)
        RM_SaveUnsigned(io, t->shape[i]);
    RM_SaveStringBuffer(io, t->data, t->bytes);
}

/* Also from RESTORE: a payload is not to be trusted. */
static void *load(Io *io, int version)
{
    const char *error = "an encoding of another version";
    struct tensor *t = NULL;
    if (version == 0) {
        error = "damaged";
        uint64_t type = RM_LoadUnsigned(io), dims = RM_LoadUnsigned(io);
        if (RM_IsIOError(io) || type >= TYPES || dims > MAX_DIMS)
            goto bad;
        long long shape[MAX_DIMS];
        for (unsigned i = 0; i < dims; i++) {
            shape[i] = (long long)RM_LoadUnsigned(io);
            if (RM_IsIOError(io))
                goto bad;
        }
        String *blob = RM_LoadString(io);
        if (!blob || RM_IsIOError(io)) {
            if (blob)
                RM_FreeString(NULL, blob);
            goto bad;
        }
        t = tensor_of((enum type)type, shape, (int)dims, blob, &error);
        RM_FreeString(NULL, blob);
    }
bad:
    if (!t)
        RM_LogIOError(io, "warning", "a tensor in a snapshot is no tensor: "
                      "%s", error);
    return t;
}

static size_t size_of(const void *value)
{
    const struct tensor *t = value;
    return sizeof *t + t->dims * sizeof *t->shape + t->bytes;
}

static void *copy(String *from, String *to, const void *value)
{
    (void)from, (void)to;
    return tensor_hold((struct tensor *)value);
}

static void free_value(void *value)
{
    tensor_drop(value);
}

int tensor_register(Context *context)
{
    Methods methods = {.version = 3, .load = load, .save = save,
                       .rewrite = rewrite, .size = size_of,
                       .free = free_value, .copy = copy};
    tensor_type = RM_CreateDataType(context, "AI-TENSOR", 0, &methods);
    return tensor_type ? GOOD : BAD;
}
