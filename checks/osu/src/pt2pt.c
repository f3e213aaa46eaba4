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
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { TAG_DATA = 100, TAG_REPLY = 101, TAG_BACK = 10, TAG_PING = 1 };

static unsigned char *send_buf, *recv_buf;
static MPI_Request *send_req, *recv_req;
static MPI_Status *statuses;

static void set_up(size_t bytes)
{
    send_buf = page_alloc(bytes);
    recv_buf = page_alloc(bytes);
}

static void set_up_window(void)
{
    size_t n = (size_t)opt.window;

    send_req = page_alloc(n * sizeof *send_req);
    recv_req = page_alloc(n * sizeof *recv_req);
    statuses = page_alloc(n * sizeof *statuses);
}

static void tear_down(void)
{
    free(send_buf);
    free(recv_buf);
    free(send_req);
    free(recv_req);
    free(statuses);
}

static void start_size(size_t n)
{
    memset(send_buf, 'a', n);
    memset(recv_buf, 'b', n);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void print_pt2pt_header(const char *value)
{
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

ALWAYS_INLINE void send_message(size_t n, int peer)
{
    MPI_Send(send_buf, (int)n, MPI_CHAR, peer, TAG_PING, MPI_COMM_WORLD);
}

ALWAYS_INLINE void receive_message(size_t n, int peer)
{
    MPI_Status status;

    MPI_Recv(recv_buf, (int)n, MPI_CHAR, peer, TAG_PING, MPI_COMM_WORLD,
             &status);
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
        if (sender)
            send_message(n, peer);
        receive_message(n, peer);
        if (!sender)
            send_message(n, peer);
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
    start_size(n);
    if (!opt.check)
        return timed_loop(kind, n, c, meet, false, errors);
    sum = timed_loop(kind, n, c, meet, true, errors);
    *errors = sum_errors(*errors);
    return sum;
}

/* --- one message there and back ---------------------------------------- */

ALWAYS_INLINE int latency_table(bool meet, bool fresh, int width)
{
    if (!fresh)
        set_up(opt.max_size);
    for (size_t n = opt.min_size; wanted(n); n *= 2) {
        struct counts c = counts_for(n);
        long errors;
        double sum;

        if (fresh)
            set_up(n);
        sum = measure_size(PING_PONG, n, c, meet, &errors);
        print_row(n, sum * 1e6 / (2.0 * c.timed), width, errors);
        if (fresh)
            tear_down();
        if (errors)
            return validation_failed(n);
    }
    if (!fresh)
        tear_down();
    return 0;
}

int run_latency(void)
{
    print_title();
    print_pt2pt_header("Latency (us)");
    return latency_table(false, false, FIELD);
}

/* Buffers anew for each size, a barrier before each iteration, and rank 0's
 * own figure rather than a mean over the pairs: all as in 7.2. */
int run_multi_lat(void)
{
    print_title();
    print_pt2pt_header("Latency (us)");
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
    print_title();
    print_pt2pt_header("Latency (us)");
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

/* `flows`: windows that are under way at once. */
ALWAYS_INLINE int window_table(enum exchange kind, bool meet, int flows,
                               void (*print)(size_t n, double rate, long errors))
{
    set_up(opt.max_size);
    set_up_window();
    for (size_t n = opt.min_size; wanted(n); n *= 2) {
        struct counts c = counts_for(n);
        long errors;
        double sum = measure_size(kind, n, c, meet, &errors);

        print(n, (double)flows * c.timed * opt.window / sum, errors);
        if (errors)
            return validation_failed(n);
    }
    tear_down();
    return 0;
}

/* `rate`: messages per second. */
static void print_bandwidth(size_t n, double rate, long errors)
{
    print_row(n, rate * (double)n / 1e6, FIELD, errors);
}

int run_bw(void)
{
    print_title();
    print_pt2pt_header("Bandwidth (MB/s)");
    return window_table(ONE_WAY, false, 1, print_bandwidth);
}

int run_bibw(void)
{
    print_title();
    print_pt2pt_header("Bandwidth (MB/s)");
    return window_table(BOTH_WAYS, false, 2, print_bandwidth);
}

static void print_bandwidth_and_rate(size_t n, double rate, long errors)
{
    if (my_rank)
        return;
    printf("%-10zu%*.2f%*.2f", n, FIELD, rate * (double)n / 1e6, FIELD,
           rate);
    end_row(errors);
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
    return window_table(ONE_WAY, true, pairs, print_bandwidth_and_rate);
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

ALWAYS_INLINE void thread_exchange(struct worker *w, size_t n)
{
    const int there = 1, back = 2;
    MPI_Status status;

    if (my_rank == 0) {
        MPI_Send(w->send, (int)n, MPI_CHAR, 1, there, MPI_COMM_WORLD);
        MPI_Recv(w->recv, (int)n, MPI_CHAR, 1, back, MPI_COMM_WORLD,
                 &status);
    } else {
        MPI_Recv(w->recv, (int)n, MPI_CHAR, 0, there, MPI_COMM_WORLD,
                 &status);
        MPI_Send(w->send, (int)n, MPI_CHAR, 0, back, MPI_COMM_WORLD);
    }
}

/* Iterations are dealt out by stride on either side. Any receiver may answer
 * any sender: both sides handle as many messages in total. */
ALWAYS_INLINE void thread_loop(struct worker *w, size_t n, struct counts c)
{
    double begin;

    for (int i = w->id; i < c.total; i += team_size()) {
        if (my_rank == 0 && i >= c.skip) {
            begin = MPI_Wtime();
            thread_exchange(w, n);
            w->sum += MPI_Wtime() - begin;
        } else {
            thread_exchange(w, n);
        }
    }
}

static struct worker *workers;

/* The sums of all threads are read between two local barriers. */
static void finish_size(size_t n, struct counts c)
{
    double sum = 0;

    for (int k = 0; k < team_size(); k++)
        sum += workers[k].sum;
    print_row(n, sum * 1e6 / (2.0 * c.timed), FIELD, 0);
}

static void *work(void *arg)
{
    struct worker *w = arg;

    w->send = page_alloc(opt.max_size);
    w->recv = page_alloc(opt.max_size);
    for (size_t n = opt.min_size; wanted(n); n *= 2) {
        struct counts c = counts_for(n);

        w->sum = 0;
        memset(w->send, 'a', n);
        memset(w->recv, 'b', n);
        all_threads_meet();
        thread_loop(w, n, c);
        pthread_barrier_wait(&local_barrier);
        if (w->id == 0)
            finish_size(n, c);
        pthread_barrier_wait(&local_barrier);
    }
    free(w->send);
    free(w->recv);
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
    print_title();
    print_pt2pt_header("Latency (us)");

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
    pthread_barrier_destroy(&local_barrier);
    free(workers);
    /* Unlike 7.2 this returns, so that main() calls MPI_Finalize. */
    return 0;
}
