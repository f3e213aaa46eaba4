/* options.c - the command line: memcached's letters, and -o with the names
 * of the original. */
#define _GNU_SOURCE
#include "tao.h"

#include <stdlib.h>
#include <string.h>

const char program_name[] = "tao_server";

struct options opt = {
    .address = "127.0.0.1", .port = "11211", .threads = 4, .memory = 64,
    .connections = 1024, .max_slow_requests = 1024, .worker_sleep = 100,
    .dispatcher_sleep = 100, .slow_sleep = 100, .stats_sleep = 5000,
};

static const struct setting names[] = {
    {"tao_slow_dispatchers", "N", "dispatchers (a quarter of -t)",
     COUNT, &opt.dispatchers, 1, .high = 4096},
    {"tao_num_slow_threads", "N", "slow threads (three times -t)",
     COUNT, &opt.slow_threads, 1, .high = 4096},
    {"tao_max_slow_reqs", "N", "in the queue of a dispatcher; what finds it "
     "full is a plain miss (1024)", COUNT, &opt.max_slow_requests, 0,
     .high = 1 << 30},
    {"tao_worker_sleep_ns", "N", "a fast thread sleeps, while it waits for "
     "an answer (100)", COUNT, &opt.worker_sleep, 0, .high = SECOND},
    {"tao_dispatcher_sleep_ns", "N", "a dispatcher sleeps, before each look "
     "(100)", COUNT, &opt.dispatcher_sleep, 0, .high = SECOND},
    {"tao_slow_sleep_ns", "N", "a slow thread sleeps, before each look "
     "(100)", COUNT, &opt.slow_sleep, 0, .high = SECOND},
    {"tao_slow_path_sleep_us", "N", "the data base behind it takes (0)",
     COUNT, &opt.slow_path_sleep, 0, .high = 1000000},
    {"tao_slow_use_semaphore", "0|1", "a slow thread waits on a semaphore "
     "instead of sleeping: version 2 (0)", COUNT, &opt.semaphore, 0,
     .high = 1},
    {"tao_smart_nanosleep", "0|1", "sleeps of random length, doubled up to "
     "250 us (0)", COUNT, &opt.smart, 0, .high = 1},
    {"tao_pin_threads", "0|1", "each thread on a CPU of its own, in turn "
     "(0)", COUNT, &opt.pin, 0, .high = 1},
    {"tao_stats_sleep_ms", "N", "a line of figures on stdout each (5000)",
     COUNT, &opt.stats_sleep, 10, .high = 1u << 30},
};
static const struct settings extended = {
    names, sizeof names / sizeof *names, .before = "-o ", .between = "="};

/* name=value,name=value */
static void read_list(const char *text)
{
    char *list = copy_of(text);

    for (char *pair; (pair = strsep(&list, ","));) {
        char *value = strchr(pair, '=');
        if (value)
            *value++ = '\0';
        const struct setting *row = find_setting(&extended, pair,
                                                 strlen(pair));
        if (!row)
            usage("-o %s: unknown option; see --help", pair);
        if (!value || !*value)
            usage("-o %s needs a value: %s=%s", pair, pair, row->value);
        set_value(&extended, row, value);
    }
}

static const struct setting letters[] = {
    {"-p", "PORT", "port on which it listens "
     "(11211)", WORD, .target = &opt.port},
    {"-l", "ADDRESS", "address on which it listens (127.0.0.1)",
     WORD, .target = &opt.address},
    {"-t", "N", "fast threads (4)", COUNT, &opt.threads, 1, .high = 4096},
    {"-m", "MB", "memory for items (64)", COUNT, &opt.memory, 1,
     .high = 1 << 24},
    {"-c", "N", "connections (1024)", COUNT, &opt.connections, 1,
     .high = 1 << 20},
    {"-h", NULL, "print this help", .type = FLAG},
    {"help", NULL, "the same", .type = FLAG},
    {"-o", "NAME=VALUE,...", "the options below", CALL,
     .call = read_list},
};
enum { LETTERS = sizeof letters / sizeof *letters };
static bool given[LETTERS];
static const struct settings settings = {letters, LETTERS, given, "--", " "};

static _Noreturn void help(void)
{
    puts("tao_server " VERSION ": a look-through cache as in DCPerf's "
         "TaoBench, embedded.\n\n  tao_server -p 11211 -t 4 -m 1024 -o "
         "tao_stats_sleep_ms=5000,tao_pin_threads=1\n");
    print_settings(&settings);
    print_settings(&extended);
    exit(0);
}

void read_options(int argc, char **argv)
{
    read_arguments(&settings, argc, argv);
    if (is_given(&settings, "-h") || is_given(&settings, "help"))
        help();
    char *end;
    long port = strtol(opt.port, &end, 10);
    if (*end || port < 1 || port > 65535)
        usage("-p %s: expected a port from 1 to 65535", opt.port);
    if (!opt.dispatchers)
        opt.dispatchers = opt.threads / 4 ? opt.threads / 4 : 1;
    if (!opt.slow_threads)
        opt.slow_threads = 3 * opt.threads;
}
