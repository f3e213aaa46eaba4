/* util.c - memory, and the types of data. */
#define _GNU_SOURCE
#include "optcast.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

const char program_name[] = "optcast";

void *get(size_t bytes)
{
    const size_t huge = 2 << 20;
    void *memory;
    if (posix_memalign(&memory, bytes < huge ? 4096 : huge,
                       bytes ? bytes : 1))
        fail("cannot allocate %zu bytes", bytes);
    /* The kernel copies all of it: fewer pages, fewer misses of the TLB. */
    if (bytes >= huge)
        madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0, bytes);           /* its pages are there from now on  */
    return memory;
}

size_t size_of(enum type type)
{
    return type == F32 ? 4 : 2;
}

const char *type_name(enum type type)
{
    return type == F32 ? "float" : type == F16 ? "half" : "bfloat16";
}
