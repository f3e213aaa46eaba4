/* trace.c - log lines as the original writes them: those of its server, and
 * those of its plugin under NCCL_DEBUG=TRACE. */
#define _GNU_SOURCE
#include "optcast.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static FILE *out;
static bool spans;

void trace_open(const char *path)
{
    out = path && strcmp(path, "-") ? fopen(path, "w") : stdout;
    if (!out)
        fail("%s: %s", path, strerror(errno));
    if (path)
        setvbuf(out, NULL, _IOFBF, 1 << 18);
    before_failure = trace_flush;
    spans = path;
}

/* One line whole, whatever other threads write. */
static void line(const char *head, const char *format, va_list args)
{
    char words[512];
    vsnprintf(words, sizeof words, format, args);
    fprintf(out, "%s%s\n", head, words);
}

void trace_rust(const char *level, const char *module, const char *format,
                ...)
{
    if (!out || (!spans && level[0] == 'T'))
        return;
    struct timespec t;
    char time[32], head[192];
    va_list args;
    clock_gettime(CLOCK_REALTIME, &t);
    strftime(time, sizeof time, "%FT%T", gmtime_r(&t.tv_sec, &(struct tm){0}));
    snprintf(head, sizeof head, "[%s] [%s.%09ldZ %-5s "
             "optcast_reduction_server::%s] ", host, time, t.tv_nsec, level,
             module);
    va_start(args, format);
    line(head, format, args);
    va_end(args);
}

void trace_nccl(int number, const char *format, ...)
{
    static double first;
    char head[128];
    va_list args;
    if (!spans)
        return;
    if (!first)
        first = now();
    snprintf(head, sizeof head, "%s:%d:%d [0] %.6f optcast:%d NCCL TRACE ",
             host, (int)getpid(), (int)getpid(), (now() - first) * 1e3,
             number);
    va_start(args, format);
    line(head, format, args);
    va_end(args);
}

void trace_flush(void)
{
    if (out)
        fflush(out);
}
