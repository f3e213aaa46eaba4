/* rank.c - what a rank knows and counts: times, values, and the report. */
#define _GNU_SOURCE
#include "tensor.h"

#include <errno.h>
#include <mpi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define TENSORLOAD "1.0"

const char program_name[] = "tensorload";

/* Defaults of SmartSim-Scaling. */
struct arguments arg = {
    .bytes = 1024, .iterations = 100, .tensors = 4, .threads = 1,
    .producers = 1, .poll = 0.005, .limit = 60, .batch = 1, .devices = 1,
    .device = "CPU", .folder = ".", .list_name = "iteration", .side = 224,
    .classes = 1000};
int rank, ranks;
const struct client *client;
uint64_t verified;

/* --- times --------------------------------------------------------------- */
struct series { char name[32]; double *seconds; size_t count, room; };
enum { FUNCTIONS = 16 };
static struct series series[FUNCTIONS];
static int functions;

void add_time(const char *function, double seconds)
{
    int i = 0;

    while (i < functions && strcmp(series[i].name, function))
        i++;
    struct series *s = &series[i];
    if (i == functions) {
        if (functions++ == FUNCTIONS)
            fail("more than %d functions", FUNCTIONS);
        snprintf(s->name, sizeof s->name, "%s", function);
    }
    if (s->count == s->room) {
        s->room = s->room ? 2 * s->room : 128;
        if (!(s->seconds = realloc(s->seconds,
                                   s->room * sizeof *s->seconds)))
            fail("cannot allocate times");
    }
    s->seconds[s->count++] = seconds;
}

/* --- values -------------------------------------------------------------- */
enum { STRIDE = 1024 };

/* Counts up, as the original's; every STRIDE-th value, the first and the last
 * are the stamp, so that an older write is not taken for this one. A float
 * holds integers up to 2^24. */
void fill(float *data, size_t n, unsigned stamp)
{
    static size_t filled;
    static float *last;

    if (data != last || filled != n)
        for (size_t i = 0; i < n; i++)
            data[i] = (float)(i & 0xffffff);
    last = data, filled = n;
    for (size_t i = 0; i < n; i += STRIDE)
        data[i] = (float)(stamp & 0xffffff);
    data[n - 1] = (float)(stamp & 0xffffff);
}

void check_values(const float *data, size_t n, unsigned stamp,
                  const char *key)
{
    for (size_t i = 0; i < n; i++) {
        float due = (float)((i % STRIDE == 0 || i == n - 1 ? stamp : i)
                            & 0xffffff);
        if (data[i] != due)
            fail("%s: element %zu of %zu is %g instead of %g: the store "
                 "returned another value", key, i, n, (double)data[i],
                 (double)due);
    }
    verified++;
}

const char *key_of(char *out, size_t room, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    if ((size_t)vsnprintf(out, room, format, args) >= room)
        fail("a name is longer than %zu bytes: %.60s...", room - 1, out);
    va_end(args);
    return out;
}

/* {aggregation_rank_R} */
long producer_of(const char *dataset)
{
    const char *number = strstr(dataset, "_rank_");
    char *end = NULL;
    long r = number ? strtol(number + 6, &end, 10) : -1;

    if (!number || end == number + 6 || r < 0 || r >= arg.producers)
        fail("a dataset of the list is called '%.60s'", dataset);
    return r;
}

/* --- threads ------------------------------------------------------------- */
void in_threads(int count, void *(*run)(void *), void *shares, size_t size)
{
    pthread_t *ids = calloc((size_t)count, sizeof *ids);
    char *share = shares;

    if (!ids)
        fail("cannot allocate %d threads", count);
    for (int i = 1; i < count; i++) {
        int code = pthread_create(&ids[i], NULL, run,
                                  share + (size_t)i * size);
        if (code)
            fail("cannot start %d threads: %s", count, strerror(code));
    }
    run(share);
    for (int i = 1; i < count; i++)
        pthread_join(ids[i], NULL);
    free(ids);
}

/* --- report --------------------------------------------------------------- */
void write_csv(void)
{
    char path[4096];

    if (mkdir(arg.folder, 0777) && errno != EEXIST)
        fail("%s: %s", arg.folder, strerror(errno));
    snprintf(path, sizeof path, "%s/rank_%d_timing.csv", arg.folder, rank);
    FILE *file = fopen(path, "w");
    if (!file)
        fail("%s: %s", path, strerror(errno));
    for (int i = 0; i < functions; i++)
        for (size_t k = 0; k < series[i].count; k++)
            fprintf(file, "%d,%s,%.9f\n", rank, series[i].name,
                    series[i].seconds[k]);
    if (ferror(file) | fclose(file))
        fail("%s: %s", path, strerror(errno));
}

void report(const char *mode)
{
    uint64_t checked = 0;

    MPI_Reduce(&verified, &checked, 1, MPI_UINT64_T, MPI_SUM, 0,
               MPI_COMM_WORLD);
    if (rank == 0)
        printf("# tensorload " TENSORLOAD " %s\n# client %s\n"
               "# ranks %d iterations %d bytes %zu\n# verified %llu\n"
               "# end\n", mode, client->name, ranks, arg.iterations, arg.bytes,
               (unsigned long long)checked);
}
