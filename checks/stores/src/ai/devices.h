/* Queues of work, one for each device that a model or script was stored for,
 * and the threads that do it. */
#ifndef DEVICES_H
#define DEVICES_H
#include "kernels.h"
#include "objects.h"

/* Said when the module is loaded. */
struct settings {
    long long threads_per_queue, intra_op, inter_op, chunk, gpus;
};
extern struct settings settings;

struct job {
    struct job *next;
    Blocked *client;
    struct object *object;
    /* Of a script: what it runs; a function of its program by name. */
    const struct kernel *kernel;
    String *function;
    size_t images;                      /* of a model: its batch */
    long long queued, deadline;         /* us; 0: none */
    int timed_out, inputs, outputs;     /* or nobody waits any more */
    const char *error;
    char words[300];                    /* of an error that is no constant */
    String **names;                     /* of the outputs */
    struct tensor **in, **out;
};

struct device;

/* "CPU", "CPU:2", "GPU:0", made if new.  NULL, and *error says why. */
struct device *device_named(const String *name, const char **error);
const char *device_name(const struct device *device);
void device_add(struct device *device, struct job *job);
/* A client left: its job, if it still waits, is dropped. */
void devices_forget(const Blocked *client);
void devices_info(Info *info);

#endif
