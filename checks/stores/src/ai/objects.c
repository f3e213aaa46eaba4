/* Keys of the module, and commands that store models and scripts. */
#include "module.h"
#include <string.h>

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

/* The object becomes the value of the key, or is dropped. */
static int store(Context *context, String **argv, struct object *object,
                 const char *error)
{
    Type *type = object->script ? script_type : model_type;
    Key *key = error ? NULL : RM_OpenKey(context, argv[1], READ | WRITE);
    if (!error && RM_KeyType(key) != KEY_EMPTY &&
        RM_ModuleTypeGetType(key) != type)
        error = wrong_type;
    if (error)
        object_drop(object);
    else
        RM_ModuleTypeSetValue(key, type, object);
    if (key)
        RM_CloseKey(key);
    return error ? RM_ReplyWithError(context, error)
                 : RM_ReplyWithSimpleString(context, "OK");
}

static struct object *object_new(int script, struct queue *queue,
                                 String *text)
{
    struct object *object = RM_Calloc(1, sizeof *object);
    *object = (struct object){.refs = 1, .script = script, .queue = queue,
                              .text = RM_HoldString(NULL, text)};
    return object;
}

/* AI.MODELSTORE key TORCH device [TAG t] [BATCHSIZE n] BLOB blob */
int model_store(Context *context, String **argv, int argc)
{
    const char *error = NULL;
    long long batch = 0;
    int at = 4;
    if (argc < 6)
        return RM_WrongArity(context);
    if (!is_word(argv[2], "TORCH"))
        return RM_ReplyWithError(context, "ERR Could not load backend: this "
                                 "stand-in has TORCH alone");
    struct queue *queue = queue_named(argv[3], &error);
    if (!queue)
        return RM_ReplyWithError(context, error);
    if (is_word(argv[at], "TAG"))
        at += 2;
    if (at + 1 < argc && is_word(argv[at], "BATCHSIZE")) {
        if (RM_StringToLongLong(argv[at + 1], &batch) != GOOD || batch < 0)
            return RM_ReplyWithError(context,
                                     "ERR Invalid argument for BATCHSIZE");
        at += 2;
    }
    if (argc - at != 2 || !is_word(argv[at], "BLOB"))
        return RM_ReplyWithError(context, "ERR this stand-in takes [TAG t] "
                                 "[BATCHSIZE n] BLOB and one blob");
    struct object *model = object_new(0, queue, argv[at + 1]);
    model->batch = batch;
    model->network = network_of_blob(model->text, &error);
#ifdef WITH_TORCH
    size_t size;
    const char *blob = RM_StringPtrLen(model->text, &size);
    if (!error && !model->network)
        model->program = torch_model(blob, size, &error);
#else
    if (!error && !model->network)
        error = "ERR this module was built without libtorch: a blob's first "
                "line must be 'plumbline-network 1 NAME'";
#endif
    return store(context, argv, model, error);
}

/* AI.SCRIPTSET key device [TAG t] SOURCE s */
int script_set(Context *context, String **argv, int argc)
{
    const char *error = NULL;
    if (argc != 5 && argc != 7)
        return RM_WrongArity(context);
    struct queue *queue = queue_named(argv[2], &error);
    if (!queue)
        return RM_ReplyWithError(context, error);
    if (!is_word(argv[argc - 2], "SOURCE"))
        return RM_ReplyWithError(context, "ERR Insufficient arguments, "
                                 "missing script SOURCE");
    struct object *script = object_new(1, queue, argv[argc - 1]);
    script->marked = names_kernels(script->text);
#ifdef WITH_TORCH
    size_t size;
    const char *source = RM_StringPtrLen(script->text, &size);
    if (!script->marked)
        script->program = torch_script(source, size, &error);
#else
    if (!script->marked)
        error = "ERR this module was built without libtorch: a script's "
                "first line must be '# plumbline-kernels 1'";
#endif
    return store(context, argv, script, error);
}
