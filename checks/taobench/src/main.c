/* main.c - start, the periodic line of figures, and the end. */
#define _GNU_SOURCE
#include "tao.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* --- figures ------------------------------------------------------------- */
/* The line of the original, to the letter: also the two blanks, the writes that
 * this server does not have, and the listening socket among the connections.
 * Shares are of the time since the last line. */
static void print_line(void)
{
    static struct totals last;
    static uint64_t last_time, last_sleeps;
    struct totals t = totals_now();
    uint64_t now = clock_ns(), sleeps = nanosleeps();
    uint64_t since = last_time ? last_time : started_ns;
    double seconds = (double)(now - since) / 1e9;
    double gets = (double)(t.counts[GETS] - last.counts[GETS]);
    double misses = (double)(t.counts[MISSES] - last.counts[MISSES]);
    unsigned queued = slow_requests_queued();
    /* Counters of threads that go on: a sum may be a step behind. */
    uint64_t answered = t.counts[SLOW] + queued;
    uint64_t waiting = t.counts[ASKED] > answered
                       ? t.counts[ASKED] - answered : 0;

    printf("fast_qps = %.1f, hit_rate = %.3f, slow_qps = %.1f, "
           "wh_qps = 0.0, curr_it = %.2fM, slow_qps_oom =  %.1f, "
           "crnt_conn = %" PRIu64 ", slow_th = %u, slow_reqs = %u, "
           "slow_resp = %" PRIu64 ", nanosleeps_per_sec = %.2f\n",
           (double)(t.counts[FAST] - last.counts[FAST]) / seconds,
           gets > 0 ? 1 - misses / gets : 0,
           (double)(t.counts[SLOW] - last.counts[SLOW]) / seconds,
           (double)cache_now().items / 1e6,
           (double)(t.counts[SLOW_OOM] - last.counts[SLOW_OOM]) / seconds,
           t.connections + 1, slow_threads_running(), queued,
           waiting, (double)(sleeps - last_sleeps) / seconds);
    fflush(stdout);
    last = t;
    last_time = now;
    last_sleeps = sleeps;
}

/* --- start --------------------------------------------------------------- */
int main(int argc, char **argv)
{
    sigset_t signals;

    read_options(argc, argv);
    /* Taken by sigtimedwait alone; threads inherit that. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    raise_open_files(opt.connections, opt.threads + 64);
    prepare_cache();
    prepare_serving();
    start_stats();
    start_slow_path();
    start_serving();
    printf("tao_server " VERSION " (embedded) on %s port %s: %u fast "
           "threads, %u dispatchers, %u slow threads (%s), %u MB\n",
           opt.address, opt.port, opt.threads, opt.dispatchers,
           opt.slow_threads, opt.semaphore ? "semaphore" : "nanosleep",
           opt.memory);
    fflush(stdout);
    for (uint64_t due = started_ns, now;;) {
        due += (uint64_t)opt.stats_sleep * 1000000;
        while ((now = clock_ns()) < due) {
            uint64_t left = due - now;
            struct timespec time = {.tv_sec = (time_t)(left / SECOND),
                                    .tv_nsec = (long)(left % SECOND)};
            int signal = sigtimedwait(&signals, NULL, &time);
            if (signal < 0)
                continue;
            printf("Signal handled: %s.\n", strsignal(signal));
            print_line();
            /* Other threads still run: no exit handlers. */
            _exit(0);
        }
        print_line();
    }
}
