/* A stand-in for nccl-tests where no GPU can be had: it moves nothing.
 *
 * It takes the options of nccl-tests, starts under MPI on as many ranks, and
 * prints the table that nccl-tests 2.19 prints, with figures that are made
 * up: a latency and a rate. So the cases of the family can be generated,
 * launched on several nodes and parsed. Every record of it says emulated, and
 * none is ever a reference.
 *
 * It sleeps as long as its iterations would take: a run that claims more time
 * than it took is refused. With NCCL_DEBUG=INFO it leaves a log in the words
 * of NCCL. Without -DALONE it needs MPI; with it, STANDIN_RANKS says how many
 * ranks the output pretends to have.
 *
 *   STANDIN_RATE     GB/s of busbw of a large one (2000)
 *   STANDIN_FAULT    what to do wrong: wrong (data), type, size, ranks,
 *                    socket, p2p (in the log), silent (no log), fast
 *                    (figures that no time was spent on), exit
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifndef ALONE
#include <mpi.h>
#endif

#define HOST 64

static const char *fault = "";

static int is(const char *word) { return !strcmp(fault, word); }

static double number(const char *name, double otherwise)
{
    const char *text = getenv(name);
    return text ? atof(text) : otherwise;
}

/* As nccl-tests prints: as many decimals as the width lets stand. */
static void put(double value, int width)
{
    char text[64];
    for (int digits = 2; digits >= 0; digits--)
        if (snprintf(text, sizeof text, "%*.*f", width, digits, value)
            <= width)
            break;
    printf("  %s", text);
}

static double size_of(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    switch (*end) {
    case 'K': case 'k': return value * 1024;
    case 'M': case 'm': return value * 1024 * 1024;
    case 'G': case 'g': return value * 1024 * 1024 * 1024;
    default: return value;
    }
}

static int width_of(const char *type)
{
    if (strstr(type, "8"))
        return strstr(type, "int8") || strstr(type, "f8") ? 1 : 0;
    if (!strcmp(type, "half") || !strcmp(type, "bfloat16"))
        return 2;
    if (!strcmp(type, "double") || strstr(type, "64"))
        return 8;
    return 4;
}

/* What NCCL would say, in the file that NCCL_DEBUG_FILE names. */
static void leave_a_log(const char *host, int rank, int ranks, int nodes)
{
    const char *pattern = getenv("NCCL_DEBUG_FILE");
    static const char *known[] = {
        "NCCL_ALGO", "NCCL_PROTO", "NCCL_CROSS_NIC", "NCCL_NVLS_ENABLE",
        "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_COLLNET_ENABLE",
        "NCCL_IB_HCA", NULL};
    char path[512];
    size_t at = 0;

    if (!getenv("NCCL_DEBUG") || !pattern || is("silent"))
        return;
    for (; *pattern && at < sizeof path - HOST - 16; pattern++)
        if (*pattern == '%' && pattern[1] == 'h')
            at += (size_t)sprintf(path + at, "%s", host), pattern++;
        else if (*pattern == '%' && pattern[1] == 'p')
            at += (size_t)sprintf(path + at, "%d", (int)getpid()), pattern++;
        else
            path[at++] = *pattern;
    path[at] = 0;
    FILE *log = fopen(path, "w");
    if (!log)
        return;
    const char *off = getenv("NCCL_P2P_DISABLE");
    const char *net = is("socket") ? "Socket" : "STANDIN";
    const char *sharp = getenv("NCCL_COLLNET_ENABLE");
#define SAY(...) do { \
        fprintf(log, "%s:%d:%d [%d] NCCL INFO ", host, (int)getpid(), \
                (int)getpid(), rank); \
        fprintf(log, __VA_ARGS__); fputc('\n', log); } while (0)
    SAY("NCCL version 2.28.9+standin");
    SAY("Using network %s", net);
    for (int n = 0; known[n]; n++)
        if (getenv(known[n]))
            SAY("%s set by environment to %s.", known[n], getenv(known[n]));
    if (nodes > 1)
        SAY("Channel 00/0 : %d[0] -> %d[0] [send] via NET/%s/0", rank,
            (rank + 1) % ranks, net);
    else
        SAY("Channel 00/0 : %d[0] -> %d[0] via %s", rank, (rank + 1) % ranks,
            off && *off == '1' ? "SHM/direct/direct" : "P2P/CUMEM");
    if (is("p2p"))
        SAY("Channel 01/0 : %d[0] -> %d[0] via P2P/CUMEM", rank,
            (rank + 1) % ranks);
    if (sharp && *sharp == '1' && nodes > 1)
        SAY("Channel 00/0 : %d[0] [send] via COLLNET/SHARP/0", rank);
    fclose(log);
}

int main(int argc, char **argv)
{
    const char *name = strrchr(argv[0], '/');
    name = name ? name + 1 : argv[0];
    double least = 32 << 20, most = 32 << 20, step = 1 << 20;
    int factor = 1, iterations = 20, warmup = 1, calls = 1, checks = 1;
    int threads = 1, gpus = 1, root = 0, blocking = 0, graph = 0;
    int parallel = 0;
    const char *type = "float", *operation = "sum";
    int letter, process = 0, processes = 1;

    if (getenv("STANDIN_FAULT"))
        fault = getenv("STANDIN_FAULT");
    while ((letter = getopt(argc, argv, "t:g:b:e:i:f:n:m:w:N:p:c:o:d:r:z:y:T:"
                            "G:C:a:R:x:D:V:Y:M:u:")) != -1)
        switch (letter) {
        case 't': threads = atoi(optarg); break;
        case 'g': gpus = atoi(optarg); break;
        case 'b': least = size_of(optarg); break;
        case 'e': most = size_of(optarg); break;
        case 'i': step = size_of(optarg); break;
        case 'f': factor = atoi(optarg); break;
        case 'n': iterations = atoi(optarg); break;
        case 'm': calls = atoi(optarg); break;
        case 'w': warmup = atoi(optarg); break;
        case 'p': parallel = atoi(optarg); break;
        case 'c': checks = atoi(optarg); break;
        case 'o': operation = optarg; break;
        case 'd': type = optarg; break;
        case 'r': root = atoi(optarg); break;
        case 'z': blocking = atoi(optarg); break;
        case 'G': graph = atoi(optarg); break;
        case '?': printf("USAGE: %s \n", name); return 0;
        default: break;
        }

    char host[HOST] = "";
    gethostname(host, sizeof host - 1);
#ifdef ALONE
    processes = (int)number("STANDIN_RANKS", 1) / (threads * gpus);
    char *hosts = calloc((size_t)processes, HOST);
    int nodes_told = (int)number("STANDIN_NODES", 1);
    if (!hosts)
        return 1;
    for (int p = 0; p < processes; p++)
        snprintf(hosts + p * HOST, HOST, "node%d",
                 p * nodes_told / processes);
#else
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &process);
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    char *hosts = calloc((size_t)processes, HOST);
    if (!hosts)
        return 1;
    MPI_Allgather(host, HOST, MPI_CHAR, hosts, HOST, MPI_CHAR,
                  MPI_COMM_WORLD);
#endif
    int ranks = processes * threads * gpus, nodes = 1;
    for (int p = 1; p < processes; p++) {
        int seen = 0;
        for (int q = 0; q < p; q++)
            seen |= !strcmp(hosts + p * HOST, hosts + q * HOST);
        nodes += !seen;
    }
    leave_a_log(host, process, ranks, nodes);

    int split = strcmp(name, "all_reduce_perf")
        && strcmp(name, "broadcast_perf") && strcmp(name, "reduce_perf")
        && strcmp(name, "sendrecv_perf");
    int reduces = strstr(name, "reduce") != NULL;
    int rooted = !strcmp(name, "broadcast_perf")
        || !strcmp(name, "reduce_perf") || !strcmp(name, "gather_perf")
        || !strcmp(name, "scatter_perf");
    int cube = !strcmp(name, "hypercube_perf");
    int in_place = strcmp(name, "sendrecv_perf")
        && strncmp(name, "alltoall", 8);
    double others = (ranks - 1.0) / ranks;
    double bus = !strcmp(name, "all_reduce_perf") ? 2 * others
        : split && !cube ? others : 1;
    double latency = 20;                /* us of a call without data        */
    double rate = number("STANDIN_RATE", 2000);
    if (is("type"))
        type = "int32";
    if (is("size"))
        most /= 2;
    int width = width_of(type);

    if (!process) {
        printf("# nccl-tests version 2.19.6 nccl-headers=22809 "
               "nccl-library=22809\n# Collective test starting: %s\n"
               "# nThread %d nGpus %d minBytes %.0f maxBytes %.0f step: "
               "%.0f(%s) warmup iters: %d iters: %d agg iters: %d "
               "validation: %d graph: %d unalign: 0\n", name, threads, gpus,
               least, most, factor > 1 ? factor : step,
               factor > 1 ? "factor" : "bytes", warmup, iterations, calls,
               checks, graph);
        if (blocking)
            printf("# Blocking Enabled: wait and barrier after each inner "
                   "iteration (-m) \n");
        if (parallel)
            printf("# Parallel Init Enabled: threads call into NcclInitRank "
                   "concurrently \n");
        printf("#\n# Using devices\n");
        for (int rank = 0; rank < ranks - is("ranks"); rank++)
            printf("#  Rank %2d Group %2d Pid %6d on %10s device %2d "
                   "[0000:%02x:00] stand-in, no GPU\n", rank, 0,
                   4000 + rank / (threads * gpus),
                   hosts + rank / (threads * gpus) * HOST, rank, 16 + rank);
        printf("#\n# %10s  %12s  %8s  %6s  %6s           out-of-place       "
               "                in-place          \n", "", "", "", "", "");
        printf("# %10s  %12s  %8s  %6s  %6s", "size", "count", "type",
               "redop", "root");
        for (int half = 0; half < 2; half++)
            printf("  %7s  %6s  %6s  %6s", "time", "algbw", "busbw",
                   "#wrong");
        printf(" \n# %10s  %12s  %8s  %6s  %6s", "(B)", "(elements)", "", "",
               "");
        for (int half = 0; half < 2; half++)
            printf("  %7s  %6s  %6s  %6s", "(us)", "(GB/s)", "(GB/s)", "");
        printf(" \n");
    }

    double sum = 0, slept = 0;
    int rows = 0, wrong = is("wrong");
    for (double asked = least; asked <= most && !process;
         asked = factor > 1 ? asked * factor : asked + step) {
        double count = floor(asked / width);
        if (split)
            count = floor(floor(count / ranks) / (16 / width))
                * (16 / width);
        double size = count * width * (split ? ranks : 1);
        if (!strcmp(name, "alltoallv_perf") && ranks > 1) {
            double all = size;
            size = 0;               /* more to ranks that are far */
            for (int far = 0; far < ranks; far++)
                size += floor(floor(far * all / (ranks * (ranks - 1.0) / 2))
                              / 16) * 16 / width;
            size = floor(size) * width;
        }
        printf("%12.0f  %12.0f  %8s  %6s  %6d", size, count, type,
               cube ? "" : reduces || !strcmp(name, "sendrecv_perf")
               ? operation : "none", rooted ? root : -1);
        for (int half = 0; half < 2; half++) {
            double us = latency * (1 + 0.02 * half)
                + size * (cube ? others : 1) * (bus > 0 ? bus : 1) / rate
                / 1e3;
            double algbw = size * (cube ? others : 1) / us / 1e3;
            put(us, 7);
            put(algbw, 6);
            put(algbw * bus, 6);
            if (half && !in_place)
                printf("    N/A");
            else
                printf("  %6d", wrong);
            sum += algbw * bus;
            rows++;
            slept += us * iterations * calls;
        }
        printf("\n");
    }
    if (!process) {
        struct timespec time = {(time_t)(slept / 1e6),
                                (long)(fmod(slept, 1e6) * 1e3)};
        if (!is("fast"))
            nanosleep(&time, NULL);
        printf("# Out of bounds values : %d %s\n"
               "# Avg bus bandwidth    : %g \n#\n"
               "# Collective test concluded: %s\n#\n\n", wrong ? rows : 0,
               wrong ? "FAILED" : "OK", rows ? sum / rows : 0, name);
        fflush(stdout);
    }
#ifndef ALONE
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
#endif
    free(hosts);
    return wrong ? 7 : is("exit") ? 3 : 0;
}
