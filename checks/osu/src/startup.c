/* startup.c - osu_hello and osu_init: what it costs to start MPI at all. */
#include "osu.h"

#include <stdio.h>
#include <time.h>

int run_hello(void)
{
    print_title();
    if (my_rank == 0)
        printf("This is a test with %d processes\n", num_ranks);
    return 0;
}

static long now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000L + t.tv_nsec / 1000000L;
}

/* MPI_Wtime may not be called before MPI_Init, so this one takes the
 * system's clock; start-up lasts long enough for whole milliseconds. */
int run_init(void)
{
    long begin = now_ms(), mine, min, max, sum;

    MPI_Init(NULL, NULL);
    mine = now_ms() - begin;
    MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    MPI_Reduce(&mine, &min, 1, MPI_LONG, MPI_MIN, 0, MPI_COMM_WORLD);
    MPI_Reduce(&mine, &max, 1, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    print_title();
    if (my_rank == 0)
        printf("nprocs: %d, min: %ld ms, max: %ld ms, avg: %ld ms\n",
               num_ranks, min, max, sum / num_ranks);
    return 0;
}
