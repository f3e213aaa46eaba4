/* sha256.c - HMAC-SHA-256 (FIPS 180-4, RFC 2104), for the handshake alone. */
#define _GNU_SOURCE
#include "optcast.h"

#include <string.h>
#include <sys/random.h>

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1,
    0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
    0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147,
    0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
    0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208,
    0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

struct sha {
    uint32_t h[8];
    uint64_t length;
    uint8_t block[64];
};

static uint32_t turn(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

static void compress(struct sha *s)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)s->block[4 * i] << 24 | s->block[4 * i + 1] << 16
             | s->block[4 * i + 2] << 8 | s->block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7]
             + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3)
             + (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(v, s->h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t t = v[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25))
                   + ((e & v[5]) ^ (~e & v[6])) + K[i] + w[i];
        uint32_t u = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22))
                   + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t;
        v[0] = t + u;
    }
    for (int i = 0; i < 8; i++)
        s->h[i] += v[i];
}

static void begin(struct sha *s)
{
    static const uint32_t first[8] = {
        0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
        0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->h, first, sizeof first);
    s->length = 0;
}

static void add(struct sha *s, const void *data, size_t size)
{
    const uint8_t *from = data;
    while (size--) {
        s->block[s->length++ % 64] = *from++;
        if (s->length % 64 == 0)
            compress(s);
    }
}

static void end(struct sha *s, uint8_t out[MAC])
{
    uint64_t bits = s->length * 8;
    add(s, "\x80", 1);
    while (s->length % 64 != 56)
        add(s, "", 1);
    for (int i = 7; i >= 0; i--)
        add(s, &(uint8_t){bits >> 8 * i}, 1);
    for (int i = 0; i < MAC; i++)
        out[i] = s->h[i / 4] >> (24 - i % 4 * 8);
}

void hmac(const char *key, const struct part *parts, int count,
          uint8_t out[MAC])
{
    uint8_t pad[64] = {0};
    struct sha s;
    size_t size = strlen(key);
    if (size > sizeof pad) {
        begin(&s);
        add(&s, key, size);
        end(&s, pad);
    } else {
        memcpy(pad, key, size);
    }
    for (int i = 0; i < 64; i++)
        pad[i] ^= 0x36;
    begin(&s);
    add(&s, pad, sizeof pad);
    for (int i = 0; i < count; i++)
        add(&s, parts[i].data, parts[i].size);
    end(&s, out);
    for (int i = 0; i < 64; i++)
        pad[i] ^= 0x36 ^ 0x5c;
    begin(&s);
    add(&s, pad, sizeof pad);
    add(&s, out, MAC);
    end(&s, out);
}

bool same(const uint8_t *a, const uint8_t *b, size_t size)
{
    uint8_t differs = 0;
    while (size--)
        differs |= *a++ ^ *b++;
    return !differs;
}

void draw(uint8_t *out, size_t size)
{
    if (getrandom(out, size, 0) != (ssize_t)size)
        fail("the system gives no random bytes");
}
