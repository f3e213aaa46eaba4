/*
 * main.c - which benchmark, which options, how many ranks.
 *
 * One program holds all the benchmarks. The name of the link by which it is
 * called, osu_latency, osu_bw and so on, selects one.
 */
#include "osu.h"

#include <errno.h>
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

/* `o`: letters of getopt beside those that all of the kind have. */
#define PT2PT(n, t, o, r, ...) \
    {.name = #n, .title = " " t, .options = "m:i:x:" o, \
     .ranks = r, .max_size = 4 * MIB, .threads = 1, .run = run_##n, \
     __VA_ARGS__}
#define ONE_SIDED(n, t, o, w, s, ...) \
    {.name = #n, .title = t, .options = "m:i:x:w:s:" o, \
     .ranks = RANKS_TWO, .max_size = 4 * MIB, .win = w, .sync = s, \
     .run = run_##n, __VA_ARGS__}
#define COLLECTIVE(n, t, o) \
    {.name = #n, .title = " " t " Latency", \
     .options = "i:x:" o, .ranks = RANKS_MANY, .max_size = MIB, \
     .run = run_##n, COUNTS_COLLECTIVE}

static const struct bench benches[] = {
    PT2PT(latency, "Latency", "c", RANKS_TWO, COUNTS_LATENCY),
    PT2PT(bw, "Bandwidth", "cW:", RANKS_TWO, COUNTS_BANDWIDTH),
    PT2PT(bibw, "Bi-Directional Bandwidth", "cW:", RANKS_TWO,
          COUNTS_BANDWIDTH),
    PT2PT(latency_mt, "Multi-threaded Latency", "t:", RANKS_TWO,
          COUNTS_LATENCY, .thread_level = MPI_THREAD_MULTIPLE),
    {.name = "latency_mp", .title = " Multi-process Latency",
     .options = "m:i:x:t:", .ranks = RANKS_TWO, .max_size = 4 * MIB,
     .threads = 2, .run = run_latency_mp, COUNTS_LATENCY},
    PT2PT(multi_lat, "Multi Latency", "c", RANKS_EVEN, COUNTS_LATENCY),
    PT2PT(mbw_mr, "Multiple Bandwidth / Message Rate", "cW:",
          RANKS_EVEN, COUNTS_BANDWIDTH),
    ONE_SIDED(acc_latency, "_Accumulate latency", "", WIN_ALLOCATE,
              SYNC_FLUSH, COUNTS_LATENCY),
    ONE_SIDED(get_latency, "_Get latency", "", WIN_ALLOCATE, SYNC_FLUSH,
              COUNTS_LATENCY),
    ONE_SIDED(put_latency, "_Put Latency", "", WIN_ALLOCATE, SYNC_FLUSH,
              COUNTS_LATENCY),
    ONE_SIDED(get_acc_latency, "_Get_accumulate latency", "", WIN_CREATE,
              SYNC_LOCK, COUNTS_LATENCY),
    ONE_SIDED(cas_latency, "_Compare_and_swap latency", "",
              WIN_ALLOCATE, SYNC_FLUSH, COUNTS_LATENCY),
    ONE_SIDED(fop_latency, "_Fetch_and_op latency", "", WIN_ALLOCATE,
              SYNC_FLUSH, COUNTS_LATENCY),
    ONE_SIDED(get_bw, "_Get Bandwidth", "W:", WIN_ALLOCATE, SYNC_FLUSH,
              COUNTS_BANDWIDTH),
    ONE_SIDED(put_bw, "_Put Bandwidth", "W:", WIN_ALLOCATE, SYNC_FLUSH,
              COUNTS_BANDWIDTH),
    ONE_SIDED(put_bibw, "_Put Bi-directional Bandwidth",
              "W:", WIN_ALLOCATE, SYNC_PSCW,
              COUNTS_BANDWIDTH, .active_only = true),
    COLLECTIVE(allgather, "Allgather", "m:c"),
    COLLECTIVE(allreduce, "Allreduce", "m:c"),
    COLLECTIVE(barrier, "Barrier", ""),
    COLLECTIVE(ibarrier, "Non-blocking Barrier", ""),
    {.name = "hello", .title = " Hello World", .options = "",
     .run = run_hello},
    {.name = "init", .title = " Init", .options = "", .run = run_init,
     .owns_init = true},
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
            return !bench->active_only || s == SYNC_PSCW
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
    case 'c':
        return opt.check = true;
    case 'w':
        return win_option(arg);
    case 's':
        return sync_option(arg);
    case 'W':
        return int_option(arg, 1, 1 << 20, &opt.window);
    case 't':
        return team_option(arg);
    }
    return false;
}

/* Runs on every rank, possibly before MPI_Init, hence says nothing: what is
 * wrong goes to `complaint`, which rank 0 prints later. */
static void parse(int argc, char **argv, char *complaint, size_t room)
{
    int letter;

    opterr = 0;
    while ((letter = getopt(argc, argv, bench->options)) != -1) {
        if (letter == '?') {
            snprintf(complaint, room, "Invalid option, or its argument is "
                     "missing [-%c]", optopt);
            return;
        }
        if (!set_option(letter, optarg)) {
            snprintf(complaint, room, "Invalid argument [-%c %s]", letter,
                     optarg);
            return;
        }
    }
    if (optind < argc)
        snprintf(complaint, room, "Unexpected argument [%s]", argv[optind]);
}

static void set_defaults(void)
{
    opt = (struct options){
        .min_size = 1, .max_size = bench->max_size,
        .iters = bench->iters, .skip = bench->skip,
        .iters_large = bench->iters_large,
        .skip_large = bench->skip_large,
        .window = 64, .senders = bench->threads, .receivers = 2,
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

/* As OMB prints it; without MPI. */
static void print_help(const char *name)
{
    static const struct { char letter; const char *text; } help[] = {
        {'m', "-m [MIN:]MAX        message sizes in bytes"},
        {'i', "-i ITERATIONS       for small messages"},
        {'x', "-x ITERATIONS       warm-up"},
        {'c', "-c, --validation    validate the data"},
        {'w', "-w WINDOW           allocate, create, dynamic"},
        {'s', "-s SYNCHRONISATION  flush, flush_local, lock, lock_all, pscw, fence"},
        {'W', "-W MESSAGES         in flight"},
        {'t', "-t SENDERS:THREADS  numbers of threads or processes"},
    };
    printf("Usage: %s [options]\n", name);
    for (size_t i = 0; i < sizeof help / sizeof *help; i++)
        if (strchr(bench->options, help[i].letter))
            printf("  %s\n", help[i].text);
}

/* --- main -------------------------------------------------------------- */

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/'), *problem;
    char complaint[256] = "";
    int level, status = 1;

    bench = find_bench(slash ? slash + 1 : argv[0]);
    if (!bench) {
        fprintf(stderr, "osu_embedded: call it by the name of a benchmark: "
                "ln -s osu_embedded osu_latency\n");
        return 1;
    }
    if (argc == 2 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))) {
        print_help(slash ? slash + 1 : argv[0]);
        return 0;
    }
    set_defaults();
    parse(argc, argv, complaint, sizeof complaint);

    /* Every MPI error is fatal: that is the default of communicators and
     * windows alike, so no return code is looked at anywhere. */
    if (!bench->owns_init || *complaint) {
        if (bench->thread_level)
            MPI_Init_thread(NULL, NULL, bench->thread_level, &level);
        else
            MPI_Init(NULL, NULL);
        MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
        MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    }
    problem = *complaint ? complaint : wrong_ranks();
    if (!problem)
        status = bench->run();
    else if (my_rank == 0)
        fprintf(stderr, "%s\n", problem);
    fflush(NULL);
    MPI_Finalize();
    return status;
}
