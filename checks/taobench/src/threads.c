/* threads.c - threads with a name and, asked for, a CPU of their own. */
#define _GNU_SOURCE
#include "tao.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

/* The next CPU that this process may use, in turn. */
static void pin(pthread_attr_t *attributes)
{
    static cpu_set_t allowed;
    static int cpu = -1;
    cpu_set_t one;

    if (cpu < 0)
        sched_getaffinity(0, sizeof allowed, &allowed);
    do
        cpu = (cpu + 1) % CPU_SETSIZE;
    while (!CPU_ISSET(cpu, &allowed));
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_attr_setaffinity_np(attributes, sizeof one, &one);
}

void start_thread(void *(*run)(void *), void *argument, const char *name)
{
    pthread_attr_t attributes;
    pthread_t thread;

    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, MIB);
    if (opt.pin)
        pin(&attributes);
    int code = pthread_create(&thread, &attributes, run, argument);
    if (code)
        fail("thread %s: %s: fewer threads, or a higher limit (ulimit -u)",
             name, strerror(code));
    char shortened[16];                      /* the kernel takes no more     */
    snprintf(shortened, sizeof shortened, "%.15s", name);
    pthread_setname_np(thread, shortened);
    pthread_attr_destroy(&attributes);
}
