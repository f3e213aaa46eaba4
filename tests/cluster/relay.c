/* Passes every frame between two interfaces, late by so many nanoseconds, and
 * loses some of them.
 *
 *   relay INTERFACE INTERFACE NANOSECONDS [LOST_OF_A_MILLION SEED]
 *
 * For kernels without sch_netem. Frames come with their virtio header, so
 * that what the kernel left for later (checksums, segmentation) stays left: a
 * frame of a stream may be many packets, and all of it is lost. Which frames
 * of a direction are lost depends on the seed and their number alone.
 * Ends when one of the interfaces is gone.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 4096, LARGEST = 1 << 17, MILLION = 1000000 };

struct frame { long long due; ssize_t size; char *bytes; };

/* One direction: what came in at `from` waits here to leave at `to`. */
struct way {
    int from, to;
    unsigned head, tail;
    uint64_t chance;                        /* state of the generator */
    struct frame slot[SLOTS];
};

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

/* Whether the next frame of this direction is lost: xorshift64* (Vigna, ACM
 * Trans. Math. Softw. 42, 2016), its upper half as a fraction. */
static int is_lost(struct way *way, uint64_t of_a_million)
{
    way->chance ^= way->chance >> 12;
    way->chance ^= way->chance << 25;
    way->chance ^= way->chance >> 27;
    return (way->chance * 2685821657736338717ULL >> 32) * MILLION >> 32
        < of_a_million;
}

static void take(struct way *way, long long delay, uint64_t of_a_million)
{
    static char buffer[LARGEST];
    ssize_t size;

    while ((size = recv(way->from, buffer, sizeof buffer, 0)) > 0) {
        struct frame *frame = &way->slot[way->head % SLOTS];
        if (is_lost(way, of_a_million))
            continue;
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
    long long delay = argc > 3 ? atoll(argv[3]) : 0;
    long long lost = argc == 6 ? atoll(argv[4]) : 0;

    if ((argc != 4 && argc != 6) || delay < 0 || lost < 0 || lost > MILLION
        || (!delay && !lost)) {
        fprintf(stderr, "usage: relay INTERFACE INTERFACE NANOSECONDS "
                "[LOST_OF_A_MILLION SEED]\n");
        return 2;
    }
    for (int i = 0; i < 2; i++) {
        /* Never 0, from which it would not come away; well mixed. */
        ways[i].chance = ((argc == 6 ? strtoull(argv[5], NULL, 10) : 0) * 2
                          + i + 1) * 0x9e3779b97f4a7c15ULL;
        for (int k = 0; k < 8; k++)
            is_lost(&ways[i], 0);
    }
    unsigned first = if_nametoindex(argv[1]), second = if_nametoindex(argv[2]);
    ways[0].from = ways[1].to = attach(argv[1]);
    ways[0].to = ways[1].from = attach(argv[2]);
    prctl(PR_SET_TIMERSLACK, 1UL);
    /* Not those that came after them under the same names. */
    while (first && if_nametoindex(argv[1]) == first
           && second && if_nametoindex(argv[2]) == second) {
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
                    take(&ways[i], delay, (uint64_t)lost);
    }
    return 0;
}
