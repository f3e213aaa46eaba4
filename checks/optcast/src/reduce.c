/* reduce.c - arrays, and their sums. Half precision is added up in single and rounded
 * once, to the nearest even number. */
#define _GNU_SOURCE
#include "optcast.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

void *get(size_t bytes)
{
    const size_t huge = 2 << 20;
    void *memory;
    if (posix_memalign(&memory, bytes < huge ? 4096 : huge,
                       bytes ? bytes : 1))
        fail("cannot allocate %zu bytes", bytes);
    /* The kernel copies all of it: fewer pages, fewer misses of the TLB. */
    if (bytes >= huge)
        madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0, bytes);           /* its pages are there from now on  */
    return memory;
}

/* One copy of each loop for every width of vectors; what the machine has is
 * found out when the program starts. */
#if defined __x86_64__ && defined __linux__ && defined __GNUC__ \
    && !defined __clang__ && !defined __SANITIZE_ADDRESS__
#define VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTORS
#endif

enum { BLOCK = 2048 };              /* elements: 8 KiB of sums, in L1         */

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float of_bf16(uint16_t x)
{
    return float_of((uint32_t)x << 16);
}

static inline uint16_t to_bf16(float x)
{
    uint32_t bits = bits_of(x);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded;
}

static inline float of_f16(uint16_t x)
{
    uint32_t low = x & 0x7fff;
    /* Moves the exponent; right for subnormals too. */
    float scaled = float_of(low << 13) * 0x1p112f;
    uint32_t bits = bits_of(scaled);
    bits = low >= 0x7c00 ? bits | 0x7f800000 : bits;
    return float_of(bits | (uint32_t)(x & 0x8000) << 16);
}

static inline uint16_t to_f16(float x)
{
    uint32_t all = bits_of(x), bits = all & 0x7fffffff;
    /* Below 2^-14: adding 2^-1 leaves the rounded digits at the end. */
    uint32_t small = bits_of(float_of(bits) + 0.5f) - 0x3f000000;
    uint32_t normal = (bits + 0xc8000fff + (bits >> 13 & 1)) >> 13;
    uint32_t half = bits < 0x38800000 ? small : normal;
    half = bits >= 0x47800000 ? 0x7c00 : half;      /* 2^16 and more          */
    half = bits > 0x7f800000 ? 0x7e00 : half;
    return half | (all >> 16 & 0x8000);
}

/* Adds up two to four arrays in one pass; the first may be `out` itself. */
#define SUM(terms) \
    _Pragma("GCC ivdep") \
    for (size_t i = 0; i < n; i++) \
        out[i] = terms

VECTORS static void sum(float *out, const float *const *in, int inputs,
                        size_t n)
{
    const float *a = in[0], *b = in[1], *c = in[2], *d = in[3];
    if (inputs == 2)
        SUM(a[i] + b[i]);
    else if (inputs == 3)
        SUM(a[i] + b[i] + c[i]);
    else
        SUM(a[i] + b[i] + c[i] + d[i]);
}

static void reduce_f32(float *out, const void *const *in, int inputs,
                       size_t at, size_t n)
{
    const float *from[4] = {0};
    int have = 0;
    if (inputs == 1)
        memcpy(out, (const float *)in[0] + at, n * sizeof *out);
    for (int i = 0; i < inputs; i++) {
        from[have++] = (const float *)in[i] + at;
        if (have == 4 || (have > 1 && i + 1 == inputs)) {
            sum(out, from, have, n);
            from[0] = out;
            have = 1;
        }
    }
}

/* Half precision to and from sums in single; keep 0: the first array. */
#define HALF(kind) \
    VECTORS static void widen_##kind(float *restrict out, \
                                     const uint16_t *restrict a, size_t n, \
                                     float keep) \
    { \
        for (size_t i = 0; i < n; i++) \
            out[i] = out[i] * keep + of_##kind(a[i]); \
    } \
    \
    VECTORS static void narrow_##kind(uint16_t *restrict out, \
                                      const float *restrict a, size_t n) \
    { \
        for (size_t i = 0; i < n; i++) \
            out[i] = to_##kind(a[i]); \
    }
HALF(f16)
HALF(bf16)

void reduce(enum type type, void *out, const void *const *in, int inputs,
            size_t count)
{
    for (size_t at = 0; at < count; at += BLOCK) {
        size_t n = count - at < BLOCK ? count - at : BLOCK;
        if (type == F32) {
            reduce_f32((float *)out + at, in, inputs, at, n);
            continue;
        }
        float sums[BLOCK] = {0};
        for (int i = 0; i < inputs; i++)
            (type == F16 ? widen_f16 : widen_bf16)(
                sums, (const uint16_t *)in[i] + at, n, i > 0);
        (type == F16 ? narrow_f16 : narrow_bf16)((uint16_t *)out + at, sums,
                                                 n);
    }
}

void to_number(enum type type, void *out, size_t at, float x)
{
    if (type == F32)
        ((float *)out)[at] = x;
    else
        ((uint16_t *)out)[at] = type == F16 ? to_f16(x) : to_bf16(x);
}
