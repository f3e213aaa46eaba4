/* report.c - results: a JSON document, a summary line, rows of --series. */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

_Atomic unsigned running_threads;

/* All threads' figures of one kind, or of all kinds (KINDS). */
struct sum {
    uint64_t count, misses, bytes, ns, min, max, bucket[BUCKETS];
};

static void add_up(struct sum *s, enum kind only)
{
    *s = (struct sum){.min = UINT64_MAX};
    for (unsigned i = 0; i < opt.threads; i++)
        for (enum kind k = 0; k < KINDS; k++) {
            const struct tally *t = &threads[i].tally[k];
            const struct histogram *h = &threads[i].histogram[k];
            uint64_t min = peek(&h->min), max = peek(&h->max);
            if (only != KINDS && only != k)
                continue;
            s->count += peek(&t->count);
            s->misses += peek(&t->misses);
            s->bytes += peek(&t->bytes);
            s->ns += peek(&h->sum);
            s->min = min < s->min ? min : s->min;
            s->max = max > s->max ? max : s->max;
            for (unsigned b = 0; b < BUCKETS; b++)
                s->bucket[b] += peek(&h->bucket[b]);
        }
}

/* --- rows ---------------------------------------------------------------- */
static double cpu_of_process(void)
{
    struct rusage r;

    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec)
           + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

static void sleep_until(uint64_t ns)
{
    while (running_threads && clock_ns() < ns) {
        uint64_t left = ns - clock_ns(), step = SECOND / 50;
        struct timespec t = {.tv_nsec = (long)(left < step ? left : step)};
        nanosleep(&t, NULL);
    }
}

static void write_row(FILE *file, double time, double seconds,
                      const struct sum *now, const struct sum *before,
                      double cpu)
{
    static uint64_t bucket[BUCKETS];
    uint64_t count = now->count - before->count, top = 0;
    double us[2];

    for (unsigned b = 0; b < BUCKETS; b++)
        if ((bucket[b] = now->bucket[b] - before->bucket[b]))
            top = bucket_lower(b);
    for (int i = 0; i < 2; i++)
        us[i] = (double)percentile(bucket, count, i ? 0.99 : 0.5) / 1e3;
    fprintf(file, "%.3f,%" PRIu64 ",0,%" PRIu64 ",%.1f,%.1f,%.1f,%.3f\n",
            time, count, now->misses - before->misses, us[0], us[1],
            (double)top / 1e3, cpu / seconds);
    fflush(file);
}

void write_series(void)
{
    static struct sum sums[2];
    FILE *file = opt.series ? fopen(opt.series, "w") : NULL;
    uint64_t start = begin_ns, step = (uint64_t)(opt.interval * 1e9);
    int turn = 0;

    if (!opt.series)
        return;
    if (!file)
        fail("--series %s: %s", opt.series, strerror(errno));
    fputs("time_s,operations,errors,misses,p50_us,p99_us,max_us,cpu\n",
          file);
    sleep_until(start);
    for (double cpu = cpu_of_process(), used; running_threads; turn = !turn) {
        uint64_t from = start;
        sleep_until(start += step);
        uint64_t now = clock_ns();
        add_up(&sums[!turn], KINDS);
        used = cpu_of_process();
        write_row(file, (double)(now - begin_ns) / 1e9,
                  (double)(now - from) / 1e9, &sums[!turn], &sums[turn],
                  used - cpu);
        cpu = used;
    }
    if (fclose(file))
        fail("--series %s: %s", opt.series, strerror(errno));
}

/* --- the document -------------------------------------------------------- */
static void text(const char *name, const char *value)
{
    printf("\"%s\": \"", name);
    for (const char *p = value; *p; p++) {
        if (*p == '"' || *p == '\\')
            putchar('\\');
        putchar(*p < ' ' && *p >= 0 ? '?' : *p);
    }
    printf("\", ");
}

static void print_parameters(void)
{
    printf("\"parameters\": {");
    text("operation", operation_names[opt.operation]);
    if (opt.operation == OP_MIXED)
        text("ratio", opt.ratio);
    if (opt.operation == OP_MSET)
        printf("\"batch\": %u, ", opt.batch);
    printf("\"keys\": %" PRIu64 ", ", opt.keys);
    text("key_prefix", opt.prefix);
    text("value_size", opt.value_size);
    printf("\"on_miss\": \"%s\", \"verify\": \"%s\", \"seed\": %" PRIu64 ", "
           "\"value_seed\": %" PRIu64 ", "
           "\"pipeline\": %u, \"rate\": %.6g, "
           "\"duration_s\": %g, \"requests\": %" PRIu64 ", "
           "\"warmup_s\": %g, \"timeout_s\": %g}, ",
           miss_names[opt.on_miss], verify_names[opt.verify], opt.seed,
           opt.value_seed, opt.pipeline, opt.rate,
           opt.duration, opt.requests, opt.warmup, opt.timeout);
}

static double busy(const struct thread *t, double *waited)
{
    const struct usage *u = t->usage;
    double wall = u[1].at - u[0].at;

    if (wall <= 0)
        return *waited = 0;
    *waited = (u[1].waited - u[0].waited) / wall;
    return (u[1].user - u[0].user + u[1].system - u[0].system) / wall;
}

/* What limited the rate: the client (a thread without idle time), the rate
 * asked for, or the server. */
static const char *limited(uint64_t lag, double seconds)
{
    for (unsigned i = 0; i < opt.threads; i++) {
        double waited, share = busy(&threads[i], &waited);
        if (share + waited > 0.9)
            return "client";
    }
    /* Late by less than a hundredth of the measured time. */
    return opt.rate && (double)lag <= 1e7 * seconds ? "rate" : "server";
}

static void print_threads(void)
{
    printf("\"threads\": [");
    for (unsigned i = 0; i < opt.threads; i++) {
        double waited, share = busy(&threads[i], &waited);
        printf("%s{\"connections\": %u, \"cpu_share\": %.4f, "
               "\"wait_share\": %.4f}", i ? ", " : "",
               threads[i].conn_count, share, waited);
    }
    printf("], ");
}

static void print_kinds(void)
{
    static struct sum s;
    const char *between = "";

    printf("\"kinds\": {");
    for (enum kind k = 0; k < KINDS; k++) {
        add_up(&s, k);
        if (!s.count)
            continue;
        printf("%s\"%s\": {\"count\": %" PRIu64 ", \"errors\": 0, "
               "\"misses\": %" PRIu64 ", \"bytes\": %" PRIu64 ", "
               "\"sum_ns\": %" PRIu64 ", \"min_ns\": %" PRIu64 ", "
               "\"max_ns\": %" PRIu64 ", \"histogram\": ", between,
               kind_names[k], s.count, s.misses, s.bytes, s.ns, s.min,
               s.max);
        print_buckets(s.bucket, stdout);
        putchar('}');
        between = ", ";
    }
    printf("}");
}

void print_report(double wall)
{
    static struct sum s;
    uint64_t last = begin_ns, lag = 0, lag_max = 0, left = 0;
    double user = 0, system = 0, waited, share = 0;
    char host[256] = "";
    cpu_set_t cpus;

    add_up(&s, KINDS);
    if (!s.count)
        fail("nothing was answered in the measured time: a longer "
             "--duration?");
    for (unsigned i = 0; i < opt.threads; i++) {
        const struct thread *t = &threads[i];
        double mine = busy(t, &waited);
        share = mine > share ? mine : share;
        last = t->last_answer > last ? t->last_answer : last;
        left += t->left;
        lag = t->lag_last > lag ? t->lag_last : lag;
        lag_max = t->lag_max > lag_max ? t->lag_max : lag_max;
        user += t->usage[1].user - t->usage[0].user;
        system += t->usage[1].system - t->usage[0].system;
    }
    /* A window of fixed length counts in full, unless all was asked before
     * its end. */
    if (end_ns != UINT64_MAX && last < end_ns && !(opt.requests && !left))
        last = end_ns;
    double seconds = (double)(last - begin_ns) / 1e9;
    double rate = (double)s.count / seconds;
    const char *limit = limited(lag, seconds);

    gethostname(host, sizeof host - 1);
    printf("{\"schema\": 1, \"program\": \"plumbload\", \"version\": \""
           VERSION "\", ");
    text("name", opt.name);
    text("host", host);
    printf("\"share\": [%u, %u], \"servers\": [", opt.share, opt.shares);
    for (int i = 0; i < opt.node_count; i++)
        printf("%s\"%s\"", i ? ", " : "", opt.nodes[i].name);
    printf("], ");
    text("protocol", protocol_names[opt.protocol]);
    printf("\"tls\": %s, \"cluster\": %s, ",
           opt.service.tls ? "true" : "false",
           opt.service.cluster ? "true" : "false");
    print_parameters();
    printf("\"connections\": %u, ", opt.connections);
    CPU_ZERO(&cpus);
    sched_getaffinity(0, sizeof cpus, &cpus);
    printf("\"wall_s\": %.9f, \"measured_s\": %.9f, \"cpu_user_s\": %.6f, "
           "\"cpu_system_s\": %.6f, \"cpus\": %d, ", wall, seconds, user,
           system, CPU_COUNT(&cpus));
    print_threads();
    printf("\"limited\": \"%s\", \"rate\": {\"achieved\": %.9g, "
           "\"intended\": %.6g, \"lag_max_ns\": %" PRIu64 ", "
           "\"lag_end_ns\": %" PRIu64 "}, ", limit,
           rate, opt.rate, lag_max, lag);
    print_kinds();
    printf("}\n");
    if (fflush(stdout) || ferror(stdout))
        fail("standard output: %s", strerror(errno));
    fprintf(stderr, "plumbload: %s: %.*f %s/s over %.2f s, p50 %.1f us, "
            "p99 %.1f us, max %.1f us, %" PRIu64 " misses, client CPU "
            "%.0f %%, limited by the %s\n", opt.name, rate < 100 ? 2 : 0,
            rate, operation_names[opt.operation],
            seconds, (double)percentile(s.bucket, s.count, 0.5) / 1e3,
            (double)percentile(s.bucket, s.count, 0.99) / 1e3,
            (double)s.max / 1e3, s.misses, 100 * share, limit);
}
