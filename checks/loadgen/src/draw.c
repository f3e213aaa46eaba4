/* draw.c - draws keys, sizes and values. */
#include "load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- random numbers: splitmix64 (Steele, Lea and Flood 2014) ------------- */
static const uint64_t GOLDEN = 0x9e3779b97f4a7c15u;

static uint64_t mix(uint64_t x)             /* its output: a hash, too     */
{
    x += GOLDEN;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

void rng_seed(struct rng *r, uint64_t seed, uint64_t stream)
{
    r->state = mix(mix(seed) ^ mix(~stream));
}

uint64_t rng_next(struct rng *r)
{
    return mix(r->state += GOLDEN);
}

double rng_unit(struct rng *r)
{
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

static uint64_t below(uint64_t random, uint64_t n)
{
    return (uint64_t)((unsigned __int128)random * n >> 64);
}

uint64_t draw_key(struct rng *r)
{
    return below(rng_next(r), opt.keys);
}

/* --- sizes and values ---------------------------------------------------- */
static size_t size_high;
static struct { size_t size; double until; } *sizes;
static size_t size_count;

static void read_size_list(const char *list)
{
    const char *at = list;
    double sum = 0;

    for (size_count = 0; *at; at += *at == ',') {
        char *end;
        size_t size = bytes_from(at, &end);
        double share = *end == ':' ? strtod(end + 1, &end) : 0;
        if (!size || share <= 0 || !isfinite(share) || (*end && *end != ','))
            usage("--data-size-list: expected SIZE:WEIGHT, both above 0, at "
                  "'%s'", printable(at));
        sizes = realloc(sizes, (size_count + 1) * sizeof *sizes);
        if (!sizes)
            fail("no memory for --data-size-list");
        sizes[size_count].size = size;
        sizes[size_count++].until = sum += share;
        size_high = size > size_high ? size : size_high;
        at = end;
    }
    if (!size_count)
        usage("--data-size-list: empty");
    for (size_t i = 0; i < size_count; i++)
        sizes[i].until /= sum;
}

size_t largest_value(void) { return size_high; }

/* The size is a function of the key, so that readers know it. */
size_t value_size(uint64_t key)
{
    if (!sizes)
        return size_high;
    double share = (double)(mix(key ^ mix(1)) >> 11) * 0x1p-53;
    size_t from = 0, to = size_count - 1;
    while (from < to) {
        size_t middle = (from + to) / 2;
        if (share < sizes[middle].until)
            to = middle;
        else
            from = middle + 1;
    }
    return sizes[from].size;
}

/* Every value is a window of one random text: a request needs no copy, and
 * answers are compared in place. */
enum { WINDOWS = 1 << 20 };
static char *text;

static void prepare_text(void)
{
    size_t words = (size_high + WINDOWS) / 8 + 1;
    uint64_t *word = malloc(words * 8);
    struct rng r;

    if (!word)
        fail("no memory for values of %zu bytes", size_high);
    rng_seed(&r, 0, UINT64_MAX);
    for (size_t i = 0; i < words; i++)
        word[i] = rng_next(&r);
    text = (char *)word;
}

const char *value_of(uint64_t key, size_t size, enum generation of)
{
    uint64_t written = of == OVERWRITTEN ? 1ull << 63 : 0;

    return text + mix((key | written) + mix(size)) % WINDOWS;
}

unsigned decimal(char *out, uint64_t value)
{
    char digits[20];
    unsigned n = 0;

    do
        digits[n++] = (char)('0' + value % 10);
    while (value /= 10);
    for (unsigned i = 0; i < n; i++)
        out[i] = digits[n - 1 - i];
    return n;
}

/* The number in a key's name; at most 20 digits. */
unsigned key_number(char *out, uint64_t key)
{
    char digits[20];
    unsigned n = decimal(digits, key);
    unsigned zeros = opt.key_digits > n ? opt.key_digits - n : 0;

    memset(out, '0', zeros);
    memcpy(out + zeros, digits, n);
    return zeros + n;
}

/* --- slots of a cluster --------------------------------------------------- */
static uint16_t prefix_crc;

unsigned slot_of(uint64_t key)
{
    char digits[20];

    return crc16(prefix_crc, digits, key_number(digits, key)) % SLOTS;
}

bool node_owns(const struct node *n, uint64_t key)
{
    return !opt.service.cluster || slot_server[slot_of(key)] == n - opt.nodes;
}

void prepare_draw(void)
{
    size_high = opt.data_size;
    if (opt.data_sizes) {
        opt.data_size = size_high = 0;      /* no common one               */
        read_size_list(opt.data_sizes);
    }
    prefix_crc = crc16(0, opt.prefix, opt.prefix_size);
    prepare_text();
}
