/*
 * collective.c - osu_allgather, osu_allreduce, osu_barrier, osu_ibarrier.
 *
 * The clock runs around the call alone. The barrier after each iteration is
 * outside it: without one, ranks would drift apart and the next call would
 * be charged for waiting. A pure barrier test needs none.
 */
#include "osu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The mean over all ranks, complete on rank 0 only. */
static double over_ranks(double mine)
{
    double sum = 0;

    MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    return sum / num_ranks;
}

/* The receive buffer has to fit 512 MiB, as in the real program. */
static void limit_max_size(size_t buffers)
{
    size_t limit = ((size_t)512 << 20) / buffers;

    if (opt.max_size <= limit)
        return;
    if (my_rank == 0)
        fprintf(stderr, "osu_%s: sizes above %zu bytes left out: a rank's "
                "buffer has at most 512 MiB\n", bench->name, limit);
    opt.max_size = limit;
}

typedef void collective(const void *send, void *recv, int n);

/* Small contributions: a sum over 63 ranks still fits a signed char. */
static unsigned char addend(size_t k, int rank, int i)
{
    return (unsigned char)((k + (size_t)rank + (size_t)i) % 3);
}

static long check_sum(const unsigned char *recv, size_t n, int i)
{
    long wrong = 0;

    for (size_t k = 0; k < n; k++) {
        unsigned char sum = 0;

        for (int r = 0; r < num_ranks; r++)
            sum = (unsigned char)(sum + addend(k, r, i));
        wrong += recv[k] != sum;
    }
    return wrong;
}

static long check_blocks(const unsigned char *recv, size_t n, int i)
{
    long wrong = 0;

    for (int r = 0; r < num_ranks; r++)
        wrong += count_wrong(recv + (size_t)r * n, n, (unsigned)(r + i));
    return wrong;
}

/* Inlined once per collective, so that the timed loop holds a direct call.*/
static inline __attribute__((always_inline))
int blocking(collective *call, bool sums)
{
    size_t blocks = sums ? 1 : (size_t)num_ranks;
    unsigned char *send, *recv;

    limit_max_size(blocks);
    send = page_alloc(opt.max_size);
    recv = page_alloc(opt.max_size * blocks);
    memset(send, 1, opt.max_size);
    memset(recv, 0, opt.max_size * blocks);

    print_title();
    if (my_rank == 0) {
        printf("# Datatype: MPI_CHAR.\n%-10s%*s", "# Size", FIELD,
               "Avg Latency(us)");
        end_header();
    }

    for (size_t n = opt.min_size; n <= opt.max_size; n *= 2) {
        struct counts c = counts_for(n);
        double sum = 0, begin;
        long errors = 0;
        double mean;

        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < c.total; i++) {
            if (opt.check) {
                for (int w = 0; w < CHECK_WARMUP; w++)
                    call(send, recv, (int)n);
                if (sums)
                    for (size_t k = 0; k < n; k++)
                        send[k] = addend(k, my_rank, i);
                else
                    fill_pattern(send, n, (unsigned)(my_rank + i));
                memset(recv, 0xee, n * blocks);
                MPI_Barrier(MPI_COMM_WORLD);
            }
            begin = MPI_Wtime();
            call(send, recv, (int)n);
            if (i >= c.skip)
                sum += MPI_Wtime() - begin;
            if (opt.check) {
                INJECT_FAULT(recv);
                errors += sums ? check_sum(recv, n, i)
                               : check_blocks(recv, n, i);
            }
            MPI_Barrier(MPI_COMM_WORLD);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        mean = over_ranks(sum * 1e6 / c.timed);
        if (opt.check)
            errors = sum_errors(errors);
        print_row(n, mean, FIELD, errors);
        if (errors)
            return validation_failed(n);
    }
    return 0;
}

static inline void call_allgather(const void *send, void *recv, int n)
{
    MPI_Allgather(send, n, MPI_CHAR, recv, n, MPI_CHAR, MPI_COMM_WORLD);
}

int run_allgather(void)
{
    return blocking(call_allgather, false);
}

static inline void call_allreduce(const void *send, void *recv, int n)
{
    MPI_Allreduce(send, recv, n, MPI_CHAR, MPI_SUM, MPI_COMM_WORLD);
}

int run_allreduce(void)
{
    return blocking(call_allreduce, true);
}

int run_barrier(void)
{
    struct counts c = counts_for(0);
    double sum = 0, begin;
    double mean;

    print_title();
    if (my_rank == 0) {
        printf("# %*s", FIELD - 3, "Avg Latency(us)");
        end_header();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < c.total; i++) {
        begin = MPI_Wtime();
        MPI_Barrier(MPI_COMM_WORLD);
        if (i >= c.skip)
            sum += MPI_Wtime() - begin;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    mean = over_ranks(sum * 1e6 / c.timed);
    if (my_rank == 0) {
        printf("%*.2f", FIELD - 1, mean);
        end_row(0);
    }
    return 0;
}

/*
 * One pass of the dummy computation. It is as coarse as in the real program
 * on purpose: with a short target the last pass overshoots, and overall time
 * and overlap depend on by how much.
 */
#define DIM 25

static float matrix[DIM][DIM], in_vec[DIM], out_vec[DIM];

static __attribute__((noinline)) void compute_pass(void)
{
    for (int i = 0; i < DIM; i++)
        for (int j = 0; j < DIM; j++)
            out_vec[i] = out_vec[i] + matrix[i][j] * in_vec[j];
    /* Keep the compiler from merging passes or dropping them. */
    __asm__ volatile("" : : "r"(out_vec) : "memory");
}

/* Computes for at least `target` seconds; returns the seconds it took. */
static double compute_for(double target)
{
    double spent = 0, begin;

    while (spent < target) {
        begin = MPI_Wtime();
        compute_pass();
        spent += MPI_Wtime() - begin;
    }
    return spent;
}

int run_ibarrier(void)
{
    /* No message size here, yet the real program uses the large counts. */
    struct counts c = counts_for(LARGE_ABOVE + 1);
    double pure = 0, all = 0, compute = 0;
    MPI_Request request;
    double overlap, p, o, k;

    for (int i = 0; i < DIM; i++) {
        in_vec[i] = out_vec[i] = 0.5f;
        for (int j = 0; j < DIM; j++)
            matrix[i][j] = 0.01f;
    }
    print_title();
    if (my_rank == 0) {
        printf("# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait\n\n"
               "# Overall(us)%*s%*s%*s\n", FIELD, "Compute(us)", FIELD,
               "Pure Comm.(us)", FIELD, "Overlap(%)");
        fflush(stdout);
    }

    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < c.total; i++) {
        double begin = MPI_Wtime();

        MPI_Ibarrier(MPI_COMM_WORLD, &request);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        if (i >= c.skip)
            pure += MPI_Wtime() - begin;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    /* Each rank computes as long as the barrier took on that rank. */
    pure /= c.timed;

    for (int i = 0; i < c.total; i++) {
        double begin = MPI_Wtime(), busy, end;

        MPI_Ibarrier(MPI_COMM_WORLD, &request);
        busy = compute_for(pure);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        end = MPI_Wtime();
        if (i >= c.skip) {
            all += end - begin;
            compute += busy;
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }

    p = over_ranks(pure * 1e6);
    o = over_ranks(all * 1e6 / c.timed);
    k = over_ranks(compute * 1e6 / c.timed);
    if (my_rank)
        return 0;
    /* The share of the barrier that computing hid; never negative. */
    overlap = 100.0 * (1.0 - (o - k) / p);
    if (!(overlap > 0))
        overlap = 0;
    printf("%13.2f%*.2f%*.2f%*.2f\n", o, FIELD, k, FIELD, p, FIELD, overlap);
    return 0;
}
