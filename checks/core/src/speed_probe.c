/* speed_probe.c - how fast do two CPUs of this machine talk now? Two threads
 * pass a cache line to and fro: on a virtual machine the time tells if its
 * CPUs share a core of the host. Usage: speed_probe [CPU CPU], else the first
 * and last allowed CPU. Ends within 0.6 s; nan if there are no two. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#ifndef BATCHES                           /* the suite's own tests take few */
#define BATCHES 31
#endif
enum { TRIPS = 500 };                     /* 1 to 7 ms, beside the pauses  */
static const struct timespec pause_between = {0, 1500000};
static _Alignas(128) atomic_ulong line;   /* odd: the other thread's turn */
static _Alignas(128) atomic_bool stop;

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static int pin(int cpu)
{
    cpu_set_t set = {{0}};
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof set, &set);
}

static void *answer(void *cpu)
{
    if (pin(*(int *)cpu) == 0)            /* else quartile() times out      */
        while (!atomic_load(&stop))
            if (atomic_load(&line) & 1)
                atomic_fetch_add(&line, 1);
    return NULL;
}

static int ascending(const void *a, const void *b)
{
    return *(const double *)a > *(const double *)b ? 1 : -1;
}

static double quartile(double limit)      /* ns per round trip, or < 0    */
{
    double batch[BATCHES];
    for (int b = 0; b < BATCHES; b++) {
        double begin = now_ns();
        for (int i = 0; i < TRIPS; i++) {
            atomic_fetch_add(&line, 1);
            for (long spins = 1; atomic_load(&line) & 1; spins++)
                if (spins % 4096 == 0 && now_ns() > limit)
                    return -1;
        }
        batch[b] = (now_ns() - begin) / TRIPS;
        nanosleep(&pause_between, NULL);
    }
    qsort(batch, BATCHES, sizeof *batch, ascending);
    return batch[BATCHES / 4];
}

int main(int argc, char **argv)
{
    int given = argc == 3;
    int first = given ? atoi(argv[1]) : -1, last = given ? atoi(argv[2]) : -1;
    double ns = -1;
    pthread_t other;
    cpu_set_t set;
    if (!given && sched_getaffinity(0, sizeof set, &set) == 0)
        for (int c = CPU_SETSIZE - 1; c >= 0; c--)
            if (CPU_ISSET(c, &set))
                first = c, last = last < 0 ? c : last;
    if (first >= 0 && last >= 0 && first != last && !pin(first)
        && !pthread_create(&other, NULL, answer, &last)) {
        ns = quartile(now_ns() + 5e8);
        atomic_store(&stop, 1);
        pthread_join(other, NULL);
    }
    printf(ns < 0 ? "cacheline_roundtrip_ns nan\n"
                  : "cacheline_roundtrip_ns %.1f\n", ns);
}
