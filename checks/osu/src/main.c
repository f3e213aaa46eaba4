/*
 * main.c - which benchmark, which options, how many ranks.
 *
 * One program holds all the benchmarks. The name of the link by which it is
 * called, osu_latency, osu_bw and so on, selects one.
 */
#include "osu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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

static const struct bench *find_bench(const char *name)
{
    if (strncmp(name, "osu_", 4) == 0)
        name += 4;
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
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

static bool int_option(const char *text, long lo, int *value)
{
    long n = 0;
    bool valid = number(text, lo, 1 << 24, &n, NULL);

    *value = (int)n;
    return valid;
}

/* "A" or "A:B"; returns how many numbers it is, 0 if they are not valid. */
static int pair_option(const char *text, long hi, long *a, long *b)
{
    char *end;

    if (!number(text, 0, hi, a, &end))
        return 0;
    if (*end == '\0')
        return *a > 0;
    return *end == ':' && number(end + 1, 1, hi, b, NULL) ? 2 : 0;
}

/* MAX or MIN:MAX. Size 0 would measure nothing; 1 follows. */
static bool size_option(const char *text)
{
    long a, b;
    int count = pair_option(text, (long)MAX_MESSAGE, &a, &b);

    if (count == 2)
        opt.min_size = a ? (size_t)a : 1;
    opt.max_size = (size_t)(count == 2 ? b : a);
    return count && opt.min_size <= opt.max_size;
}

/* RECEIVERS or SENDERS:RECEIVERS. */
static bool team_option(const char *text)
{
    long a, b;
    int count = pair_option(text, MAX_TEAM, &a, &b);

    opt.senders = count == 2 ? (int)a : 1;
    opt.receivers = (int)(count == 2 ? b : a);
    return count && opt.senders;
}

/* Index of a word; -1: it is none of them. */
static int find_word(const struct word *words, const char *text)
{
    for (int i = 0; words[i].option; i++)
        if (!strcmp(text, words[i].option))
            return i;
    return -1;
}

static bool sync_option(const char *text)
{
    int s = find_word(synchronisations, text);

    opt.sync = (enum sync)s;
    /* Both ranks put at once: only the active modes make sense. */
    return s >= 0 && (!bench->active_only || s == SYNC_PSCW || s == SYNC_FENCE);
}

static bool set_option(int letter, const char *arg)
{
    switch (letter) {
    case 'm': return size_option(arg);
    case 'i':
        return int_option(arg, 1, &opt.iters)
               && int_option(arg, 1, &opt.iters_large);
    case 'x':
        return int_option(arg, 0, &opt.skip)
               && int_option(arg, 0, &opt.skip_large);
    case 'c': return opt.check = true;
    case 'w': return (int)(opt.win = (enum wintype)find_word(windows, arg)) >= 0;
    case 's': return sync_option(arg);
    case 'W': return int_option(arg, 1, &opt.window);
    case 't': return team_option(arg);
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
        if (letter == '?')
            snprintf(complaint, room, "Invalid option, or its argument is "
                     "missing [-%c]", optopt);
        else if (!set_option(letter, optarg))
            snprintf(complaint, room, "Invalid argument [-%c %s]", letter, optarg);
        else
            continue;
        return;
    }
    if (optind < argc)
        snprintf(complaint, room, "Unexpected argument [%s]", argv[optind]);
}

static const char *wrong_ranks(void)
{
    if (bench->ranks == RANKS_TWO && num_ranks != 2)
        return "This test requires exactly two processes";
    if (bench->ranks == RANKS_EVEN && num_ranks % 2)
        return "This test requires an even number of processes";
    if (bench->ranks == RANKS_MANY && num_ranks < 2)
        return "This test requires at least two processes";
    return NULL;
}

/* --- osu_hello and osu_init: what it costs to start MPI at all --------- */

int run_hello(void)
{
    print_title();
    if (my_rank == 0)
        printf("This is a test with %d processes\n", num_ranks);
    return 0;
}

static long now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000L + t.tv_nsec / 1000000L;
}

/* MPI_Wtime may not be called before MPI_Init, so this one takes the
 * system's clock; start-up lasts long enough for whole milliseconds. */
int run_init(void)
{
    long begin = now_ms(), mine, min, max, sum;

    MPI_Init(NULL, NULL);
    mine = now_ms() - begin;
    MPI_Comm_rank(MPI_COMM_WORLD, &my_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
    MPI_Reduce(&mine, &min, 1, MPI_LONG, MPI_MIN, 0, MPI_COMM_WORLD);
    MPI_Reduce(&mine, &max, 1, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    print_title();
    if (my_rank == 0)
        printf("nprocs: %d, min: %ld ms, max: %ld ms, avg: %ld ms\n",
               num_ranks, min, max, sum / num_ranks);
    return 0;
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
    opt = (struct options){
        .min_size = 1, .max_size = bench->max_size,
        .iters = bench->iters, .skip = bench->skip,
        .iters_large = bench->iters_large, .skip_large = bench->skip_large,
        .window = 64, .senders = bench->threads, .receivers = 2,
        .win = bench->win, .sync = bench->sync,
    };
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
