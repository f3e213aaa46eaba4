/* engine.c - one thread, many connections. Each is added to epoll once, edge
 * triggered: an answered request costs one recv, one send and a share of an
 * epoll_wait. */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>

enum { EVENTS = 256, MAX_READS = 16 };
/* Interval between two checks for timeouts. Unit: ns. */
static const uint64_t CHECK_INTERVAL = SECOND / 10;

uint64_t begin_ns, end_ns;
struct thread *threads;

/* CPU seconds of this thread, and those it waited for a CPU. */
static struct usage usage_now(const struct thread *t)
{
    struct usage u = {.at = (double)t->now / 1e9};
    FILE *file = fopen("/proc/thread-self/schedstat", "r");
    struct rusage r;
    double waited;

    getrusage(RUSAGE_THREAD, &r);
    u.cpu = (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec)
            + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
    if (file) {
        if (fscanf(file, "%*u %lf", &waited) == 1)
            u.waited = waited / 1e9;
        fclose(file);
    }
    return u;
}

/* --- connections --------------------------------------------------------- */
static _Noreturn void connection_lost(const struct conn *c, bool broken)
{
    const char *why = broken ? link_error() : "end of stream";

    if (c->state == CONNECTING && errno == EADDRNOTAVAIL)
        fail("%s: no port is free here for another of %u connections: request "
             "fewer connections or more client nodes, or widen "
             "net.ipv4.ip_local_port_range", c->node->name,
             opt.threads * opt.clients);
    if (c->state == CONNECTING)
        fail("%s: %s: does the server run, and listen there?", c->node->name,
             why);
    if (c->greetings)
        fail("%s closed the connection before it answered (%s): too many "
             "connections for it, or a server that needs TLS?",
             c->node->name, why);
    fail("%s closed the connection after %" PRIu64 " operations of this thread "
         "(%s): did the server die?", c->node->name, c->thread->answered, why);
}

static void input(struct conn *c, bool hung_up);

static void flush(struct conn *c)
{
    while (c->piece_first < c->piece_count) {
        struct iovec v[64];
        int n = 0;
        for (unsigned i = c->piece_first; i < c->piece_count && n < 64; i++) {
            const struct piece *p = &c->pieces[i];
            const char *from = p->at ? p->at : c->bytes + p->offset;
            v[n++] = (struct iovec){(char *)from, p->size};
        }
        ssize_t sent = link_write(c->fd, v, n);
        if (sent == LINK_AGAIN)
            return;                         /* epoll reports when it can   */
        if (sent < 0) {
            int code = errno;
            input(c, true);                 /* an error reply, if any      */
            errno = code;
            connection_lost(c, true);
        }
        for (size_t left = (size_t)sent; left;) {
            struct piece *p = &c->pieces[c->piece_first];
            size_t take = left < p->size ? left : p->size;
            if (p->at)
                p->at += take;
            else
                p->offset += take;
            left -= take;
            if ((p->size -= take) == 0)
                c->piece_first++;
        }
        c->since = c->thread->now;
    }
    c->piece_first = c->piece_count = 0;
    c->filled = 0;
}

/* EPOLL_CTL_ADD; EPOLL_CTL_MOD re-arms an edge that was reported. */
static void watch(struct conn *c, int how)
{
    struct epoll_event e = {
        .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};

    if (epoll_ctl(c->thread->epoll, how, c->fd, &e))
        fail("epoll_ctl: %s", strerror(errno));
}

static void open_one(struct conn *c)
{
    struct thread *t = c->thread;

    c->state = CONNECTING;
    c->since = t->now;
    int fd = start_connect(c->node->server, 0);
    if (fd < 0)
        connection_lost(c, true);
    c->fd = fd;
    watch(c, EPOLL_CTL_ADD);
}

static void connected(struct conn *c)
{
    socklen_t size = sizeof errno;
    int code = 0;

    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &code, &size);
    if (code) {
        errno = code;
        connection_lost(c, true);
    }
    c->state = OPEN;
    put_greeting(c);
    flush(c);
}

/* --- written keys -------------------------------------------------------- */
/* The last writes of each thread are read after the measurement: if a store
 * drops one in 200, a thousand reads find it in 99 runs of 100. All SETs of a
 * key write the same value, so their order does not matter. */
static void note_write(struct conn *c, uint64_t key)
{
    struct thread *t = c->thread;

    if (t->sample)
        t->sample[t->written++ % t->sample_size] = (struct write){c, key};
}

/* --- requests ------------------------------------------------------------ */
static bool may_send(struct thread *t, uint64_t at)
{
    if (at >= end_ns)
        return false;
    if (!opt.requests || at < begin_ns)
        return true;
    if (!t->left)
        return false;
    t->left--;
    return true;
}

static bool next_to_fill(struct node *n, uint64_t *key)
{
    do
        *key = atomic_fetch_add(&n->next_fill, 1);
    while (*key < opt.keys && !node_owns(n, *key));
    return *key < opt.keys;
}

static void push(struct conn *c, enum kind kind, uint64_t key, uint64_t start)
{
    unsigned at = c->head + c->in_flight;
    struct op *op = &c->ops[at < opt.pipeline ? at : at - opt.pipeline];

    *op = (struct op){.start = start, .key = key, .kind = kind};
    if (!start)                             /* a read-back after the load  */
        op->due = opt.fills ? FILLED : OVERWRITTEN;
    op->bytes = put_request(c, op);
    if (!c->in_flight++)
        c->since = c->thread->now;
    c->thread->in_flight++;
}

static enum kind draw_kind(struct rng *r)
{
    if (opt.word_count)
        return COMMAND;
    if (!opt.sets || !opt.gets)
        return opt.sets ? SET : GET;
    return rng_unit(r) * (opt.sets + opt.gets) < opt.sets ? SET : GET;
}

static bool push_next(struct conn *c, uint64_t start)
{
    struct rng *r = &c->thread->rng;
    uint64_t key;

    if (opt.fills) {
        if (!next_to_fill(c->node, &key))
            return false;
    } else {
        do
            key = draw_key(r);
        while (!node_owns(c->node, key));
    }
    push(c, draw_kind(r), key, start);
    return true;
}

/* Closed loop: fills the pipeline with requests, in one send. */
static void refill(struct conn *c)
{
    struct thread *t = c->thread;

    while (c->in_flight < opt.pipeline && may_send(t, t->now)
           && push_next(c, t->now))
        ;
    flush(c);
}

static void give_credit(struct conn *c)
{
    struct thread *t = c->thread;
    unsigned size = t->conn_count * opt.pipeline;

    t->credits[(t->credit_first + t->credit_count++) % size] = c;
}

/* Open loop: sends all requests that are due, each on the connection that has
 * been free longest. Without a free one a request waits; its latency counts
 * from when it was due. */
static void dispatch(struct thread *t)
{
    double gap = 1e9 / (opt.rate * t->conn_count);

    while (t->due <= (double)t->now && t->credit_count) {
        uint64_t due = (uint64_t)t->due;
        if (!may_send(t, due)) {
            t->due = INFINITY;
            return;
        }
        struct conn *c = t->credits[t->credit_first];
        t->credit_first = (t->credit_first + 1)
                          % (t->conn_count * opt.pipeline);
        t->credit_count--;
        push_next(c, due);
        flush(c);
        t->now = clock_ns();
        if (due >= begin_ns)
            t->lag_last = t->now - due;
        t->due += gap;
    }
}

/* --- answers ------------------------------------------------------------- */
static void count_second(struct tally *t, uint64_t second)
{
    if (second >= t->seconds) {
        t->by_second = realloc(t->by_second, (second + 1) * sizeof second);
        if (!t->by_second)
            fail("no memory for the counts of %" PRIu64 " seconds", second);
        while (t->seconds <= second)
            t->by_second[t->seconds++] = 0;
    }
    t->by_second[second]++;
}

static void record(struct thread *t, const struct op *op, size_t received,
                   bool miss)
{
    uint64_t ns = t->now - op->start;

    if (!op->start)                         /* a read-back: not measured   */
        return;
    struct tally *tally = &t->tally[op->kind];
    struct histogram *h = &t->histogram[op->kind];
    t->answered++;
    if (op->start < begin_ns || op->start >= end_ns)
        return;
    tally->count++;
    tally->sent += op->bytes;
    tally->received += received;
    tally->misses += miss;
    count_second(tally, (t->now - begin_ns) / SECOND);
    h->bucket[bucket_of(ns)]++;
    h->sum += ns;
    if (ns > h->max)
        h->max = ns;
    if (ns < h->min)
        h->min = ns;
    t->last_answer = t->now;
}

/* --reconnect-interval 1: each request has a connection of its own, and its
 * latency begins before that. */
static void begin_connect(struct conn *c)
{
    if (!may_send(c->thread, c->thread->now))
        return;
    c->begun = c->thread->now;
    c->thread->opening++;
    open_one(c);
}

static void connection_up(struct conn *c)
{
    struct thread *t = c->thread;

    if (!opt.reconnect) {
        t->up++;
        return;
    }
    t->opening--;
    push_next(c, c->begun);
    flush(c);
}

/* The reply to the oldest request, or to a greeting, is complete. */
static void op_done(struct conn *c, size_t received)
{
    struct thread *t = c->thread;

    if (c->greetings) {
        if (!--c->greetings)
            connection_up(c);
        return;
    }
    struct op op = c->ops[c->head];
    if (++c->head == opt.pipeline)
        c->head = 0;
    c->in_flight--;
    t->in_flight--;
    bool miss = op.kind == GET && !c->has_value;
    if (miss && (opt.on_miss == MISS_FAILS || !op.start))
        fail("%s: key %s%" PRIu64 " is not there: did the store lose or "
             "evict it (more memory), or was it never set (--key-pattern "
             "P:P, else --on-miss count)?", c->node->name, opt.prefix,
             op.key);
    if (op.kind == SET || (op.kind == COMMAND && opt.msets))
        note_write(c, op.key);
    record(t, &op, received, miss);
    if (opt.reconnect && op.start) {
        /* With a reset, so that no port stays in TIME_WAIT. */
        link_close(c->fd, true);
        c->state = CLOSED;
    } else if (miss && opt.on_miss == MISS_SETS) {
        push(c, SET, op.key, t->now);
    } else if (opt.rate) {
        give_credit(c);
    }
}

void consume(struct conn *c, const char *p, size_t n)
{
    /* CLOSED: a connection of --reconnect-interval whose request is done. */
    while (c->state != CLOSED) {
        size_t before = n;
        bool complete = read_reply(c, &p, &n);
        c->received += before - n;
        if (!complete)
            return;
        size_t received = c->received;
        c->received = 0;
        op_done(c, received);
    }
}

static void input(struct conn *c, bool hung_up)
{
    struct thread *t = c->thread;
    ssize_t n;

    for (int i = 0; hung_up || i < MAX_READS; i++) {
        n = link_read(c->fd, t->buffer, BUFFER);
        if (n == LINK_AGAIN)
            return;
        if (n <= 0)
            connection_lost(c, n < 0);
        t->now = c->since = clock_ns();
        consume(c, t->buffer, (size_t)n);
        if (c->state == CLOSED)
            return;
        /* A partly filled buffer: the socket is empty, no second recv. */
        if (!hung_up && n < BUFFER)
            return;
    }
    watch(c, EPOLL_CTL_MOD);                /* serve the others first      */
}

static void handle(struct conn *c, uint32_t events)
{
    struct thread *t = c->thread;
    bool hung_up = events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);

    if (c->state == CONNECTING)
        connected(c);
    else if (events & EPOLLOUT && c->piece_count)
        flush(c);
    if (c->state == OPEN && (events & EPOLLIN || hung_up))
        input(c, hung_up);
    if (c->state == CLOSED)
        begin_connect(c);
    else if (c->state == OPEN && t->running && !c->greetings
             && !opt.reconnect) {
        if (opt.rate)
            flush(c);                       /* SETs after misses           */
        else
            refill(c);
    }
}

/* A connection without an answer for too long ends the run. */
static void check_timeouts(struct thread *t)
{
    uint64_t limit = (uint64_t)(opt.timeout * 1e9);

    t->next_check = t->now + CHECK_INTERVAL;
    for (unsigned i = 0; i < t->conn_count; i++) {
        const struct conn *c = &t->conns[i];
        bool waits = c->state == CONNECTING || c->greetings || c->in_flight;
        if (waits && t->now > c->since + limit)
            fail("%s: no answer for %g s on connection %u of %u%s: does the "
                 "server hang, or is it at its limit of connections?",
                 c->node->name, opt.timeout, i * opt.threads + t->index + 1,
                 opt.threads * opt.clients,
                 c->state != OPEN || c->greetings ? " (being opened)" : "");
    }
}

/* Handles events until `until` (ns), for at most CHECK_INTERVAL. ppoll waits
 * with ns precision, epoll_wait only with ms. */
static void poll_events(struct thread *t, double until)
{
    struct epoll_event events[EVENTS];
    double left = until - (double)t->now;
    int wait = (int)(CHECK_INTERVAL / 1000000);

    if (left < (double)CHECK_INTERVAL) {
        struct timespec time = {.tv_nsec = left > 0 ? (long)left : 0};
        struct pollfd poll = {.fd = t->epoll, .events = POLLIN};
        if (left > 0)
            ppoll(&poll, 1, &time, NULL);
        wait = 0;
    }
    int n = epoll_wait(t->epoll, events, EVENTS, wait);
    t->now = clock_ns();
    if (t->running && !t->measuring && t->now >= begin_ns) {
        t->measuring = true;
        t->usage[0] = usage_now(t);
    }
    for (int i = 0; i < n; i++) {
        handle(events[i].data.ptr, events[i].events);
        if (opt.rate && t->running)
            dispatch(t);
    }
    if (t->now >= t->next_check)
        check_timeouts(t);
}

void open_connections(struct thread *t)
{
    /* No more at a time than fit into the listen queue of any server. */
    unsigned at_once = 64 / opt.threads ? 64 / opt.threads : 1, started = 0;

    t->now = clock_ns();
    while (t->up < t->conn_count) {
        while (started < t->conn_count && started - t->up < at_once)
            open_one(&t->conns[started++]);
        poll_events(t, INFINITY);
    }
}

static void read_back(struct thread *t)
{
    uint64_t count = t->written < t->sample_size ? t->written : t->sample_size;

    t->running = false;
    for (uint64_t i = 0; i < count; i++) {
        struct conn *c = t->sample[i].conn;
        while (c->in_flight == opt.pipeline)
            poll_events(t, INFINITY);
        push(c, GET, t->sample[i].key, 0);
        flush(c);
    }
    while (t->in_flight)
        poll_events(t, INFINITY);
}

void run_load(struct thread *t)
{
    t->now = clock_ns();
    t->running = true;
    t->due = INFINITY;
    if (opt.rate) {
        t->due = (double)t->now + 1e9 * t->index
                 / (opt.rate * opt.threads * opt.clients);
        for (unsigned p = 0; p < opt.pipeline; p++)
            for (unsigned i = 0; i < t->conn_count; i++)
                give_credit(&t->conns[i]);
    }
    for (unsigned i = 0; i < t->conn_count; i++) {
        if (opt.reconnect)
            begin_connect(&t->conns[i]);
        else if (!opt.rate)
            refill(&t->conns[i]);
    }
    while (t->in_flight || t->opening || isfinite(t->due)) {
        poll_events(t, t->credit_count ? t->due : INFINITY);
        if (opt.rate)
            dispatch(t);
    }
    t->now = clock_ns();
    if (!t->measuring)
        t->usage[0] = usage_now(t);
    t->usage[1] = usage_now(t);
    read_back(t);
}
