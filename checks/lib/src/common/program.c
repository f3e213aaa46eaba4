/* program.c - see program.h. */
#define _GNU_SOURCE
#include "program.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

void (*before_failure)(void);

/* One write for the whole line: other ranks and threads write there, too. */
static void print_message(const char *format, va_list args)
{
    char text[4096];

    vsnprintf(text, sizeof text, format, args);
    fprintf(stderr, "%s: %s\n", program_name, text);
    fflush(stderr);
}

_Noreturn void fail(const char *format, ...)
{
    static pthread_mutex_t speaking = PTHREAD_MUTEX_INITIALIZER;
    va_list args;

    pthread_mutex_lock(&speaking);          /* never unlocked: one line    */
    if (before_failure)
        before_failure();
    va_start(args, format);
    print_message(format, args);
    va_end(args);
    _exit(1);                               /* others may hold locks       */
}

_Noreturn void usage(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    print_message(format, args);
    va_end(args);
    exit(2);
}

const char *printable(const char *text)
{
    static _Thread_local char safe[161];
    size_t i = 0;

    for (; text[i] && i < sizeof safe - 1; i++)
        safe[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    safe[i] = '\0';
    return safe;
}

uint64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

double now(void) { return (double)clock_ns() / 1e9; }

void raise_open_files(unsigned connections, unsigned others)
{
    rlim_t wanted = (rlim_t)connections + others;
    struct rlimit limit;

    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < wanted)
        fail("open files limit %ju (ulimit -Hn) is too low for %u "
             "connections: raise it or ask for fewer",
             (uintmax_t)limit.rlim_max, connections);
    if (limit.rlim_cur < wanted) {
        limit.rlim_cur = wanted;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}
