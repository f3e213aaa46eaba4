/* Keys, whose values are tensors, models and scripts. */
#include "module.h"

Type *tensor_type, *model_type, *script_type;

/* --- models and scripts --------------------------------------------------- */

void object_drop(struct object *object)
{
    if (__atomic_sub_fetch(&object->refs, 1, __ATOMIC_ACQ_REL))
        return;
    program_drop(object->program);
    RM_Free(object);
}

/* --- types of keys: values are in memory only, and not in snapshots -------- */

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

static void tensor_free(void *value)
{
    tensor_drop(value);
}

static void object_free(void *value)
{
    object_drop(value);
}

int types_register(Context *context)
{
    Methods methods = {.version = 3, .load = load, .save = save,
                       .rewrite = rewrite, .free = tensor_free};
    tensor_type = RM_CreateDataType(context, "AI-TENSOR", 0, &methods);
    methods.free = object_free;
    model_type = RM_CreateDataType(context, "AI--MODEL", 0, &methods);
    script_type = RM_CreateDataType(context, "AI-SCRIPT", 0, &methods);
    return tensor_type && model_type && script_type ? GOOD : BAD;
}

/* --- keys ----------------------------------------------------------------- */

static const char wrong_type[] =
    "WRONGTYPE Operation against a key holding the wrong kind of value";

const char *put(Context *context, String *name, Type *type, void *value)
{
    Key *key = RM_OpenKey(context, name, READ | WRITE);
    const char *error = NULL;
    void *old;
    if (RM_KeyType(key) == KEY_EMPTY)
        RM_ModuleTypeSetValue(key, type, value);
    else if (RM_ModuleTypeGetType(key) != type)
        error = wrong_type;
    else {
        /* SetValue would delete and insert the key: 9 % of CPU time at 1 KiB. */
        RM_ModuleTypeReplaceValue(key, type, value, &old);
        type == tensor_type ? tensor_drop(old) : object_drop(old);
    }
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
