/* What the server hands over at load time: its functions, and the settings. */
#include "module.h"
#include <string.h>
#include <strings.h>

#define DEFINED(result, name, arguments) result (*RM_##name) arguments;
API(DEFINED)

struct settings settings = {1, 1, 1};

int is_word(const String *string, const char *word)
{
    size_t size;
    const char *text = RM_StringPtrLen(string, &size);
    return size == strlen(word) && !strncasecmp(text, word, size);
}

const char *take_api(Context *context)
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

const char *take_settings(String **argv, int argc)
{
    for (int at = 0; at < argc; at += 2) {
        long long *value = is_word(argv[at], "THREADS_PER_QUEUE")
            ? &settings.threads_per_queue
            : is_word(argv[at], "INTER_OP_PARALLELISM") ? &settings.inter_op
            : is_word(argv[at], "INTRA_OP_PARALLELISM") ? &settings.intra_op
            : NULL;
        if (!value || at + 1 == argc ||
            RM_StringToLongLong(argv[at + 1], value) != GOOD || *value < 1 ||
            *value > 256)
            return "settings are THREADS_PER_QUEUE n, INTER_OP_PARALLELISM n "
                   "and INTRA_OP_PARALLELISM n, n from 1 to 256";
    }
    return NULL;
}
