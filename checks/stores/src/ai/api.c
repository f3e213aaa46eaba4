#include "api.h"

#define DEFINED(result, name, arguments) result (*RM_##name) arguments;
API(DEFINED)

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
