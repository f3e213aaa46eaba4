/* server.c - the reduction server: receive, reduce and send threads go
 * through the jobs in turn, as the original's do, and sleep where those spin.
 *
 * A job is a set of buffers: one for each rank, and one for the sum. In round
 * k its receive threads fill the ranks' buffers once the sum of round k - 1
 * is computed; its reduce threads add them up once all ranks are there and
 * the sum of round k - 1 was sent; its send threads send it. */
#define _GNU_SOURCE
#include "optcast.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* What a class of threads does with a job. Who waits for it sleeps until all
 * of them have done it: one thread of them tells nobody. */
struct stage {
    uint64_t done;                      /* by threads, over all rounds      */
    pthread_cond_t whole;
};

struct job {
    pthread_mutex_t lock;
    uint8_t *in[MAX_RANKS], *out;
    struct header head[MAX_RANKS], sum;
    struct stage received, reduced, sent;
};

static const struct options *o;
static struct job jobs[MAX_JOBS];
static size_t room;                     /* bytes of a buffer                */

/* Who is connected: a session begins when all are. */
static struct {
    int fd[MAX_RANKS];
    uint32_t joined, ring;
    struct join join[MAX_RANKS];
    char name[MAX_RANKS][64];           /* a closed peer has none any more  */
} peers;

/* The handshake with one peer, which stays or is dropped. */
static void admit(int fd)
{
    struct join join;
    char why[216], name[64];
    bool stays = accept_peer(fd, o, &join, why, sizeof why);
    peer_of(fd, name);
    if (stays && peers.fd[join.rank] >= 0) {
        snprintf(why, sizeof why, "rank %u is here already", join.rank);
        stays = false;
    } else if (stays && peers.joined && peers.ring != join.ring) {
        snprintf(why, sizeof why, "rank %u is%s of a ring, others of this "
                 "session are%s", join.rank, join.ring ? "" : " not",
                 join.ring ? " not" : "");
        stays = false;
    }
    if (!stays) {
        if (*why)
            trace_rust("WARN", "server", "%s dropped: %s", name, why);
        trace_flush();
        close(fd);
        return;
    }
    set_timeout(fd, o->timeout);
    send_at_once(fd);
    peers.fd[join.rank] = fd;
    peers.join[join.rank] = join;
    memcpy(peers.name[join.rank], name, sizeof name);
    peers.ring = join.ring;
    peers.joined++;
    trace_rust("INFO", "server", "server connected");
}

static void lost(uint32_t rank, const char *what)
{
    const char *name = peers.name[rank];
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        fail("rank %u (%s) %s for %u s: it hangs, or its link is down", rank,
             name, what, o->timeout);
    fail("rank %u (%s) closed its connection before its end: see the message "
         "of that rank", rank, name);
}

/* What a client may send next. */
static void check(uint32_t rank, const struct header *head, uint32_t seq)
{
    if (head->magic != DATA && head->magic != BARRIER && head->magic != BYE)
        fail("rank %u sent an invalid message", rank);
    if (head->seq != seq)
        fail("rank %u sent message %u instead of %u", rank, head->seq, seq);
    if (head->bytes > room || head->bytes % size_of(o->type)
            || (head->bytes && head->magic == BYE))
        fail("rank %u announced %llu bytes, but a message has at most %zu: "
             "are chunksize and nsplit the same?", rank,
             (unsigned long long)head->bytes, room);
}

/* Waits without a limit for a rank's next message. Another rank of this thread that
 * closes its connection meanwhile, and has not said BYE, ends the run: the one that
 * is waited for may wait for it. */
static void wait_for_rank(uint32_t rank, uint32_t first, uint32_t count,
                          const struct header *heads)
{
    struct pollfd polled[MAX_RANKS];
    struct header next;
    for (uint32_t k = 0; k < count; k++) {
        bool said_bye = first + k < rank && heads[first + k].magic == BYE;
        polled[k] = (struct pollfd){
            said_bye ? -1 : peers.fd[first + k],
            first + k == rank ? POLLIN : POLLRDHUP, 0};
    }
    while (!polled[rank - first].revents) {
        if (poll(polled, count, -1) <= 0)
            continue;
        for (uint32_t k = 0; k < count; k++) {
            if (first + k == rank || !polled[k].revents)
                continue;
            errno = 0;
            if (recv(polled[k].fd, &next, sizeof next, MSG_PEEK | MSG_DONTWAIT)
                    != sizeof next || next.magic != BYE)
                lost(first + k, "sent nothing");
            polled[k].fd = -1;
        }
    }
}

static void take(uint32_t rank, struct header *head, uint8_t *data,
                 uint32_t seq)
{
    if (!read_whole(peers.fd[rank], head, sizeof *head))
        lost(rank, "stopped in the middle of a message");
    check(rank, head, seq);
    if (!read_whole(peers.fd[rank], data, head->bytes))
        lost(rank, "stopped in the middle of a message");
}

static void give(uint32_t rank, const struct header *head,
                 const uint8_t *data)
{
    struct flow flow = {.fd = peers.fd[rank], .head = *head};
    while (!has_passed(&flow))
        if (send_message(&flow, data, 0) <= 0)
            lost(rank, "took no data");
}

static void wait_for(struct job *job, struct stage *stage, uint64_t least)
{
    while (stage->done < least)
        pthread_cond_wait(&stage->whole, &job->lock);
}

/* One of so many threads has done its part; whether all have. */
static bool finish(struct stage *stage, uint32_t threads)
{
    if (++stage->done % threads)
        return false;
    pthread_cond_broadcast(&stage->whole);
    return true;
}

/* Once all ranks are there: they must have sent the same. */
static void agree(const struct job *job)
{
    for (uint32_t r = 1; r < o->nrank; r++)
        if (job->head[r].magic != job->head[0].magic
                || job->head[r].bytes != job->head[0].bytes)
            fail("rank %u sent %llu bytes, but rank 0 sent %llu: their size "
                 "or chunksize differ", r,
                 (unsigned long long)job->head[r].bytes,
                 (unsigned long long)job->head[0].bytes);
}

static double microseconds(double since)
{
    return (now() - since) * 1e6;
}

static void trace_latency(const char *what, uint32_t i, uint32_t j, double us,
                          uint64_t bytes)
{
    trace_rust("TRACE", "server", "rank(%u)/job(%u) %s latency: %uus, "
               "%.2fGbps", i, j, what, (unsigned)us, bytes * 8e-3 / us);
}

static void *receiver(void *arg)
{
    uint32_t i = (intptr_t)arg, each = o->nrank / o->recvs, seq = 0;
    trace_rust("INFO", "server", "recv thread(%u) all ranks get connected!, "
               "size: %zu", i, room);
    for (uint64_t round = 0;; round++)
        for (uint32_t j = 0; j < o->jobs; j++, seq++) {
            struct job *job = jobs + j;
            pthread_mutex_lock(&job->lock);
            wait_for(job, &job->reduced, round * o->threads);
            pthread_mutex_unlock(&job->lock);
            trace_rust("TRACE", "server", "rank(%u)/job(%u) recv requested",
                       i, j);
            double start = now();
            for (uint32_t r = i * each; r < (i + 1) * each; r++) {
                wait_for_rank(r, i * each, each, job->head);
                take(r, &job->head[r], job->in[r], seq);
            }
            struct header head = job->head[i * each];
            double us = microseconds(start);
            if (head.magic == DATA)
                trace_latency("recv", i, j, us, head.bytes);
            else
                trace_rust("TRACE", "server", "rank(%u)/job(%u) recv barrier",
                           i, j);
            pthread_mutex_lock(&job->lock);
            if (finish(&job->received, o->recvs))
                agree(job);
            pthread_mutex_unlock(&job->lock);
            if (head.magic == BYE)
                return NULL;
        }
}

static void *reducer(void *arg)
{
    uint32_t i = (intptr_t)arg;
    for (uint64_t round = 0;; round++)
        for (uint32_t j = 0; j < o->jobs; j++) {
            struct job *job = jobs + j;
            pthread_mutex_lock(&job->lock);
            wait_for(job, &job->received, (round + 1) * o->recvs);
            wait_for(job, &job->sent, round * o->sends);
            struct header head = job->head[0];
            pthread_mutex_unlock(&job->lock);
            size_t each = size_of(o->type), all = head.bytes / each;
            /* Parts begin at whole cache lines. */
            size_t from = i * all / o->threads & ~(size_t)31;
            size_t to = i + 1 == o->threads ? all
                : (i + 1) * all / o->threads & ~(size_t)31;
            const void *in[MAX_RANKS];
            for (uint32_t r = 0; r < o->nrank; r++)
                in[r] = job->in[r] + from * each;
            if (head.magic == DATA)
                trace_rust("TRACE", "server", "rank(%u)/job(%u) reduce start",
                           i, j);
            double start = now();
            reduce(o->type, job->out + from * each, in, o->nrank, to - from);
            if (head.magic == DATA)
                trace_rust("TRACE", "server", "rank(%u)/job(%u) reduce "
                           "latency: "
                            "%uus", i, j, (unsigned)microseconds(start));
            pthread_mutex_lock(&job->lock);
            if (finish(&job->reduced, o->threads))
                job->sum = head;
            pthread_mutex_unlock(&job->lock);
            if (head.magic == BYE)
                return NULL;
        }
}

static void *sender(void *arg)
{
    uint32_t i = (intptr_t)arg, each = o->nrank / o->sends;
    struct header head;
    for (uint64_t round = 0;; round++)
        for (uint32_t j = 0; j < o->jobs; j++) {
            struct job *job = jobs + j;
            pthread_mutex_lock(&job->lock);
            wait_for(job, &job->reduced, (round + 1) * o->threads);
            head = job->sum;
            pthread_mutex_unlock(&job->lock);
            if (head.magic == BYE)
                return NULL;
            bool spoken = head.magic == DATA;
            if (spoken)
                trace_rust("TRACE", "server", "rank(%u)/job(%u) send "
                           "requested", i, j);
            double start = now();
            for (uint32_t r = i * each; r < (i + 1) * each; r++)
                give(r, &head, job->out);
            double us = microseconds(start);
            if (spoken)
                trace_latency("send", i, j, us, head.bytes);
            pthread_mutex_lock(&job->lock);
            finish(&job->sent, o->sends);
            pthread_mutex_unlock(&job->lock);
        }
}

static void run_threads(void)
{
    pthread_t threads[3 * MAX_THREADS];
    uint32_t count = 0;
    for (uint32_t j = 0; j < o->jobs; j++)
        jobs[j].received.done = jobs[j].reduced.done = jobs[j].sent.done = 0;
    for (int kind = 0; kind < 3; kind++) {
        uint32_t of = kind == 0 ? o->recvs : kind == 1 ? o->threads
            : o->sends;
        for (uint32_t i = 0; i < of; i++)
            if (pthread_create(threads + count++, NULL,
                               kind == 0 ? receiver : kind == 1 ? reducer
                               : sender, (void *)(intptr_t)i))
                fail("cannot start %u threads", count);
    }
    while (count--)
        pthread_join(threads[count], NULL);
}

/* Of a ring a server only tells who comes next. */
static void run_ring(void)
{
    for (uint32_t r = 0; r < o->nrank; r++) {
        uint32_t next = (r + 1) % o->nrank;
        struct neighbour told = {MAGIC, peers.join[next].address,
                                 peers.join[next].port};
        if (!write_whole(peers.fd[r], &told, sizeof told))
            lost(r, "took no data");
    }
}

int serve(const struct options *options)
{
    o = options;
    room = o->count * size_of(o->type);
    for (uint32_t j = 0; j < o->jobs; j++) {
        pthread_mutex_init(&jobs[j].lock, NULL);
        pthread_cond_init(&jobs[j].received.whole, NULL);
        pthread_cond_init(&jobs[j].reduced.whole, NULL);
        pthread_cond_init(&jobs[j].sent.whole, NULL);
        for (uint32_t r = 0; r < o->nrank; r++)
            jobs[j].in[r] = get(room);
        jobs[j].out = get(room);
    }
    for (uint32_t r = 0; r < o->nrank; r++)
        peers.fd[r] = -1;
    /* SIGTERM ends the server between two sessions: its log is whole. */
    sigset_t ends, before;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, &before);
    char port[8];
    snprintf(port, sizeof port, "%u", o->port);
    struct pollfd door = {listen_at(o->address, port, 0), POLLIN, 0};
    trace_rust("INFO", "server", "listening on %s:%u for %u ranks",
               o->address, o->port, o->nrank);
    for (;;) {
        trace_flush();
        while (peers.joined < o->nrank) {
            int fd = ppoll(&door, 1, NULL, &before) > 0
                ? accept4(door.fd, NULL, NULL, SOCK_CLOEXEC) : -1;
            if (fd >= 0)
                admit(fd);
        }
        if (peers.ring)
            run_ring();
        else
            run_threads();
        for (uint32_t r = 0; r < o->nrank; r++) {
            trace_rust("INFO", "server", "handle_connection: exiting ret "
                       "Ok(0)");
            close(peers.fd[r]);
            peers.fd[r] = -1;
        }
        peers.joined = 0;
    }
}
