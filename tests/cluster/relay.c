/* Passes every frame between two interfaces, late by so many nanoseconds.
 *
 *   relay INTERFACE INTERFACE NANOSECONDS
 *
 * For kernels without sch_netem. Frames come with their virtio header, so
 * that what the kernel left for later (checksums, segmentation) stays left.
 * Ends when one of the interfaces is gone.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 4096, LARGEST = 1 << 17 };

struct frame { long long due; ssize_t size; char *bytes; };

/* One direction: what came in at `from` waits here to leave at `to`. */
struct way { int from, to; unsigned head, tail; struct frame slot[SLOTS]; };

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int attach(const char *interface)
{
    struct sockaddr_ll where = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL),
        .sll_ifindex = (int)if_nametoindex(interface)};
    int one = 1, room = 1 << 23;
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0);

    if (!where.sll_ifindex)
        fail(interface);
    if (fd < 0
        || setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one)
        || setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one,
                      sizeof one)
        || bind(fd, (struct sockaddr *)&where, sizeof where))
        fail("AF_PACKET");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
    return fd;
}

static void take(struct way *way, long long delay)
{
    static char buffer[LARGEST];
    ssize_t size;

    while ((size = recv(way->from, buffer, sizeof buffer, 0)) > 0) {
        struct frame *frame = &way->slot[way->head % SLOTS];
        if (way->head - way->tail == SLOTS || !(frame->bytes = malloc(size)))
            continue;                       /* a full queue drops, as any */
        memcpy(frame->bytes, buffer, size);
        frame->size = size;
        frame->due = now() + delay;
        way->head++;
    }
}

/* Sends what is due; returns when the next is, or 0. */
static long long give(struct way *way)
{
    while (way->tail != way->head) {
        struct frame *frame = &way->slot[way->tail % SLOTS];
        if (frame->due > now())
            return frame->due;
        if (send(way->to, frame->bytes, frame->size, 0) < 0)
            ;                               /* lost, as on a cable */
        free(frame->bytes);
        way->tail++;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct way ways[2];
    long long delay = argc == 4 ? atoll(argv[3]) : 0;

    if (delay <= 0) {
        fprintf(stderr, "usage: relay INTERFACE INTERFACE NANOSECONDS\n");
        return 2;
    }
    ways[0].from = ways[1].to = attach(argv[1]);
    ways[0].to = ways[1].from = attach(argv[2]);
    prctl(PR_SET_TIMERSLACK, 1UL);
    while (if_nametoindex(argv[1]) && if_nametoindex(argv[2])) {
        struct pollfd in[2] = {{.fd = ways[0].from, .events = POLLIN},
                               {.fd = ways[1].from, .events = POLLIN}};
        long long next = now() + 1000000000LL, due, left;
        for (int i = 0; i < 2; i++)
            if ((due = give(&ways[i])) && due < next)
                next = due;
        left = next - now();
        if (left < 0)
            left = 0;
        struct timespec wait = {left / 1000000000LL, left % 1000000000LL};
        if (ppoll(in, 2, &wait, NULL) > 0)
            for (int i = 0; i < 2; i++)
                if (in[i].revents)
                    take(&ways[i], delay);
    }
    return 0;
}
