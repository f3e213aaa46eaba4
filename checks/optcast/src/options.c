/* options.c - options; those of the server have the original's names. */
#define _GNU_SOURCE
#include "../../core/src/common/options.h"
#include "optcast.h"

#include <stdlib.h>
#include <string.h>

const char program_name[] = "optcast";
char host[64];

static const char HELP[] =
"usage: optcast [OPTION]...            start a reduction server\n"
"       optcast --client [OPTION]...   all-reduce through servers\n"
"       optcast --client --ring ...    all-reduce in a ring\n"
"\n"
"Example, each command in a separate shell:\n"
"  echo 'password x' | optcast --port 8918 --nrank 2 --count 131072\n"
"  printf 'server 127.0.0.1 8918\\npassword x\\n' >f\n"
"  optcast --client --rank 0 --nrank 2 --service f --size 64M\n"
"  optcast --client --rank 1 --nrank 2 --service f --size 64M\n"
"Exit codes: 0 success, 1 failure (see the last line), 2 usage, 7 wrong\n"
"results.";

static const char *const type_names[] = {"f32", "f16", "bf16", NULL};

struct options o = {
    .address = "127.0.0.1", .nrank = 1, .jobs = 2, .threads = 2,
    .iterations = 1, .warmup = 1, .timeout = 60, .count = 1 << 20,
    .chunk = 512 << 10, .service.family = AF_INET};

static void add_sizes(const char *text)
{
    for (char *rest = copy_of(text), *word; (word = strsep(&rest, ","));) {
        char *end;
        uint64_t size = bytes_from(word, &end);
        if (!size || *end || size > 1ull << 50)
            usage("--size %s: expected sizes in bytes (K, M, G: powers of "
                  "1024), separated by commas", text);
        if (o.sizes == 64)
            usage("--size %s: more than 64 sizes", text);
        o.size[o.sizes++] = size;
    }
}

static const struct setting rows[] = {
    {"servers and clients", .type = TITLE},
    {"nrank", "N", "number of clients (1)", COUNT, &o.nrank, 1,
     .high = MAX_RANKS},
    {"data-type", NULL, "type of the elements (f32)", CHOICE, &o.type,
     .choices = type_names},
    {"timeout", "S", "timeout for a silent peer, seconds (60)", COUNT,
     &o.timeout, 1, .high = 86400},
    {"trace", "FILE", "write log lines in the original's format; -: standard "
     "output; not of a ring", WORD, .target = &o.trace},
    {"help", NULL, "print this help", .type = FLAG},

    {"servers; a line 'password WORD' is read from standard input",
     .type = TITLE},
    {"address", "A", "address on which it listens (127.0.0.1)", WORD,
     .target = &o.address},
    {"port", "P", "port on which it listens", COUNT, &o.port, 1,
     .high = 65535},
    {"count", "N", "elements of a message; not used by clients of a ring",
     LONG, &o.count, 1, .high = 1u << 30},
    {"reduce-jobs", "N", "sets of buffers (2)", COUNT, &o.jobs, 1,
     .high = MAX_JOBS},
    {"reduce-threads", "N", "threads that add up a job (2)", COUNT, &o.threads,
     1, .high = MAX_THREADS},
    {"recv-threads", "N", "receive threads; 0: nrank", COUNT, &o.recvs, 0,
     .high = MAX_RANKS},
    {"send-threads", "N", "send threads; 0: nrank", COUNT, &o.sends, 0,
     .high = MAX_RANKS},

    {"clients", .type = TITLE},
    {"client", NULL, "this is a client", FLAG, .target = &o.client},
    {"ring", NULL, "all-reduce in a ring", FLAG, .target = &o.ring},
    {"rank", "R", "number of this client, from 0", COUNT, &o.rank, 0,
     .high = MAX_RANKS - 1},
    {"service", "FILE", "file with lines 'server HOST PORT', 'password WORD', "
     "'gate' (standard input)", WORD, .target = &o.service_file},
    {"size", "SIZE,...", "sizes of the arrays, in bytes with K, M or G (512M)",
     CALL, .call = add_sizes},
    {"chunksize", "SIZE", "size of the parts of an array (512K)", SIZE,
     &o.chunk, 1, .high = 1ull << 50},
    {"-n", "N", "measured all-reduces of each size (1)", COUNT,
     &o.iterations, 1, .high = 1e6},
    {"-w", "N", "all-reduces of the warm-up (1)", COUNT, &o.warmup, 0,
     .high = 1e6},
};
enum { ROWS = sizeof rows / sizeof *rows };
static bool given[ROWS];
static const struct settings settings = {rows, ROWS, given, "--", " "};

static void read_options(int argc, char **argv)
{
    read_arguments(&settings, argc, argv);
    if (is_given(&settings, "help")) {
        puts(HELP);
        print_settings(&settings);
        exit(0);
    }
    const char *name = o.service_file ? o.service_file : "standard input";
    if (o.service_file)
        open_service(&o.service, name);
    else
        read_service(&o.service, stdin, name);
    if (!o.service.password)
        fail("%s has no line 'password WORD' with the secret of the run",
             name);
    if (strlen(o.service.password) >= SECRET)
        fail("the secret in %s has more than %d characters", name,
             SECRET - 1);
    if (o.client && !o.service.count)
        fail("%s names no server", name);
}

static void check_client(void)
{
    size_t each = size_of(o.type);
    if (o.rank >= o.nrank)
        fail("--rank %u must be below --nrank %u", o.rank, o.nrank);
    if (o.ring && o.nrank < 2)
        fail("a ring needs at least two ranks");
    if (o.chunk > 1u << 30 || o.chunk % each)
        fail("--chunksize %llu is not a multiple of an element, or exceeds 1G",
             (unsigned long long)o.chunk);
    o.count = o.chunk / each;
    if (!o.sizes)
        o.size[o.sizes++] = 512u << 20;
    for (int i = 0; i < o.sizes; i++)
        if (o.size[i] < each)
            fail("a size is smaller than one element");
}

static void check_server(void)
{
    o.recvs = o.recvs ? o.recvs : o.nrank;
    o.sends = o.sends ? o.sends : o.nrank;
    if (o.nrank % o.recvs || o.nrank % o.sends)
        fail("--recv-threads %u and --send-threads %u must divide --nrank %u",
             o.recvs, o.sends, o.nrank);
    if (!o.port)
        fail("--port is missing");
}

void take_options(int argc, char **argv)
{
    read_options(argc, argv);
    (o.client ? check_client : check_server)();
}
