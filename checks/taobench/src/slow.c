/* slow.c - the slow path of a miss: a fast thread queues it at a dispatcher,
 * which passes it to the slow threads in turn; a slow thread makes the value,
 * stores it and sets `done`. */
#define _GNU_SOURCE
#include "tao.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* A ring with one slot a fast thread: a fast thread waits for its answer, so
 * that it has one request at a time. */
struct queue {
    pthread_mutex_t lock;
    sem_t waiting;                    /* of slow threads, version 2          */
    struct request **ring;
    unsigned first;
    _Atomic unsigned count;
} __attribute__((aligned(64)));

/* One a dispatcher, one a slow thread. */
static struct queue *dispatcher_queues, *slow_queues;
static _Atomic unsigned running;

/* A counter a thread, as sleeps are frequent; threads beyond COUNTED share the
 * first. */
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
            fail("cannot allocate the queues of %u threads", n);
    }
    if (!queues)
        fail("cannot allocate the queues of %u threads", n);
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

/* With tao_smart_nanosleep each wait begins with the thread's own time, between
 * half and twice `ns`, and doubles it up to 250 us. */
void poll_sleep(unsigned ns, bool *again)
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

static void *dispatcher(void *argument)
{
    struct queue *q = argument;
    unsigned next = 0;
    bool again = false;

    for (;;) {
        poll_sleep(opt.dispatcher_sleep, &again);
        struct request *r = pop(q);
        if (!r)
            continue;
        again = false;
        push(&slow_queues[next], r, opt.threads);
        if (opt.semaphore)
            sem_post(&slow_queues[next].waiting);
        next = (next + 1) % opt.slow_threads;
    }
    return NULL;
}

/* The original's message, printed once. */
static void tell_out_of_memory(void)
{
    static _Atomic bool told;

    if (!atomic_exchange(&told, true))
        fputs("OUT OF MEMORY when allocating item on slow path.\n", stderr);
}

static void answer(struct request *r)
{
    if (opt.slow_path_sleep)
        usleep(opt.slow_path_sleep);
    r->value_size = make_value(r->value, draw_size());
    r->stored = cache_set(r->key, r->key_size, r->hash, r->value,
                          r->value_size);
    if (!r->stored)
        tell_out_of_memory();
    atomic_store_explicit(&r->done, true, memory_order_release);
}

static void *slow_thread(void *argument)
{
    struct queue *q = argument;
    bool again = false;

    running++;
    for (;;) {
        if (opt.semaphore)
            while (sem_wait(&q->waiting))
                ;
        else
            poll_sleep(opt.slow_sleep, &again);
        struct request *r = pop(q);
        if (!r)
            continue;
        again = false;
        answer(r);
    }
    return NULL;
}

void start_slow_path(void)
{
    char name[32];

    dispatcher_queues = new_queues(opt.dispatchers);
    slow_queues = new_queues(opt.slow_threads);
    for (unsigned i = 0; i < opt.slow_threads; i++) {
        snprintf(name, sizeof name, "slow-%u", i);
        start_thread(slow_thread, &slow_queues[i], name);
    }
    for (unsigned i = 0; i < opt.dispatchers; i++) {
        snprintf(name, sizeof name, "dispatch-%u", i);
        start_thread(dispatcher, &dispatcher_queues[i], name);
    }
}

bool queue_miss(struct request *r, unsigned queue)
{
    atomic_store_explicit(&r->done, false, memory_order_relaxed);
    return push(&dispatcher_queues[queue], r, opt.max_slow_requests);
}

unsigned slow_requests_queued(void)
{
    unsigned sum = 0;

    for (unsigned i = 0; i < opt.dispatchers; i++)
        sum += dispatcher_queues[i].count;
    return sum;
}

unsigned slow_threads_running(void) { return running; }
