/*
 * pt2pt.c - the two-sided benchmarks.
 *
 * What they have in common: one page-aligned send and one receive buffer of
 * the largest size; per size the bytes used are set and the ranks meet in a
 * barrier; EVERY timed iteration has its own pair of clock reads, summed up.
 * The cost of reading the clock is therefore part of the figure, as it is in
 * the real program; one pair around the loop would flatter small messages.
 *
 * The loops are static functions inlined with a constant `check`, so that
 * without -c nothing of the validation is left in them.
 */
#include "osu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { TAG_DATA = 100, TAG_REPLY = 101, TAG_BACK = 10, TAG_PING = 1 };

static unsigned char *send_buf, *recv_buf;
static MPI_Request *send_req, *recv_req;
static MPI_Status *statuses;

static void begin(const char *value)
{
    print_title();
    print_value_header(value);
    if (my_rank == 0) {
        printf("# Datatype: MPI_CHAR.\n");
        fflush(stdout);
    }
}

/* -c: new data before the timed exchange, nothing stale in its way. The
 * pattern's seed tells ranks and iterations apart. */
static void prepare(int i, size_t n)
{
    fill_pattern(send_buf, n, (unsigned)(2 * i + my_rank));
    memset(recv_buf, 0xee, n);
    MPI_Barrier(MPI_COMM_WORLD);
}

static long verify(int i, size_t n, int peer)
{
    INJECT_FAULT(recv_buf);
    return count_wrong(recv_buf, n, (unsigned)(2 * i + peer));
}

/* --- the exchanges ------------------------------------------------------ */

/* One message there and back; a window of messages one way; a window each
 * way. The first half of the ranks sends to the second half. */
enum exchange { PING_PONG, ONE_WAY, BOTH_WAYS };

ALWAYS_INLINE void ping_pong(void *send, void *recv, size_t n, bool sender,
                             int peer)
{
    MPI_Status status;

    if (sender)
        MPI_Send(send, (int)n, MPI_CHAR, peer, TAG_PING, MPI_COMM_WORLD);
    MPI_Recv(recv, (int)n, MPI_CHAR, peer, TAG_PING, MPI_COMM_WORLD, &status);
    if (!sender)
        MPI_Send(send, (int)n, MPI_CHAR, peer, TAG_PING, MPI_COMM_WORLD);
}

ALWAYS_INLINE void start_sends(size_t n, int peer, int tag)
{
    for (int j = 0; j < opt.window; j++)
        MPI_Isend(send_buf, (int)n, MPI_CHAR, peer, tag, MPI_COMM_WORLD,
                  send_req + j);
}

ALWAYS_INLINE void start_receives(size_t n, int peer, int tag)
{
    for (int j = 0; j < opt.window; j++)
        MPI_Irecv(recv_buf, (int)n, MPI_CHAR, peer, tag, MPI_COMM_WORLD,
                  recv_req + j);
}

ALWAYS_INLINE void wait_for(MPI_Request *requests)
{
    MPI_Waitall(opt.window, requests, statuses);
}

/* The whole part of one rank in one iteration. `sender`: of the first half. */
ALWAYS_INLINE void exchange_once(enum exchange kind, size_t n, bool sender,
                                 int peer)
{
    static char reply[4];

    switch (kind) {
    case PING_PONG:
        ping_pong(send_buf, recv_buf, n, sender, peer);
        break;
    case ONE_WAY:
        /* The reply makes the time cover the arrival of the last message. */
        if (sender) {
            start_sends(n, peer, TAG_DATA);
            wait_for(send_req);
            MPI_Recv(reply, 4, MPI_CHAR, peer, TAG_REPLY, MPI_COMM_WORLD,
                     statuses);
        } else {
            start_receives(n, peer, TAG_DATA);
            wait_for(recv_req);
            MPI_Send(reply, 4, MPI_CHAR, peer, TAG_REPLY, MPI_COMM_WORLD);
        }
        break;
    case BOTH_WAYS:
        /* No reply, since each rank's own receives end its iteration. The
         * ranks wait in opposite order. */
        start_receives(n, peer, sender ? TAG_BACK : TAG_DATA);
        start_sends(n, peer, sender ? TAG_DATA : TAG_BACK);
        wait_for(sender ? send_req : recv_req);
        wait_for(sender ? recv_req : send_req);
        break;
    }
}

/* Returns the seconds of all timed iterations on the sending side.
 * `meet`: a barrier of all ranks, off the clock, before each iteration. */
ALWAYS_INLINE double timed_loop(enum exchange kind, size_t n, struct counts c,
                                bool meet, bool check, long *errors)
{
    int half = num_ranks / 2;
    bool sender = my_rank < half;
    int peer = sender ? my_rank + half : my_rank - half;
    bool receives = kind != ONE_WAY || !sender;
    double sum = 0, begin;

    for (int i = 0; i < c.total; i++) {
        if (check) {
            for (int w = 0; w < CHECK_WARMUP; w++)
                exchange_once(kind, n, sender, peer);
            prepare(i, n);
        }
        if (meet)
            MPI_Barrier(MPI_COMM_WORLD);
        /* A constant: nothing but the exchange runs between the clock reads. */
        if (sender && i >= c.skip) {
            begin = MPI_Wtime();
            exchange_once(kind, n, true, peer);
            sum += MPI_Wtime() - begin;
        } else if (sender) {
            exchange_once(kind, n, true, peer);
        } else {
            exchange_once(kind, n, false, peer);
        }
        if (check && receives)
            *errors += verify(i, n, peer);
    }
    return sum;
}

/* The timed seconds of one size; with -c also the errors of all ranks. */
ALWAYS_INLINE double measure_size(enum exchange kind, size_t n,
                                  struct counts c, bool meet, long *errors)
{
    double sum;

    *errors = 0;
    memset(send_buf, 'a', n);
    memset(recv_buf, 'b', n);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!opt.check)
        return timed_loop(kind, n, c, meet, false, errors);
    sum = timed_loop(kind, n, c, meet, true, errors);
    *errors = sum_errors(*errors);
    return sum;
}

/* --- one message there and back ---------------------------------------- */

ALWAYS_INLINE int latency_table(bool meet, bool fresh, int width)
{
    for (size_t n = opt.min_size; n <= opt.max_size; n *= 2) {
        struct counts c = counts_for(n);
        long errors;
        double sum;

        if (fresh || !send_buf) {
            free(send_buf);
            free(recv_buf);
            send_buf = page_alloc(fresh ? n : opt.max_size);
            recv_buf = page_alloc(fresh ? n : opt.max_size);
        }
        sum = measure_size(PING_PONG, n, c, meet, &errors);
        print_row(n, sum * 1e6 / (2.0 * c.timed), width, errors);
        if (errors)
            return validation_failed(n);
    }
    return 0;
}

int run_latency(void)
{
    begin("Latency (us)");
    return latency_table(false, false, FIELD);
}

/* Buffers anew for each size, a barrier before each iteration, and rank 0's
 * own figure rather than a mean over the pairs: all as in 7.2. */
int run_multi_lat(void)
{
    begin("Latency (us)");
    return latency_table(true, true, FIELD);
}

/* The forked children do nothing: the point is whether MPI still works, and
 * how fast, in a process that has forked. */
int run_latency_mp(void)
{
    int children = my_rank == 0 ? opt.senders : opt.receivers;
    pid_t pids[128];
    int result;

    if (my_rank == 0)
        printf("# Number of forked processes in sender: %d\n"
               "# Number of forked processes in receiver: %d\n",
               opt.senders, opt.receivers);
    begin("Latency (us)");
    for (int i = 0; i < children; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            die("cannot fork child %d of %d", i + 1, children);
        if (pids[i] == 0) {
            sleep(2);
            _exit(0);
        }
    }
    /* The value column of this one is 10 wide. */
    result = latency_table(true, false, 10);
    for (int i = 0; i < children; i++)
        waitpid(pids[i], NULL, 0);
    return result;
}

/* --- windows of messages ----------------------------------------------- */

/* `flows`: windows that are under way at once; `rate`: a second column. */
ALWAYS_INLINE int window_table(enum exchange kind, bool meet, int flows,
                               bool rate)
{
    size_t window = (size_t)opt.window;

    send_buf = page_alloc(opt.max_size);
    recv_buf = page_alloc(opt.max_size);
    send_req = page_alloc(window * sizeof *send_req);
    recv_req = page_alloc(window * sizeof *recv_req);
    statuses = page_alloc(window * sizeof *statuses);
    for (size_t n = opt.min_size; n <= opt.max_size; n *= 2) {
        struct counts c = counts_for(n);
        long errors;
        double sum = measure_size(kind, n, c, meet, &errors);
        double per_second = (double)flows * c.timed * opt.window / sum;

        if (my_rank == 0) {
            printf("%-10zu%*.2f", n, FIELD, per_second * (double)n / 1e6);
            if (rate)
                printf("%*.2f", FIELD, per_second);
            end_row(errors);
        }
        if (errors)
            return validation_failed(n);
    }
    return 0;
}

int run_bw(void)
{
    begin("Bandwidth (MB/s)");
    return window_table(ONE_WAY, false, 1, false);
}

int run_bibw(void)
{
    begin("Bandwidth (MB/s)");
    return window_table(BOTH_WAYS, false, 2, false);
}

/* As in 7.2 all meet before each iteration and rank 0's clock stands for
 * every pair. */
int run_mbw_mr(void)
{
    int pairs = num_ranks / 2;

    print_title();
    if (my_rank == 0) {
        printf("\n# [ pairs: %d ] [ window size: %d ]\n", pairs, opt.window);
        printf("%-10s%*s%*s", "# Size", FIELD, "MB/s", FIELD, "Messages/s");
        end_header();
        printf("# Datatype: MPI_CHAR.\n");
        fflush(stdout);
    }
    return window_table(ONE_WAY, true, pairs, true);
}

/* --- several threads per rank ------------------------------------------ */

struct worker {
    pthread_t thread;
    int id;
    double sum;                       /* senders: timed round trips, s   */
    unsigned char *send, *recv;
};

/* Threads of one rank meet here; the last to come also meets the other
 * rank, so that all threads of both ranks start a size together. */
static pthread_barrier_t local_barrier;

static void all_threads_meet(void)
{
    if (pthread_barrier_wait(&local_barrier)
        == PTHREAD_BARRIER_SERIAL_THREAD)
        MPI_Barrier(MPI_COMM_WORLD);
    pthread_barrier_wait(&local_barrier);
}

static int team_size(void)
{
    return my_rank == 0 ? opt.senders : opt.receivers;
}

/* Iterations are dealt out by stride on either side. Any receiver may answer
 * any sender: both sides handle as many messages in total. */
ALWAYS_INLINE void thread_loop(struct worker *w, size_t n, struct counts c)
{
    for (int i = w->id; i < c.total; i += team_size()) {
        if (my_rank == 0 && i >= c.skip) {
            double begin = MPI_Wtime();

            ping_pong(w->send, w->recv, n, true, 1);
            w->sum += MPI_Wtime() - begin;
        } else {
            ping_pong(w->send, w->recv, n, my_rank == 0, 1 - my_rank);
        }
    }
}

static struct worker *workers;

static void *work(void *arg)
{
    struct worker *w = arg;

    w->send = page_alloc(opt.max_size);
    w->recv = page_alloc(opt.max_size);
    for (size_t n = opt.min_size; n <= opt.max_size; n *= 2) {
        struct counts c = counts_for(n);

        w->sum = 0;
        memset(w->send, 'a', n);
        memset(w->recv, 'b', n);
        all_threads_meet();
        thread_loop(w, n, c);
        pthread_barrier_wait(&local_barrier);
        if (w->id == 0) {               /* between two local barriers */
            for (int k = 1; k < team_size(); k++)
                w->sum += workers[k].sum;
            print_row(n, w->sum * 1e6 / (2.0 * c.timed), FIELD, 0);
        }
        pthread_barrier_wait(&local_barrier);
    }
    return NULL;
}

int run_latency_mt(void)
{
    int team = team_size(), provided;

    MPI_Query_thread(&provided);
    if (provided < MPI_THREAD_MULTIPLE) {
        if (my_rank == 0)
            fprintf(stderr, "osu_latency_mt: this MPI library does not "
                    "provide MPI_THREAD_MULTIPLE\n");
        return 1;
    }
    if (my_rank == 0)
        printf("# Number of Sender threads: %d \n"
               "# Number of Receiver threads: %d\n",
               opt.senders, opt.receivers);
    begin("Latency (us)");

    workers = page_alloc((size_t)team * sizeof *workers);
    if (pthread_barrier_init(&local_barrier, NULL, (unsigned)team))
        die("cannot create a thread barrier");
    for (int k = 0; k < team; k++) {
        workers[k] = (struct worker){.id = k};
        if (pthread_create(&workers[k].thread, NULL, work, workers + k))
            die("cannot create thread %d of %d", k + 1, team);
    }
    for (int k = 0; k < team; k++)
        pthread_join(workers[k].thread, NULL);
    /* Unlike 7.2 this returns, so that main() calls MPI_Finalize. */
    return 0;
}
