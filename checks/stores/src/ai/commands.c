/* Commands that store and return tensors, models and scripts. */
#include "module.h"
#include <string.h>

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

/* The object becomes the value of the key, or is dropped. */
static int store(Context *context, String **argv, struct object *object,
                 const char *error)
{
    if (!error)
        error = put_object(context, argv[1], object);
    if (error)
        object_drop(object);
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
