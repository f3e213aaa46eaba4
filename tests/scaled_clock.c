/* Makes a program report results of another machine: SCALE times the times
 * that it measured. tests/cached_cc links it into the embedded benchmarks
 * where PLUMBLINE_TEST_SCALE is set, with the linker's --wrap.
 *
 * A program that reports longer times also takes as long, because the suite
 * refuses results that claim more time than the program ran. */
#include <time.h>

#ifndef SCALE
#error "compile with -DSCALE=FACTOR"
#endif

double __real_MPI_Wtime(void) __attribute__((weak));
int __real_clock_gettime(clockid_t which, struct timespec *t);
double __wrap_MPI_Wtime(void);
int __wrap_clock_gettime(clockid_t which, struct timespec *t);

static struct timespec began;

static double since_start(void)
{
    struct timespec now;

    __real_clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - began.tv_sec)
        + (double)(now.tv_nsec - began.tv_nsec) / 1e9;
}

__attribute__((constructor)) static void start(void)
{
    __real_clock_gettime(CLOCK_MONOTONIC, &began);
}

__attribute__((destructor)) static void take_as_long(void)
{
    double left = since_start() * (SCALE - 1);
    struct timespec wait;

    if (left > 0) {
        wait.tv_sec = (time_t)left;
        wait.tv_nsec = (long)((left - (double)wait.tv_sec) * 1e9);
        nanosleep(&wait, 0);
    }
}

double __wrap_MPI_Wtime(void)
{
    return __real_MPI_Wtime() * SCALE;
}

int __wrap_clock_gettime(clockid_t which, struct timespec *t)
{
    int code = __real_clock_gettime(which, t);

    if (which == CLOCK_MONOTONIC) {
        double scaled = since_start() * SCALE;

        t->tv_sec = (time_t)scaled;
        t->tv_nsec = (long)((scaled - (double)t->tv_sec) * 1e9);
    }
    return code;
}
