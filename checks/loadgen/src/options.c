/* options.c - the table of all options, and which of them go together. */
#define _GNU_SOURCE
#include "load.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const char program_name[] = "memtier_benchmark";

struct options opt = {
    .pipeline = 1, .threads = 4, .clients = 50, .seed = 1, .timeout = 10,
    .prefix = "memtier-", .ratio = "1:10", .pattern = "R:R",
    .requests_text = "10000", .percentiles = {50, 99, 99.9},
    .percentile_count = 3, .data_size = 32,
};

const char *const protocol_names[] = {"redis", "memcache_binary", NULL};
static const char *const verify_names[] = {"none", "length", "bytes", NULL};
static const char *const miss_names[] = {"count", "fail", "set", NULL};
const char KEY_WORD[] = "__key__", DATA_WORD[] = "__data__";

static const char *service_file, *host = "127.0.0.1", *command, *ignored;
static unsigned port = 6379;
static uint64_t key_maximum = 10000000;

/* The words of --command; it has no quoted words. */
static void read_command(const char *text)
{
    command = text;
    for (char *word = strtok(copy_of(text), " \t"); word;
         word = strtok(NULL, " \t")) {
        if (opt.word_count == MAX_COMMAND)
            usage("--command: more than %d words", MAX_COMMAND);
        opt.words[opt.word_count++] = !strcmp(word, KEY_WORD)
            ? TEXT(KEY_WORD) : !strcmp(word, DATA_WORD)
            ? TEXT(DATA_WORD) : TEXT(word);
    }
    if (!opt.word_count)
        usage("--command: empty");
}

static void read_percentiles(const char *text)
{
    const char *at = text;
    char *end;

    for (opt.percentile_count = 0; *at; at = end + (*end == ',')) {
        double value = strtod(at, &end);
        if (end == at || (*end && *end != ',') || !(value > 0 && value <= 100)
            || opt.percentile_count == MAX_PERCENTILES)
            usage("--print-percentiles %s: expected at most %d numbers from 0 "
                  "to 100", text, MAX_PERCENTILES);
        opt.percentiles[opt.percentile_count++] = value;
    }
}

static const struct setting rows[] = {
    {"server", .type = TITLE},
    {"server", "HOST", "address (127.0.0.1)", WORD, .target = &host},
    {"port", "N", "its port (6379)", COUNT, &port, 1, .high = 65535},
    {"protocol", NULL, "redis (default) or memcached's binary one", CHOICE,
     &opt.protocol, .choices = protocol_names},
    {"cluster-mode", NULL, "each connection belongs to a master, and uses "
     "keys of its slots", FLAG, .target = &opt.service.cluster},
    {"service", "FILE", "(+) instead of all these: lines 'server HOST PORT', "
     "'user NAME', 'password WORD', 'cluster', 'gate'", WORD, .target = &service_file},

    {"requests", .type = TITLE},
    {"ratio", "S:G", "SETs to GETs (1:10)", WORD, .target = &opt.ratio},
    {"command", "WORDS", "instead: a command, with words __key__ and "
     "__data__", CALL, .call = read_command},
    {"data-size", "N", "size of a value (32)", SIZE,
     &opt.data_size, 1,
     .high = 1u << 30},
    {"data-size-list", "S:W,...", "sizes with their weights; a key's is always "
     "the same", WORD,
     .target = &opt.data_sizes},
    {"key-prefix", "S", "before the number of a key (memtier-)", WORD,
     .target = &opt.prefix},
    {"key-digits", "N", "(+) zeros before it, up to so many digits", COUNT,
     &opt.key_digits, 0, .high = 20},
    {"key-maximum", "N", "the last key; the first is 0 (10000000)", LONG,
     &key_maximum, 0,
     .high = 1e15},
    {"key-pattern", "P", "R:R is random; P:P sets each key once, with "
     "--ratio 1:0 and --requests allkeys", WORD, .target = &opt.pattern},
    {"verify", NULL, "(+) of what is read: nothing (default), its length, or "
     "each byte, as key and size make it", CHOICE,
     &opt.verify, .choices = verify_names},
    {"on-miss", NULL, "(+) a missing key is counted (default), ends the run, "
     "or is set (look-aside)", CHOICE, &opt.on_miss, .choices = miss_names},
    {"seed", "N", "(+) of the keys (1)", LONG, &opt.seed, 0, .high = 1e15},
    {"distinct-client-seed", NULL, "always so", .type = FLAG},

    {"load", .type = TITLE},
    {"threads", "N", "threads (4)", COUNT, &opt.threads, 1, .high = 1024},
    {"clients", "N", "connections of each thread (50)", COUNT,
     &opt.clients, 1, .high = 1e5},
    {"pipeline", "N", "requests in flight on a connection (1)", COUNT,
     &opt.pipeline, 1, .high = 10000},
    {"requests", "N", "of each connection (10000), or allkeys; with "
     "--test-time: what is first", WORD, .target = &opt.requests_text},
    {"test-time", "S", "seconds to measure, with decimals", REAL,
     &opt.duration, 1e-3, .high = 1e6},
    {"warmup-time", "S", "(+) seconds of load before that (0)", REAL,
     &opt.warmup, 0, .high = 1e6},
    {"rate-limiting", "R", "open loop: requests a second of each connection; "
     "latency counts from when each was to be sent", REAL, &opt.rate, 1e-6,
     .high = 1e9},
    {"reconnect-interval", "1", "a connection for each request; latency "
     "includes it", COUNT, &opt.reconnect, 1, .high = 1},
    {"timeout", "S", "(+) without any answer on a connection: failure (10)",
     REAL, &opt.timeout, 1e-3, .high = 1e6},

    {"output", .type = TITLE},
    {"out-file", "FILE", "ignored: there is no table", WORD,
     .target = &ignored},
    {"json-out-file", "FILE", "the values as JSON (standard output)", WORD,
     .target = &opt.json},
    {"print-percentiles", "P,...", "of the latency (50,99,99.9)", CALL,
     .call = read_percentiles},
    {"hide-histogram", NULL, "always so", .type = FLAG},
    {"help", NULL, "this", .type = FLAG},
};
enum { ROWS = sizeof rows / sizeof *rows };
static bool given[ROWS];
static const struct settings settings = {rows, ROWS, given, "--", " "};

static _Noreturn void help(void)
{
    puts("memtier_benchmark (embedded " VERSION "): load for stores that "
         "speak RESP or\nmemcached's binary protocol. It takes these options "
         "of memtier_benchmark;\n(+) marks its own. A wrong answer ends it.\n\n"
         "  memtier_benchmark --ratio 1:0 --key-pattern P:P --requests "
         "allkeys\n"
         "  memtier_benchmark --ratio 0:1 --test-time 5 --json-out-file "
         "FILE\n\n"
         "Exit codes: 0 good, 1 the load failed, 2 usage.");
    print_settings(&settings);
    exit(0);
}

/* --- what goes together -------------------------------------------------- */
static void read_where(void)
{
    struct service *s = &opt.service;
    char where[512];

    if (service_file) {
        open_service(s, service_file);
    } else {
        snprintf(where, sizeof where, "%s:%u", host, port);
        if (!add_server(s, where))
            usage("--server %s: not found", where);
    }
    if (!s->count)
        usage("%s: no line 'server HOST PORT'", service_file);
    s->count = 1;                          /* in a cluster it knows the rest */
    if (s->cluster && (opt.protocol == MEMCACHE_BINARY
                       || s->servers->address.ss_family == AF_UNIX))
        usage("a cluster speaks RESP over TCP");
    if (s->user && !s->password)
        usage("%s: a user without a password", service_file);
    if (s->password && opt.protocol == MEMCACHE_BINARY)
        usage("no password with --protocol memcache_binary");
}

static void read_keys(void)
{
    int keys = 0;

    opt.prefix_size = strlen(opt.prefix);
    if (opt.prefix_size > MAX_PREFIX - 20)
        usage("--key-prefix: at most %d bytes", MAX_PREFIX - 20);
    for (const char *p = opt.prefix; *p; p++)
        if (*p <= ' ' || *p == 127 || *p == '{')
            usage("--key-prefix: no blanks, control characters and '{'");
    opt.keys = key_maximum + 1;
    for (int i = 0; i < opt.word_count; i++)
        keys += opt.words[i].at == KEY_WORD;
    if (keys > 1 && opt.service.cluster)
        usage("--command: only one __key__ in a cluster");
    opt.msets = command && !strcasecmp(opt.words[0].at, "MSET");
}

static void read_requests(void)
{
    bool all = !strcmp(opt.requests_text, "allkeys");
    char end, *rest;

    if (sscanf(opt.ratio, "%lf:%lf%c", &opt.sets, &opt.gets, &end) != 2
        || opt.sets < 0 || opt.gets < 0
        || !isfinite(opt.sets / (opt.sets + opt.gets)))
        usage("--ratio %s: expected SETS:GETS", opt.ratio);
    if (command && opt.protocol == MEMCACHE_BINARY)
        usage("--command: memcached has none");
    if (command)
        opt.sets = opt.gets = 0;
    opt.fills = !strncmp(opt.pattern, "P:", 2);
    if (!opt.fills && strcmp(opt.pattern, "R:R"))
        usage("--key-pattern %s: expected R:R or P:P", opt.pattern);
    if (opt.fills != all || (all && (!opt.sets || opt.gets)))
        usage("--key-pattern P:P, --ratio 1:0 and --requests allkeys go "
              "together");
    if (all && (opt.duration || opt.warmup || opt.rate || opt.reconnect))
        usage("--requests allkeys: each key once, without a time, a rate or "
              "reconnections");
    if (!all && (is_given(&settings, "requests") || !opt.duration)) {
        opt.requests = strtoull(opt.requests_text, &rest, 10);
        if (!isdigit(*opt.requests_text) || *rest
            || !opt.requests || opt.requests > 1000000000000)
            usage("--requests %s: expected a whole number from 1, or allkeys",
                  opt.requests_text);
    }
    if (opt.reconnect && (opt.rate || opt.pipeline > 1))
        usage("--reconnect-interval is without --rate-limiting and "
              "--pipeline");
    if (opt.on_miss && !opt.gets)
        usage("--on-miss is for GETs");
}

void read_options(int argc, char **argv)
{
    read_arguments(&settings, argc, argv);
    if (is_given(&settings, "help"))
        help();
    read_where();
    read_keys();
    read_requests();
}
