/* stats.c - what the fast threads count, and the answer to `stats`. */
#define _GNU_SOURCE
#include "tao.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct counters *counters;
struct connections connections;
uint64_t started_ns;

void start_stats(void)
{
    started_ns = clock_ns();
    counters = aligned_alloc(64, opt.threads * sizeof *counters);
    if (!counters)
        fail("cannot allocate %u threads", opt.threads);
    memset(counters, 0, opt.threads * sizeof *counters);
}

struct totals totals_now(void)
{
    struct totals t = {.connections = load(&connections.open),
                       .accepted = load(&connections.accepted)};

    for (unsigned i = 0; i < opt.threads; i++)
        for (unsigned n = 0; n < COUNTS; n++)
            t.counts[n] += load(&counters[i].counts[n]);
    return t;
}

/* Where each_stat reports to. */
struct sink {
    void (*report)(void *to, const char *name, const char *value);
    void *to;
};

__attribute__((format(printf, 3, 4)))
static void tell(const struct sink *s, const char *name, const char *format,
                 ...)
{
    char value[256];
    va_list args;

    va_start(args, format);
    vsnprintf(value, sizeof value, format, args);
    va_end(args);
    s->report(s->to, name, value);
}

static void tell_time(const struct sink *s, const char *name,
                      struct timeval t)
{
    tell(s, name, "%ld.%06ld", (long)t.tv_sec, (long)t.tv_usec);
}

void each_stat(void (*report)(void *to, const char *name, const char *value),
               void *to)
{
    const struct sink sink = {report, to}, *s = &sink;
    struct totals t = totals_now();
    struct cache_state c = cache_now();
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    tell(s, "pid", "%ld", (long)getpid());
    tell(s, "version", VERSION);
    tell_time(s, "rusage_user", used.ru_utime);
    tell_time(s, "rusage_system", used.ru_stime);
    tell(s, "curr_connections", "%" PRIu64, t.connections);
    tell(s, "total_connections", "%" PRIu64, t.accepted);
    tell(s, "cmd_get", "%" PRIu64, t.counts[GETS]);
    tell(s, "get_hits", "%" PRIu64, t.counts[GETS] - t.counts[MISSES]);
    tell(s, "get_misses", "%" PRIu64, t.counts[MISSES]);
    tell(s, "limit_maxbytes", "%" PRIu64, (uint64_t)opt.memory * MIB);
    tell(s, "bytes", "%" PRIu64, c.bytes);
    tell(s, "total_malloced", "%" PRIu64, c.mapped);
    tell(s, "curr_items", "%" PRIu64, c.items);
    tell(s, "evictions", "%" PRIu64, c.evictions);
    tell(s, "tao_fast_responses", "%" PRIu64, t.counts[FAST]);
    tell(s, "tao_slow_requests", "%" PRIu64, t.counts[ASKED]);
    tell(s, "tao_slow_responses", "%" PRIu64, t.counts[SLOW]);
    tell(s, "tao_slow_responses_oom", "%" PRIu64, t.counts[SLOW_OOM]);
}
