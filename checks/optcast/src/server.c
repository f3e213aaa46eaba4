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
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum kind { RECV, REDUCE, SEND, KINDS };

struct job {
    pthread_mutex_t lock;
    uint8_t *in[MAX_RANKS], *out;
    struct header head[MAX_RANKS], sum;
    /* Per kind of threads: how many have done the job, over all rounds. Who waits
     * for a kind sleeps until all of them have. */
    uint64_t done[KINDS];
    pthread_cond_t whole[KINDS];
};

static struct job jobs[MAX_JOBS];
static uint32_t threads_of[KINDS];
static size_t room;                     /* bytes of a buffer                */

/* Who is connected: the others have no name. A session begins when all are. */
static struct {
    struct link links[MAX_RANKS];
    char ring[MAX_RANKS][ADDRESS];      /* see struct join                  */
    bool of_ring;
    uint32_t count;
} peers;

/* The handshake with one peer, which stays or is dropped. */
static void admit(int fd)
{
    struct join join;
    const char *why;
    char name[ADDRESS];
    bool stays = accept_peer(fd, &join, &why);
    name_of(fd, true, name);
    if (stays && *peers.links[join.rank].in.peer)
        why = "its rank is here already";
    else if (stays && peers.count && !*join.ring == peers.of_ring)
        why = "all ranks of a session have --ring, or none";
    else if (stays) {
        set_timeout(fd, o.timeout);
        send_at_once(fd);
        struct link *link = &peers.links[join.rank];
        link->in = (struct end){.fd = fd};
        snprintf(link->in.peer, sizeof link->in.peer, "rank %u (%s)",
                 join.rank, name);
        link->out = link->in;
        strcpy(peers.ring[join.rank], join.ring);
        peers.of_ring = *join.ring;
        peers.count++;
        trace_rust("INFO", "server", "server connected");
        return;
    }
    if (*why)
        trace_rust("WARN", "server", "%s dropped: %s", name, why);
    trace_flush();
    close(fd);
}

/* Once all ranks are there: they must have sent the same. */
static void agree(const struct job *job)
{
    for (uint32_t r = 1; r < o.nrank; r++)
        if (job->head[r].magic != job->head[0].magic
                || job->head[r].bytes != job->head[0].bytes)
            fail("rank %u sent %llu bytes, but rank 0 sent %llu: their size "
                 "or chunksize differ", r,
                 (unsigned long long)job->head[r].bytes,
                 (unsigned long long)job->head[0].bytes);
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
            said_bye ? -1 : peers.links[first + k].in.fd,
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
                lost(&peers.links[first + k].in, "sent nothing");
            polled[k].fd = -1;
        }
    }
}

/* --- the part of one thread, number i of its kind, in a job ---------------- */

/* A message of each rank. Returns the header of the first one. */
static struct header receive(struct job *job, uint32_t i)
{
    uint32_t each = o.nrank / o.recvs, first = i * each;
    for (uint32_t r = first; r < first + each; r++) {
        wait_for_rank(r, first, each, job->head);
        job->head[r] = take_message(&peers.links[r].in, job->in[r], room);
    }
    return job->head[first];
}

static void add_up(struct job *job, uint32_t i, const struct header *head)
{
    size_t each = size_of(o.type), all = head->bytes / each;
    /* Parts begin at whole cache lines. */
    size_t from = i * all / o.threads & ~(size_t)31;
    size_t to = i + 1 == o.threads ? all
        : (i + 1) * all / o.threads & ~(size_t)31;
    const void *in[MAX_RANKS];
    for (uint32_t r = 0; r < o.nrank; r++)
        in[r] = job->in[r] + from * each;
    reduce(o.type, job->out + from * each, in, o.nrank, to - from);
}

static void send_sum(struct job *job, uint32_t i, const struct header *head)
{
    uint32_t each = o.nrank / o.sends;
    for (uint32_t r = i * each; r < (i + 1) * each; r++)
        send_message(&peers.links[r].out, head->magic, job->out, head->bytes);
}

/* --- threads -------------------------------------------------------------- */

static const char *const names[] = {"recv", "reduce", "send"};

static void trace_latency(enum kind kind, uint32_t i, uint32_t j, double us,
                          uint64_t bytes)
{
    if (kind == REDUCE)
        trace_rust("TRACE", "server", "rank(%u)/job(%u) reduce latency: %uus",
                   i, j, (unsigned)us);
    else
        trace_rust("TRACE", "server", "rank(%u)/job(%u) %s latency: %uus, "
                   "%.2fGbps", i, j, names[kind], (unsigned)us,
                   bytes * 8e-3 / us);
}

/* Sleeps until all threads of a kind have done the job so often. */
static void wait_for(struct job *job, enum kind kind, uint64_t rounds)
{
    while (job->done[kind] < rounds * threads_of[kind])
        pthread_cond_wait(&job->whole[kind], &job->lock);
}

/* Ends with the session; argument: the kind, and the number within it. */
static void *go_through_jobs(void *argument)
{
    enum kind kind = (intptr_t)argument % KINDS;
    uint32_t i = (intptr_t)argument / KINDS;
    if (kind == RECV)
        trace_rust("INFO", "server", "recv thread(%u) all ranks get "
                   "connected!, size: %zu", i, room);
    for (uint64_t n = 0;; n++) {
        uint32_t j = n % o.jobs;
        uint64_t round = n / o.jobs;
        struct job *job = jobs + j;
        struct header head = {0};
        pthread_mutex_lock(&job->lock);
        if (kind < SEND)
            wait_for(job, kind + 1, round);
        if (kind > RECV) {
            wait_for(job, kind - 1, round + 1);
            head = kind == SEND ? job->sum : job->head[0];
        }
        pthread_mutex_unlock(&job->lock);

        if (kind == RECV || head.magic == DATA)
            trace_rust("TRACE", "server", "rank(%u)/job(%u) %s %s", i, j,
                       names[kind], kind == REDUCE ? "start" : "requested");
        double start = now();
        if (kind == RECV)
            head = receive(job, i);
        else if (kind == REDUCE)
            add_up(job, i, &head);
        else if (head.magic != BYE)
            send_sum(job, i, &head);
        if (head.magic == DATA)
            trace_latency(kind, i, j, (now() - start) * 1e6, head.bytes);
        else if (kind == RECV)
            trace_rust("TRACE", "server", "rank(%u)/job(%u) recv barrier", i,
                       j);

        pthread_mutex_lock(&job->lock);
        if (++job->done[kind] % threads_of[kind] == 0) {
            if (kind == RECV)
                agree(job);
            else if (kind == REDUCE)
                job->sum = head;
            pthread_cond_broadcast(&job->whole[kind]);
        }
        pthread_mutex_unlock(&job->lock);
        if (head.magic == BYE)
            return NULL;
    }
}

static void run_threads(void)
{
    pthread_t threads[KINDS * MAX_THREADS];
    int count = 0;
    for (uint32_t j = 0; j < o.jobs; j++)
        memset(jobs[j].done, 0, sizeof jobs[j].done);
    for (intptr_t kind = 0; kind < KINDS; kind++)
        for (uint32_t i = 0; i < threads_of[kind]; i++)
            if (pthread_create(threads + count++, NULL, go_through_jobs,
                               (void *)(kind + i * KINDS)))
                fail("cannot start %d threads", count);
    while (count--)
        pthread_join(threads[count], NULL);
}

/* Of a ring a server only tells who comes next. */
static void run_ring(void)
{
    for (uint32_t r = 0; r < o.nrank; r++)
        if (write(peers.links[r].out.fd, peers.ring[(r + 1) % o.nrank], ADDRESS)
                != ADDRESS)
            lost(&peers.links[r].out, "took no data");
}

int serve(void)
{
    room = o.count * size_of(o.type);
    threads_of[RECV] = o.recvs;
    threads_of[REDUCE] = o.threads;
    threads_of[SEND] = o.sends;
    for (uint32_t j = 0; j < o.jobs; j++) {
        pthread_mutex_init(&jobs[j].lock, NULL);
        for (int kind = 0; kind < KINDS; kind++)
            pthread_cond_init(&jobs[j].whole[kind], NULL);
        for (uint32_t r = 0; r < o.nrank; r++)
            jobs[j].in[r] = get(room);
        jobs[j].out = get(room);
    }
    /* SIGTERM ends the server between two sessions: its log is whole. */
    sigset_t ends, before;
    sigemptyset(&ends);
    sigaddset(&ends, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ends, &before);
    char port[8];
    snprintf(port, sizeof port, "%u", o.port);
    struct pollfd door = {listen_at(o.address, port, 0), POLLIN, 0};
    trace_rust("INFO", "server", "listening on %s:%u for %u ranks",
               o.address, o.port, o.nrank);
    for (;;) {
        trace_flush();
        while (peers.count < o.nrank) {
            int fd = ppoll(&door, 1, NULL, &before) > 0
                ? accept4(door.fd, NULL, NULL, SOCK_CLOEXEC) : -1;
            if (fd >= 0)
                admit(fd);
        }
        if (peers.of_ring)
            run_ring();
        else
            run_threads();
        for (uint32_t r = 0; r < o.nrank; r++) {
            trace_rust("INFO", "server", "handle_connection: exiting ret "
                       "Ok(0)");
            close(peers.links[r].in.fd);
        }
        memset(&peers, 0, sizeof peers);
    }
}
