/* Another time of day for the programs of one host:
 *
 *   LD_PRELOAD=clock.so BOX_CLOCK=n2:120 PROGRAM
 *
 * No kernel gives a namespace a CLOCK_REALTIME of its own (time namespaces
 * have the monotonic and the boot-time clock), and the nodes of a box share a
 * kernel. So it is the C library's answer that is wrong, by so many seconds:
 * for what is linked dynamically and started with these variables. The
 * kernel's own stamps (files, deadlines of waits) stay right.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Seconds that the clock of this host is ahead. */
static long ahead(void)
{
    static int known;
    static long seconds;

    if (!known) {
        char host[256] = "";
        const char *said = getenv("BOX_CLOCK");
        const char *colon = said ? strchr(said, ':') : NULL;
        gethostname(host, sizeof host - 1);
        if (colon && strlen(host) == (size_t)(colon - said)
            && !memcmp(host, said, colon - said))
            seconds = atol(colon + 1);
        known = 1;
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    int code = (int)syscall(SYS_clock_gettime, clock, t);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        t->tv_sec += ahead();
    return code;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *t)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (t)
        *t = now.tv_sec;
    return now.tv_sec;
}
