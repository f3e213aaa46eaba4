/* A module for Redis, Valkey and KeyDB that answers the commands of RedisAI
 * which SmartRedis sends, with built-in networks and kernels. */
#include "devices.h"
#include "run.h"
#include "torch.h"
#include <stdio.h>

enum { VERSION = 100 };

static const char bad_format[] = "ERR unsupported data format";

/* --- tensors -------------------------------------------------------------- */

/* AI.TENSORSET key type dims.. [BLOB data] */
static int tensor_set(Context *context, String **argv, int argc)
{
    if (argc < 4)
        return RM_WrongArity(context);
    const char *error = NULL;
    struct tensor *tensor = tensor_parse(argv, argc, &error);
    if (tensor)
        error = put_tensor(context, argv[1], tensor);
    tensor_drop(tensor);
    if (error)
        return RM_ReplyWithError(context, error);
    return RM_ReplyWithSimpleString(context, "OK");
}

/* AI.TENSORGET key META BLOB */
static int tensor_get(Context *context, String **argv, int argc)
{
    if (argc != 4)
        return RM_WrongArity(context);
    if (!is_word(argv[2], "META") || !is_word(argv[3], "BLOB"))
        return RM_ReplyWithError(context, bad_format);
    const char *error = NULL;
    struct tensor *tensor =
        value_at(context, argv[1], tensor_type,
                 "ERR tensor key is empty or in a different shard", &error);
    if (!tensor)
        return RM_ReplyWithError(context, error);
    tensor_reply(context, tensor);
    return GOOD;
}

/* --- models and scripts --------------------------------------------------- */

static int store(Context *context, String **argv, struct object *object,
                 const char *error)
{
    if (!object)
        return RM_ReplyWithError(context, error);
    Type *type = object->script ? script_type : model_type;
    Key *key = RM_OpenKey(context, argv[1], READ | WRITE);
    if (RM_KeyType(key) != KEY_EMPTY && RM_ModuleTypeGetType(key) != type) {
        RM_CloseKey(key);
        object_drop(object);
        return RM_ReplyWithError(context, "WRONGTYPE Operation against a key "
                                 "holding the wrong kind of value");
    }
    RM_ModuleTypeSetValue(key, type, object);
    RM_CloseKey(key);
    return RM_ReplyWithSimpleString(context, "OK");
}

/* AI.MODELSTORE key backend device [TAG t] [BATCHSIZE n [MINBATCHSIZE m
 * [MINBATCHTIMEOUT t]]] [INPUTS n .. OUTPUTS n ..] BLOB chunk.. */
static int model_store(Context *context, String **argv, int argc)
{
    if (argc < 6)
        return RM_WrongArity(context);
    const char *error = NULL;
    struct object *model = model_parse(argv, argc, &error);
    return store(context, argv, model, error);
}

/* AI.SCRIPTSET key device [TAG t] SOURCE s */
static int script_set(Context *context, String **argv, int argc)
{
    if (argc != 5 && argc != 7)
        return RM_WrongArity(context);
    const char *error = NULL;
    struct object *script = script_parse(argv, argc, &error);
    return store(context, argv, script, error);
}

static int delete(Context *context, String **argv, int argc, Type *type,
                  const char *empty)
{
    if (argc != 2)
        return RM_WrongArity(context);
    const char *error = NULL;
    if (!value_at(context, argv[1], type, empty, &error))
        return RM_ReplyWithError(context, error);
    Key *key = RM_OpenKey(context, argv[1], READ | WRITE);
    RM_DeleteKey(key);
    RM_CloseKey(key);
    return RM_ReplyWithSimpleString(context, "OK");
}

static int model_delete(Context *context, String **argv, int argc)
{
    return delete(context, argv, argc, model_type, "ERR model key is empty");
}

static int script_delete(Context *context, String **argv, int argc)
{
    return delete(context, argv, argc, script_type,
                  "ERR script key is empty");
}

static void reply_text(Context *context, const struct object *object)
{
    if (object->held)
        RM_ReplyWithString(context, object->held);
    else
        RM_ReplyWithStringBuffer(context, object->text, object->size);
}

static void reply_chunks(Context *context, const struct object *model)
{
    size_t chunk = settings.chunk;
    if (model->size <= chunk) {
        reply_text(context, model);
        return;
    }
    RM_ReplyWithArray(context, (long)((model->size + chunk - 1) / chunk));
    for (size_t at = 0; at < model->size; at += chunk)
        RM_ReplyWithStringBuffer(context, model->text + at,
                                 model->size - at < chunk
                                 ? model->size - at : chunk);
}

static void reply_number(Context *context, const char *name, long long value)
{
    reply_word(context, name);
    RM_ReplyWithLongLong(context, value);
}

static void reply_place(Context *context, const struct object *object)
{
    reply_word(context, "device");
    reply_word(context, device_name(object->device));
    reply_word(context, "tag");
    RM_ReplyWithStringBuffer(context, object->tag, object->tag_size);
}

/* AI.MODELGET key BLOB */
static int model_get(Context *context, String **argv, int argc)
{
    if (argc != 3)
        return RM_WrongArity(context);
    if (!is_word(argv[2], "BLOB"))
        return RM_ReplyWithError(context, bad_format);
    const char *error = NULL;
    const struct object *model = value_at(context, argv[1], model_type,
                                          "ERR model key is empty", &error);
    if (!model)
        return RM_ReplyWithError(context, error);
    reply_chunks(context, model);
    return GOOD;
}

/* AI.SCRIPTGET key SOURCE */
static int script_get(Context *context, String **argv, int argc)
{
    if (argc != 3)
        return RM_WrongArity(context);
    if (!is_word(argv[2], "SOURCE"))
        return RM_ReplyWithError(context, bad_format);
    const char *error = NULL;
    const struct object *script = value_at(context, argv[1], script_type,
                                           "ERR script key is empty", &error);
    if (!script)
        return RM_ReplyWithError(context, error);
    reply_text(context, script);
    return GOOD;
}

/* AI.INFO key [RESETSTAT] */
static int info(Context *context, String **argv, int argc)
{
    if (argc < 2 || argc > 3)
        return RM_WrongArity(context);
    Key *key = RM_OpenKey(context, argv[1], READ);
    Type *type = RM_KeyType(key) == KEY_MODULE ? RM_ModuleTypeGetType(key)
                                               : NULL;
    struct object *object = type && (type == model_type ||
                                     type == script_type)
        ? RM_ModuleTypeGetValue(key) : NULL;
    RM_CloseKey(key);
    if (!object)
        return RM_ReplyWithError(context,
                                 "ERR cannot find run info for key");
    unsigned long long *figures[] = {&object->duration, &object->samples,
                                     &object->calls, &object->errors};
    if (argc == 3 && is_word(argv[2], "RESETSTAT")) {
        for (int i = 0; i < 4; i++)
            __atomic_store_n(figures[i], 0, __ATOMIC_RELAXED);
        return RM_ReplyWithSimpleString(context, "OK");
    }
    static const char *const names[] = {"duration", "samples", "calls",
                                        "errors"};
    RM_ReplyWithArray(context, 18);
    reply_word(context, "key");
    RM_ReplyWithString(context, argv[1]);
    reply_word(context, "type");
    reply_word(context, object->script ? "SCRIPT" : "MODEL");
    reply_word(context, "backend");
    reply_word(context, "TORCH");
    reply_place(context, object);
    for (int i = 0; i < 4; i++)
        reply_number(context, names[i], i == 1 && object->script ? -1 :
                     (long long)__atomic_load_n(figures[i],
                                                __ATOMIC_RELAXED));
    return GOOD;
}

/* --- settings ------------------------------------------------------------- */

/* AI.CONFIG GET MODEL_CHUNK_SIZE | MODEL_CHUNK_SIZE n */
static int config(Context *context, String **argv, int argc)
{
    if (argc != 3)
        return RM_WrongArity(context);
    if (is_word(argv[1], "GET") && is_word(argv[2], "MODEL_CHUNK_SIZE"))
        return RM_ReplyWithLongLong(context, settings.chunk);
    if (!is_word(argv[1], "MODEL_CHUNK_SIZE"))
        return RM_ReplyWithError(context, "ERR unsupported subcommand");
    long long size;
    /* Chunks of a few bytes would make a reply of millions. */
    if (RM_StringToLongLong(argv[2], &size) != GOOD || size < 1024)
        return RM_ReplyWithError(context, "ERR MODEL_CHUNK_SIZE: invalid "
                                 "chunk size");
    settings.chunk = size;
    return RM_ReplyWithSimpleString(context, "OK");
}

static void module_info(Info *to, int crashed)
{
    if (crashed)
        return;                         /* a lock may be held */
    RM_InfoAddSection(to, "module");
    RM_InfoAddFieldCString(to, "program", "plumbline embedded");
    RM_InfoAddFieldULongLong(to, "version", VERSION);
#ifdef WITH_TORCH
    RM_InfoAddFieldCString(to, "libtorch", (char *)torch_version());
#endif
    RM_InfoAddFieldCString(to, "networks", (char *)network_names);
    RM_InfoAddFieldULongLong(to, "threads_per_queue",
                             settings.threads_per_queue);
    RM_InfoAddFieldULongLong(to, "intra_op_parallelism", settings.intra_op);
    RM_InfoAddFieldULongLong(to, "inter_op_parallelism", settings.inter_op);
    RM_InfoAddFieldULongLong(to, "emulated_gpus", settings.gpus);
    for (const struct network *n = NULL; (n = network_next(n));) {
        char field[48];
        snprintf(field, sizeof field, "flops_of_%s", network_name(n));
        RM_InfoAddFieldULongLong(to, field, network_flops(n));
    }
    devices_info(to);
}

/* --- loading -------------------------------------------------------------- */

/* NAME n pairs behind loadmodule; RedisAI's names. */
static int take_settings(Context *context, String **argv, int argc)
{
    struct { const char *name; long long *value, least, most; } known[] = {
        {"THREADS_PER_QUEUE", &settings.threads_per_queue, 1, 256},
        {"INTRA_OP_PARALLELISM", &settings.intra_op, 1, 256},
        {"INTER_OP_PARALLELISM", &settings.inter_op, 1, 256},
        {"MODEL_CHUNK_SIZE", &settings.chunk, 1024, 1ll << 40},
        {"EMULATE_GPUS", &settings.gpus, 0, 16}};
    enum { KNOWN = sizeof known / sizeof *known };
    for (int at = 0; at < argc; at += 2) {
        int i = 0;
        long long value;
        const char *word = RM_StringPtrLen(argv[at], NULL);
        while (i < KNOWN && !is_word(argv[at], known[i].name))
            i++;
        if (i == KNOWN) {
            RM_Log(context, "warning", "plumbline ai: no setting %s; there "
                   "are THREADS_PER_QUEUE, INTRA_OP_PARALLELISM, "
                   "INTER_OP_PARALLELISM, MODEL_CHUNK_SIZE, EMULATE_GPUS",
                   word);
            return BAD;
        }
        if (at + 1 == argc || RM_StringToLongLong(argv[at + 1], &value) ||
            value < known[i].least || value > known[i].most) {
            RM_Log(context, "warning", "plumbline ai: %s wants a number from "
                   "%lld to %lld", word, known[i].least, known[i].most);
            return BAD;
        }
        *known[i].value = value;
    }
    return GOOD;
}

__attribute__((visibility("default")))
int RedisModule_OnLoad(Context *context, String **argv, int argc);

int RedisModule_OnLoad(Context *context, String **argv, int argc)
{
    static const struct {
        const char *name;
        Command *run;
        const char *flags;
        int key;
    } commands[] = {
        {"ai.tensorset", tensor_set, "write deny-oom", 1},
        {"ai.tensorget", tensor_get, "readonly", 1},
        {"ai.modelstore", model_store, "write deny-oom", 1},
        {"ai.modelget", model_get, "readonly", 1},
        {"ai.modeldel", model_delete, "write", 1},
        {"ai.modelexecute", model_execute, "write deny-oom getkeys-api", 1},
        {"ai.scriptset", script_set, "write deny-oom", 1},
        {"ai.scriptget", script_get, "readonly", 1},
        {"ai.scriptdel", script_delete, "write", 1},
        {"ai.scriptrun", script_run, "write deny-oom getkeys-api", 1},
        {"ai.info", info, "readonly", 1},
        {"ai.config", config, "admin", 0}};
    const char *missing = take_api(context);
    if (missing) {
        if (RM_Log)
            RM_Log(context, "warning", "plumbline ai: the server has no "
                   "RedisModule_%s: Redis 6.2 or later, Valkey or KeyDB is "
                   "needed", missing);
        return BAD;
    }
    if (RM_IsModuleNameBusy("ai"))
        return BAD;
    RM_SetModuleAttribs(context, "ai", VERSION, API_VERSION);
    if (take_settings(context, argv, argc) != GOOD ||
        tensor_register(context) != GOOD ||
        objects_register(context) != GOOD ||
        RM_RegisterInfoFunc(context, module_info) != GOOD)
        return BAD;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        int key = commands[i].key;
        if (RM_CreateCommand(context, commands[i].name, commands[i].run,
                             commands[i].flags, key, key, !!key) != GOOD)
            return BAD;
    }
#ifdef WITH_TORCH
    torch_start((int)settings.inter_op);
#endif
    if (RM_GetContextFlags(context) & (WRITES_AOF | WRITES_RDB))
        RM_Log(context, "warning", "plumbline ai: tensors, models and scripts "
               "are in memory only, but this server writes snapshots, which "
               "cannot be loaded then: start it with save '' and "
               "appendonly no");
    RM_Log(context, "notice", "plumbline ai %d (embedded, no RedisAI): "
           "networks %s; kernels %s; %lld threads a queue", VERSION,
           network_names, kernel_names, settings.threads_per_queue);
    return GOOD;
}
