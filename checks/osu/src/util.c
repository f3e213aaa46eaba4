/* util.c - memory, output in the 7.2 layout, and data validation. */
#include "osu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const struct bench *bench;
struct options opt;
int my_rank, num_ranks = 1;

/* One rank may be stuck in a call the others will never answer, so an error
 * in the middle of a measurement has to take the whole job down. */
_Noreturn void die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fprintf(stderr, "osu_%s: rank %d: ", bench->name, my_rank);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

void *page_alloc(size_t bytes)
{
    void *p = NULL;

    if (posix_memalign(&p, (size_t)sysconf(_SC_PAGESIZE), bytes ? bytes : 1))
        die("cannot allocate %zu bytes of memory", bytes);
    return p;
}

struct counts counts_for(size_t size)
{
    bool large = size > LARGE_ABOVE;
    struct counts c = {
        .timed = large ? opt.iters_large : opt.iters,
        .skip = large ? opt.skip_large : opt.skip,
    };

    c.total = c.timed + c.skip;
    return c;
}

void print_title(void)
{
    if (my_rank == 0)
        printf("%s# OSU MPI%s Test " OSU_VERSION "\n",
               bench->ranks == RANKS_MANY ? "\n" : "", bench->title);
}

void end_header(void)
{
    if (opt.check)
        printf("%*s", FIELD, "Validation");
    printf("\n");
    fflush(stdout);
}

void end_row(long errors)
{
    if (opt.check)
        printf("%*s", FIELD, errors ? "Fail" : "Pass");
    printf("\n");
    fflush(stdout);
}

/* "# Size" is 10 wide, every other column FIELD. */
void print_value_header(const char *value)
{
    if (my_rank)
        return;
    printf("%-10s%*s", "# Size", FIELD, value);
    end_header();
}

void print_row(size_t size, double value, int width, long errors)
{
    if (my_rank)
        return;
    printf("%-10zu%*.2f", size, width, value);
    end_row(errors);
}

/* Neighbouring bytes differ, and so do the same byte of two iterations or
 * two ranks: stale, shifted or swapped data cannot look right. */
static inline unsigned char pattern(size_t k, unsigned seed)
{
    return (unsigned char)(k * 31u + (k >> 8) * 7u + seed * 97u + 13u);
}

void fill_pattern(unsigned char *buf, size_t n, unsigned seed)
{
    for (size_t k = 0; k < n; k++)
        buf[k] = pattern(k, seed);
}

long count_wrong(const unsigned char *buf, size_t n, unsigned seed)
{
    long wrong = 0;

    for (size_t k = 0; k < n; k++)
        wrong += buf[k] != pattern(k, seed);
    return wrong;
}

long sum_errors(long mine)
{
    long all = 0;

    MPI_Allreduce(&mine, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

int validation_failed(size_t size)
{
    if (my_rank == 0) {
        fflush(stdout);
        fprintf(stderr, "DATA VALIDATION ERROR: osu_%s received wrong data "
                "at message size %zu.\n", bench->name, size);
    }
    return 1;
}
