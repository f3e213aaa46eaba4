/* slow.c - the way of a miss: a fast thread puts it into the queue of a
 * dispatcher, which hands it to the slow threads in turn; one of those makes
 * the value, stores it and says that it is done. */
#define _GNU_SOURCE
#include "tao.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A ring with room for what all fast threads can ask at a time: each waits
 * for its answer, so that no queue is ever longer. */
struct queue {
    pthread_mutex_t lock;
    sem_t waiting;                    /* of slow threads, version 2          */
    struct request **ring;
    unsigned first;
    _Atomic unsigned count;
} __attribute__((aligned(64)));

static struct queue *dispatched, *made;   /* a dispatcher's, a slow thread's */
static _Atomic unsigned running;

/* Counted apart, as they are many; the first is of those beyond the room. */
enum { COUNTED = 4096 };
static struct { counter n; } __attribute__((aligned(64))) sleeps[COUNTED];

static struct queue *new_queues(unsigned n)
{
    struct queue *queues = aligned_alloc(64, n * sizeof *queues);

    for (unsigned i = 0; queues && i < n; i++) {
        struct queue *q = &queues[i];
        pthread_mutex_init(&q->lock, NULL);
        sem_init(&q->waiting, 0, 0);
        q->ring = calloc(opt.threads, sizeof *q->ring);
        q->first = 0;
        q->count = 0;
        if (!q->ring)
            fail("no memory for the queues of %u threads", n);
    }
    if (!queues)
        fail("no memory for the queues of %u threads", n);
    return queues;
}

static bool push(struct queue *q, struct request *r, unsigned limit)
{
    pthread_mutex_lock(&q->lock);
    bool room = q->count < limit;
    if (room)
        q->ring[(q->first + q->count++) % opt.threads] = r;
    pthread_mutex_unlock(&q->lock);
    return room;
}

static struct request *pop(struct queue *q)
{
    struct request *r = NULL;

    if (!q->count)
        return NULL;
    pthread_mutex_lock(&q->lock);
    if (q->count) {
        r = q->ring[q->first];
        q->first = (q->first + 1) % opt.threads;
        q->count--;
    }
    pthread_mutex_unlock(&q->lock);
    return r;
}

/* The smart one begins each wait with a sleep of its own between half and
 * twice the time, and doubles it up to a quarter of a millisecond. */
void rest(unsigned ns, bool *again)
{
    static _Atomic unsigned threads;
    static _Thread_local unsigned self;
    static _Thread_local long first, now;
    const long longest = 250000;
    struct timespec time = {.tv_sec = ns / (long)SECOND,
                            .tv_nsec = ns % (long)SECOND};

    if (!ns)
        return;
    if (!self)
        self = 1 + threads++;
    counter *mine = &sleeps[self < COUNTED ? self : 0].n;
    if (self < COUNTED)
        add(mine, 1);
    else
        atomic_fetch_add(mine, 1);
    if (opt.smart) {
        if (!first)
            first = ns / 2 + (long)(random() % (ns * 2l - ns / 2 + 1));
        now = !*again ? first : 2 * now < longest ? 2 * now : longest;
        time = (struct timespec){.tv_nsec = now};
    }
    nanosleep(&time, NULL);
    *again = true;
}

uint64_t nanosleeps(void)
{
    uint64_t sum = 0;

    for (unsigned i = 0; i < COUNTED; i++)
        sum += load(&sleeps[i].n);
    return sum;
}

static void *dispatch(void *argument)
{
    struct queue *q = argument;
    unsigned next = 0;
    bool again = false;

    for (;;) {
        rest(opt.dispatcher_sleep, &again);
        struct request *r = pop(q);
        if (!r)
            continue;
        again = false;
        push(&made[next], r, opt.threads);
        if (opt.semaphore)
            sem_post(&made[next].waiting);
        next = (next + 1) % opt.slow_threads;
    }
    return NULL;
}

/* The words of the original; one is enough to know, -v has them all. */
static void tell_out_of_memory(void)
{
    static _Atomic bool told;

    if (opt.verbose || !atomic_exchange(&told, true))
        fputs("OUT OF MEMORY when allocating item on slow path.\n", stderr);
}

static void answer(struct request *r, char *raw)
{
    const uint32_t ttl = 36000;

    if (opt.slow_path_sleep)
        usleep(opt.slow_path_sleep);
    r->value_size = make_value(r->value, raw, draw_size());
    r->stored = cache_set(r->key, r->key_size, r->hash, r->value,
                          r->value_size, 0, ttl, &r->cas);
    if (r->stored != STORED)
        tell_out_of_memory();
    atomic_store_explicit(&r->done, true, memory_order_release);
}

static void *make(void *argument)
{
    struct queue *q = argument;
    char *raw = malloc(opt.max_item_size);
    bool again = false;

    if (!raw)
        fail("no memory for values of %u bytes", opt.max_item_size);
    running++;
    for (;;) {
        if (opt.semaphore)
            while (sem_wait(&q->waiting))
                ;
        else
            rest(opt.slow_sleep, &again);
        struct request *r = pop(q);
        if (!r)
            continue;
        again = false;
        answer(r, raw);
    }
    return NULL;
}

void start_slow_path(void)
{
    char name[32];

    dispatched = new_queues(opt.dispatchers);
    made = new_queues(opt.slow_threads);
    for (unsigned i = 0; i < opt.slow_threads; i++) {
        snprintf(name, sizeof name, "slow-%u", i);
        start_thread(make, &made[i], name);
    }
    for (unsigned i = 0; i < opt.dispatchers; i++) {
        snprintf(name, sizeof name, "dispatch-%u", i);
        start_thread(dispatch, &dispatched[i], name);
    }
}

bool ask_slowly(struct request *r, unsigned queue)
{
    atomic_store_explicit(&r->done, false, memory_order_relaxed);
    return push(&dispatched[queue], r, opt.max_slow_requests);
}

unsigned slow_requests_queued(void)
{
    unsigned sum = 0;

    for (unsigned i = 0; i < opt.dispatchers; i++)
        sum += dispatched[i].count;
    return sum;
}

unsigned slow_threads_running(void) { return running; }
