/*
 * tao.h - what the files of tao_server share: a look-through cache with fast
 * and slow threads. docs/reference/families/taobench.md
 * describes it.
 */
#ifndef TAO_H
#define TAO_H

#include "../../core/src/common/net.h"
#include "../../core/src/common/options.h"
#include "../../core/src/common/program.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define VERSION "1.0"
enum { MAX_KEY = 250, MIB = 1 << 20 };

/* --- options.c ----------------------------------------------------------- */
struct options {
    const char *address, *port;
    unsigned threads, memory, connections;
    unsigned dispatchers, slow_threads, max_slow_requests;
    unsigned worker_sleep, dispatcher_sleep, slow_sleep;      /* ns          */
    unsigned slow_path_sleep;                                 /* us          */
    unsigned stats_sleep;                                     /* ms          */
    unsigned semaphore, pin, smart;
};
extern struct options opt;
void read_options(int argc, char **argv);

/* --- counters: each has one writer, other threads only read -------------- */
typedef _Atomic uint64_t counter;

static inline uint64_t load(const counter *c)
{
    return atomic_load_explicit(c, memory_order_relaxed);
}

static inline void add(counter *c, uint64_t n)
{
    atomic_store_explicit(c, load(c) + n, memory_order_relaxed);
}

/* --- cache.c: items in slabs, a hash table, an LRU list a class ---------- */
struct item {
    struct item *next;                /* in the bucket, or of free ones      */
    struct item *newer, *older;       /* in the LRU list of its class        */
    uint32_t hash, value_size;
    uint64_t unused[2];               /* CAS, flags and expiry in memcached, so
                                       * that items have the same size     */
    uint8_t key_size, class;
    _Atomic bool active;              /* read since it was last looked at    */
};

/* What a hit looks like; `value` is good while the key is held. */
struct hit { const char *value; uint32_t size; };
struct cache_state { uint64_t items, bytes, evictions, mapped; };
void prepare_cache(void);
uint32_t hash_of(const char *key, size_t n);
/* Finds it and holds it: after a hit, call cache_release(hash). */
bool cache_get(const char *key, size_t n, uint32_t hash, struct hit *hit);
void cache_release(uint32_t hash);
/* Of a value of at most VALUE_MAX bytes; false: no memory. */
bool cache_set(const char *key, size_t n, uint32_t hash, const char *value,
               size_t size);
struct cache_state cache_now(void);

/* --- values.c: what the slow path makes ---------------------------------- */
size_t draw_size(void);
enum { VALUE_MAX = 521 };             /* a value of 65536 bytes, as stored   */
/* A value as it is stored; returns its size there, at most VALUE_MAX. */
size_t make_value(char *out, size_t size);

/* --- slow.c: dispatchers and slow threads -------------------------------- */
struct request {
    char key[MAX_KEY];
    uint8_t key_size;
    uint32_t hash;
    char value[VALUE_MAX];
    size_t value_size;
    bool stored;
    _Atomic bool done;
};
void start_slow_path(void);
bool queue_miss(struct request *r, unsigned queue);  /* false: queue full    */
unsigned slow_requests_queued(void);
unsigned slow_threads_running(void);
uint64_t nanosleeps(void);
/* Sleeps between two polls; `again`: the last poll found nothing. */
void poll_sleep(unsigned ns, bool *again);

/* --- threads.c ----------------------------------------------------------- */
void start_thread(void *(*run)(void *), void *argument, const char *name);

/* --- stats.c ------------------------------------------------------------- */
/* Requests, and answers of either path; ASKED: requests to the slow one. */
enum count { GETS, MISSES, FAST, ASKED, SLOW, SLOW_OOM, COUNTS };
/* Of one fast thread, which alone writes them. */
struct counters { counter counts[COUNTS]; } __attribute__((aligned(64)));
/* Of the process: open ones, and all that were accepted. */
struct connections { counter open, accepted; };
struct totals {
    uint64_t counts[COUNTS];
    uint64_t connections, accepted;
};
extern struct counters *counters;             /* one a fast thread           */
extern struct connections connections;
extern uint64_t started_ns;
void start_stats(void);
struct totals totals_now(void);

/* --- serve.c: fast threads, and connections ------------------------------ */
void prepare_serving(void);                   /* listens                     */
void start_serving(void);

#endif
