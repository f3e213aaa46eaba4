/* report.c - results: the JSON of memtier_benchmark, with more keys. */
#define _GNU_SOURCE
#include "load.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>

/* All threads' figures of one kind, or of all kinds (KINDS). */
struct sum {
    uint64_t count, hits, misses, sent, received, ns, min, max;
    uint64_t bucket[BUCKETS];
};

static void add_up(struct sum *s, enum kind only)
{
    *s = (struct sum){.min = UINT64_MAX};
    for (unsigned i = 0; i < opt.threads; i++)
        for (enum kind k = 0; k < KINDS; k++) {
            const struct tally *t = &threads[i].tally[k];
            const struct histogram *h = &threads[i].histogram[k];
            if (only != KINDS && only != k)
                continue;
            s->count += t->count;
            s->misses += t->misses;
            if (k == GET)
                s->hits += t->count - t->misses;
            s->sent += t->sent;
            s->received += t->received;
            s->ns += h->sum;
            s->min = h->min < s->min ? h->min : s->min;
            s->max = h->max > s->max ? h->max : s->max;
            for (unsigned b = 0; b < BUCKETS; b++)
                s->bucket[b] += h->bucket[b];
        }
}

/* --- the JSON ------------------------------------------------------------ */
/* The window, and what the threads did in it. */
static struct {
    double seconds, cpu, busiest;         /* busiest: CPU share of a thread */
    const char *limit;
} run;

/* What limited the rate: the client (a thread without idle time), the rate
 * that was asked for, or the server. */
static void measure_threads(void)
{
    uint64_t last = begin_ns, lag = 0, left = 0;

    run.limit = "server";
    for (unsigned i = 0; i < opt.threads; i++) {
        const struct thread *t = &threads[i];
        const struct usage *u = t->usage;
        double wall = u[1].at - u[0].at;
        double cpu = u[1].cpu - u[0].cpu;
        double waited = u[1].waited - u[0].waited;
        if (wall > 0 && cpu / wall > run.busiest)
            run.busiest = cpu / wall;
        if (wall > 0 && (cpu + waited) / wall > 0.9)
            run.limit = "client";
        run.cpu += cpu;
        last = t->last_answer > last ? t->last_answer : last;
        lag = t->lag_last > lag ? t->lag_last : lag;
        left += t->left;
    }
    /* A window of fixed length counts in full, unless all was asked before
     * its end. */
    if (end_ns != UINT64_MAX && last < end_ns && !(opt.requests && !left))
        last = end_ns;
    run.seconds = (double)(last - begin_ns) / 1e9;
    /* Late by less than a hundredth of the measured time. */
    if (opt.rate && *run.limit == 's' && (double)lag <= 1e7 * run.seconds)
        run.limit = "rate";
}

/* The name of a row, as memtier_benchmark makes it. */
static const char *row_name(enum kind kind)
{
    static char name[80];

    if (kind != COMMAND)
        return kind == SET ? "Sets" : kind == GET ? "Gets" : "Totals";
    snprintf(name, sizeof name, "%.64ss", (const char *)opt.words[0].at);
    for (char *p = name; *p; p++)
        *p = (char)(p == name ? toupper(*p) : tolower(*p));
    return name;
}

/* Of a latency in ms; never beyond the smallest and the largest. */
static double percentile_ms(const struct sum *s, double percent)
{
    double ns = percentile(s->bucket, s->count, percent / 100);

    return !s->count ? 0 : ns > (double)s->max ? (double)s->max / 1e6
           : ns < (double)s->min ? (double)s->min / 1e6 : ns / 1e6;
}

static void print_configuration(FILE *json)
{
    fprintf(json, "{\n\"configuration\": {\n\"protocol\": \"%s\",\n\"ratio\": "
            "\"%s\",\n\"key_pattern\": \"%s\",\n\"tls\": \"false\",\n",
            protocol_names[opt.protocol], opt.ratio,
            opt.fills ? "P:P" : "R:R");
    fprintf(json, "\"threads\": %u,\n\"clients\": %u,\n\"pipeline\": %u,\n"
            "\"requests\": %" PRIu64 ",\n\"test_time\": %g,\n"
            "\"rate_limit\": %g,\n\"reconnect_interval\": %u,\n",
            opt.threads, opt.clients, opt.pipeline, opt.requests,
            opt.duration, opt.rate, opt.reconnect);
    fprintf(json, "\"key_minimum\": 0,\n\"key_maximum\": %" PRIu64
            ",\n\"data_size\": %" PRIu64 "\n},\n", opt.keys - 1,
            opt.data_size);
    fprintf(json, "\"run information\": {\n\"Threads\": %u,\n\"Connections per "
            "thread\": %u,\n\"Format version\": 2\n},\n", opt.threads,
            opt.clients);
}

/* Requests that were answered in each second, as memtier_benchmark has them. */
static void print_seconds(FILE *json, enum kind only)
{
    bool more = true;

    fputs("\"Time-Serie\": {", json);
    for (size_t second = 0; more; second++) {
        uint64_t count = 0;
        more = false;
        for (unsigned i = 0; i < opt.threads; i++)
            for (enum kind k = 0; k < KINDS; k++) {
                const struct tally *t = &threads[i].tally[k];
                if ((only != KINDS && only != k) || second >= t->seconds)
                    continue;
                count += t->by_second[second];
                more = true;
            }
        if (more)
            fprintf(json, "%s\n\"%zu\": {\"Count\": %" PRIu64 "}",
                    second ? "," : "", second, count);
    }
    fputs("\n},\n", json);
}

static void print_object(FILE *json, const char *name, const struct sum *s,
                         enum kind kind)
{
    double count = (double)s->count, n = count ? count : 1;

    fprintf(json, "\"%s\": {\n\"Count\": %" PRIu64 ",\n\"Ops/sec\": %.2f,\n"
            "\"Hits/sec\": %.2f,\n\"Misses/sec\": %.2f,\n"
            "\"Connection Errors\": 0,\n", name, s->count,
            count / run.seconds, (double)s->hits / run.seconds,
            (double)s->misses / run.seconds);
    fprintf(json, "\"Average Latency\": %.6f,\n\"Min Latency\": %.6f,\n"
            "\"Max Latency\": %.6f,\n", (double)s->ns / 1e6 / n,
            s->count ? (double)s->min / 1e6 : 0, (double)s->max / 1e6);
    print_seconds(json, kind);
    fprintf(json, "\"KB/sec\": %.2f,\n\"KB/sec RX\": %.2f,\n\"KB/sec TX\": "
            "%.2f,\n\"Percentile Latencies\": {",
            (double)(s->sent + s->received) / 1024 / run.seconds,
            (double)s->received / 1024 / run.seconds,
            (double)s->sent / 1024 / run.seconds);
    for (unsigned i = 0; i < opt.percentile_count; i++)
        fprintf(json, "%s\n\"p%.2f\": %.6f", i ? "," : "",
                opt.percentiles[i], percentile_ms(s, opt.percentiles[i]));
    fputs("\n}\n},\n", json);
}

/* The keys that memtier_benchmark does not have. */
static void print_client(FILE *json, const struct sum *all)
{
    fprintf(json, "\"Client\": {\n\"CPU Seconds\": %.6f,\n\"Busiest Thread\": "
            "%.4f,\n\"Limited By\": \"%s\",\n\"Seconds\": %.9f,\n\"Histogram\": ",
            run.cpu, run.busiest, run.limit, run.seconds);
    print_buckets(all->bucket, json);
    fputs("\n}\n}\n}\n", json);
}

static void print_runtime(FILE *json)
{
    long long ms = llround(run.seconds * 1e3);
    long long now = (long long)time(NULL) * 1000;

    fprintf(json, "\"ALL STATS\": {\n\"Runtime\": {\n\"Start time\": %lld,\n"
            "\"Finish time\": %lld,\n\"Total duration\": %lld,\n\"Time unit\": "
            "\"MILLISECONDS\",\n\"Interrupted\": \"false\"\n},\n", now - ms,
            now, ms);
}

void print_report(void)
{
    static struct sum all, s;
    const char *path = opt.json ? opt.json : "/proc/self/fd/1";
    FILE *json = fopen(path, "w");

    if (!json)
        fail("--json-out-file %s: %s", path, strerror(errno));
    add_up(&all, KINDS);
    if (!all.count)
        fail("nothing was answered in the measured time: a longer "
             "--test-time?");
    measure_threads();
    print_configuration(json);
    print_runtime(json);
    for (enum kind k = opt.word_count ? COMMAND : SET;
         k <= (opt.word_count ? COMMAND : GET); k++) {
        add_up(&s, k);
        print_object(json, row_name(k), &s, k);
    }
    if (!opt.word_count)                    /* memtier's rows: always three */
        print_object(json, "Waits", &(struct sum){0}, COMMAND);
    print_object(json, "Totals", &all, KINDS);
    print_client(json, &all);
    bool bad = ferror(json);
    if (fclose(json) || bad)
        fail("--json-out-file %s: %s", path, strerror(errno));
}
