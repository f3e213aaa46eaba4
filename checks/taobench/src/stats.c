/* stats.c - what the fast threads count. */
#define _GNU_SOURCE
#include "tao.h"

#include <stdlib.h>
#include <string.h>

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
