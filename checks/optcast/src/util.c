/* util.c - time, memory, and the end. */
#define _GNU_SOURCE
#include "optcast.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

void (*die_hook)(void);

void die(const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (die_hook)
        die_hook();
    fprintf(stderr, "optcast: %s\n", line);
    fflush(stderr);
    _exit(1);                           /* other threads may hold locks     */
}

double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

void *get(size_t bytes)
{
    const size_t huge = 2 << 20;
    void *memory;
    if (posix_memalign(&memory, bytes < huge ? 4096 : huge,
                       bytes ? bytes : 1))
        die("no memory for %zu bytes", bytes);
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
