/* client.c - measures all-reduces as NCCL's tests do, and compares every
 * result bit for bit: the inputs are whole numbers whose sums are exact in
 * the type, whatever the order. */
#define _GNU_SOURCE
#include "optcast.h"

#include <string.h>
#include <unistd.h>

/* Numbers repeat after so many elements, an odd number: a part that comes to
 * a wrong place has other ones. */
enum { MOST = 251 };

/* One period of the numbers of ranks from `first` to before `last`, added up.
 * Returns its length. */
static uint64_t numbers(uint8_t *out, uint32_t first, uint32_t last, int salt)
{
    uint32_t exact = o.type == F32 ? 1 << 24 : o.type == F16 ? 2048 : 256;
    uint32_t n = exact / o.nrank + 1;
    n = n > MOST ? MOST : n % 2 ? n : n - 1 + (n == 2);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t sum = 0;
        for (uint32_t rank = first; rank < last; rank++)
            sum += (i * 7 + rank * 3 + salt) % n;
        to_number(o.type, out, i, sum);
    }
    return n;
}

static void fill(uint8_t *in, uint64_t count, int salt)
{
    uint8_t all[MOST * 4];
    uint64_t n = numbers(all, o.rank, o.rank + 1, salt);
    for (uint64_t at = 0; at < count; at += n)
        memcpy(in + at * size_of(o.type), all,
               (count - at < n ? count - at : n) * size_of(o.type));
}

/* How many elements of a result differ from the sum in any bit. */
static uint64_t wrong(const uint8_t *out, uint64_t count, int salt)
{
    uint8_t all[MOST * 4];
    uint64_t n = numbers(all, 0, o.nrank, salt), found = 0;
    size_t each = size_of(o.type);
    for (uint64_t at = 0; at < count; at += n, out += n * each) {
        uint64_t m = count - at < n ? count - at : n;
        if (memcmp(out, all, m * each) == 0)
            continue;
        for (uint64_t i = 0; i < m; i++)
            found += memcmp(out + i * each, all + i * each, each) != 0;
    }
    return found;
}

/* The first lines of the table, which is like that of NCCL's tests. */
static void head(void)
{
    printf("# optcast %s type %s servers %d ranks %u chunksize %llu nsplit 1 "
           "nreq %d\n", VERSION, o.ring ? "ring" : "optcast",
           o.service.count, o.nrank, (unsigned long long)o.chunk,
           WINDOW * o.service.count);
    printf("# nThread 1 nGpus 1 minBytes %llu maxBytes %llu warmup iters: %u "
           "iters: %u agg iters: 1 validation: 1 graph: 0\n#\n"
           "# Using devices\n", (unsigned long long)o.size[0],
           (unsigned long long)o.size[o.sizes - 1], o.warmup,
           o.iterations);
    for (uint32_t r = 0; r < o.nrank; r++)
        printf("#  Rank %2u Group  0 Pid %d on %s device  0 [0x00] no GPU\n",
               r, (int)getpid(), host);
    /* The reader takes the widths of the columns from these lines. */
    puts("#\n"
         "#                                                       out-of-place\n"
         "#       size         count      type   redop    root     time   algbw"
         "   busbw #wrong\n"
         "#        (B)    (elements)                               (us)  (GB/s)"
         "  (GB/s)");
}

/* All-reduces of one element per rank. */
static void barrier(struct way *w)
{
    static uint32_t in[MAX_RANKS], out[MAX_RANKS];
    all_reduce(w, in, out, o.nrank * size_of(o.type), BARRIER);
}

/* One row of the table: seconds of an all-reduce. Returns busbw. */
static double print_row(uint64_t size, double took, uint64_t differ)
{
    static const char *const names[] = {"float", "half", "bfloat16"};
    double algbw = size / took * 1e-9;
    double busbw = algbw * 2 * (o.nrank - 1) / o.nrank;
    if (o.rank == 0)
        printf("%12llu  %12llu  %8s     sum      -1  %7.*f  %6.2f  %6.2f  "
               "%5llu\n", (unsigned long long)size,
               (unsigned long long)(size / size_of(o.type)), names[o.type],
               took >= 1e-2 ? 0 : took >= 1e-4 ? 1 : 2, took * 1e6, algbw,
               busbw, (unsigned long long)differ);
    fflush(stdout);
    return busbw;
}

int run_client(void)
{
    struct way w;
    size_t each = size_of(o.type);
    uint64_t most = 0, bad = 0;
    double sum = 0;
    for (int i = 0; i < o.sizes; i++)
        most = o.size[i] > most ? o.size[i] : most;
    uint8_t *in = get(most), *out = get(most);
    if (o.trace)
        trace_open(o.trace);
    (o.ring ? ring_way : servers_way)(&w);
    if (o.service.gate)
        pass_gate();
    if (o.rank == 0)
        head();
    fflush(stdout);
    for (int i = 0; i < o.sizes; i++) {
        uint64_t size = o.size[i] / each * each;
        fill(in, size / each, i + 1);
        barrier(&w);
        for (uint32_t k = 0; k < o.warmup; k++)
            all_reduce(&w, in, out, size, DATA);
        memset(out, 0xff, size);        /* of the warm-up nothing is left   */
        barrier(&w);
        double start = now();
        for (uint32_t k = 0; k < o.iterations; k++)
            all_reduce(&w, in, out, size, DATA);
        double took = (now() - start) / o.iterations;
        uint64_t differ = wrong(out, size / each, i + 1);
        sum += print_row(size, took, differ);
        bad += differ;
        trace_flush();
    }
    barrier(&w);
    for (int i = 0; i < w.count && !o.ring; i++)
        send_message(&w.links[i].out, BYE, NULL, 0);
    if (o.rank == 0)
        printf("# Out of bounds values : %llu %s\n"
               "# Avg bus bandwidth    : %.6g\n#\n", (unsigned long long)bad,
               bad ? "FAILED" : "OK", sum / o.sizes);
    trace_flush();
    if (bad)
        fprintf(stderr, "optcast: rank %u: %llu values differ from the sum: "
                "a server, or a link, has changed data\n", o.rank,
                (unsigned long long)bad);
    return bad ? 7 : 0;
}
