/* draw.c - draws keys, sizes and values. */
#include "load.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- random numbers: xoshiro256++ (Blackman and Vigna), public domain ---- */
static uint64_t mix(uint64_t x)             /* splitmix64: a hash, too     */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void seed(struct rng *r, uint64_t of, uint64_t a, uint64_t b)
{
    uint64_t x = mix(of) ^ mix(mix(a) + b);

    for (int i = 0; i < 4; i++)
        r->s[i] = x = mix(x);
}

void rng_seed(struct rng *r, uint64_t a, uint64_t b)
{
    seed(r, opt.seed, a, b);
}

static uint64_t rotate(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

uint64_t rng_next(struct rng *r)
{
    uint64_t *s = r->s, t = s[1] << 17;
    uint64_t result = rotate(s[0] + s[3], 23) + s[0];

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

double rng_unit(struct rng *r)
{
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

static uint64_t below(uint64_t random, uint64_t n)
{
    return (uint64_t)((unsigned __int128)random * n >> 64);
}

uint64_t draw_key(struct rng *r, uint64_t keys)
{
    return below(rng_next(r), keys);
}

/* --- sizes and values ---------------------------------------------------- */
static size_t size_low, size_high;
static struct { size_t size; double until; } *sizes;
static size_t size_count;

static void read_sizes(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[256], *end;
    double sum = 0;

    if (!file)
        usage("--value-size @%s: %s", path, strerror(errno));
    for (int n = 1; fgets(line, sizeof line, file); n++) {
        if (line[0] == '#' || line[0] == '\n')
            continue;
        size_t size = bytes_from(line, &end);
        double share = strtod(end, &end);
        if (!size || share <= 0 || !isfinite(share) || *end != '\n')
            usage("%s:%d: expected SIZE WEIGHT, both above 0", path, n);
        sizes = realloc(sizes, (size_count + 1) * sizeof *sizes);
        if (!sizes)
            fail("no memory for %s", path);
        sizes[size_count].size = size;
        sizes[size_count++].until = sum += share;
        if (size > size_high)
            size_high = size;
    }
    fclose(file);
    if (!size_count)
        usage("%s: no line with SIZE WEIGHT", path);
    for (size_t i = 0; i < size_count; i++)
        sizes[i].until /= sum;
}

static void prepare_sizes(void)
{
    char *end;

    if (opt.value_size[0] == '@') {
        read_sizes(opt.value_size + 1);
        return;
    }
    size_low = size_high = bytes_from(opt.value_size, &end);
    if (*end == '-')
        size_high = bytes_from(end + 1, &end);
    if (*end || !size_low || size_high < size_low)
        usage("--value-size %s: expected N, FROM-TO or @FILE, from 1 byte "
              "(K, M, G are powers of 1024)", opt.value_size);
}

size_t largest_value(void) { return size_high; }

/* The size is a function of the key, so that readers know it. */
size_t value_size(uint64_t key)
{
    if (size_low == size_high)
        return size_low;
    uint64_t random = mix(key ^ mix(opt.value_seed + 1));
    if (!sizes)
        return size_low + below(random, size_high - size_low + 1);
    double share = (double)(random >> 11) * 0x1p-53;
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
    size_t words = (largest_value() + WINDOWS) / 8 + 1;
    uint64_t *word = malloc(words * 8);
    struct rng r;

    if (!word)
        fail("no memory for values of %zu bytes", largest_value());
    seed(&r, opt.value_seed, 0, UINT64_MAX);
    for (size_t i = 0; i < words; i++)
        word[i] = rng_next(&r);
    text = (char *)word;
}

const char *value_of(uint64_t key, size_t size, enum generation of)
{
    uint64_t written = of == OVERWRITTEN ? 1ull << 63 : 0;

    return text + mix((key | written) + mix(opt.value_seed ^ size)) % WINDOWS;
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

/* --- slots of a cluster: those of the key or of its {tag} ---------------- */
static uint16_t prefix_crc;
static bool tagged;                         /* the prefix holds the tag    */

static void prepare_slots(void)
{
    const char *open = memchr(opt.prefix, '{', opt.prefix_size), *shut;

    shut = open ? strchr(open, '}') : NULL;
    tagged = shut && shut > open + 1;
    prefix_crc = tagged ? crc16(0, open + 1, (size_t)(shut - open - 1))
                        : crc16(0, opt.prefix, opt.prefix_size);
}

/* `group`: the keys of an MSET, PREFIX{GROUP}:I; else PREFIX KEY. */
unsigned slot_of(uint64_t key, bool group)
{
    char digits[20];

    if (tagged)
        return prefix_crc % SLOTS;
    return (group ? crc16(0, digits, decimal(digits, key))
                  : crc16(prefix_crc, digits, key_number(digits, key)))
           % SLOTS;
}

bool node_owns(const struct node *n, uint64_t key, bool group)
{
    return !opt.service.cluster
           || slot_server[slot_of(key, group)] == n - opt.nodes;
}

void prepare_draw(void)
{
    prepare_sizes();
    prepare_slots();
    prepare_text();
}
