/* What functions of scripts compute. */
#ifndef KERNELS_H
#define KERNELS_H
#include "tensor.h"

struct kernel {
    const char *name;
    /* How many it takes and makes; -1: as many as it is given. */
    int inputs, outputs;
    /* NULL, or what is wrong.  Outputs that it made are there either way. */
    const char *(*run)(struct tensor *const *in, int inputs,
                       struct tensor **out);
};

/* A kernel by name, or NULL. */
const struct kernel *kernel_named(const char *name, size_t size);
extern const char kernel_names[];

#endif
