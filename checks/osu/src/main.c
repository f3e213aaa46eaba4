/*
 * main.c - which benchmark, which options, how many ranks.
 *
 * One program holds all the benchmarks. Links to it named osu_latency,
 * osu_bw and so on select one; `osu_embedded latency ...` does as well, and
 * `osu_embedded --links DIR` makes the links.
 */
#include "osu.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define MAX_TEAM 128                 /* threads or processes of -t        */
#define MAX_MESSAGE ((size_t)1 << 30) /* counts are of type int           */

#define COUNTS_LATENCY .iters = 10000, .skip = 100, \
                       .iters_large = 1000, .skip_large = 10
#define COUNTS_BANDWIDTH .iters = 100, .skip = 10, \
                         .iters_large = 20, .skip_large = 2
#define COUNTS_COLLECTIVE .iters = 1000, .skip = 100, \
                          .iters_large = 100, .skip_large = 10

#define O_COMMON (O_SIZE | O_ITER)

#define PT2PT(n, t, o, r, ...) \
    {.name = #n, .title = " " t, .options = O_COMMON | O_CHECK | (o), \
     .ranks = r, .max_size = 4 * MIB, .threads = 1, .run = run_##n, \
     __VA_ARGS__}
#define ONE_SIDED(n, t, o, w, s, ...) \
    {.name = #n, .title = t, .options = O_COMMON | O_WIN | (o), \
     .ranks = RANKS_TWO, .max_size = 4 * MIB, .win = w, .sync = s, \
     .run = run_##n, __VA_ARGS__}
#define COLLECTIVE(n, t, o) \
    {.name = #n, .title = " " t " Latency", \
     .options = O_ITER | O_FULL | (o), .ranks = RANKS_MANY, \
     .max_size = MIB, .run = run_##n, COUNTS_COLLECTIVE}

static const struct bench benches[] = {
    PT2PT(latency, "Latency", 0, RANKS_TWO, COUNTS_LATENCY),
    PT2PT(bw, "Bandwidth", O_WINDOW, RANKS_TWO, COUNTS_BANDWIDTH),
    PT2PT(bibw, "Bi-Directional Bandwidth", O_WINDOW, RANKS_TWO,
          COUNTS_BANDWIDTH),
    PT2PT(latency_mt, "Multi-threaded Latency", O_THREADS, RANKS_TWO,
          COUNTS_LATENCY, .thread_level = MPI_THREAD_MULTIPLE),
    {.name = "latency_mp", .title = " Multi-process Latency",
     .options = O_COMMON | O_CHECK | O_THREADS, .ranks = RANKS_TWO,
     .max_size = 4 * MIB, .threads = 2, .run = run_latency_mp,
     COUNTS_LATENCY},
    PT2PT(multi_lat, "Multi Latency", 0, RANKS_EVEN, COUNTS_LATENCY),
    PT2PT(mbw_mr, "Multiple Bandwidth / Message Rate", O_WINDOW | O_RATE,
          RANKS_EVEN, COUNTS_BANDWIDTH),
    ONE_SIDED(acc_latency, "_Accumulate latency", O_CHECK, WIN_ALLOCATE,
              SYNC_FLUSH, COUNTS_LATENCY),
    ONE_SIDED(get_latency, "_Get latency", 0, WIN_ALLOCATE, SYNC_FLUSH,
              COUNTS_LATENCY),
    ONE_SIDED(put_latency, "_Put Latency", 0, WIN_ALLOCATE, SYNC_FLUSH,
              COUNTS_LATENCY),
    ONE_SIDED(get_acc_latency, "_Get_accumulate latency", 0, WIN_CREATE,
              SYNC_LOCK, COUNTS_LATENCY),
    ONE_SIDED(cas_latency, "_Compare_and_swap latency", O_CHECK,
              WIN_ALLOCATE, SYNC_FLUSH, COUNTS_LATENCY),
    ONE_SIDED(fop_latency, "_Fetch_and_op latency", O_CHECK, WIN_ALLOCATE,
              SYNC_FLUSH, COUNTS_LATENCY),
    ONE_SIDED(get_bw, "_Get Bandwidth", O_WINDOW, WIN_ALLOCATE, SYNC_FLUSH,
              COUNTS_BANDWIDTH),
    ONE_SIDED(put_bw, "_Put Bandwidth", O_WINDOW, WIN_ALLOCATE, SYNC_FLUSH,
              COUNTS_BANDWIDTH),
    ONE_SIDED(put_bibw, "_Put Bi-directional Bandwidth",
              O_WINDOW | O_ACTIVE, WIN_ALLOCATE, SYNC_PSCW,
              COUNTS_BANDWIDTH),
    COLLECTIVE(allgather, "Allgather", O_SIZE | O_CHECK | O_MEM),
    COLLECTIVE(allreduce, "Allreduce", O_SIZE | O_CHECK | O_MEM),
    COLLECTIVE(barrier, "Barrier", 0),
    COLLECTIVE(ibarrier, "Non-blocking Barrier", O_TESTS),
    {.name = "hello", .title = " Hello World", .run = run_hello},
    {.name = "init", .title = " Init", .run = run_init, .owns_init = true},
};

#define NUM_BENCHES (sizeof benches / sizeof *benches)

static const struct bench *find_bench(const char *name)
{
    if (strncmp(name, "osu_", 4) == 0)
        name += 4;
    for (size_t i = 0; i < NUM_BENCHES; i++)
        if (strcmp(benches[i].name, name) == 0)
            return benches + i;
    return NULL;
}

/* --- options ----------------------------------------------------------- */

static const struct {
    int letter;
    const char *name;
    int takes;                       /* no_argument, required_argument    */
    unsigned options;                /* offered if any bit fits; 0 always */
    const char *help;
} specs[] = {
    {'m', "message-size", 1, O_SIZE,
     "[MIN:]MAX   message sizes in bytes"},
    {'i', "iterations", 1, O_ITER, "N           timed iterations per size"},
    {'x', "warmup", 1, O_ITER, "N           untimed iterations before them"},
    {'f', "full", 0, O_FULL, "            minimum and maximum as well"},
    {'c', "validation", 0, O_CHECK, "            check the data"},
    {'u', "validation-warmup", 1, O_CHECK,
     "N           untimed transfers before each checked one"},
    {'w', "win-option", 1, O_WIN, "TYPE        create, allocate, dynamic"},
    {'s', "sync-option", 1, O_WIN, "MODE        pscw, fence, lock, flush,\n"
     "                             flush_local, lock_all"},
    {'W', "window-size", 1, O_WINDOW, "N           messages in flight"},
    {'R', "print-rate", 1, O_RATE, "0|1         the message rate as well"},
    {'p', "num-pairs", 1, O_RATE,
     "N           ignored: always half the ranks"},
    {'M', "mem-limit", 1, O_MEM, "BYTES       limit of a rank's buffers"},
    {'t', "num_threads", 1, O_THREADS,
     "SEND:RECV   threads (latency_mt), processes\n"
     "                             (latency_mp); one number means 1:RECV"},
    {'t', "num_test_calls", 1, O_TESTS,
     "N           calls of MPI_Test while computing"},
    {'h', "help", 0, 0, "            this text"},
    {'v', "version", 0, 0, "            the version"},
};

#define NUM_SPECS (sizeof specs / sizeof *specs)

static void usage(FILE *out)
{
    fprintf(out, "Usage: osu_%s [options]\nOptions:\n", bench->name);
    for (size_t i = 0; i < NUM_SPECS; i++)
        if (!specs[i].options || (specs[i].options & bench->options))
            fprintf(out, "  -%c, --%-18s %s\n", specs[i].letter,
                    specs[i].name, specs[i].help);
}

/* A whole number in lo..hi and nothing after it but *end, if given. */
static bool number(const char *text, long lo, long hi, long *value,
                   char **end)
{
    char *stop;

    errno = 0;
    *value = strtol(text, &stop, 10);
    if (end)
        *end = stop;
    return !errno && stop != text && (end || !*stop) && *value >= lo
           && *value <= hi;
}

static bool int_option(const char *text, long lo, long hi, int *value)
{
    long n;

    if (!number(text, lo, hi, &n, NULL))
        return false;
    *value = (int)n;
    return true;
}

/* "MAX", "MIN:" or "MIN:MAX". Size 0 would measure nothing; 1 follows. */
static bool size_option(const char *text)
{
    long a, b;
    char *end;

    if (!number(text, 0, (long)MAX_MESSAGE, &a, &end))
        return false;
    if (*end == '\0') {
        opt.max_size = (size_t)a;
        return a > 0;
    }
    if (*end != ':')
        return false;
    opt.min_size = a ? (size_t)a : 1;
    if (end[1] == '\0')
        return opt.min_size <= opt.max_size;
    if (!number(end + 1, 1, (long)MAX_MESSAGE, &b, NULL))
        return false;
    opt.max_size = (size_t)b;
    return opt.min_size <= opt.max_size;
}

static bool team_option(const char *text)
{
    long a, b;
    char *end;

    if (!number(text, 1, MAX_TEAM, &a, &end))
        return false;
    opt.senders = 1;
    opt.receivers = (int)a;
    if (*end == '\0')
        return true;
    if (*end != ':' || !number(end + 1, 1, MAX_TEAM, &b, NULL))
        return false;
    opt.senders = (int)a;
    opt.receivers = (int)b;
    return true;
}

static bool sync_option(const char *text)
{
    static const char *words[] = {
        [SYNC_LOCK] = "lock", [SYNC_FLUSH] = "flush",
        [SYNC_FLUSH_LOCAL] = "flush_local", [SYNC_LOCK_ALL] = "lock_all",
        [SYNC_PSCW] = "pscw", [SYNC_FENCE] = "fence",
    };

    for (int s = SYNC_LOCK; s <= SYNC_FENCE; s++)
        if (strcmp(text, words[s]) == 0) {
            opt.sync = (enum sync)s;
            /* Both ranks put at once: only the active modes make sense. */
            return !(bench->options & O_ACTIVE) || s == SYNC_PSCW
                   || s == SYNC_FENCE;
        }
    return false;
}

static bool win_option(const char *text)
{
    static const char *words[] = {
        [WIN_CREATE] = "create", [WIN_ALLOCATE] = "allocate",
        [WIN_DYNAMIC] = "dynamic",
    };

    for (int w = WIN_CREATE; w <= WIN_DYNAMIC; w++)
        if (strcmp(text, words[w]) == 0) {
            opt.win = (enum wintype)w;
            return true;
        }
    return false;
}

static bool set_option(int letter, const char *arg)
{
    long n;

    switch (letter) {
    case 'm':
        return size_option(arg);
    case 'i':
        if (!int_option(arg, 1, INT_MAX / 4, &opt.iters))
            return false;
        opt.iters_large = opt.iters;
        return true;
    case 'x':
        if (!int_option(arg, 0, INT_MAX / 4, &opt.skip))
            return false;
        opt.skip_large = opt.skip;
        return true;
    case 'f':
        return opt.full = true;
    case 'c':
        return opt.check = true;
    case 'u':
        return int_option(arg, 0, INT_MAX / 4, &opt.check_warmup);
    case 'w':
        return win_option(arg);
    case 's':
        return sync_option(arg);
    case 'W':
        return int_option(arg, 1, 1 << 20, &opt.window);
    case 'R':
        if (!number(arg, 0, 1, &n, NULL))
            return false;
        opt.print_rate = n == 1;
        return true;
    case 'p':
        return number(arg, 1, INT_MAX, &n, NULL);
    case 'M':
        if (!number(arg, 1, LONG_MAX, &n, NULL))
            return false;
        opt.mem_limit = (size_t)n < MIB ? MIB : (size_t)n;
        return true;
    case 't':
        if (bench->options & O_THREADS)
            return team_option(arg);
        return int_option(arg, 0, INT_MAX / 4, &opt.tests);
    }
    return false;
}

enum verdict { GO, HELP, VERSION, BAD };

/* Runs on every rank, possibly before MPI_Init, hence says nothing: what is
 * wrong goes to `complaint`, which rank 0 prints later. */
static enum verdict parse(int argc, char **argv, char *complaint,
                          size_t room)
{
    struct option longs[NUM_SPECS + 1];
    char shorts[2 * NUM_SPECS + 3] = "+:";
    size_t n = 0, s = 2;
    int letter;

    for (size_t i = 0; i < NUM_SPECS; i++) {
        if (specs[i].options && !(specs[i].options & bench->options))
            continue;
        longs[n++] = (struct option){specs[i].name, specs[i].takes, NULL,
                                     specs[i].letter};
        shorts[s++] = (char)specs[i].letter;
        if (specs[i].takes)
            shorts[s++] = ':';
    }
    longs[n] = (struct option){0};
    shorts[s] = '\0';

    opterr = 0;
    while ((letter = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        switch (letter) {
        case 'h':
            return HELP;
        case 'v':
            return VERSION;
        case ':':
            snprintf(complaint, room, "Option needs an argument [-%c]",
                     optopt);
            return BAD;
        case '?':
            if (optopt)
                snprintf(complaint, room, "Invalid option [-%c]", optopt);
            else
                snprintf(complaint, room, "Invalid option [%s]",
                         argv[optind - 1]);
            return BAD;
        default:
            if (set_option(letter, optarg))
                break;
            snprintf(complaint, room,
                     "Invalid option or invalid argument [-%c %s]", letter,
                     optarg);
            return BAD;
        }
    }
    if (optind < argc) {
        snprintf(complaint, room, "Unexpected argument [%s]", argv[optind]);
        return BAD;
    }
    return GO;
}

static void set_defaults(void)
{
    opt = (struct options){
        .min_size = 1, .max_size = bench->max_size,
        .mem_limit = 512 * MIB,
        .iters = bench->iters, .skip = bench->skip,
        .iters_large = bench->iters_large,
        .skip_large = bench->skip_large,
        .window = 64, .senders = bench->threads, .receivers = 2,
        .check_warmup = 5, .print_rate = true,
        .win = bench->win, .sync = bench->sync,
    };
}

static const char *wrong_ranks(void)
{
    switch (bench->ranks) {
    case RANKS_TWO:
        return num_ranks == 2 ? NULL
               : "This test requires exactly two processes";
    case RANKS_EVEN:
        return num_ranks % 2 == 0 ? NULL
               : "This test requires an even number of processes";
    case RANKS_MANY:
        return num_ranks >= 2 ? NULL
               : "This test requires at least two processes";
    case RANKS_ANY:
        break;
    }
    return NULL;
}

/* --- main -------------------------------------------------------------- */

static int make_links(const char *dir)
{
    char self[PATH_MAX], path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

    if (n < 0) {
        perror("osu_embedded: /proc/self/exe");
        return 1;
    }
    self[n] = '\0';
    for (size_t i = 0; i < NUM_BENCHES; i++) {
        int len = snprintf(path, sizeof path, "%s/osu_%s", dir,
                           benches[i].name);

        if (len < 0 || (size_t)len >= sizeof path) {
            fprintf(stderr, "osu_embedded: the path is too long: %s\n", dir);
            return 1;
        }
        if (unlink(path) && errno != ENOENT) {
            perror(path);
            return 1;
        }
        if (symlink(self, path)) {
            perror(path);
            return 1;
        }
    }
    return 0;
}

static int no_bench(FILE *out)
{
    fprintf(out, "Usage: osu_embedded BENCHMARK [options]\n"
            "       osu_embedded --links DIR\n"
            "       osu_embedded --version\nBenchmarks:\n");
    for (size_t i = 0; i < NUM_BENCHES; i++)
        fprintf(out, "  osu_%s\n", benches[i].name);
    return out == stderr;
}

static int not_a_bench(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--links") == 0)
        return make_links(argv[2]);
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        puts("osu_embedded " OSU_VERSION);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--help") == 0)
        return no_bench(stdout);
    if (argc > 1)
        fprintf(stderr, "osu_embedded: the benchmark %s does not "
         "exist\n", argv[1]);
    return no_bench(stderr);
}

static int settle(enum verdict verdict, const char *complaint)
{
    const char *ranks = wrong_ranks();

    if (verdict == GO && !ranks)
        return bench->run();
    if (my_rank == 0) {
        if (verdict == VERSION) {
            print_title();
        } else if (verdict == GO) {
            fprintf(stderr, "%s\n", ranks);
        } else {
            if (verdict == BAD)
                fprintf(stderr, "%s\n", complaint);
            usage(stdout);
        }
        fflush(NULL);
    }
    return verdict == GO || verdict == BAD;
}

int main(int argc, char **argv)
{
    const char *slash = strrchr(argc ? argv[0] : "", '/');
    char complaint[256] = "";
    enum verdict verdict;
    int level, status;

    bench = find_bench(slash ? slash + 1 : argc ? argv[0] : "");
    if (!bench) {
        if (argc > 1)
            bench = find_bench(argv[1]);
        if (!bench)
            return not_a_bench(argc, argv);
        argc--;
        argv++;
    }
    set_defaults();
    verdict = parse(argc, argv, complaint, sizeof complaint);

    /* Every MPI error is fatal: that is the default of communicators and
     * windows alike, so no return code is looked at anywhere. */
    if (!bench->owns_init || verdict != GO) {
        if (bench->thread_level)
            MPI_Init_thread(NULL, NULL, bench->thread_level, &level);
        else
            MPI_Init(NULL, NULL);
        MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
        MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    }
    status = settle(verdict, complaint);
    fflush(NULL);
    MPI_Finalize();
    return status;
}
