/* options.c - the table of all options, and which of them go together. */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char program_name[] = "plumbload";

struct options opt = {
    .batch = 10, .connections = 1, .threads = 1, .pipeline = 1, .shares = 1,
    .keys = 1000, .seed = 1, .prefix = "key:", .value_size = "64",
    .ratio = "10:1", .timeout = 10,
};

const char *const protocol_names[] = {"resp2", "binary", NULL};
const char *const operation_names[] = {
    "get", "set", "mixed", "mset", "lpush", "xadd", "connect", "fill", NULL};
const char *const kind_names[] = {"get", "set", "mset", "lpush", "xadd",
                                  "connect"};
const char *const verify_names[] = {"bytes", "length", "none", NULL};
const char *const miss_names[] = {"fail", "count", "set", NULL};

static const char *service_file, *share = "0/1";

static void add_from_option(const char *where)
{
    if (!add_server(&opt.service, where))
        usage("--server %s: expected HOST:PORT or unix:PATH", where);
}

static const struct setting rows[] = {
    {"where", .type = TITLE},
    {"server", "HOST:PORT", "a server (or unix:PATH); may be repeated: each "
     "is a store of its own, with all the keys", CALL,
     .call = add_from_option},
    {"service", "FILE", "instead: lines 'server HOST PORT', 'user NAME', "
     "'password WORD', 'tls', 'ca PATH', 'cert PATH', 'key PATH', "
     "'cluster', 'gate'", WORD,
     .target = &service_file},

    {"what", .type = TITLE},
    {"protocol", NULL, "binary is memcached's", CHOICE,
     &opt.protocol, .choices = protocol_names},
    {"operation", NULL, "fill sets each key once; connect is a connection "
     "up, a greeting answered, and down", CHOICE, &opt.operation,
     .choices = operation_names},
    {"ratio", "G:S", "GETs to SETs of mixed (10:1)", WORD,
     .target = &opt.ratio},
    {"batch", "N", "keys of one MSET (10)", COUNT, &opt.batch, 1,
     .high = 10000},
    {"keys", "N", "how many keys there are (1000)", LONG, &opt.keys, 1,
     .high = 1e15},
    {"key-prefix", "S", "before the number of a key (key:)", WORD,
     .target = &opt.prefix},
    {"key-digits", "N", "zeros before it, up to so many digits: keys of other "
     "programs (1)", COUNT, &opt.key_digits, 1, .high = 20},
    {"value-size", "SIZE", "N, FROM-TO, or @FILE with lines 'SIZE WEIGHT' "
     "(64); a key's size is always the same", WORD, .target = &opt.value_size},
    {"on-miss", NULL, "a key that is not there ends the run (fail, "
     "default), is counted, or is set (look-aside)", CHOICE, &opt.on_miss,
     .choices = miss_names},
    {"verify", NULL, "of what is read: that it is what a fill of the same "
     "seed, keys and sizes wrote (bytes, default), that it is as long, or "
     "nothing: another made the values", CHOICE, &opt.verify,
     .choices = verify_names},
    {"seed", "N", "of keys, sizes and values (1)", LONG, &opt.seed, 0,
     .high = 1e15},
    {"value-seed", "N", "of sizes and values, where those of another load "
     "are read (--seed)", LONG, &opt.value_seed, 0, .high = 1e15},
    {"share", "I/N", "this is the I-th of N clients, from 0 (0/1)", WORD,
     .target = &share},

    {"how", .type = TITLE},
    {"connections", "N", "of this process (1)", COUNT, &opt.connections, 1,
     .high = 1e6},
    {"threads", "N", "that they are spread over (1)", COUNT, &opt.threads, 1,
     .high = 1024},
    {"pipeline", "N", "requests in flight on a connection (1)", COUNT,
     &opt.pipeline, 1, .high = 10000},
    {"rate", "R", "open loop: requests a second of this process; latency "
     "counts from when each was to be sent", REAL, &opt.rate, 1e-3,
     .high = 1e9},
    {"duration", "S", "seconds to measure (10)", REAL, &opt.duration, 1e-3,
     .high = 1e6},
    {"requests", "N", "requests to measure; with --duration: what is first",
     LONG, &opt.requests, 1, .high = 1e15},
    {"warmup", "S", "seconds of load before that (0)", REAL, &opt.warmup, 0,
     .high = 1e6},
    {"timeout", "S", "without any answer on a connection: failure (10)",
     REAL, &opt.timeout, 1e-3, .high = 1e6},
    {"interval", "S", "a row of --series each", REAL, &opt.interval, 1e-2,
     .high = 1e6},
    {"series", "FILE", "CSV: time, operations, misses, latencies, CPU", WORD,
     .target = &opt.series},
    {"name", "WORD", "of this client (client-I)", WORD, .target = &opt.name},
    {"help", NULL, "this", .type = FLAG},
};
enum { ROWS = sizeof rows / sizeof *rows };
static bool given[ROWS];
static const struct settings settings = {rows, ROWS, given, "--", " "};

static _Noreturn void help(void)
{
    puts("plumbload " VERSION ": load for stores that speak RESP or "
         "memcached's protocols.\n\n"
         "  plumbload --server 127.0.0.1:6379 --operation fill\n"
         "  plumbload --server 127.0.0.1:6379 --connections 50 "
         "--duration 5\n"
         "  plumbload --server 127.0.0.1:6379 --connections 50 "
         "--rate 20000\n\n"
         "One JSON document on stdout, one line for people on stderr. Exit "
         "codes: 0 good,\n1 the load failed, 2 usage.");
    print_settings(&settings);
    exit(0);
}

/* --- what goes together -------------------------------------------------- */
static void needs(const char *name, bool met, const char *what)
{
    if (is_given(&settings, name) && !met)
        usage("--%s %s", name, what);
}

static void check_where(void)
{
    needs("server", !service_file, "and --service contradict each other");
    if (service_file)
        open_service(&opt.service, service_file);
    if (!opt.service.count)
        usage("no server: give --server HOST:PORT or --service FILE");
    if (opt.service.cluster && opt.service.count > 1)
        opt.service.count = 1;                /* one of them knows the rest  */
    if (opt.service.cluster && (opt.protocol >= BINARY
                        || opt.service.servers->address.ss_family == AF_UNIX))
        usage("a cluster speaks RESP over TCP");
    if (opt.service.user && !opt.service.password)
        usage("%s: a user without a password", service_file);
    if (opt.service.tls && !opt.service.ca)
        usage("%s: TLS needs a line 'ca PATH'", service_file);
    if (opt.service.tls && !with_tls)
        usage("built without TLS: build it where openssl/ssl.h is");
}

static void check_what(void)
{
    enum operation o = opt.operation;
    bool reads = o == OP_GET || o == OP_MIXED;
    double gets, sets;
    char end;

    opt.prefix_size = strlen(opt.prefix);
    if (opt.prefix_size > MAX_PREFIX - 20)
        usage("--key-prefix: at most %d bytes", MAX_PREFIX - 20);
    for (const char *p = opt.prefix; *p; p++)
        if (*p <= ' ' || *p == 127)
            usage("--key-prefix: no blanks and no control characters");
    if (opt.protocol >= BINARY && (o == OP_MSET || o == OP_LPUSH
                                   || o == OP_XADD))
        usage("--operation %s: memcached has none", operation_names[o]);
    needs("ratio", o == OP_MIXED, "is for --operation mixed");
    needs("batch", o == OP_MSET, "is for --operation mset");
    needs("on-miss", reads, "is for --operation get or mixed");
    if (!is_given(&settings, "value-seed"))
        opt.value_seed = opt.seed;
    if (sscanf(opt.ratio, "%lf:%lf%c", &gets, &sets, &end) != 2 || gets < 0
        || sets < 0 || !isfinite(gets / (gets + sets)))
        usage("--ratio %s: expected G:S", opt.ratio);
    opt.gets = gets / (gets + sets);
    if (sscanf(share, "%u/%u%c", &opt.share, &opt.shares, &end) != 2
        || opt.share >= opt.shares)
        usage("--share %s: expected I/N, I from 0 to N-1", share);
    if (opt.service.cluster && o == OP_MSET && strchr(opt.prefix, '{'))
        usage("--key-prefix: MSET in a cluster makes {tags} of its own");
    if (opt.service.cluster && o == OP_MSET && opt.keys < opt.batch)
        usage("--keys %llu: fewer than the --batch",
              (unsigned long long)opt.keys);
}

static void check_how(void)
{
    bool fill = opt.operation == OP_FILL, connect = opt.operation
                                                    == OP_CONNECT;

    needs("rate", !fill && !connect,
          "is not for --operation fill or connect");
    needs("duration", !fill, "is not for --operation fill: each key once");
    needs("requests", !fill, "is not for --operation fill: each key once");
    needs("warmup", !fill, "is not for --operation fill");
    needs("pipeline", !connect, "is not for --operation connect");
    if (!opt.series != !opt.interval)
        usage("--series and --interval go together");
    if (opt.threads > opt.connections)
        usage("%u threads for %u connections: each needs one", opt.threads,
              opt.connections);
    if (!opt.service.cluster && opt.connections
        < (unsigned)opt.service.count)
        usage("%u connections for %d servers: each needs one",
              opt.connections, opt.service.count);
    if (!is_given(&settings, "duration") && !opt.requests && !fill)
        opt.duration = 10;
}

void read_options(int argc, char **argv)
{
    read_arguments(&settings, argc, argv);
    if (is_given(&settings, "help"))
        help();
    check_what();
    check_where();
    check_how();
    if (!opt.name) {
        char name[32];
        snprintf(name, sizeof name, "client-%u", opt.share);
        opt.name = copy_of(name);
    }
    for (const char *p = opt.name; *p; p++)
        if (*p <= ' ')
            usage("--name: a word");
}
