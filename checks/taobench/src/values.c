/* values.c - sizes of values, their bytes, and compression. */
#include "tao.h"

#include <pthread.h>
#include <string.h>

/* Sizes before compression: the cumulated share, in millionths, of values
 * smaller than that. From leader_sizes.json of DCPerf's TaoBench (2 674
 * buckets of 32 bytes), thinned out: every bucket up to 767 bytes, then a
 * bound every 13 %. Within a bucket sizes are uniform, as there. Mean 357,
 * p50 241, p90 541, p99 2297, p99.9 9575 (9530 in all buckets). */
static const struct { uint32_t size, below; } sizes[] = {
    {31, 0}, {63, 80240}, {95, 175150}, {127, 238527}, {159, 312182},
    {191, 371831}, {223, 458131}, {255, 531865}, {287, 624700},
    {319, 666894}, {351, 706839}, {383, 769878}, {415, 814583},
    {447, 845617}, {479, 869136}, {511, 888123}, {543, 900673},
    {575, 906444}, {607, 911512}, {639, 915604}, {671, 920241},
    {703, 924172}, {735, 928137}, {767, 931599}, {866, 939544},
    {978, 949702}, {1105, 971671}, {1248, 977078}, {1410, 980949},
    {1593, 983868}, {1800, 986850}, {2033, 989041}, {2297, 990001},
    {2595, 991880}, {2932, 993403}, {3313, 995017}, {3743, 995604},
    {4229, 995800}, {4778, 998343}, {5399, 998440}, {6100, 998513},
    {6892, 998652}, {7787, 998907}, {8799, 998964}, {9942, 999017},
    {11234, 999062}, {12694, 999104}, {14344, 999145}, {16208, 999183},
    {18315, 999217}, {20695, 999252}, {23385, 999285}, {26425, 999323},
    {29860, 999375}, {33741, 999464}, {38127, 999628}, {43083, 999911},
    {48683, 999942}, {55011, 999960}, {62162, 999978}, {65536, 1000000},
};
enum { BOUNDS = sizeof sizes / sizeof *sizes, MILLION = 1000000 };

/* One generator for all threads behind one lock, as in the original: a
 * miss pays for it. splitmix64, public domain. */
static uint64_t draw(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t state;

    pthread_mutex_lock(&lock);
    uint64_t x = state += 0x9e3779b97f4a7c15u;
    pthread_mutex_unlock(&lock);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

size_t draw_size(void)
{
    uint64_t random = draw();
    uint32_t share = (uint32_t)((random >> 32) * MILLION >> 32);
    unsigned i = 1;

    while (sizes[i].below <= share)
        i++;
    uint64_t width = sizes[i].size - sizes[i - 1].size;
    size_t size = sizes[i - 1].size + ((random & UINT32_MAX) * width >> 32);
    return size < opt.max_item_size ? size : opt.max_item_size;
}

/* --- LZ4's block format -------------------------------------------------- */
/* A block is a row of sequences: a token with two lengths, literals, and an
 * offset back to what is repeated; the last one has literals only. The last
 * five bytes are always literals, and no match begins in the last twelve. */
enum { MIN_MATCH = 4, LAST_LITERALS = 5, LAST_START = 12, HASH_BITS = 13,
       SKIP = 6, MAX_OFFSET = 65535 };

static uint32_t word_at(const char *p)
{
    uint32_t word;

    memcpy(&word, p, sizeof word);
    return word;
}

static unsigned slot_of(uint32_t word)
{
    return word * 2654435761u >> (32 - HASH_BITS);
}

/* What of a length the four bits of the token do not hold. */
static char *put_length(char *out, size_t n)
{
    if (n < 15)
        return out;
    for (n -= 15; n >= 255; n -= 255)
        *out++ = (char)255;
    *out++ = (char)n;
    return out;
}

static char *put_literals(char *out, const char *from, size_t n,
                          size_t match)
{
    *out++ = (char)((n < 15 ? n : 15) << 4 | (match < 15 ? match : 15));
    out = put_length(out, n);
    memcpy(out, from, n);
    return out + n;
}

/* Greedy matching with a hash table of positions; steps get longer where
 * nothing repeats. `out` has room for value_bound(n). */
size_t lz4_compress(const char *in, size_t n, char *out)
{
    uint32_t places[1 << HASH_BITS] = {0};       /* place + 1; 0: none       */
    const char *at = in, *todo = in, *end = in + n;
    const char *last = n > LAST_START ? end - LAST_START : in;
    char *p = out;
    unsigned tries = 1 << SKIP;

    while (at < last) {
        uint32_t *place = &places[slot_of(word_at(at))];
        const char *back = *place ? in + *place - 1 : NULL;
        *place = (uint32_t)(at - in) + 1;
        if (!back || at - back > MAX_OFFSET || word_at(back) != word_at(at)) {
            at += tries++ >> SKIP;
            continue;
        }
        while (at > todo && back > in && at[-1] == back[-1])
            at--, back--;
        size_t match = MIN_MATCH;
        while (at + match < end - LAST_LITERALS && at[match] == back[match])
            match++;
        p = put_literals(p, todo, (size_t)(at - todo), match - MIN_MATCH);
        *p++ = (char)(at - back);
        *p++ = (char)((at - back) >> 8);
        p = put_length(p, match - MIN_MATCH);
        todo = at += match;
        tries = 1 << SKIP;
    }
    p = put_literals(p, todo, (size_t)(end - todo), 0);
    return (size_t)(p - out);
}

size_t value_bound(size_t raw) { return raw + raw / 255 + 16; }

/* The value as it is stored; `raw` has room for `size` bytes. */
size_t make_value(char *out, char *raw, size_t size)
{
    uint32_t x = 1 + (uint32_t)(opt.random_payload ? draw() % 999 : 0);

    for (size_t i = 0; i < size; i++) {
        if (opt.random_payload) {
            x = (1140671485u * x + 12820163u) & 0xffffff;
            raw[i] = (char)(x % 255);
        } else {
            raw[i] = (char)(i % 255);
        }
    }
    if (opt.compress)
        return lz4_compress(raw, size, out);
    memcpy(out, raw, size);
    return size;
}
