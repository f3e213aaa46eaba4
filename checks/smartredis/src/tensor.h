/*
 * tensor.h - what the files of tensorload share: an MPI program that follows
 * the loops of SmartSim-Scaling's applications call by call.
 * docs/reference/families/smartredis.md describes what it measures.
 */
#ifndef TENSOR_H
#define TENSOR_H

#include "../../core/src/common/program.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The client of a database (database.c; smartredis.cpp if it is linked). Each
 * rank has its own connections. Every call returns when it is done, and ends the
 * program with one line if it fails. */
struct client {
    const char *name;
    void (*open)(void);
    /* A contiguous array of floats. */
    void (*put_tensor)(const char *key, const float *data,
                       const long long *dims, int dim_count);
    void (*unpack_tensor)(const char *key, float *data, size_t n);
    /* A dataset "name" of `count` tensors "tensor_0"..., n floats each. */
    void (*put_dataset)(const char *name, const float *data, size_t n,
                        int count);
    void (*append_to_list)(const char *list, const char *dataset);
    long (*list_length)(const char *list);
    /* All datasets of a list, read with so many threads. Tensor t of the
     * d-th dataset is read to data + (d * count + t) * n; who[d] is the rank
     * that made it. */
    void (*get_list)(const char *list, float *data, long *who,
                     size_t datasets, size_t n, int count, int threads);
    /* Copies what get_list read to `data` and `who`; NULL: get_list did. */
    void (*unpack_list)(const char *list, float *data, long *who, size_t n,
                        int count);
    void (*delete_list)(const char *list);
    /* Inference. */
    /* A model or a script; of a cluster: on each of its servers. */
    bool (*exists)(const char *key);
    void (*set_model)(const char *name, const char *device, int batch,
                      const char *blob, size_t size);
    void (*set_script)(const char *name, const char *device,
                       const char *source, size_t size);
    /* Tensors may be on any server of a cluster. */
    void (*run_script)(const char *name, const char *function,
                       const char *in, const char *out);
    void (*run_model)(const char *name, const char *in, const char *out);
    void (*delete_tensor)(const char *key);
};
extern const struct client embedded, smartredis;

/* The servers of arg.service. */
struct service *read_servers(void);

struct arguments {
    const char *service;      /* file that names the servers              */
    const char *folder;       /* of rank_N_timing.csv                     */
    const char *list_name;
    size_t bytes;             /* of a tensor                              */
    int iterations;
    bool plain;               /* SET and GET instead of AI.*              */
    bool colocated;           /* each node of ranks has a server         */
    int tensors;              /* of a dataset                             */
    int threads;              /* of the consumer                          */
    int producers;            /* ranks of the producer                    */
    double poll;              /* between two polls, seconds               */
    double limit;             /* for the other side, seconds              */
    int batch, devices;
    const char *device;
    const char *model, *script;   /* files; NULL: they are there already  */
    int side, classes;            /* of an image, of a result             */
};
extern struct arguments arg;
extern int rank, ranks;

/* --- rank.c: times of this rank, in the original's names ---------------- */
void add_time(const char *function, double seconds);
extern const struct client *client;
long producer_of(const char *dataset);
extern uint64_t verified;     /* values that were compared, of this rank   */

/* The value of element i of a tensor; `stamp` makes each write another. */
void fill(float *data, size_t n, unsigned stamp);
void check_values(const float *data, size_t n, unsigned stamp,
                  const char *key);

const char *key_of(char *out, size_t room, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void write_csv(void);         /* the times, in arg.folder                  */
void report(const char *mode);  /* what was done, by rank 0                */

/* Runs a function on each of `count` shares of `size` bytes at once, on the
 * first in this thread. */
void in_threads(int count, void *(*run)(void *), void *shares, size_t size);

void throughput(void);
void inference(void);
void produce(void);
void consume_lists(void);

#endif
