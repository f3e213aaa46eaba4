/* main.c - options, and the order of a run of tensorload. */
#define _GNU_SOURCE
#include "../../core/src/common/options.h"
#include "tensor.h"

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- options -------------------------------------------------------------- */
static const struct setting rows[] = {
    {"service", "FILE", "lines 'server HOST PORT', 'password WORD', "
     "'cluster'", WORD, .target = &arg.service},
    {"bytes", "N", "of a tensor of floats (1024)", LONG, &arg.bytes, 4,
     .high = 1e12},
    {"iterations", "N", "of the loop (100)", COUNT, &arg.iterations, 1,
     .high = 1e9},
    {"plain", NULL, "SET and GET instead of AI.TENSORSET and AI.TENSORGET: "
     "for a server without the module", FLAG, .target = &arg.plain},
    {"colocated", NULL, "each node of ranks has a server of its own", FLAG,
     .target = &arg.colocated},
    {"folder", "DIR", "for rank_N_timing.csv, in the original's form (the "
     "current one)", WORD, .target = &arg.folder},
    {"tensors", "N", "of a dataset (4)", COUNT, &arg.tensors, 1, .high = 64},
    {"client-threads", "N", "of the consumer (1)", COUNT, &arg.threads, 1,
     .high = 4096},
    {"producers", "N", "ranks of the producer", COUNT, &arg.producers, 1,
     .high = 1e9},
    {"poll", "SECONDS", "between two polls of a list (0.005)", REAL,
     &arg.poll, 0, .high = 1e6},
    {"limit", "SECONDS", "for a server's answer and for the other side (60)",
     REAL, &arg.limit, 0.1, .high = 1e6},
    {"batch-size", "N", "images of one inference (1)", COUNT, &arg.batch, 1,
     .high = 1e9},
    {"device", "NAME", "CPU or GPU (CPU)", WORD, .target = &arg.device},
    {"num-devices", "N", "of them (1); several are CPU:0, CPU:1, ...", COUNT,
     &arg.devices, 1, .high = 1e9},
    {"model", "FILE", "blob that one rank stores where the model is missing",
     WORD, .target = &arg.model},
    {"script", "FILE", "source likewise", WORD, .target = &arg.script},
    {"side", "N", "pixels of an image's side (224)", COUNT, &arg.side, 1,
     .high = 1e5},
    {"classes", "N", "of a result (1000)", COUNT, &arg.classes, 1,
     .high = 1e9},
};
enum { ROWS = sizeof rows / sizeof *rows };
static bool given[ROWS];
static const struct settings settings = {rows, ROWS, given, "--", " "};

static _Noreturn void help(void)
{
    puts("usage: tensorload throughput|inference|producer|consumer --service "
         "FILE [OPTION]...\n  mpirun -np 4 tensorload throughput --service "
         "server.txt --bytes 65536 --plain\n");
    print_settings(&settings);
    exit(0);
}

#ifdef WITH_SMARTREDIS
static const struct client *const database = &smartredis;
#else
static const struct client *const database = &embedded;
#endif

static void read_options(int argc, char **argv)
{
    read_arguments(&settings, argc, argv);
    arg.bytes -= arg.bytes % sizeof(float);
    if (!arg.service)
        usage("the server is missing: set --service FILE");
    if (arg.plain && database != &embedded)
        usage("SmartRedis has no client for SET and GET: remove --plain");
}

int main(int argc, char **argv)
{
    double begin = now();
    static const struct {
        const char *mode;
        void (*run)(void);
    } modes[] = {{"throughput", throughput}, {"inference", inference},
                 {"producer", produce}, {"consumer", consume_lists}};
    size_t m = 0, count = sizeof modes / sizeof *modes;

    signal(SIGPIPE, SIG_IGN);
    if (argc > 1 && !strcmp(argv[1], "--help"))
        help();
    while (m < count && (argc < 2 || strcmp(argv[1], modes[m].mode)))
        m++;
    if (m == count)
        usage("the first word must be throughput, inference, producer or "
              "consumer: see --help");
    read_options(argc - 1, argv + 1);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    client = database;
    double opening = now();
    client->open();
    add_time("client()", now() - opening);
    MPI_Barrier(MPI_COMM_WORLD);
    modes[m].run();
    add_time("main()", now() - begin);
    write_csv();
    report(modes[m].mode);
    MPI_Finalize();
    return 0;
}
