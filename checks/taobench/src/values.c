/* values.c - sizes of values, and their bytes as LZ4 would compress them. */
#include "tao.h"

#include <pthread.h>

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
    return sizes[i - 1].size + ((random & UINT32_MAX) * width >> 32);
}

/* --- LZ4's block format -------------------------------------------------- */
/* A block is a row of sequences: a token with two lengths, literals, and an
 * offset back to what is repeated; the last one has literals only. The last
 * five bytes are always literals, and no match begins in the last twelve. The
 * bytes of a value are i % 255, so that each repeats the one 255 before it: a
 * block has one match, or none. */
enum { PERIOD = 255, MIN_MATCH = 4, LAST_LITERALS = 5, LAST_START = 12 };

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

/* `n` literals, the bytes of the value from `first` on. `match` is the length of
 * the match behind them, less MIN_MATCH. */
static char *put_literals(char *out, size_t first, size_t n, size_t match)
{
    *out++ = (char)((n < 15 ? n : 15) << 4 | (match < 15 ? match : 15));
    out = put_length(out, n);
    for (size_t i = first; i < first + n; i++)
        *out++ = (char)(i % PERIOD);
    return out;
}

size_t make_value(char *out, size_t size)
{
    if (size < PERIOD + LAST_START + 1)
        return (size_t)(put_literals(out, 0, size, 0) - out);
    size_t match = size - PERIOD - LAST_LITERALS - MIN_MATCH;
    char *p = put_literals(out, 0, PERIOD, match);
    *p++ = (char)PERIOD;              /* the offset, two bytes               */
    *p++ = 0;
    p = put_length(p, match);
    p = put_literals(p, size - LAST_LITERALS, LAST_LITERALS, 0);
    return (size_t)(p - out);
}
