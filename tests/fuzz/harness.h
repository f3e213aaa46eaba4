/* harness.h - the load generator's own sources under a fuzzer: exit() ends one input,
 * not the program, and there is no network. */
#ifndef HARNESS_H
#define HARNESS_H

#include "../../checks/loadgen/src/load.h"

#include <setjmp.h>
#include <stdint.h>

/* True: it returned; false: it exited, and `said` has its one line. */
bool survives(void (*reader)(void *), void *argument);
extern char *said;
/* Input comes from the network: messages must be safe for a terminal. */
extern bool untrusted;
/* Memory and files to free after an input that ended early. */
void *tracked(void *p);
FILE *tracked_file(FILE *file);
void free_tracked(void);
/* A file with this in it; its path. */
const char *path_of(const uint8_t *data, size_t size);
_Noreturn void wrong(const char *what);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);
#endif
