/* main.c - start, the line of figures, and the end. */
#define _GNU_SOURCE
#include "tao.h"

#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pthread.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static uint64_t started;

static uint64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* The next CPU that this process may use, in turn. */
static void pin(pthread_attr_t *attributes)
{
    static cpu_set_t allowed;
    static int cpu = -1;
    cpu_set_t one;

    if (cpu < 0)
        sched_getaffinity(0, sizeof allowed, &allowed);
    do
        cpu = (cpu + 1) % CPU_SETSIZE;
    while (!CPU_ISSET(cpu, &allowed));
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_attr_setaffinity_np(attributes, sizeof one, &one);
}

void start_thread(void *(*run)(void *), void *argument, const char *name)
{
    pthread_attr_t attributes;
    pthread_t thread;

    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, MIB);
    if (opt.pin)
        pin(&attributes);
    int code = pthread_create(&thread, &attributes, run, argument);
    if (code)
        fail("thread %s: %s: fewer threads, or a higher limit (ulimit -u)",
             name, strerror(code));
    char shortened[16];                      /* the kernel takes no more     */
    snprintf(shortened, sizeof shortened, "%.15s", name);
    pthread_setname_np(thread, shortened);
    pthread_attr_destroy(&attributes);
}

/* --- figures ------------------------------------------------------------- */
struct sink {
    void (*tell)(void *to, const char *name, const char *value);
    void *to;
};

__attribute__((format(printf, 3, 4)))
static void tell(const struct sink *s, const char *name, const char *format,
                 ...)
{
    char value[256];
    va_list args;

    va_start(args, format);
    vsnprintf(value, sizeof value, format, args);
    va_end(args);
    s->tell(s->to, name, value);
}

static void tell_time(const struct sink *s, const char *name,
                      struct timeval t)
{
    tell(s, name, "%ld.%06ld", (long)t.tv_sec, (long)t.tv_usec);
}

void each_stat(void (*to_whom)(void *to, const char *name,
                               const char *value), void *to)
{
    const struct sink sink = {to_whom, to}, *s = &sink;
    struct totals t = totals_now();
    struct cache_state c = cache_now();
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    tell(s, "pid", "%ld", (long)getpid());
    tell(s, "uptime", "%" PRIu64, (clock_ns() - started) / SECOND);
    tell(s, "time", "%ld", (long)time(NULL));
    tell(s, "version", VERSION);
    tell_time(s, "rusage_user", used.ru_utime);
    tell_time(s, "rusage_system", used.ru_stime);
    tell(s, "max_connections", "%u", opt.connections);
    tell(s, "curr_connections", "%" PRIu64, t.connections);
    tell(s, "total_connections", "%" PRIu64, t.accepted);
    tell(s, "rejected_connections", "%" PRIu64, t.refused);
    tell(s, "cmd_get", "%" PRIu64, t.gets);
    tell(s, "cmd_set", "%" PRIu64, t.sets);
    tell(s, "get_hits", "%" PRIu64, t.gets - t.misses);
    tell(s, "get_misses", "%" PRIu64, t.misses);
    tell(s, "bytes_read", "%" PRIu64, t.read);
    tell(s, "bytes_written", "%" PRIu64, t.written);
    tell(s, "limit_maxbytes", "%" PRIu64, (uint64_t)opt.memory * MIB);
    tell(s, "threads", "%u", opt.threads);
    tell(s, "bytes", "%" PRIu64, c.bytes);
    tell(s, "total_malloced", "%" PRIu64, c.mapped);
    tell(s, "curr_items", "%" PRIu64, c.items);
    tell(s, "evictions", "%" PRIu64, c.evictions);
    tell(s, "tao_fast_responses", "%" PRIu64, t.fast);
    tell(s, "tao_slow_requests", "%" PRIu64, t.asked);
    tell(s, "tao_slow_responses", "%" PRIu64, t.slow);
    tell(s, "tao_slow_responses_oom", "%" PRIu64, t.slow_oom);
    tell(s, "tao_slow_dispatchers", "%u", opt.dispatchers);
    tell(s, "tao_num_slow_threads", "%u", opt.slow_threads);
}

/* The line of the original, to the letter: also the two blanks, and the
 * listening sockets among the connections. Shares are of the time since the
 * last line. */
static void print_line(void)
{
    static struct totals last;
    static uint64_t last_time, last_sleeps;
    struct totals t = totals_now();
    uint64_t now = clock_ns(), sleeps = nanosleeps();
    double seconds = (double)(now - (last_time ? last_time : started)) / 1e9;
    double gets = (double)(t.gets - last.gets);
    unsigned queued = slow_requests_queued();
    /* Counters of threads that go on: a sum may be a step behind. */
    uint64_t waiting = t.asked > t.slow + queued ? t.asked - t.slow - queued
                                                 : 0;

    printf("fast_qps = %.1f, hit_rate = %.3f, slow_qps = %.1f, "
           "wh_qps = %.1f, curr_it = %.2fM, slow_qps_oom =  %.1f, "
           "crnt_conn = %" PRIu64 ", slow_th = %u, slow_reqs = %u, "
           "slow_resp = %" PRIu64 ", nanosleeps_per_sec = %.2f\n",
           (double)(t.fast - last.fast) / seconds,
           gets > 0 ? 1 - (double)(t.misses - last.misses) / gets : 0,
           (double)(t.slow - last.slow) / seconds,
           (double)(t.sets - last.sets) / seconds,
           (double)cache_now().items / 1e6,
           (double)(t.slow_oom - last.slow_oom) / seconds,
           t.connections + t.listeners, slow_threads_running(), queued,
           waiting, (double)(sleeps - last_sleeps) / seconds);
    fflush(stdout);
    last = t;
    last_time = now;
    last_sleeps = sleeps;
}

/* --- start --------------------------------------------------------------- */
static void raise_open_files(void)
{
    rlim_t need = opt.connections + opt.threads + 64;
    struct rlimit limit;

    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < need)
        fail("open files limit %ju (ulimit -Hn) is too low for %u "
             "connections: raise it or ask for fewer (-c)",
             (uintmax_t)limit.rlim_max, opt.connections);
    if (limit.rlim_cur < need)
        limit.rlim_cur = need;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void become(const char *user)
{
    struct passwd *p = getpwnam(user);

    if (!p)
        fail("-u %s: no such user", user);
    if (geteuid() == 0 && (setgroups(0, NULL) || setgid(p->pw_gid)
                           || setuid(p->pw_uid)))
        fail("-u %s: %s", user, strerror(errno));
}

/* What the slow path would make; for tests. */
static _Noreturn void print_sizes(unsigned count)
{
    char *raw = malloc(opt.max_item_size);
    char *out = malloc(value_bound(opt.max_item_size));

    if (!raw || !out)
        fail("no memory for values of %u bytes", opt.max_item_size);
    for (; count; count--) {
        size_t size = draw_size();
        printf("%zu %zu\n", size, make_value(out, raw, size));
    }
    exit(0);
}

int main(int argc, char **argv)
{
    sigset_t signals;

    read_options(argc, argv);
    if (opt.print_sizes)
        print_sizes(opt.print_sizes);
    /* Taken by sigtimedwait alone; threads inherit that. */
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    signal(SIGPIPE, SIG_IGN);
    raise_open_files();
    prepare_tls();
    prepare_cache();
    prepare_serving();
    if (opt.user)
        become(opt.user);
    started = clock_ns();
    start_slow_path();
    start_serving();
    printf("tao_server " VERSION " (embedded) on %s port %s: %u fast "
           "threads, %u dispatchers, %u slow threads (%s), %u MB, TLS %s\n",
           opt.address, opt.port, opt.threads, opt.dispatchers,
           opt.slow_threads, opt.semaphore ? "semaphore" : "nanosleep",
           opt.memory, opt.tls ? "on" : "off");
    fflush(stdout);
    for (uint64_t due = started, now;;) {
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
            /* The other threads are in the midst of things: no exit(). */
            _exit(0);
        }
        print_line();
    }
}
