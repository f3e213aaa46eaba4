/* throughput.c - each rank puts a tensor and unpacks it again, in a loop. */
#include "tensor.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void throughput(void)
{
    size_t n = arg.bytes / sizeof(float);
    float *array = malloc(arg.bytes), *result = malloc(arg.bytes);
    const long long dims[] = {1, (long long)n};
    double loop = 0;
    char key[64];

    if (!array || !result)
        fail("cannot allocate a tensor of %zu bytes", arg.bytes);
    /* One key a rank, overwritten, as the original has it. */
    snprintf(key, sizeof key, "throughput_rank_%d", rank);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < arg.iterations; i++) {
        unsigned stamp = (unsigned)(rank * 8191 + i + 1);
        fill(array, n, stamp);
        double begin = now();
        client->put_tensor(key, array, dims, 2);
        double put = now();
        client->unpack_tensor(key, result, n);
        double end = now();
        add_time("put_tensor", put - begin);
        add_time("unpack_tensor", end - put);
        loop += now() - begin;
        /* Looked at outside of all times, and quickly: a server that waits
         * long falls asleep. */
        if (memcmp(result, array, n * sizeof *array))
            check_values(result, n, stamp, key);
        else
            verified++;
    }
    add_time("loop_time", loop);
    free(array);
    free(result);
}
