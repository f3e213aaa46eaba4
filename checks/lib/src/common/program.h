/*
 * program.h - messages, the end of a program, time, and the limit on open
 * files, for all C programs of the suite.
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#define SECOND UINT64_C(1000000000)     /* ns */

/* Begins every message. Each program defines it. */
extern const char program_name[];
/* Called before fail() prints its message; NULL: nothing is called. */
extern void (*before_failure)(void);

/* Both print one line on stderr. fail() exits with 1, and only the first
 * thread that fails prints; usage() exits with 2. */
_Noreturn void fail(const char *format, ...)
    __attribute__((format(printf, 1, 2)));
_Noreturn void usage(const char *format, ...)
    __attribute__((format(printf, 1, 2)));
/* The text without control characters and at most 160 bytes of it, for a
 * terminal. It stays valid until the next call in the same thread. */
const char *printable(const char *text);

/* CLOCK_MONOTONIC in ns and in seconds. */
uint64_t clock_ns(void);
double now(void);

/* Raises the limit on open files for that many connections and `others`. */
void raise_open_files(unsigned connections, unsigned others);

#endif
