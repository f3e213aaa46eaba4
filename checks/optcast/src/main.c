/* main.c - options; those of the server are the original's. */
#define _GNU_SOURCE
#include "optcast.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char USAGE[] =
"usage: optcast [OPTION]...            a reduction server\n"
"       optcast --client [OPTION]...   all-reduces through servers\n"
"       optcast --client --ring ...    all-reduces in a ring\n"
"\n"
"Both: --nrank N, --data-type f32|f16|bf16, --timeout S (60), --trace FILE\n"
"  (-: standard output), --host NAME (in the trace). The secret is read from standard input (a line\n"
"  'password WORD'), or from --service FILE.\n"
"Server: --address A (127.0.0.1), --port P, --count ELEMENTS of a message,\n"
"  --reduce-jobs J (2), --reduce-threads T (2), --recv-threads, --send-threads\n"
"  (0: nrank). For clients of a ring it only tells neighbours of each other\n"
"  and keeps barriers: --count is theirs alone then.\n"
"Client: --rank R, --service FILE ('server HOST PORT' lines, password, gate),\n"
"  --size SIZE[,SIZE...] (512M), --chunksize SIZE (512K), --nsplit N (1),\n"
"  --nreq N (0: 4, or 4 for each server) chunks under way, -n ITERATIONS (1),\n"
"  -w WARM-UPS (1)\n"
"\n"
"Example, each in a shell of its own:\n"
"  echo 'password x' | optcast --port 8918 --nrank 2 --count 131072\n"
"  printf 'server 127.0.0.1 8918\\npassword x\\n' >f\n"
"  optcast --client --rank 0 --nrank 2 --service f --size 64M\n"
"  optcast --client --rank 1 --nrank 2 --service f --size 64M\n"
"Exit codes: 0 good, 1 a line says why, 2 usage, 7 wrong results.\n";

static void usage(const char *why, const char *what)
{
    fprintf(stderr, "optcast: %s%s; optcast --help tells the options\n", why,
            what);
    exit(2);
}

static uint64_t bytes(const char *word)
{
    char *end;
    errno = 0;
    unsigned long long n = strtoull(word, &end, 10);
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (end == word || *word == '-' || errno || end[shift > 0]
            || n > (1ull << 50) >> shift || !n)
        usage("no size: ", word);
    return n << shift;
}

static uint32_t whole(const char *word, uint32_t least, uint32_t most)
{
    char *end;
    errno = 0;
    unsigned long n = strtoul(word, &end, 10);
    if (end == word || *word == '-' || *end || errno || n < least || n > most) {
        fprintf(stderr, "optcast: %s: expected a number from %u to %u\n",
                word, least, most);
        exit(2);
    }
    return n;
}

static enum type type_of(const char *word)
{
    static const char *const names[TYPES] = {"f32", "f16", "bf16"};
    for (int i = 0; i < TYPES; i++)
        if (strcmp(word, names[i]) == 0)
            return i;
    usage("no data type (f32, f16, bf16): ", word);
    return F32;
}

/* `server HOST PORT`, `password WORD`, `gate`; other lines are for others. */
static void read_service(struct options *o, FILE *file, const char *name)
{
    char line[512], host[64], word[SECRET];
    unsigned port;
    if (!file)
        die("%s: %s", name, strerror(errno));
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "server %63s %u", host, &port) == 2) {
            if (o->servers == MAX_SERVERS || !port || port > 65535)
                die("%s: at most %d servers, with ports up to 65535", name,
                    MAX_SERVERS);
            snprintf(o->server[o->servers].host, 64, "%s", host);
            o->server[o->servers++].port = port;
        } else if (sscanf(line, "password %255s", word) == 1) {
            memcpy(o->secret, word, sizeof word);
        } else if (strcmp(line, "gate\n") == 0) {
            o->gate = true;
        }
    }
    if (!o->secret[0])
        die("%s: no line 'password WORD': nobody without the run's secret is "
            "served", name);
}

static void sizes(struct options *o, char *list)
{
    for (char *rest, *word = strtok_r(list, ",", &rest); word;
            word = strtok_r(NULL, ",", &rest)) {
        if (o->sizes == 64)
            usage("more than 64 sizes: ", word);
        o->size[o->sizes++] = bytes(word);
    }
}

static void parse(struct options *o, int argc, char **argv)
{
    enum { ADDRESS = 256, PORT, COUNT, JOBS, THREADS, RECVS, SENDS, NRANK,
           TYPE, RING, RANK, SERVICE, SIZE, CHUNK, NSPLIT, NREQ, TRACE, HOST,
           TIMEOUT, HELP };
    static const struct option known[] = {
        {"client", no_argument, NULL, 'c'}, {"ring", no_argument, NULL, RING},
        {"address", required_argument, NULL, ADDRESS},
        {"port", required_argument, NULL, PORT},
        {"count", required_argument, NULL, COUNT},
        {"reduce-jobs", required_argument, NULL, JOBS},
        {"reduce-threads", required_argument, NULL, THREADS},
        {"recv-threads", required_argument, NULL, RECVS},
        {"send-threads", required_argument, NULL, SENDS},
        {"nrank", required_argument, NULL, NRANK},
        {"data-type", required_argument, NULL, TYPE},
        {"rank", required_argument, NULL, RANK},
        {"service", required_argument, NULL, SERVICE},
        {"size", required_argument, NULL, SIZE},
        {"chunksize", required_argument, NULL, CHUNK},
        {"nsplit", required_argument, NULL, NSPLIT},
        {"nreq", required_argument, NULL, NREQ},
        {"trace", required_argument, NULL, TRACE},
        {"host", required_argument, NULL, HOST},
        {"timeout", required_argument, NULL, TIMEOUT},
        {"help", no_argument, NULL, HELP}, {0}};
    for (int c; (c = getopt_long(argc, argv, "cn:w:", known, NULL)) != -1;)
        switch (c) {
        case 'c': o->client = true; break;
        case RING: o->ring = true; break;
        case 'n': o->iterations = whole(optarg, 1, 1000000); break;
        case 'w': o->warmup = whole(optarg, 0, 1000000); break;
        case ADDRESS: o->address = optarg; break;
        case PORT: o->port = whole(optarg, 1, 65535); break;
        case COUNT: o->count = whole(optarg, 1, 1u << 30); break;
        case JOBS: o->jobs = whole(optarg, 1, MAX_JOBS); break;
        case THREADS: o->threads = whole(optarg, 1, MAX_THREADS); break;
        case RECVS: o->recvs = whole(optarg, 0, MAX_RANKS); break;
        case SENDS: o->sends = whole(optarg, 0, MAX_RANKS); break;
        case NRANK: o->nrank = whole(optarg, 1, MAX_RANKS); break;
        case TYPE: o->type = type_of(optarg); break;
        case RANK: o->rank = whole(optarg, 0, MAX_RANKS - 1); break;
        case SERVICE: o->service = optarg; break;
        case SIZE: sizes(o, optarg); break;
        case CHUNK: o->chunk = bytes(optarg); break;
        case NSPLIT: o->nsplit = whole(optarg, 1, MAX_SERVERS); break;
        case NREQ: o->nreq = whole(optarg, 0, 1 << 16); break;
        case TRACE: o->trace = optarg; break;
        case HOST: o->host = optarg; break;
        case TIMEOUT: o->timeout = whole(optarg, 1, 86400); break;
        case HELP: fputs(USAGE, stdout); exit(0);
        default: fputs(USAGE, stderr); exit(2);
        }
    if (optind < argc)
        usage("no option: ", argv[optind]);
}

static void check_client(struct options *o)
{
    size_t each = size_of(o->type);
    if (!o->servers)
        die("%s names no server", o->service ? o->service : "standard input");
    if (o->rank >= o->nrank)
        die("--rank %u: there are %u ranks", o->rank, o->nrank);
    if (o->ring && o->nrank < 2)
        die("a ring has two ranks at the least");
    if (o->ring)
        o->nsplit = 1;
    if (o->nsplit > (uint32_t)o->servers)
        die("--nsplit %u: there are %d servers", o->nsplit, o->servers);
    if (o->chunk > 1u << 30 || o->chunk % (each * o->nsplit))
        die("--chunksize %llu is no multiple of nsplit (%u) elements, or "
            "above 1G", (unsigned long long)o->chunk, o->nsplit);
    o->count = o->chunk / each / o->nsplit;
    if (!o->nreq)
        o->nreq = 4 * o->servers;
    if (!o->sizes)
        o->size[o->sizes++] = 512u << 20;
    for (int i = 0; i < o->sizes; i++)
        if (o->size[i] < each)
            die("a size below one element");
}

static void check_server(struct options *o)
{
    o->recvs = o->recvs ? o->recvs : o->nrank;
    o->sends = o->sends ? o->sends : o->nrank;
    if (o->nrank % o->recvs || o->nrank % o->sends)
        die("--recv-threads %u and --send-threads %u must divide --nrank %u",
            o->recvs, o->sends, o->nrank);
    if (!o->port)
        die("--port is missing");
}

int main(int argc, char **argv)
{
    static struct options o = {
        .address = "127.0.0.1", .nrank = 1, .jobs = 2, .threads = 2,
        .nsplit = 1, .iterations = 1, .warmup = 1, .timeout = 60,
        .count = 1 << 20, .chunk = 512 << 10};
    char host[64] = "";
    signal(SIGPIPE, SIG_IGN);
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = 0;
    o.host = host;
    parse(&o, argc, argv);
    if (o.service) {
        FILE *file = fopen(o.service, "r");
        read_service(&o, file, o.service);
        fclose(file);
    } else {
        read_service(&o, stdin, "standard input");
    }
    if (o.client) {
        check_client(&o);
        return run_client(&o);
    }
    check_server(&o);
    trace_own(stdout, o.host);
    if (o.trace)
        trace_open(o.trace, o.host);
    return serve(&o);
}
