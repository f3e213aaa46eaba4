/* inference.c - each rank has images classified by a model in the store. */
#define _GNU_SOURCE
#include "tensor.h"

#include <errno.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KEY = 96 };
static const char *const MODEL = "resnet_model", *const SCRIPT =
    "resnet_script";

static char *whole_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    long n;
    char *text;

    if (!file || fseek(file, 0, SEEK_END) || (n = ftell(file)) < 0)
        fail("%s: %s", path, strerror(errno));
    rewind(file);
    text = malloc((size_t)n + 1);
    if (!text || fread(text, 1, (size_t)n, file) != (size_t)n)
        fail("cannot read %s", path);
    fclose(file);
    *size = (size_t)n;
    return text;
}

/* The name of a model or script, and its device, of several by number. */
static const char *named(char *out, const char *name, int device)
{
    return arg.devices > 1 ? key_of(out, KEY, "%s.%s:%d", name, arg.device,
                                    device)
                           : key_of(out, KEY, "%s", name);
}

/* Stores what is missing, and keeps what is there. */
static void store(void)
{
    char name[KEY], device[32];
    size_t size;

    for (int d = 0; d < arg.devices; d++) {
        if (arg.devices > 1)
            key_of(device, sizeof device, "%s:%d", arg.device, d);
        else
            key_of(device, sizeof device, "%s", arg.device);
        if (arg.model && !client->exists(named(name, MODEL, d))) {
            char *blob = whole_file(arg.model, &size);
            client->set_model(name, device, arg.batch, blob, size);
            free(blob);
        }
        if (arg.script && !client->exists(named(name, SCRIPT, d))) {
            char *source = whole_file(arg.script, &size);
            client->set_script(name, device, source, size);
            free(source);
        }
    }
}

/* Whether this rank stores model and script: of colocated databases each has a
 * copy of its own, from the first rank on its node. */
static bool stores(void)
{
    MPI_Comm node;
    int first;

    if (!arg.colocated)
        return rank == 0;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank,
                        MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &first);
    MPI_Comm_free(&node);
    return first == 0;
}

/* As the original: a hundred times, each 100 ms. */
static void await_key(const char *key, const char *what)
{
    double begin = now();

    while (!client->exists(key)) {
        if (now() - begin > fmin(10, arg.limit))
            fail("the %s %s is not in the database: who stores it?", what,
                 key);
        usleep(100000);
    }
}

void inference(void)
{
    size_t n = (size_t)arg.side * (size_t)arg.side * 3;
    size_t classes = (size_t)arg.classes;
    float *image = malloc(n * sizeof *image);
    float *result = malloc(classes * sizeof *result);
    float *due = malloc(classes * sizeof *due);
    const long long dims[] = {arg.side, arg.side, 3};
    char model[KEY], script[KEY], in[KEY], mid[KEY], out[KEY];
    double loop = 0;

    if (arg.plain)
        fail("inference needs a server with the module (AI.*)");
    if (!image || !result || !due)
        fail("cannot allocate an image of %zu bytes", n * sizeof *image);
    arg.bytes = n * sizeof *image;
    if (stores())
        store();
    named(model, MODEL, rank % arg.devices);
    named(script, SCRIPT, rank % arg.devices);
    await_key(model, "model");
    await_key(script, "script");
    /* The same on all ranks, so that all results are alike. */
    for (size_t i = 0; i < n; i++)
        image[i] = (float)(i * 7919 % 256);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = -1; i < arg.iterations; i++) {
        key_of(in, KEY, "resnet_input_rank_%d_%d", rank, i);
        key_of(mid, KEY, "resnet_processed_input_rank_%d_%d", rank, i);
        key_of(out, KEY, "resnet_output_rank_%d_%d", rank, i);
        memset(result, 0, classes * sizeof *result);
        double t0 = now();
        client->put_tensor(in, image, dims, 3);
        double t1 = now();
        client->run_script(script, "pre_process_3ch", in, mid);
        double t2 = now();
        client->run_model(model, mid, out);
        double t3 = now();
        client->unpack_tensor(out, result, classes);
        double t4 = now();
        if (i < 0) {
            /* Models are compiled and caches are filled: not like others. */
            add_time("warmup", t4 - t0);
            for (size_t c = 0; c < classes; c++)
                if (!isfinite(result[c]))
                    fail("%s: value %zu is not a number", out, c);
            memcpy(due, result, classes * sizeof *due);
            MPI_Bcast(due, arg.classes, MPI_FLOAT, 0, MPI_COMM_WORLD);
        } else {
            add_time("put_tensor", t1 - t0);
            add_time("run_script", t2 - t1);
            add_time("run_model", t3 - t2);
            add_time("unpack_tensor", t4 - t3);
            loop += t4 - t0;
        }
        for (size_t c = 0; c < classes; c++)
            if (fabsf(result[c] - due[c]) > 1e-4f * fmaxf(1, fabsf(due[c])))
                fail("%s: value %zu is %g, but %g in the first "
                     "inference", out, c,
                     (double)result[c], (double)due[c]);
        verified++;
        /* Kept, they would fill the memory. */
        client->delete_tensor(in);
        client->delete_tensor(mid);
        client->delete_tensor(out);
        if (i < 0)
            MPI_Barrier(MPI_COMM_WORLD);
    }
    add_time("loop_time", loop);
    free(image);
    free(result);
    free(due);
}
