/* Commands that store and return tensors, models and scripts. */
#include "module.h"
#include <string.h>

/* AI.TENSORSET key type dims.. [BLOB data] */
int tensor_set(Context *context, String **argv, int argc)
{
    if (argc < 4)
        return RM_WrongArity(context);
    String *blob = argc > 4 && is_word(argv[argc - 2], "BLOB") ? argv[argc - 1]
                                                             : NULL;
    int type = 0, dims = argc - (blob ? 5 : 3);
    while (type < TYPES && !is_word(argv[2], type_names[type]))
        type++;
    if (type == TYPES)
        return RM_ReplyWithError(context, "ERR invalid data type");
    if (dims > MAX_DIMS)
        return RM_ReplyWithError(context, "ERR a tensor has at most 32 "
                                 "dimensions");
    long long shape[MAX_DIMS];
    for (int i = 0; i < dims; i++)
        if (RM_StringToLongLong(argv[3 + i], &shape[i]) != GOOD)
            shape[i] = 0;               /* refused like a zero */
    const char *error = NULL;
    struct tensor *tensor = tensor_new(type, shape, dims, blob, &error);
    return tensor ? put(context, argv[1], tensor)
                  : RM_ReplyWithError(context, error);
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

/* Reads the program of a model or a script, which becomes the value of the key. */
static int store(Context *context, String **argv, Type *type,
                 struct queue *queue, long long batch, const String *text)
{
    const char *error = NULL;
    size_t size;
    const char *blob = RM_StringPtrLen(text, &size);
    struct program *program = type == model_type
        ? program_of_model(blob, size, &error)
        : program_of_script(blob, size, &error);
    if (!program)
        return RM_ReplyWithError(context, error);
    struct object *object = RM_Alloc(sizeof *object);
    *object = (struct object){{type, 1}, queue, batch, program, program_drop};
    return put(context, argv[1], object);
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
    return store(context, argv, model_type, queue, batch, argv[at + 1]);
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
    return store(context, argv, script_type, queue, 0, argv[argc - 1]);
}
