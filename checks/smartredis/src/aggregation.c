/* aggregation.c - ranks of a producer append datasets to a list, and a
 * consumer reads them all, at the same time. */
#include "tensor.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void nap(double seconds)
{
    if (seconds > 0)
        usleep((useconds_t)(seconds * 1e6));
}

/* Waits until a list has so many datasets; 0: until it is gone. */
static void await(const char *list, long length)
{
    double begin = now();

    for (long has; (has = client->list_length(list)) != length;) {
        if (now() - begin > arg.limit)
            fail("%s has %ld of %ld datasets after %g s: is the %s alive?",
                 list, has, length, arg.limit,
                 length ? "producer" : "consumer");
        nap(arg.poll);
    }
}

void produce(void)
{
    size_t n = arg.bytes / sizeof(float);
    size_t all = n * (size_t)arg.tensors;
    float *data = malloc(all * sizeof *data);
    char name[64], list[96], before[96];
    double loop = 0;

    if (!data)
        fail("cannot allocate %d tensors of %zu "
             "bytes", arg.tensors, arg.bytes);
    fill(data, all, (unsigned)(rank + 1));
    snprintf(name, sizeof name, "aggregation_rank_%d", rank);
    double before_put = now();
    client->put_dataset(name, data, n, arg.tensors);
    add_time("put_dataset", now() - before_put);
    for (int i = 0; i < arg.iterations; i++) {
        snprintf(list, sizeof list, "%s_%d", arg.list_name, i);
        snprintf(before, sizeof before, "%s_%d", arg.list_name, i - 1);
        double start = now();
        if (rank == 0 && i)
            await(before, 0);
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = now();
        client->append_to_list(list, name);
        add_time("append_to_list", now() - begin);
        loop += now() - start;
    }
    /* Whatever is left is the consumer's: it ends first. */
    if (rank == 0)
        await(list, 0);
    add_time("loop_time", loop);
    free(data);
}

void consume_lists(void)
{
    size_t n = arg.bytes / sizeof(float), datasets = (size_t)arg.producers;
    size_t each = n * (size_t)arg.tensors;
    float *data = malloc(datasets * each * sizeof *data);
    long *who = calloc(datasets, sizeof *who);
    char list[96];
    double loop = 0;

    if (!data || !who)
        fail("cannot allocate %zu datasets of %zu bytes", datasets,
             each * sizeof *data);
    for (int i = 0; i < arg.iterations; i++) {
        snprintf(list, sizeof list, "%s_%d", arg.list_name, i);
        double begin = now();
        if (rank == 0) {
            await(list, (long)datasets);
            add_time("poll_list", now() - begin);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        double start = now();
        client->get_list(list, data, who, datasets, n, arg.tensors,
                         arg.threads);
        add_time("get_list", now() - start);
        loop += now() - begin;
        if (client->unpack_list)
            client->unpack_list(list, data, who, n, arg.tensors);
        for (size_t d = 0; d < datasets; d++)
            check_values(data + d * each, each, (unsigned)(who[d] + 1),
                         list);
        MPI_Barrier(MPI_COMM_WORLD);
        begin = now();
        if (rank == 0)
            client->delete_list(list);
        loop += now() - begin;
    }
    add_time("loop_time", loop);
    free(data);
    free(who);
}
