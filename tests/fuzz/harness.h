/* harness.h - the real sources of plumbload under a fuzzer: what would end
 * the program ends one input, and there is no network. */
#ifndef HARNESS_H
#define HARNESS_H

#include "../../checks/load/src/load.h"

#include <setjmp.h>
#include <stdint.h>

/* True: it came to its end; false: refused, and `said` has its one line. */
bool survives(void (*reader)(void *), void *argument);
extern char *said;
/* What is read comes over the net, not from the user's own files. */
extern bool untrusted;
/* Memory and files of an input that was refused in the midst of things. */
void *tracked(void *p);
FILE *tracked_file(FILE *file);
void free_tracked(void);
/* A file with this in it; its path. */
const char *path_of(const uint8_t *data, size_t size);
_Noreturn void wrong(const char *what);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);
#endif
