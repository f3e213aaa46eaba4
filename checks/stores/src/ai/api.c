/* The functions of the server, which module.c takes. */
#include "module.h"
#include <string.h>
#include <strings.h>

#define DEFINED(result, name, arguments) result (*RM_##name) arguments;
API(DEFINED)

int is_word(const String *string, const char *word)
{
    size_t size;
    const char *text = RM_StringPtrLen(string, &size);
    return size == strlen(word) && !strncasecmp(text, word, size);
}
