/* Keys of the module: tensors, models and scripts. */
#include "module.h"

static const char wrong_type[] =
    "WRONGTYPE Operation against a key holding the wrong kind of value";
Type *tensor_type, *model_type, *script_type;

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

static size_t tensor_size(const void *value)
{
    const struct tensor *t = value;
    return sizeof *t + t->dims * sizeof *t->shape + t->bytes;
}

static void tensor_free(void *value)
{
    tensor_drop(value);
}

static size_t object_size(const void *value)
{
    const struct object *object = value;
    size_t size;
    RM_StringPtrLen(object->text, &size);
    return sizeof *object + size;
}

static void object_free(void *value)
{
    object_drop(value);
}

int types_register(Context *context)
{
    Methods methods = {.version = 3, .load = load, .save = save,
                       .rewrite = rewrite, .size = tensor_size,
                       .free = tensor_free};
    tensor_type = RM_CreateDataType(context, "AI-TENSOR", 0, &methods);
    methods.size = object_size;
    methods.free = object_free;
    model_type = RM_CreateDataType(context, "AI--MODEL", 0, &methods);
    script_type = RM_CreateDataType(context, "AI-SCRIPT", 0, &methods);
    return tensor_type && model_type && script_type ? GOOD : BAD;
}

/* --- keys ----------------------------------------------------------------- */

const char *put_tensor(Context *context, String *name, struct tensor *tensor)
{
    Key *key = RM_OpenKey(context, name, READ | WRITE);
    const char *error = NULL;
    if (RM_KeyType(key) == KEY_EMPTY)
        RM_ModuleTypeSetValue(key, tensor_type, tensor_hold(tensor));
    else if (RM_ModuleTypeGetType(key) == tensor_type) {
        void *old;
        RM_ModuleTypeReplaceValue(key, tensor_type, tensor_hold(tensor),
                                  &old);
        tensor_drop(old);
    } else
        error = wrong_type;
    RM_CloseKey(key);
    return error;
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

const char *put_object(Context *context, String *name, struct object *object)
{
    Type *type = object->script ? script_type : model_type;
    Key *key = RM_OpenKey(context, name, READ | WRITE);
    const char *error = NULL;
    if (RM_KeyType(key) != KEY_EMPTY && RM_ModuleTypeGetType(key) != type)
        error = wrong_type;
    else
        RM_ModuleTypeSetValue(key, type, object);
    RM_CloseKey(key);
    return error;
}

/* --- models and scripts --------------------------------------------------- */

void object_drop(struct object *object)
{
    if (__atomic_sub_fetch(&object->refs, 1, __ATOMIC_ACQ_REL))
        return;
    RM_FreeString(NULL, object->text);
#ifdef WITH_TORCH
    torch_drop(object->program);
#endif
    RM_Free(object);
}
