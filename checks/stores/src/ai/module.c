/* A module for Redis, Valkey and KeyDB that answers the commands of RedisAI
 * which SmartRedis sends, with built-in networks and kernels. */
#include "devices.h"
#include "run.h"
#include "torch.h"
#include <stdio.h>
#include <string.h>

enum { VERSION = 100 };

static void reply_word(Context *context, const char *word)
{
    RM_ReplyWithStringBuffer(context, word, strlen(word));
}

/* --- tensors -------------------------------------------------------------- */

/* AI.TENSORSET key type dims.. [BLOB data | VALUES v..] */
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
    RM_ReplicateVerbatim(context);
    return RM_ReplyWithSimpleString(context, "OK");
}

/* AI.TENSORGET key [META] [BLOB | VALUES] */
static int tensor_get(Context *context, String **argv, int argc)
{
    if (argc < 2 || argc > 4)
        return RM_WrongArity(context);
    const char *error = NULL;
    struct tensor *tensor =
        value_at(context, argv[1], tensor_type,
                 "ERR tensor key is empty or in a different shard", &error);
    int meta = argc == 2, blob = argc == 2, values = 0;
    for (int i = 2; tensor && i < argc; i++)
        if (is_word(argv[i], "META"))
            meta = 1;
        else if (is_word(argv[i], "BLOB"))
            blob = 1;
        else if (is_word(argv[i], "VALUES"))
            values = 1;
        else
            error = "ERR unsupported data format";
    if (!error && blob && values)
        error = "ERR both BLOB and VALUES specified";
    if (error)
        return RM_ReplyWithError(context, error);
    tensor_reply(context, tensor, meta, blob, values);
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
    RM_ReplicateVerbatim(context);
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
    struct object *script = script_parse(argv, argc, 0, &error);
    return store(context, argv, script, error);
}

/* AI.SCRIPTSTORE key device [TAG t] ENTRY_POINTS n name.. SOURCE s */
static int script_store(Context *context, String **argv, int argc)
{
    if (argc < 7)
        return RM_WrongArity(context);
    const char *error = NULL;
    struct object *script = script_parse(argv, argc, 1, &error);
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
    RM_ReplicateVerbatim(context);
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

/* AI.MODELGET key [META] [BLOB] */
static int model_get(Context *context, String **argv, int argc)
{
    if (argc < 2 || argc > 4)
        return RM_WrongArity(context);
    const char *error = NULL;
    const struct object *model = value_at(context, argv[1], model_type,
                                          "ERR model key is empty", &error);
    if (!model)
        return RM_ReplyWithError(context, error);
    int meta = 0, blob = 0;
    for (int i = 2; i < argc; i++) {
        meta |= is_word(argv[i], "META");
        blob |= is_word(argv[i], "BLOB");
    }
    if (blob && !meta) {
        reply_chunks(context, model);
        return GOOD;
    }
    blob |= !meta;
    RM_ReplyWithArray(context, blob ? 18 : 16);
    reply_word(context, "backend");
    reply_word(context, "TORCH");
    reply_place(context, model);
    reply_number(context, "batchsize", model->batch);
    reply_number(context, "minbatchsize", model->min_batch);
    reply_word(context, "inputs");
    RM_ReplyWithArray(context, 0);
    reply_word(context, "outputs");
    RM_ReplyWithArray(context, 0);
    reply_number(context, "minbatchtimeout", model->batch_timeout);
    if (blob) {
        reply_word(context, "blob");
        reply_chunks(context, model);
    }
    return GOOD;
}

/* AI.SCRIPTGET key [META] [SOURCE] */
static int script_get(Context *context, String **argv, int argc)
{
    if (argc < 2 || argc > 4)
        return RM_WrongArity(context);
    const char *error = NULL;
    const struct object *script = value_at(context, argv[1], script_type,
                                           "ERR script key is empty", &error);
    if (!script)
        return RM_ReplyWithError(context, error);
    int meta = 0, source = 0;
    for (int i = 2; i < argc; i++) {
        meta |= is_word(argv[i], "META");
        source |= is_word(argv[i], "SOURCE");
    }
    if (source && !meta) {
        reply_text(context, script);
        return GOOD;
    }
    source |= !meta;
    RM_ReplyWithArray(context, source ? 8 : 6);
    reply_place(context, script);
    reply_word(context, "Entry Points");
    RM_ReplyWithArray(context, script->entries);
    for (int i = 0; i < script->entries; i++)
        RM_ReplyWithString(context, script->entry[i]);
    if (source) {
        reply_word(context, "source");
        reply_text(context, script);
    }
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

/* --- all keys of a type --------------------------------------------------- */

struct scan {
    Type *type;
    size_t count, room;
    struct { String *name; char *tag; size_t size; } *found;
};

static void scan_key(Context *context, String *name, Key *key, void *data)
{
    struct scan *scan = data;
    Key *opened = key ? NULL : RM_OpenKey(context, name, READ);
    Key *use = key ? key : opened;
    if (RM_KeyType(use) == KEY_MODULE &&
        RM_ModuleTypeGetType(use) == scan->type) {
        const struct object *object = RM_ModuleTypeGetValue(use);
        if (scan->count == scan->room) {
            size_t room = 2 * scan->room + 16;
            void *more = RM_Alloc(room * sizeof *scan->found);
            if (scan->count)
                memcpy(more, scan->found, scan->count * sizeof *scan->found);
            RM_Free(scan->found);
            scan->found = more;
            scan->room = room;
        }
        size_t size;
        const char *text = RM_StringPtrLen(name, &size);
        scan->found[scan->count].name = RM_CreateString(NULL, text, size);
        scan->found[scan->count].tag = object->tag;
        scan->found[scan->count++].size = object->tag_size;
    }
    RM_CloseKey(opened);
}

static int scan(Context *context, int argc, Type *type)
{
    if (argc != 1)
        return RM_WrongArity(context);
    struct scan all = {type, 0, 0, NULL};
    Cursor *cursor = RM_ScanCursorCreate();
    while (RM_Scan(context, cursor, scan_key, &all))
        ;
    RM_ScanCursorDestroy(cursor);
    RM_ReplyWithArray(context, (long)all.count);
    for (size_t i = 0; i < all.count; i++) {
        RM_ReplyWithArray(context, 2);
        RM_ReplyWithString(context, all.found[i].name);
        RM_ReplyWithStringBuffer(context, all.found[i].tag,
                                 all.found[i].size);
        RM_FreeString(NULL, all.found[i].name);
    }
    RM_Free(all.found);
    return GOOD;
}

static int model_scan(Context *context, String **argv, int argc)
{
    (void)argv;
    return scan(context, argc, model_type);
}

static int script_scan(Context *context, String **argv, int argc)
{
    (void)argv;
    return scan(context, argc, script_type);
}

/* --- settings ------------------------------------------------------------- */

/* AI.CONFIG GET name | MODEL_CHUNK_SIZE n | BACKENDSPATH path |
 * LOADBACKEND name path */
static int config(Context *context, String **argv, int argc)
{
    if (argc < 2)
        return RM_WrongArity(context);
    if (is_word(argv[1], "GET")) {
        if (argc < 3)
            return RM_WrongArity(context);
        if (is_word(argv[2], "MODEL_CHUNK_SIZE"))
            return RM_ReplyWithLongLong(context, settings.chunk);
        if (is_word(argv[2], "BACKENDSPATH"))
            return RM_ReplyWithStringBuffer(context, "", 0);
        return RM_ReplyWithNull(context);
    }
    if (is_word(argv[1], "MODEL_CHUNK_SIZE")) {
        long long size;
        if (argc < 3)
            return RM_ReplyWithError(context, "ERR MODEL_CHUNK_SIZE: missing "
                                     "chunk size");
        /* Chunks of a few bytes would make a reply of millions. */
        if (RM_StringToLongLong(argv[2], &size) != GOOD || size < 1024)
            return RM_ReplyWithError(context, "ERR MODEL_CHUNK_SIZE: invalid "
                                     "chunk size");
        settings.chunk = size;
        return RM_ReplyWithSimpleString(context, "OK");
    }
    if (is_word(argv[1], "BACKENDSPATH"))
        return argc > 2 ? RM_ReplyWithSimpleString(context, "OK")
            : RM_ReplyWithError(context,
                                "ERR BACKENDSPATH: missing path argument");
    if (is_word(argv[1], "LOADBACKEND"))
        return argc < 4 ? RM_WrongArity(context)
            : RM_ReplyWithError(context, "ERR error loading backend");
    return RM_ReplyWithError(context, "ERR unsupported subcommand");
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
        {"ai.modelset", model_store, "write deny-oom", 1},
        {"ai.modelget", model_get, "readonly", 1},
        {"ai.modeldel", model_delete, "write", 1},
        {"ai.modelexecute", model_execute, "write deny-oom getkeys-api", 1},
        {"ai.modelrun", model_run, "write deny-oom getkeys-api", 1},
        {"ai._modelscan", model_scan, "readonly", 0},
        {"ai.scriptset", script_set, "write deny-oom", 1},
        {"ai.scriptstore", script_store, "write deny-oom", 1},
        {"ai.scriptget", script_get, "readonly", 1},
        {"ai.scriptdel", script_delete, "write", 1},
        {"ai.scriptexecute", script_execute, "write deny-oom getkeys-api", 1},
        {"ai.scriptrun", script_run, "write deny-oom getkeys-api", 1},
        {"ai._scriptscan", script_scan, "readonly", 0},
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
    /* A payload that is wrong is our answer, not the server's end. */
    RM_SetModuleOptions(context, HANDLES_IO_ERRORS);
    RM_Log(context, "notice", "plumbline ai %d (embedded, no RedisAI): "
           "networks %s; kernels %s; %lld threads a queue", VERSION,
           network_names, kernel_names, settings.threads_per_queue);
    return GOOD;
}
