/* A module for Redis, Valkey and KeyDB that answers the commands of RedisAI
 * which SmartRedis sends. */
#include "module.h"

enum { VERSION = 200 };

/* AI.CONFIG GET MODEL_CHUNK_SIZE: clients ask before they store a model. */
static int config(Context *context, String **argv, int argc)
{
    if (argc != 3 || !is_word(argv[1], "GET") ||
        !is_word(argv[2], "MODEL_CHUNK_SIZE"))
        return RM_ReplyWithError(context, "ERR unsupported subcommand");
    return RM_ReplyWithLongLong(context, 511ll << 20);
}

__attribute__((visibility("default")))
int RedisModule_OnLoad(Context *context, String **argv, int argc)
{
    static const struct {
        const char *name;
        Command *run;
        const char *flags;
        /* First and last argument that is a key, and the step between them. */
        int first, last, step;
    } commands[] = {
        {"ai.tensorset", tensor_set, "write deny-oom", 1, 1, 1},
        {"ai.tensorget", tensor_get, "readonly", 1, 1, 1},
        {"ai.modelstore", model_store, "write deny-oom", 1, 1, 1},
        {"ai.modelexecute", model_execute, "write deny-oom", 1, 7, 3},
        {"ai.scriptset", script_set, "write deny-oom", 1, 1, 1},
        {"ai.scriptrun", script_run, "write deny-oom", 4, 6, 2},
        {"ai.config", config, "admin", 0, 0, 0}};
    const char *error = take_api(context);
    if (error) {
        if (RM_Log)
            RM_Log(context, "warning", "plumbline ai: the server has no "
                   "RedisModule_%s: Redis 6.2 or later, Valkey or KeyDB is "
                   "needed", error);
        return BAD;
    }
    RM_SetModuleAttribs(context, "ai", VERSION, API_VERSION);
    if ((error = take_settings(argv, argc)) || (error = programs_begin())) {
        RM_Log(context, "warning", "plumbline ai: %s", error);
        return BAD;
    }
    if (types_register(context) != GOOD)
        return BAD;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (RM_CreateCommand(context, commands[i].name, commands[i].run,
                             commands[i].flags, commands[i].first,
                             commands[i].last, commands[i].step) != GOOD)
            return BAD;
    RM_Log(context, "notice", "plumbline ai: embedded AI module, %s",
           program_version());
    return GOOD;
}
