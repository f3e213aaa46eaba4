/* Tensors: AI.TENSORSET and AI.TENSORGET. */
#include "module.h"
#include <string.h>
#include <strings.h>

/* The largest string that a client can send; zeros take no more either. */
#define MAX_BYTES ((size_t)512 << 20)

const char *const type_names[TYPES] = {
    "FLOAT", "DOUBLE", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16",
    "BOOL"};
static const unsigned char sizes[TYPES] = {4, 8, 1, 2, 4, 8, 1, 2, 1};

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

struct tensor *tensor_new(enum type type, const long long *shape, int dims,
                          String *blob, const char **error)
{
    size_t length = 1, bytes = 0, size = 0;
    *error = "ERR invalid or negative value found in tensor shape";
    for (int i = 0; i < dims; i++)
        if (shape[i] <= 0 ||
            __builtin_mul_overflow(length, (size_t)shape[i], &length))
            return NULL;
    if (__builtin_mul_overflow(length, type_size(type), &bytes))
        return NULL;
    if (blob)
        RM_StringPtrLen(blob, &size);
    *error = blob && size != bytes
        ? "ERR data length does not match tensor shape and type"
        : bytes > MAX_BYTES ? "ERR a tensor has at most 512 MiB" : NULL;
    if (*error)
        return NULL;
    struct tensor *t = RM_Alloc(sizeof *t + dims * sizeof *shape);
    *t = (struct tensor){.refs = 1, .type = type, .dims = dims,
                         .length = length, .bytes = bytes};
    if (dims)
        memcpy(t->shape, shape, dims * sizeof *shape);
    /* No copy: as SET does, the key keeps what the client sent. */
    t->blob = blob ? RM_HoldString(NULL, blob) : NULL;
    t->data = blob ? (char *)RM_StringPtrLen(t->blob, NULL)
                   : RM_Calloc(1, bytes);
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

/* From argv[2] on: type, shape, data. */
static struct tensor *tensor_parse(String **argv, int argc,
                                   const char **error)
{
    int type = 0, dims = 0, at = 3;
    while (type < TYPES && !is_word(argv[2], type_names[type]))
        type++;
    if (type == TYPES) {
        *error = "ERR invalid data type";
        return NULL;
    }
    long long shape[MAX_DIMS];
    for (; at < argc && !is_word(argv[at], "BLOB"); at++, dims++) {
        if (dims == MAX_DIMS) {
            *error = "ERR a tensor has at most 32 dimensions";
            return NULL;
        }
        if (RM_StringToLongLong(argv[at], &shape[dims]) != GOOD)
            shape[dims] = 0;            /* refused like a zero */
    }
    if (at == argc || argc - at == 2)
        return tensor_new(type, shape, dims,
                          at == argc ? NULL : argv[at + 1], error);
    *error = "ERR a single binary string should come after the BLOB argument "
             "in 'AI.TENSORSET' command";
    return NULL;
}

/* AI.TENSORSET key type dims.. [BLOB data] */
int tensor_set(Context *context, String **argv, int argc)
{
    if (argc < 4)
        return RM_WrongArity(context);
    const char *error = NULL;
    struct tensor *tensor = tensor_parse(argv, argc, &error);
    if (tensor)
        error = put_tensor(context, argv[1], tensor);
    tensor_drop(tensor);
    return error ? RM_ReplyWithError(context, error)
                 : RM_ReplyWithSimpleString(context, "OK");
}

static void reply_word(Context *context, const char *word)
{
    RM_ReplyWithStringBuffer(context, word, strlen(word));
}

/* AI.TENSORGET key META BLOB */
int tensor_get(Context *context, String **argv, int argc)
{
    if (argc != 4)
        return RM_WrongArity(context);
    if (!is_word(argv[2], "META") || !is_word(argv[3], "BLOB"))
        return RM_ReplyWithError(context, "ERR unsupported data format");
    const char *error = NULL;
    const struct tensor *t =
        value_at(context, argv[1], tensor_type,
                 "ERR tensor key is empty or in a different shard", &error);
    if (!t)
        return RM_ReplyWithError(context, error);
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
    return GOOD;
}
