/* options.c - the command line: memcached's letters, and -o with the names
 * of the original. One table each says what there is. */
#define _GNU_SOURCE
#include "tao.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct options opt = {
    .address = "127.0.0.1", .port = "11211", .threads = 4, .memory = 64,
    .connections = 1024, .item_limit = MIB,
    .max_slow_requests = 1024, .worker_sleep = 100, .dispatcher_sleep = 100,
    .slow_sleep = 100, .max_item_size = 65536, .compress = 1,
    .stats_sleep = 5000,
};

static void say(const char *format, va_list args)
{
    fputs("tao_server: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

_Noreturn void usage(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(format, args);
    exit(2);
}

_Noreturn void fail(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    say(format, args);
    _exit(1);
}

static const struct setting {
    const char *name, *value, *help;
    unsigned *number, low, high;
    const char **word;
} settings[] = {
    {"-p", "PORT", "where it listens (11211)", .word = &opt.port},
    {"-l", "ADDRESS", "and only there; may be a list a,b (127.0.0.1)",
     .word = &opt.address},
    {"-t", "N", "fast threads (4)", &opt.threads, 1, 4096, NULL},
    {"-m", "MB", "memory for items (64)", &opt.memory, 1, 1 << 24, NULL},
    {"-c", "N", "connections (1024)", &opt.connections, 1, 1 << 20, NULL},
    {"-I", "SIZE", "largest item, with k or m; at most 1m (1m)",
     &opt.item_limit, 1024, MIB, NULL},
    {"-u", "USER", "who it becomes, if started by root",
     .word = &opt.user},
    {"-Z", NULL, "TLS; with -o ssl_chain_cert and ssl_key", NULL, 0, 0, NULL},
    {"-v", NULL, "tell each time that memory runs out, not only the first", NULL, 0, 0, NULL},
    {"-S", "N", "print the sizes of N values, made and stored, and end",
     &opt.print_sizes, 1, 1u << 30, NULL},
    {"-V", NULL, "tell the version", NULL, 0, 0, NULL},
    {"-h", NULL, "this", NULL, 0, 0, NULL},
    {"tao_slow_dispatchers", "N", "dispatchers (a quarter of -t)",
     &opt.dispatchers, 1, 4096, NULL},
    {"tao_num_slow_threads", "N", "slow threads (three times -t)",
     &opt.slow_threads, 1, 4096, NULL},
    {"tao_max_slow_reqs", "N", "in the queue of a dispatcher; what finds it "
     "full is a plain miss (1024)", &opt.max_slow_requests, 0, 1 << 30,
     NULL},
    {"tao_worker_sleep_ns", "N", "a fast thread sleeps, while it waits for "
     "an answer (100)", &opt.worker_sleep, 0, SECOND, NULL},
    {"tao_dispatcher_sleep_ns", "N", "a dispatcher sleeps, before each look "
     "(100)", &opt.dispatcher_sleep, 0, SECOND, NULL},
    {"tao_slow_sleep_ns", "N", "a slow thread sleeps, before each look "
     "(100)", &opt.slow_sleep, 0, SECOND, NULL},
    {"tao_slow_path_sleep_us", "N", "the data base behind it takes (0)",
     &opt.slow_path_sleep, 0, 1000000, NULL},
    {"tao_slow_use_semaphore", "0|1", "a slow thread waits on a semaphore "
     "instead of sleeping: version 2 (0)", &opt.semaphore, 0, 1, NULL},
    {"tao_smart_nanosleep", "0|1", "sleeps of random length, doubled up to "
     "250 us (0)", &opt.smart, 0, 1, NULL},
    {"tao_pin_threads", "0|1", "each thread on a CPU of its own, in turn "
     "(0)", &opt.pin, 0, 1, NULL},
    {"tao_max_item_size", "N", "bytes of the largest value made (65536)",
     &opt.max_item_size, 32, 65536, NULL},
    {"tao_gen_payload", "0|1", "values that do not compress (0)",
     &opt.random_payload, 0, 1, NULL},
    {"tao_compress_items", "0|1", "values are compressed, LZ4 (1)",
     &opt.compress, 0, 1, NULL},
    {"tao_stats_sleep_ms", "N", "a line of figures on stdout each (5000)",
     &opt.stats_sleep, 10, 1u << 30, NULL},
    {"ssl_chain_cert", "FILE", "certificate of this server",
     .word = &opt.cert},
    {"ssl_key", "FILE", "and its key", .word = &opt.key},
    {"ssl_ca_cert", "FILE", "clients must have a certificate of this CA",
     .word = &opt.ca},
};
enum { COUNT = sizeof settings / sizeof *settings };

static _Noreturn void help(void)
{
    puts("tao_server " VERSION ": a look-through cache as in DCPerf's "
         "TaoBench, embedded.\n\n  tao_server -p 11211 -t 4 -m 1024 -o "
         "tao_stats_sleep_ms=5000,tao_pin_threads=1\n");
    for (const struct setting *s = settings; s < settings + COUNT; s++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s%s",
                 *s->name == '-' ? "" : "-o ", s->name,
                 !s->value ? "" : *s->name == '-' ? " " : "=",
                 s->value ? s->value : "");
        printf("  %-32s", left);
        int column = 34;
        for (const char *word = s->help; *word;) {
            int size = (int)strcspn(word, " ");
            if (column + size > 78)
                column = printf("\n%-34s", "") - 1;
            column += printf("%.*s%s", size, word, word[size] ? " " : "");
            word += size + (word[size] == ' ');
        }
        putchar('\n');
    }
    exit(0);
}

static void read_value(const struct setting *s, const char *text)
{
    char *end;

    if (s->word) {
        *s->word = text;
        return;
    }
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (s->number == &opt.item_limit && (*end == 'k' || *end == 'm'))
        value <<= *end++ == 'k' ? 10 : 20;
    if (end == text || *end || *text == '-' || errno || value < s->low
        || value > s->high)
        usage("%s %s: expected a whole number from %u to %u", s->name, text,
              s->low, s->high);
    *s->number = (unsigned)value;
}

static const struct setting *find(const char *name)
{
    for (const struct setting *s = settings; s < settings + COUNT; s++)
        if (!strcmp(s->name, name))
            return s;
    return NULL;
}

/* name=value,name=value */
static void read_list(char *list)
{
    for (char *pair; (pair = strsep(&list, ","));) {
        char *value = strchr(pair, '=');
        if (value)
            *value++ = '\0';
        const struct setting *s = *pair == '-' ? NULL : find(pair);
        if (!s)
            usage("-o %s: unknown; see -h", pair);
        if (!value || !*value)
            usage("-o %s: wants a value: %s=%s", pair, pair, s->value);
        read_value(s, value);
    }
}

void read_options(int argc, char **argv)
{
    char name[] = "-x";

    opterr = 0;
    for (int c; (c = getopt(argc, argv, ":p:l:t:m:c:I:u:S:o:ZvVh")) != -1;) {
        name[1] = (char)c;
        switch (c) {
        case ':':
            usage("-%c wants a value", optopt);
        case '?':
            usage("unknown option -%c: see -h", optopt);
        case 'o':
            read_list(optarg);
            break;
        case 'Z':
            opt.tls = true;
            break;
        case 'v':
            opt.verbose = 1;
            break;
        case 'V':
            puts("tao_server " VERSION);
            exit(0);
        case 'h':
            help();
        default:
            read_value(find(name), optarg);
        }
    }
    if (optind < argc)
        usage("unknown word %s: see -h", argv[optind]);
    char *end;
    long port = strtol(opt.port, &end, 10);
    if (*end || port < 1 || port > 65535)
        usage("-p %s: expected a port from 1 to 65535", opt.port);
    if (opt.tls && !with_tls)
        usage("-Z: built without TLS: OpenSSL was not there");
    if (opt.tls && (!opt.cert || !opt.key))
        usage("-Z wants -o ssl_chain_cert=FILE,ssl_key=FILE");
    if (!opt.tls && (opt.cert || opt.key || opt.ca))
        usage("-o ssl_...: without -Z nothing is encrypted");
    if (!opt.dispatchers)
        opt.dispatchers = opt.threads / 4 ? opt.threads / 4 : 1;
    if (!opt.slow_threads)
        opt.slow_threads = 3 * opt.threads;
}
