/* main.c - options, and the order of a run of tensorload. */
#define _GNU_SOURCE
#include "tensor.h"

#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- options -------------------------------------------------------------- */
static const struct { const char *name, *means; } options[] = {
    {"service FILE", "lines 'server HOST PORT', 'password WORD', 'cluster', "
     "'tls', 'ca FILE'"},
    {"bytes N", "of a tensor of floats (1024)"},
    {"iterations N", "of the loop (100)"},
    {"plain", "SET and GET instead of AI.TENSORSET and AI.TENSORGET: for a "
     "server without the module"},
    {"colocated", "of the servers, the one on this node alone"},
    {"folder DIR", "for rank_N_timing.csv, in the original's form (none)"},
    {"files DIR", "datasets and lists as files in this folder, which all "
     "nodes see, instead of a server"},
    {"tensors N", "of a dataset (4)"},
    {"client-threads N", "of the consumer (1)"},
    {"producers N", "ranks of the producer"},
    {"poll SECONDS", "between two polls of a list (0.005)"},
    {"limit SECONDS", "for a server's answer and for the other side (60)"},
    {"batch-size N", "images of one inference (1)"},
    {"device NAME", "CPU or GPU (CPU)"},
    {"num-devices N", "of them (1); several are CPU:0, CPU:1, ..."},
    {"model FILE", "blob that rank 0 stores where the model is missing"},
    {"script FILE", "source likewise"},
    {"side N", "pixels of an image's side (224)"},
    {"classes N", "of a result (1000)"},
};

static _Noreturn void usage(FILE *to, int code)
{
    fprintf(to, "usage: tensorload throughput|inference|producer|consumer "
            "--service FILE [OPTION]...\n  mpirun -np 4 tensorload "
            "throughput --service server.txt --bytes 65536 --plain\n");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        fprintf(to, "  --%-22s %s\n", options[i].name, options[i].means);
    exit(code);
}

static double number(const char *name, const char *text, double least)
{
    char *end;
    double value = strtod(text, &end);

    if (*end || end == text || !(value >= least) || value > 1e12)
        die("%s %s: expected a number from %g on", name, text, least);
    return value;
}

static void read_arguments(int argc, char **argv)
{
    for (int i = 2; i < argc; i++) {
        const char *name = argv[i], *text = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(name, "--plain")) {
            arg.plain = true;
            continue;
        }
        if (!strcmp(name, "--colocated")) {
            arg.colocated = true;
            continue;
        }
        i++;
        if (!strcmp(name, "--service"))
            arg.service = text;
        else if (!strcmp(name, "--folder"))
            arg.folder = text;
        else if (!strcmp(name, "--files"))
            arg.files = text;
        else if (!strcmp(name, "--device"))
            arg.device = text;
        else if (!strcmp(name, "--model"))
            arg.model = text;
        else if (!strcmp(name, "--script"))
            arg.script = text;
        else if (!strcmp(name, "--side"))
            arg.side = (int)number(name, text, 1);
        else if (!strcmp(name, "--classes"))
            arg.classes = (int)number(name, text, 1);
        else if (!strcmp(name, "--bytes"))
            arg.bytes = (size_t)number(name, text, 4) / 4 * 4;
        else if (!strcmp(name, "--iterations"))
            arg.iterations = (int)number(name, text, 1);
        else if (!strcmp(name, "--tensors"))
            arg.tensors = (int)number(name, text, 1);
        else if (!strcmp(name, "--client-threads"))
            arg.threads = (int)number(name, text, 1);
        else if (!strcmp(name, "--producers"))
            arg.producers = (int)number(name, text, 1);
        else if (!strcmp(name, "--batch-size"))
            arg.batch = (int)number(name, text, 1);
        else if (!strcmp(name, "--num-devices"))
            arg.devices = (int)number(name, text, 1);
        else if (!strcmp(name, "--poll"))
            arg.poll = number(name, text, 0);
        else if (!strcmp(name, "--limit"))
            arg.limit = number(name, text, 0.1);
        else
            die("unknown option %s: see tensorload --help", name);
    }
    if (!arg.service && !arg.files)
        die("no server: give --service FILE (or --files DIR)");
    if (arg.tensors > 64)
        die("--tensors %d: 64 at the most", arg.tensors);
}

int main(int argc, char **argv)
{
    double begin = now();
    static const struct {
        const char *mode;
        void (*run)(void);
        bool lists;
    } modes[] = {
        {"throughput", throughput, false}, {"inference", inference, false},
        {"producer", produce, true}, {"consumer", consume_lists, true}};
    size_t m = 0, count = sizeof modes / sizeof *modes;

    signal(SIGPIPE, SIG_IGN);
    if (argc < 2 || !strcmp(argv[1], "--help"))
        usage(argc < 2 ? stderr : stdout, argc < 2);
    while (m < count && strcmp(argv[1], modes[m].mode))
        m++;
    if (m == count)
        usage(stderr, 2);
    read_arguments(argc, argv);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    client = arg.files ? &files : &embedded;
    if (modes[m].lists ? !client->get_list : !client->put_tensor)
        die("the client '%s' cannot do %s", client->name, modes[m].mode);
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
