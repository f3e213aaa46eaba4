/* main.c - the phases of a run: options, servers, connections, gate, load,
 * report. */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>

/* Writes that are read back by all threads, and their bytes. */
enum { SAMPLE = 1000, SAMPLE_BYTES = 256 << 20 };

static pthread_barrier_t opened, started;

static void *allocate(size_t count, size_t size)
{
    void *p = calloc(count, size);

    if (!p)
        fail("no memory for %u connections", opt.threads * opt.clients);
    return p;
}

/* --- threads ------------------------------------------------------------- */
static void prepare_thread(struct thread *t, unsigned index)
{
    t->index = index;
    t->conn_count = opt.clients;
    t->conns = allocate(t->conn_count, sizeof *t->conns);
    t->credits = allocate((size_t)t->conn_count * opt.pipeline,
                          sizeof *t->credits);
    t->buffer = allocate(1, BUFFER);
    t->histogram = allocate(KINDS, sizeof *t->histogram);
    t->left = opt.requests * opt.clients;
    rng_seed(&t->rng, opt.seed, index);
    if (opt.verify != VERIFY_NONE && opt.on_miss != MISS_SETS
        && !opt.reconnect) {
        t->sample_size = SAMPLE / opt.threads + 1;
        if (t->sample_size > SAMPLE_BYTES / largest_value() / opt.threads + 1)
            t->sample_size = SAMPLE_BYTES / largest_value() / opt.threads + 1;
        t->sample = allocate(t->sample_size, sizeof *t->sample);
    }
    for (enum kind k = 0; k < KINDS; k++)
        t->histogram[k].min = UINT64_MAX;
    if ((t->epoll = epoll_create1(EPOLL_CLOEXEC)) < 0)
        fail("epoll: %s", strerror(errno));
    for (unsigned i = 0; i < t->conn_count; i++) {
        struct conn *c = &t->conns[i];
        c->thread = t;
        c->node = &opt.nodes[(i * opt.threads + index)
                             % (unsigned)opt.node_count];
        c->ops = allocate(opt.pipeline, sizeof *c->ops);
    }
}

static void *work(void *thread)
{
    prctl(PR_SET_TIMERSLACK, 1);            /* an open loop sleeps exactly */
    if (!opt.reconnect)
        open_connections(thread);
    pthread_barrier_wait(&opened);
    pthread_barrier_wait(&started);
    run_load(thread);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t *ids;

    signal(SIGPIPE, SIG_IGN);
    read_options(argc, argv);
    prepare_draw();
    /* Besides the sockets: an epoll a thread, the standard streams, files. */
    raise_open_files(opt.threads * opt.clients, opt.threads + 16);
    find_nodes();
    ids = allocate(opt.threads, sizeof *ids);
    threads = allocate(opt.threads, sizeof *threads);
    pthread_barrier_init(&opened, NULL, opt.threads + 1);
    pthread_barrier_init(&started, NULL, opt.threads + 1);
    for (unsigned i = 0; i < opt.threads; i++) {
        prepare_thread(&threads[i], i);
        if (pthread_create(&ids[i], NULL, work, &threads[i]))
            fail("no %u threads: %s", opt.threads, strerror(errno));
    }
    pthread_barrier_wait(&opened);
    if (opt.service.gate)
        pass_gate();
    begin_ns = clock_ns() + (uint64_t)(opt.warmup * 1e9);
    end_ns = opt.duration ? begin_ns + (uint64_t)(opt.duration * 1e9)
                          : UINT64_MAX;
    pthread_barrier_wait(&started);
    for (unsigned i = 0; i < opt.threads; i++)
        pthread_join(ids[i], NULL);
    print_report();
    return 0;
}
