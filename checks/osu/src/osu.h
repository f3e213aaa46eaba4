/*
 * osu.h - what the files of the embedded OSU-style micro-benchmarks share.
 *
 * The programs measure the way the OSU Micro-Benchmarks 7.2 do, so that a
 * figure from one can be compared with a figure from the other, but this is
 * a separate implementation: no code was taken over.
 */
#ifndef OSU_H
#define OSU_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>

#define OSU_VERSION "v7.2-embedded.1"

/* Above this many bytes the (smaller) "large" iteration counts apply. */
#define LARGE_ABOVE 8192

/* Untimed transfers before each one that -c checks. */
enum { CHECK_WARMUP = 5 };

enum ranks { RANKS_ANY, RANKS_TWO, RANKS_EVEN, RANKS_MANY };
enum wintype { WIN_CREATE, WIN_ALLOCATE, WIN_DYNAMIC };
enum sync {
    SYNC_LOCK, SYNC_FLUSH, SYNC_FLUSH_LOCAL, SYNC_LOCK_ALL, SYNC_PSCW,
    SYNC_FENCE
};

/* A word of an option, and the MPI calls that it selects. */
struct word { const char *option, *call; };
extern const struct word windows[], synchronisations[];

struct bench {
    const char *name;        /* without "osu_"                           */
    const char *title;       /* as the real program prints it            */
    const char *options;     /* for getopt                               */
    enum ranks ranks;
    size_t max_size;
    int iters, skip, iters_large, skip_large;
    enum wintype win;
    enum sync sync;
    bool active_only;        /* -s only pscw and fence                   */
    int threads;             /* default of the sending side's -t         */
    int (*run)(void);        /* returns the exit status                  */
    int thread_level;
    bool owns_init;          /* calls MPI_Init itself                    */
};

struct options {
    size_t min_size, max_size;
    int iters, skip, iters_large, skip_large;
    int window, senders, receivers;
    bool check;
    enum wintype win;
    enum sync sync;
};

/* What was asked for; main.c says it once. */
extern const struct bench *bench;
extern struct options opt;
extern int my_rank, num_ranks;

/* Iterations of one size: timed ones, and untimed ones before them. */
struct counts { int timed, skip, total; };
struct counts counts_for(size_t size);

/* --- util.c ------------------------------------------------------------ */
_Noreturn void die(const char *format, ...)
    __attribute__((format(printf, 1, 2)));
void *page_alloc(size_t bytes);          /* page-aligned; never NULL       */
void print_title(void);                  /* the "# OSU MPI ... Test" line  */
void end_header(void);                   /* with the column Validation     */
void end_row(long errors);
void print_value_header(const char *value);
void print_row(size_t size, double value, int width, long errors);
void fill_pattern(unsigned char *buf, size_t n, unsigned seed);
long count_wrong(const unsigned char *buf, size_t n, unsigned seed);
long sum_errors(long mine);              /* over all ranks                 */
int validation_failed(size_t size);      /* prints the line, returns 1     */

/* For fault-injection tests of -c: `-DOSU_EMBEDDED_FAULT` flips a byte. */
#ifdef OSU_EMBEDDED_FAULT
#define INJECT_FAULT(buf) (*(unsigned char *)(buf) ^= 0x55)
#else
#define INJECT_FAULT(buf) ((void)(buf))
#endif

#define FIELD 18             /* width of every column but the first       */

/* --- the benchmarks ---------------------------------------------------- */
int run_latency(void), run_bw(void), run_bibw(void), run_latency_mt(void);
int run_latency_mp(void), run_multi_lat(void), run_mbw_mr(void);
int run_put_latency(void), run_get_latency(void), run_acc_latency(void);
int run_get_acc_latency(void), run_fop_latency(void), run_cas_latency(void);
int run_put_bw(void), run_get_bw(void), run_put_bibw(void);
int run_allgather(void), run_allreduce(void);
int run_barrier(void), run_ibarrier(void);
int run_hello(void), run_init(void);

#endif
