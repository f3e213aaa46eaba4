/* NAME.c - copies a buffer within memory for half a second.
 * Usage: NAME MIB */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    size_t bytes = argc == 2 ? strtoul(argv[1], NULL, 10) << 20 : 0;
    char *from = malloc(bytes), *to = malloc(bytes);
    double best = 0;
    int i = 0;
    if (!bytes || !from || !to)
        return fprintf(stderr, "usage: NAME MIB (as memory allows)\n"), 2;
    memset(to, 2, bytes);                  /* both have their pages now */
    for (double end = now() + 0.5, begin; now() < end;) {
        memset(from, ++i, bytes);          /* no copy can be left out   */
        begin = now();
        memcpy(to, from, bytes);
        double rate = 2e-6 * bytes / (now() - begin);
        if (rate > best)
            best = rate;
        if (to[bytes - 1] != (char)i || memcmp(from, to, bytes))
            return fprintf(stderr, "NAME: the copy differs\n"), 1;
    }
    printf("# NAME 1.0\ncopy %.1f MB/s\n", best);
    return 0;
}
