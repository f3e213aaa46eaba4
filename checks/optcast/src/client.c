/* client.c - measures all-reduces as NCCL's tests do, and compares every
 * result bit for bit: the inputs are whole numbers whose sums are exact in
 * the type, whatever the order. */
#define _GNU_SOURCE
#include "optcast.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Numbers repeat after so many elements, an odd number: a part that comes to
 * a wrong place has other ones. */
static uint32_t period(const struct options *o)
{
    uint32_t exact = o->type == F32 ? 1 << 24 : o->type == F16 ? 2048 : 256;
    uint32_t n = exact / o->nrank + 1;
    n = n > 251 ? 251 : n;
    return n % 2 ? n : n - 1 + (n == 2);
}

static uint32_t number(uint32_t rank, uint64_t at, uint32_t salt, uint32_t n)
{
    return (at * 7 + rank * 3 + salt) % n;
}

static void fill(const struct options *o, uint8_t *in, uint64_t count,
                 uint32_t salt)
{
    uint32_t n = period(o);
    uint8_t all[251 * 4];
    for (uint32_t i = 0; i < n; i++)
        to_number(o->type, all, i, number(o->rank, i, salt, n));
    for (uint64_t at = 0; at < count; at += n)
        memcpy(in + at * size_of(o->type), all,
               (count - at < n ? count - at : n) * size_of(o->type));
}

/* How many elements of a result differ from the sum in any bit. */
static uint64_t wrong(const struct options *o, const uint8_t *out,
                      uint64_t count, uint32_t salt)
{
    uint32_t n = period(o);
    uint64_t found = 0;
    size_t each = size_of(o->type);
    uint8_t all[251 * 4];
    for (uint32_t i = 0; i < n; i++) {
        uint64_t sum = 0;
        for (uint32_t r = 0; r < o->nrank; r++)
            sum += number(r, i, salt, n);
        to_number(o->type, all, i, sum);
    }
    for (uint64_t at = 0; at < count; at += n) {
        uint64_t m = count - at < n ? count - at : n;
        if (memcmp(out + at * each, all, m * each) == 0)
            continue;
        for (uint64_t i = 0; i < m; i++)
            found += memcmp(out + (at + i) * each, all + i * each, each) != 0;
    }
    return found;
}

/* As NCCL's tests print it. */
static const char *type_name(enum type type)
{
    return type == F32 ? "float" : type == F16 ? "half" : "bfloat16";
}

/* The first lines of the table, which is like that of NCCL's tests. */
static void head(const struct options *o)
{
    printf("# optcast %s type %s servers %d ranks %u chunksize %llu nsplit %u "
           "nreq %u\n", VERSION, o->ring ? "ring" : "optcast",
           o->service.count, o->nrank, (unsigned long long)o->chunk, o->nsplit,
           o->nreq);
    printf("# nThread 1 nGpus 1 minBytes %llu maxBytes %llu warmup iters: %u "
           "iters: %u agg iters: 1 validation: 1 graph: 0\n#\n"
           "# Using devices\n", (unsigned long long)o->size[0],
           (unsigned long long)o->size[o->sizes - 1], o->warmup,
           o->iterations);
    for (uint32_t r = 0; r < o->nrank; r++)
        printf("#  Rank %2u Group  0 Pid %d on %s device  0 [0x00] no GPU\n",
               r, (int)getpid(), o->host);
    /* The reader takes the widths of the columns from these lines. */
    puts("#\n"
         "#                                                       out-of-place\n"
         "#       size         count      type   redop    root     time   algbw"
         "   busbw #wrong\n"
         "#        (B)    (elements)                               (us)  (GB/s)"
         "  (GB/s)");
}

int run_client(struct options *o)
{
    struct way way;
    size_t each = size_of(o->type);
    uint64_t most = 0;
    for (int i = 0; i < o->sizes; i++)
        most = o->size[i] > most ? o->size[i] : most;
    uint8_t *in = get(most), *out = get(most);
    if (o->trace)
        trace_open(o->trace, o->host);
    void *self = (o->ring ? ring_way : optcast_way)(o, &way);
    if (o->service.gate)
        pass_gate();
    bool prints = o->rank == 0;
    if (prints) {
        head(o);
        fflush(stdout);
    }
    double sum = 0;
    uint64_t bad = 0;
    for (int i = 0; i < o->sizes; i++) {
        uint64_t size = o->size[i] / each * each;
        fill(o, in, size / each, i + 1);
        way.barrier(self);
        for (uint32_t k = 0; k < o->warmup; k++)
            way.all_reduce(self, in, out, size, tracing());
        memset(out, 0xff, size);        /* of the warm-up nothing is left   */
        way.barrier(self);
        double start = now();
        for (uint32_t k = 0; k < o->iterations; k++)
            way.all_reduce(self, in, out, size, tracing());
        double took = (now() - start) / o->iterations;
        uint64_t differ = wrong(o, out, size / each, i + 1);
        double algbw = size / took * 1e-9;
        double busbw = algbw * 2 * (o->nrank - 1) / o->nrank;
        sum += busbw;
        bad += differ;
        if (prints)
            printf("%12llu  %12llu  %8s     sum      -1  %7.*f  %6.2f  %6.2f  "
                   "%5llu\n", (unsigned long long)size,
                   (unsigned long long)(size / each), type_name(o->type),
                   took >= 1e-2 ? 0 : took >= 1e-4 ? 1 : 2, took * 1e6, algbw,
                   busbw, (unsigned long long)differ);
        fflush(stdout);
        trace_flush();
    }
    way.barrier(self);
    way.end(self);
    if (prints)
        printf("# Out of bounds values : %llu %s\n"
               "# Avg bus bandwidth    : %.6g\n#\n", (unsigned long long)bad,
               bad ? "FAILED" : "OK", sum / o->sizes);
    trace_flush();
    if (bad)
        fprintf(stderr, "optcast: rank %u: %llu values differ from the sum: "
                "a server, or a link, has changed data\n", o->rank,
                (unsigned long long)bad);
    return bad ? 7 : 0;
}
