/* mutate.c - a fuzzer for compilers that bring none: mutates a corpus by a
 * seed, always the same way.
 *
 *   TARGET SEED SECONDS RUNS DICT FILE...      (DICT: as libFuzzer's)
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);
void __sanitizer_set_death_callback(void (*callback)(void))
    __attribute__((weak));

enum { MOST = 4096, FILES = 256, WORDS = 256 };
static struct text { uint8_t bytes[MOST]; size_t size; } files[FILES], now;
static struct { char bytes[64]; size_t size; } words[WORDS];
static size_t file_count, word_count;
static uint64_t state;

static uint64_t draw(uint64_t below)
{
    uint64_t x = state += 0x9e3779b97f4a7c15u;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (x ^ (x >> 31)) % below;
}

/* What kills it is left on stderr, in hexadecimal. */
static void last_words(void)
{
    dprintf(2, "FUZZ: input ");
    for (size_t i = 0; i < now.size; i++)
        dprintf(2, "%02x", now.bytes[i]);
    dprintf(2, "\n");
}

static void aborted(int code)
{
    last_words();
    signal(code, SIG_DFL);
    raise(code);
}

static void read_words(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[200];

    while (file && word_count < WORDS && fgets(line, sizeof line, file)) {
        char *to = words[word_count].bytes, *start = to;
        for (const char *p = line + 1; *p != '"' && *p && to < start + 60; p++)
            if (*p == '\\' && p[1] == 'x') {
                *to++ = (char)strtol((char[]){p[2], p[3], 0}, NULL, 16);
                p += 3;
            } else {
                *to++ = *p == '\\' ? *++p : *p;
            }
        words[word_count++].size = (size_t)(to - start);
    }
    if (file)
        fclose(file);
}

static void insert(size_t at, const void *bytes, size_t n)
{
    uint8_t copy[MOST];

    if (now.size + n > MOST)
        return;
    memcpy(copy, bytes, n);
    memmove(now.bytes + at + n, now.bytes + at, now.size - at);
    memcpy(now.bytes + at, copy, n);
    now.size += n;
}

static void change(void)
{
    size_t at = draw(now.size + 1), n = 1 + draw(16);
    const struct text *other = &files[draw(file_count)];

    if (now.size - at < n)
        n = now.size - at;
    switch (draw(7)) {
    case 0:
        if (n)
            now.bytes[at] ^= (uint8_t)(1u << draw(8));
        break;
    case 1:
        if (n)
            now.bytes[at] = (uint8_t)draw(256);
        break;
    case 2:
        memmove(now.bytes + at, now.bytes + at + n, now.size - at - n);
        now.size -= n;
        break;
    case 3:
        insert(draw(now.size + 1), now.bytes + at, n);
        break;
    case 4:
    case 5:
        if (word_count) {
            size_t w = draw(word_count);
            insert(at, words[w].bytes, words[w].size);
        }
        break;
    default:
        if (other->size) {
            size_t from = draw(other->size);
            insert(at, other->bytes + from, 1 + draw(other->size - from));
        }
    }
}

int main(int argc, char **argv)
{
    double end;
    struct timespec t;
    uint64_t runs, most;

    if (argc < 6)
        return 2;
    state = strtoull(argv[1], NULL, 10);
    most = strtoull(argv[3], NULL, 10);
    read_words(argv[4]);
    for (int i = 5; i < argc && file_count < FILES; i++) {
        FILE *file = fopen(argv[i], "r");
        if (!file)
            return 2;
        struct text *f = &files[file_count++];
        f->size = fread(f->bytes, 1, MOST, file);
        fclose(file);
    }
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(last_words);
    signal(SIGABRT, aborted);
    LLVMFuzzerInitialize(&argc, &argv);
    clock_gettime(CLOCK_MONOTONIC, &t);
    end = (double)t.tv_sec + (double)t.tv_nsec / 1e9 + atof(argv[2]);
    for (runs = 0; runs < most; runs++) {
        now = files[runs < file_count ? runs : draw(file_count)];
        if (runs >= file_count)
            for (uint64_t n = 1 + draw(6); n; n--)
                change();
        uint8_t *exact = malloc(now.size + !now.size);
        memcpy(exact, now.bytes, now.size);
        LLVMFuzzerTestOneInput(exact, now.size);
        free(exact);
        clock_gettime(CLOCK_MONOTONIC, &t);
        /* The files themselves are read, however long that takes. */
        if (runs >= file_count
            && (double)t.tv_sec + (double)t.tv_nsec / 1e9 > end)
            break;
    }
    dprintf(2, "%llu runs\n", (unsigned long long)runs);
    return 0;
}
