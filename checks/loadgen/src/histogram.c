/* histogram.c - log-linear buckets: STEPS to each power of two. */
#include "load.h"

#include <inttypes.h>

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

/* The lower edge of the bucket that holds this share of the values. */
uint64_t percentile(const uint64_t *bucket, uint64_t count, double share)
{
    uint64_t before = 0, wanted = (uint64_t)(share * (double)count);

    if (wanted >= count)
        wanted = count - 1;
    for (unsigned i = 0; count && i < BUCKETS; i++)
        if ((before += bucket[i]) > wanted)
            return bucket_lower(i);
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
