/*
 * one_sided.c - the benchmarks on MPI windows.
 *
 * The real program reads the clock around the whole loop AND twice in every
 * timed iteration (for graphs, even when none is asked for). The figure is
 * the outer time, so those two reads are part of it: about 45 ns, most of a
 * small put. They are made here too, see struct stopwatch.
 *
 * Operation and synchronisation are constants of inlined functions; the
 * switch that picks one lies outside the timed loop.
 */
#include "osu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum op { OP_PUT, OP_GET, OP_ACC, OP_GET_ACC, OP_FOP, OP_CAS };

/* --- windows ----------------------------------------------------------- */

static unsigned char *user_buf, *result_buf, *compare_buf, *win_mem;
static MPI_Win win;
static MPI_Aint remote;              /* displacement at the other rank    */
static MPI_Group peer_group;

const struct word windows[] = {
    [WIN_CREATE] = {"create", "MPI_Win_create"},
    [WIN_ALLOCATE] = {"allocate", "MPI_Win_allocate"},
    [WIN_DYNAMIC] = {"dynamic", "MPI_Win_create_dynamic"}, {0},
};

const struct word synchronisations[] = {
    [SYNC_LOCK] = {"lock", "MPI_Win_lock/unlock"},
    [SYNC_FLUSH] = {"flush", "MPI_Win_flush"},
    [SYNC_FLUSH_LOCAL] = {"flush_local", "MPI_Win_flush_local"},
    [SYNC_LOCK_ALL] = {"lock_all", "MPI_Win_lock_all/unlock_all"},
    [SYNC_PSCW] = {"pscw", "MPI_Win_post/start/complete/wait"},
    [SYNC_FENCE] = {"fence", "MPI_Win_fence"}, {0},
};

static unsigned char *filled_buffer(size_t bytes, int value)
{
    unsigned char *p = page_alloc(bytes);

    memset(p, value, bytes);
    return p;
}

static void open_window(size_t bytes)
{
    MPI_Aint here;

    remote = 0;
    switch (opt.win) {
    case WIN_ALLOCATE:
        /* This memory stays untouched: who writes first, places it. */
        MPI_Win_allocate((MPI_Aint)bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD,
                         &win_mem, &win);
        break;
    case WIN_CREATE:
        win_mem = filled_buffer(bytes, 'a');
        MPI_Win_create(win_mem, (MPI_Aint)bytes, 1, MPI_INFO_NULL,
                       MPI_COMM_WORLD, &win);
        break;
    case WIN_DYNAMIC:
        win_mem = filled_buffer(bytes, 'a');
        MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &win);
        MPI_Win_attach(win, win_mem, (MPI_Aint)bytes);
        MPI_Get_address(win_mem, &here);
        /* In a dynamic window the displacement is the peer's address. */
        MPI_Sendrecv(&here, 1, MPI_AINT, 1 - my_rank, 0, &remote, 1,
                     MPI_AINT, 1 - my_rank, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        break;
    }
}

static void close_window(void)
{
    if (opt.win == WIN_DYNAMIC) {
        /* The peer may still be at work in it. */
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Win_detach(win, win_mem);
    }
    MPI_Win_free(&win);
    if (opt.win != WIN_ALLOCATE)
        free(win_mem);
}

/* Title and header; also the group of the other rank. */
static void begin(const char *value, bool datatype)
{
    MPI_Group all;

    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, 1, &(int){1 - my_rank}, &peer_group);
    print_title();
    if (my_rank)
        return;
    printf("# Window creation: %s\n# Synchronization: %s\n",
           windows[opt.win].call, synchronisations[opt.sync].call);
    if (datatype)
        printf("# Datatype: MPI_CHAR.\n");
    print_value_header(value);
}

/* --- the operations ---------------------------------------------------- */

ALWAYS_INLINE void one_op(enum op op, size_t n, size_t at)
{
    int count = (int)n, peer = 1 - my_rank;
    MPI_Aint to = remote + (MPI_Aint)at;

    switch (op) {
    case OP_PUT:
        MPI_Put(user_buf + at, count, MPI_CHAR, peer, to, count, MPI_CHAR,
                win);
        break;
    case OP_GET:
        MPI_Get(user_buf + at, count, MPI_CHAR, peer, to, count, MPI_CHAR,
                win);
        break;
    case OP_ACC:
        MPI_Accumulate(user_buf, count, MPI_CHAR, peer, to, count, MPI_CHAR,
                       MPI_SUM, win);
        break;
    case OP_GET_ACC:
        MPI_Get_accumulate(user_buf, count, MPI_CHAR, result_buf, count,
                           MPI_CHAR, peer, to, count, MPI_CHAR, MPI_SUM,
                           win);
        break;
    case OP_FOP:
        MPI_Fetch_and_op(user_buf, result_buf, MPI_CHAR, peer, to, MPI_SUM,
                         win);
        break;
    case OP_CAS:
        MPI_Compare_and_swap(user_buf, compare_buf, result_buf, MPI_CHAR,
                             peer, to, win);
        break;
    }
}

/* `count` operations; number j uses slot j of user buffer and window, so
 * that a window of large messages does not run out of one cached slot. */
ALWAYS_INLINE void ops(enum op op, size_t n, int count)
{
    for (int j = 0; j < count; j++)
        one_op(op, n, (size_t)j * n);
}

/* Exclusive where the real program locks so; shared otherwise. */
ALWAYS_INLINE int lock_type(enum op op, enum sync sync)
{
    if (op == OP_GET_ACC && sync != SYNC_LOCK_ALL)
        return MPI_LOCK_EXCLUSIVE;
    if ((op == OP_FOP || op == OP_CAS) && sync == SYNC_LOCK)
        return MPI_LOCK_EXCLUSIVE;
    return MPI_LOCK_SHARED;
}

struct stopwatch { double begin, lap, laps; };

ALWAYS_INLINE void start_iteration(struct stopwatch *w, int i, int skip)
{
    if (i == skip)
        w->begin = MPI_Wtime();
    if (i >= skip)
        w->lap = MPI_Wtime();
}

ALWAYS_INLINE void end_iteration(struct stopwatch *w, int i, int skip)
{
    if (i >= skip)
        w->laps += MPI_Wtime() - w->lap;
}

/* Rank 0 works on rank 1's window and rank 1 waits in a barrier. */
ALWAYS_INLINE double passive(enum op op, enum sync sync, size_t n,
                             struct counts c, int count)
{
    struct stopwatch w = {0, 0, 0};
    int lock = lock_type(op, sync);
    bool held = sync == SYNC_FLUSH || sync == SYNC_FLUSH_LOCAL;
    double end = 0;

    if (my_rank == 0) {
        if (held)
            MPI_Win_lock(lock, 1, 0, win);
        for (int i = 0; i < c.total; i++) {
            start_iteration(&w, i, c.skip);
            if (sync == SYNC_LOCK)
                MPI_Win_lock(lock, 1, 0, win);
            else if (sync == SYNC_LOCK_ALL)
                MPI_Win_lock_all(0, win);
            ops(op, n, count);
            if (sync == SYNC_LOCK)
                MPI_Win_unlock(1, win);
            else if (sync == SYNC_LOCK_ALL)
                MPI_Win_unlock_all(win);
            else if (sync == SYNC_FLUSH)
                MPI_Win_flush(1, win);
            else
                MPI_Win_flush_local(1, win);
            end_iteration(&w, i, c.skip);
        }
        end = MPI_Wtime();
        if (held)
            MPI_Win_unlock(1, win);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    return end - w.begin;
}

/* Latency in the active modes is a ping-pong: each rank in turn is origin
 * and target, and the caller halves the time. */
ALWAYS_INLINE double ping_pong(enum op op, enum sync sync, size_t n,
                               struct counts c)
{
    struct stopwatch w = {0, 0, 0};
    double end;

    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < c.total; i++) {
        if (sync == SYNC_FENCE) {
            start_iteration(&w, i, c.skip);
            MPI_Win_fence(0, win);
            if (my_rank == 0)
                one_op(op, n, 0);
            MPI_Win_fence(0, win);
            if (my_rank == 1)
                one_op(op, n, 0);
            MPI_Win_fence(0, win);
        } else if (my_rank == 0) {
            MPI_Win_start(peer_group, 0, win);
            /* The first start comes before the clock, as in 7.2. */
            start_iteration(&w, i, c.skip);
            one_op(op, n, 0);
            MPI_Win_complete(win);
            MPI_Win_post(peer_group, 0, win);
            MPI_Win_wait(win);
        } else {
            MPI_Win_post(peer_group, 0, win);
            MPI_Win_wait(win);
            MPI_Win_start(peer_group, 0, win);
            one_op(op, n, 0);
            MPI_Win_complete(win);
        }
        if (my_rank == 0)
            end_iteration(&w, i, c.skip);
    }
    end = MPI_Wtime();
    return (end - w.begin) / 2;
}

/* A window of operations, one way (rank 0 to rank 1) or both ways. */
ALWAYS_INLINE double active_window(enum op op, enum sync sync, size_t n,
                                   struct counts c, int count, bool both)
{
    struct stopwatch w = {0, 0, 0};
    bool origin = both || my_rank == 0, target = both || my_rank == 1;

    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < c.total; i++) {
        if (sync == SYNC_FENCE) {
            start_iteration(&w, i, c.skip);
            MPI_Win_fence(0, win);
            if (origin)
                ops(op, n, count);
            MPI_Win_fence(0, win);
        } else {
            if (target)
                MPI_Win_post(peer_group, 0, win);
            if (origin) {
                MPI_Win_start(peer_group, 0, win);
                start_iteration(&w, i, c.skip);
                ops(op, n, count);
                MPI_Win_complete(win);
            }
            if (target)
                MPI_Win_wait(win);
        }
        if (my_rank == 0)
            end_iteration(&w, i, c.skip);
    }
    return MPI_Wtime() - w.begin;
}

/* --- one function per operation, the mode picked outside the loop ------ */

/* What a row measures: one operation, or a window of operations one way or
 * both ways. */
enum kind { LATENCY, ONE_WAY, BOTH_WAYS };

ALWAYS_INLINE double active(enum kind kind, enum op op, enum sync sync,
                            size_t n, struct counts c)
{
    return kind == LATENCY
           ? ping_pong(op, sync, n, c)
           : active_window(op, sync, n, c, opt.window, kind == BOTH_WAYS);
}

ALWAYS_INLINE double timed_loop(enum kind kind, enum op op, size_t n,
                                struct counts c)
{
    int count = kind == LATENCY ? 1 : opt.window;

    switch (opt.sync) {
    case SYNC_LOCK: return passive(op, SYNC_LOCK, n, c, count);
    case SYNC_FLUSH: return passive(op, SYNC_FLUSH, n, c, count);
    case SYNC_FLUSH_LOCAL: return passive(op, SYNC_FLUSH_LOCAL, n, c, count);
    case SYNC_LOCK_ALL: return passive(op, SYNC_LOCK_ALL, n, c, count);
    case SYNC_PSCW: return active(kind, op, SYNC_PSCW, n, c);
    case SYNC_FENCE: return active(kind, op, SYNC_FENCE, n, c);
    }
    return 0;
}

typedef double loop(size_t n, struct counts c);

/* --- the tables -------------------------------------------------------- */

/* `once`: get_acc is the one that allocates once; its buffers hold zeros. */
static int latency_table(loop *run, bool once)
{
    begin("Latency (us)", !once);
    if (once) {
        user_buf = filled_buffer(opt.max_size, 0);
        result_buf = filled_buffer(opt.max_size, 0);
    }
    for (size_t n = opt.min_size; n <= opt.max_size; n *= 2) {
        struct counts c = counts_for(n);
        double seconds;

        if (!once)
            user_buf = filled_buffer(n, 'a');
        open_window(n);
        seconds = run(n, c);
        close_window();
        print_row(n, seconds * 1e6 / c.timed, FIELD, 0);
        if (!once)
            free(user_buf);
    }
    return 0;
}

/* One element in buffers and a window of `room` bytes, and a single row. */
static int element_table(loop *run, size_t room)
{
    struct counts c = counts_for(1);
    double seconds;

    begin("Latency (us)", true);
    user_buf = filled_buffer(room, 'a');
    result_buf = filled_buffer(room, 'a');
    compare_buf = filled_buffer(room, 'a');
    open_window(room);
    seconds = run(1, c);
    close_window();
    print_row(1, seconds * 1e6 / c.timed, FIELD, 0);
    return 0;
}

static int bandwidth_table(loop *run, int directions)
{
    begin("Bandwidth (MB/s)", true);
    for (size_t n = opt.min_size; n <= opt.max_size; n *= 2) {
        struct counts c = counts_for(n);
        size_t room = n * (size_t)opt.window;
        double seconds;

        user_buf = filled_buffer(room, 'a');
        open_window(room);
        seconds = run(n, c);
        close_window();
        free(user_buf);
        print_row(n, (double)room / 1e6 * c.timed * directions / seconds,
                  FIELD, 0);
    }
    return 0;
}

/* --- the benchmarks ---------------------------------------------------- */

#define RUN(name, kind, op, table, ...)                                  \
    static __attribute__((noinline)) double name(size_t n,               \
                                                 struct counts c)        \
    {                                                                    \
        return timed_loop(kind, op, n, c);                               \
    }                                                                    \
    int run_##name(void) { return table(name, __VA_ARGS__); }

RUN(put_latency, LATENCY, OP_PUT, latency_table, false)
RUN(get_latency, LATENCY, OP_GET, latency_table, false)
RUN(acc_latency, LATENCY, OP_ACC, latency_table, false)
RUN(get_acc_latency, LATENCY, OP_GET_ACC, latency_table, true)
RUN(fop_latency, LATENCY, OP_FOP, element_table, bench->max_size)
RUN(cas_latency, LATENCY, OP_CAS, element_table, bench->max_size)
RUN(put_bw, ONE_WAY, OP_PUT, bandwidth_table, 1)
RUN(get_bw, ONE_WAY, OP_GET, bandwidth_table, 1)
RUN(put_bibw, BOTH_WAYS, OP_PUT, bandwidth_table, 2)
