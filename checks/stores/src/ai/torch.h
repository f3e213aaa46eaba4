/* TorchScript, run by libtorch: only where the module is built with it
 * (build.sh, TORCH_PREFIX). */
#ifndef TORCH_H
#define TORCH_H
#include "tensor.h"

/* A model of torch.jit.save, or the functions of a script; never changed. */
struct program;

/* Inputs and outputs of one request; `out` has room for `outputs` tensors. */
struct call {
    struct tensor *const *in;
    struct tensor **out;
    int inputs, outputs;
};

#ifdef WITH_TORCH
/* NULL, and *error says why; the text is good until this thread's next call.
 */
struct program *torch_model(const char *blob, size_t size,
                            const char **error);
struct program *torch_script(const char *source, size_t size,
                             const char **error);
void torch_drop(struct program *program);
/* Runs the function of a script, or of a model `forward`. Several calls are
 * one run: their inputs follow each other along the first dimension. What is
 * wrong, as above, or NULL. Outputs that were made are there either way. */
const char *torch_run(const struct program *program, const char *function,
                      const struct call *calls, int count);
/* Threads that share the work of one operation of this thread; and those that
 * a program's own forks have in all (to be said before any program runs). */
void torch_threads(int intra);
void torch_start(int inter);
/* "1.13.0" */
const char *torch_version(void);
#endif

#endif
