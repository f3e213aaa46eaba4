/* What the other files use: functions of the server, settings, tensors. */
#include "module.h"
#include <string.h>
#include <strings.h>

#define DEFINED(result, name, arguments) result (*RM_##name) arguments;
API(DEFINED)

struct settings settings = {1, 1, 1};

int is_word(const String *string, const char *word)
{
    size_t size;
    const char *text = RM_StringPtrLen(string, &size);
    return size == strlen(word) && !strncasecmp(text, word, size);
}

/* The largest string that a client can send; zeros take no more either. */
#define MAX_BYTES ((size_t)512 << 20)

const char *const type_names[TYPES] = {
    "FLOAT", "DOUBLE", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16",
    "BOOL"};
static const unsigned char sizes[TYPES] = {4, 8, 1, 2, 4, 8, 1, 2, 1};

struct tensor *tensor_new(enum type type, const long long *shape, int dims,
                          String *blob, const char **error)
{
    size_t length = 1, bytes = 0, size = 0;
    *error = "ERR invalid or negative value found in tensor shape";
    for (int i = 0; i < dims; i++)
        if (shape[i] <= 0 ||
            __builtin_mul_overflow(length, (size_t)shape[i], &length))
            return NULL;
    if (__builtin_mul_overflow(length, sizes[type], &bytes))
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
