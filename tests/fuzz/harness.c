/* harness.c - see harness.h; build.sh has the linker put these __wrap_ in
 * the place of what they are named after. */
#define _GNU_SOURCE
#include "harness.h"

#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static jmp_buf refusal;
static bool inside;
static size_t said_size;
char *said;
bool untrusted = true;
static void *blocks[1 << 16];
static FILE *file;
static unsigned block_count;

void *tracked(void *p)
{
    if (block_count == sizeof blocks / sizeof *blocks)
        wrong("the harness tracks too few blocks");
    return blocks[block_count++] = p;
}

void free_tracked(void)
{
    while (block_count)
        free(blocks[--block_count]);
}

FILE *tracked_file(FILE *opened) { return file = opened; }

_Noreturn void wrong(const char *what)
{
    dprintf(2, "FUZZ: %s: %s\n", what, said ? said : "");
    abort();
}

/* A message must be one line, without control characters where it may contain
 * text from the network. */
static void check_message(void)
{
    size_t n;

    fflush(stderr);
    n = said_size;
    said[n] = '\0';
    if (n < 2 || said[n - 1] != '\n')
        wrong("refused without a line");
    for (size_t i = 0; i + 1 < n; i++)
        if (said[i] == '\n' || (untrusted && (said[i] < ' ' || said[i] > '~')))
            wrong("a line with a control character");
}

bool survives(void (*reader)(void *), void *argument)
{
    bool ended;

    rewind(stderr);
    block_count = 0;
    file = NULL;
    inside = true;
    ended = !setjmp(refusal);
    if (ended)
        reader(argument);
    inside = false;
    if (!ended) {
        check_message();
        free_tracked();
        if (file)
            fclose(file);
    }
    return ended;
}

const char *path_of(const uint8_t *data, size_t size)
{
    static char path[64];
    static int fd = -1;

    if (fd < 0) {
        fd = memfd_create("input", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (ftruncate(fd, 0) || pwrite(fd, data, size, 0) != (ssize_t)size)
        wrong("no file");
    return path;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    stderr = open_memstream(&said, &said_size);
    return 0;
}

/* --- replacements for exit() and the resolver ---------------------------- */
_Noreturn void __real__exit(int code);

_Noreturn void __wrap__exit(int code)
{
    if (!inside)
        __real__exit(code);
    if (code < 1 || code > 2)
        wrong("an end that is none");
    longjmp(refusal, 1);
}

_Noreturn void __real_exit(int code);

_Noreturn void __wrap_exit(int code)
{
    if (inside)
        __wrap__exit(code);
    __real_exit(code);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *lock)
{
    (void)lock;                             /* fail() never unlocks it     */
    return 0;
}

int __wrap_getaddrinfo(const char *host, const char *port,
                       const struct addrinfo *hints, struct addrinfo **found)
{
    static struct sockaddr_in address = {.sin_family = AF_INET};
    static struct addrinfo one = {.ai_addr = (struct sockaddr *)&address,
                                  .ai_addrlen = sizeof address};

    (void)hints, (void)port;
    *found = &one;
    return *host == 'x' ? EAI_NONAME : 0;
}

void __wrap_freeaddrinfo(struct addrinfo *found) { (void)found; }
