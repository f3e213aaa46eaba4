/* histogram.c - log-linear buckets: STEPS to each power of two. */
#include "load.h"

#include <inttypes.h>
#include <math.h>

enum { BITS = 7 };                          /* STEPS == 1 << BITS          */

unsigned bucket_of(uint64_t value)
{
    if (value < STEPS)
        return (unsigned)value;
    unsigned top = 63u - (unsigned)__builtin_clzll(value);
    unsigned index = (top - BITS) * STEPS + (unsigned)(value >> (top - BITS));
    return index < BUCKETS ? index : BUCKETS - 1;
}

uint64_t bucket_lower(unsigned index)
{
    if (index < 2 * STEPS)
        return index;
    unsigned shift = index / STEPS - 1;
    return (uint64_t)(index % STEPS + STEPS) << shift;
}

/* By nearest rank: the middle of the bucket of the value with the rank
 * ceil(share * count). Without values 0. */
double percentile(const uint64_t *bucket, uint64_t count, double share)
{
    /* 0.07 * 100 is a little more than 7. */
    double rank = ceil(share * (double)count - 1e-9);
    uint64_t before = 0;

    for (unsigned i = 0; count && i < BUCKETS; i++)
        if ((double)(before += bucket[i]) >= rank && before) {
            double lower = (double)bucket_lower(i);
            return i < 2 * STEPS ? lower
                   : (lower + (double)bucket_lower(i + 1)) / 2;
        }
    return 0;
}

void print_buckets(const uint64_t *bucket, FILE *out)
{
    const char *between = "";

    fputc('[', out);
    for (unsigned i = 0; i < BUCKETS; i++)
        if (bucket[i]) {
            fprintf(out, "%s[%" PRIu64 ",%" PRIu64 "]", between,
                    bucket_lower(i), bucket[i]);
            between = ",";
        }
    fputc(']', out);
}
