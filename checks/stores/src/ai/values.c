/* Values of keys: tensors, models and scripts, in memory only, not in snapshots. */
#include "module.h"
#include <string.h>

/* The largest string that a client can send; zeros take no more either. */
#define MAX_BYTES ((size_t)512 << 20)

Type *tensor_type, *model_type, *script_type;

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
    *t = (struct tensor){{tensor_type, 1}, .type = type, .dims = dims,
                         .length = length, .bytes = bytes};
    if (dims)
        memcpy(t->shape, shape, dims * sizeof *shape);
    /* No copy: as SET does, the key keeps what the client sent. */
    t->blob = blob ? RM_HoldString(NULL, blob) : NULL;
    t->data = blob ? (char *)RM_StringPtrLen(t->blob, NULL)
                   : RM_Calloc(1, bytes);
    return t;
}

void *hold(void *value)
{
    __atomic_add_fetch(&((struct value *)value)->refs, 1, __ATOMIC_RELAXED);
    return value;
}

void drop(void *value)
{
    struct value *v = value;
    struct tensor *tensor = value;
    struct object *object = value;
    if (!v || __atomic_sub_fetch(&v->refs, 1, __ATOMIC_ACQ_REL))
        return;
    if (v->of != tensor_type)
        object->drop(object->program);
    else if (tensor->blob)
        RM_FreeString(NULL, tensor->blob);
    else
        RM_Free(tensor->data);
    RM_Free(value);
}

/* --- types of keys: the server calls all of these -------------------------- */

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
    (void)io, (void)version;
    return NULL;
}

int types_register(Context *context)
{
    Methods methods = {.version = 3, .load = load, .save = save,
                       .rewrite = rewrite, .free = drop};
    tensor_type = RM_CreateDataType(context, "AI-TENSOR", 0, &methods);
    model_type = RM_CreateDataType(context, "AI--MODEL", 0, &methods);
    script_type = RM_CreateDataType(context, "AI-SCRIPT", 0, &methods);
    return tensor_type && model_type && script_type ? GOOD : BAD;
}

/* --- keys ----------------------------------------------------------------- */

static const char wrong_type[] =
    "WRONGTYPE Operation against a key holding the wrong kind of value";

int put(Context *context, String *name, void *value)
{
    Key *key = RM_OpenKey(context, name, READ | WRITE);
    Type *type = ((struct value *)value)->of;
    void *old = NULL;
    if (RM_KeyType(key) == KEY_EMPTY)
        RM_ModuleTypeSetValue(key, type, value);
    else if (RM_ModuleTypeGetType(key) == type)
        /* SetValue would delete and insert the key: 9 % of CPU time at 1 KiB. */
        RM_ModuleTypeReplaceValue(key, type, value, &old);
    else
        old = value;
    RM_CloseKey(key);
    drop(old);
    return old == value ? RM_ReplyWithError(context, wrong_type)
                        : RM_ReplyWithSimpleString(context, "OK");
}

void *value_at(Context *context, String *name, Type *type, const char *empty,
               const char **error)
{
    Key *key = RM_OpenKey(context, name, READ);
    void *value = NULL;
    if (RM_KeyType(key) == KEY_EMPTY)
        *error = empty;
    else if (RM_ModuleTypeGetType(key) != type)
        *error = wrong_type;
    else
        value = RM_ModuleTypeGetValue(key);
    RM_CloseKey(key);
    return value;
}
