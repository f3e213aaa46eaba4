/* A module for Redis, Valkey and KeyDB that answers the commands of RedisAI
 * which SmartRedis sends. */
#include "module.h"
#include <string.h>

enum { VERSION = 200 };

/* Takes the functions of the server; the name of a missing one, or NULL. */
static const char *take_api(Context *context)
{
    /* A context begins with the function that hands out all others. */
    int (*get)(const char *, void *) =
        *(int (**)(const char *, void *))context;
    const char *missing = NULL;
#define TAKEN(result, name, arguments) \
    if (get("RedisModule_" #name, (void *)&RM_##name) != GOOD && !missing) \
        missing = #name;
    API(TAKEN)
    return missing;
}

/* AI.CONFIG GET MODEL_CHUNK_SIZE: clients ask before they store a model. */
static int config(Context *context, String **argv, int argc)
{
    if (argc != 3)
        return RM_WrongArity(context);
    if (!is_word(argv[1], "GET") || !is_word(argv[2], "MODEL_CHUNK_SIZE"))
        return RM_ReplyWithError(context, "ERR unsupported subcommand");
    return RM_ReplyWithLongLong(context, 511ll << 20);
}

static void module_info(Info *to, int crashed)
{
    (void)crashed;
    RM_InfoAddSection(to, "module");
    RM_InfoAddFieldCString(to, "program", "plumbline embedded");
#ifdef WITH_TORCH
    RM_InfoAddFieldCString(to, "libtorch", (char *)torch_version());
#endif
}

/* NAME n pairs behind loadmodule; RedisAI's names. */
static int take_settings(Context *context, String **argv, int argc)
{
    for (int at = 0; at < argc; at += 2) {
        long long *value = is_word(argv[at], "THREADS_PER_QUEUE")
            ? &settings.threads_per_queue
            : is_word(argv[at], "INTER_OP_PARALLELISM") ? &settings.inter_op
            : is_word(argv[at], "INTRA_OP_PARALLELISM") ? &settings.intra_op
            : NULL;
        if (!value || at + 1 == argc ||
            RM_StringToLongLong(argv[at + 1], value) != GOOD || *value < 1 ||
            *value > 256) {
            RM_Log(context, "warning", "plumbline ai: %s: settings are "
                   "THREADS_PER_QUEUE n, INTER_OP_PARALLELISM n and "
                   "INTRA_OP_PARALLELISM n, n from 1 to 256",
                   RM_StringPtrLen(argv[at], NULL));
            return BAD;
        }
    }
#ifdef WITH_TORCH
    torch_operations((int)settings.inter_op);
#else
    if (settings.inter_op > 1 || settings.intra_op > 1) {
        RM_Log(context, "warning", "plumbline ai: INTER_OP_PARALLELISM and "
               "INTRA_OP_PARALLELISM above 1 need a module that was built "
               "with libtorch");
        return BAD;
    }
#endif
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
    } commands[] = {
        {"ai.tensorset", tensor_set, "write deny-oom"},
        {"ai.tensorget", tensor_get, "readonly"},
        {"ai.modelstore", model_store, "write deny-oom"},
        {"ai.modelexecute", model_execute, "write deny-oom getkeys-api"},
        {"ai.scriptset", script_set, "write deny-oom"},
        {"ai.scriptrun", script_run, "write deny-oom getkeys-api"},
        {"ai.config", config, "admin"}};
    const char *missing = take_api(context);
    if (missing) {
        if (RM_Log)
            RM_Log(context, "warning", "plumbline ai: the server has no "
                   "RedisModule_%s: Redis 6.2 or later, Valkey or KeyDB is "
                   "needed", missing);
        return BAD;
    }
    RM_SetModuleAttribs(context, "ai", VERSION, API_VERSION);
    if (take_settings(context, argv, argc) != GOOD ||
        types_register(context) != GOOD ||
        RM_RegisterInfoFunc(context, module_info) != GOOD)
        return BAD;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        int key = commands[i].run != config;
        if (RM_CreateCommand(context, commands[i].name, commands[i].run,
                             commands[i].flags, key, key, key) != GOOD)
            return BAD;
    }
    RM_Log(context, "notice", "plumbline ai: embedded AI module, %s%s",
#ifdef WITH_TORCH
           "libtorch ", torch_version());
#else
           "stand-in", "");
#endif
    return GOOD;
}
