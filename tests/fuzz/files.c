/* files.c - texts that the load generator reads: a service file (0), a list of
 * sizes (1); the first byte selects one. */
#define _GNU_SOURCE
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#undef strdup
#define strdup(text) tracked((strdup)(text))
#define fopen(path, mode) tracked_file((fopen)(path, mode))
#define fclose(file) (tracked_file(NULL), (fclose)(file))
#define asprintf(to, ...) \
    ((asprintf)(to, __VA_ARGS__) < 0 ? -1 : (tracked(*(to)), 0))
#include "../../checks/core/src/common/options.c"
#include "../../checks/core/src/common/service.c"
#include "../../checks/loadgen/src/options.c"
#define text text_of_values
#include "../../checks/loadgen/src/draw.c"

static const uint8_t *bytes;

static void reader(void *list)
{
    if (bytes[0] % 2 == 0) {
        open_service(&opt.service, list);
    } else {
        read_size_list(list);
        for (uint64_t key = 0; key < 20; key++)
            if (!value_size(key) || value_size(key) > size_high)
                wrong("a size that is none of the list's");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    if (untrusted) {
        untrusted = false;
        if (!freopen("/dev/null", "w", stdout))
            wrong("no stdout");
    }
    bytes = data;
    opt.service.count = 0;
    size_count = size_high = 0;
    char *list = (strndup)((const char *)data + 1, size - 1);
    if (survives(reader, size && data[0] % 2 ? (void *)list
                         : (void *)path_of(data + 1, size - 1)))
        free_tracked();
    free(list);
    free(sizes);
    sizes = NULL;
    return 0;
}
