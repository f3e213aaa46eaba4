/* ring.c - ring all-reduce over the same transport: what reduction servers
 * have to beat.
 *
 * The data are cut into a block a rank. In 2(n - 1) steps each rank sends a
 * block to the next one and takes one from the one before: in the first n - 1
 * it adds its own numbers to what it takes, then it only passes sums on. A
 * block goes in chunks: one is sent as soon as it has been taken and added,
 * while the rest of its block is still on its way. */
#define _GNU_SOURCE
#include "optcast.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct ring {
    const struct options *o;
    struct flow next, before;
    uint8_t *taken;                     /* one chunk                        */
    /* The all-reduce under way. */
    const uint8_t *in;
    uint8_t *out;
    uint64_t count, chunk, each;        /* elements; chunks of a block      */
};

/* Chunk k of all that pass a link: its block, and where it lies. */
static void place(const struct ring *r, uint64_t k, bool sends,
                  uint64_t *from, uint64_t *size)
{
    uint64_t n = r->o->nrank, step = k / r->each, part = k % r->each;
    uint64_t block = (r->o->rank + 2 * n - step - !sends) % n;
    uint64_t first = r->count * block / n, last = r->count * (block + 1) / n;
    uint64_t at = first + part * r->chunk;
    *from = at < last ? at : last;
    *size = last - *from < r->chunk ? last - *from : r->chunk;
}

static void gone(const struct ring *r, bool next, ssize_t n)
{
    uint32_t of = (r->o->rank + (next ? 1 : r->o->nrank - 1)) % r->o->nrank;
    fail("rank %u: its neighbour, rank %u, %s: see the message of that rank",
         r->o->rank, of, failure_of(n));
}

static void all_reduce(void *self, const void *in, void *out, uint64_t bytes,
                       bool traced)
{
    struct ring *r = self;
    size_t size = size_of(r->o->type);
    uint64_t n = r->o->nrank, at, elements;
    r->in = in;
    r->out = out;
    r->count = bytes / size;
    r->chunk = r->o->count;
    r->each = ((r->count + n - 1) / n + r->chunk - 1) / r->chunk;
    uint64_t all = r->each * 2 * (n - 1), adds = r->each * (n - 1);
    uint64_t sent = 0, taken = 0, begun = 0;
    while (taken < all || sent < all) {
        bool moved = false;
        /* The first block is this rank's own; then what was taken. */
        while (sent < all && (sent < r->each || sent - r->each < taken)) {
            place(r, sent, true, &at, &elements);
            if (!r->next.done) {
                r->next.head = (struct header){DATA, sent, elements * size};
                /* It may have to wait, and begins once. */
                if (traced && begun == sent)
                    trace_rust("TRACE", "ring", "send  : idx: 0, j: 0 start");
                begun = sent + 1;
            }
            ssize_t w = send_message(&r->next, (sent < r->each ? r->in : r->out)
                                     + at * size, MSG_DONTWAIT);
            if (w == LINK_AGAIN)
                break;
            if (w <= 0)
                gone(r, true, w);
            moved = true;
            if (!has_passed(&r->next))
                continue;
            sent++;
            if (traced)
                trace_rust("TRACE", "ring", "send  : idx: 0, j: 0 done");
        }
        while (taken < all) {
            place(r, taken, false, &at, &elements);
            struct header due = {DATA, taken, elements * size};
            uint8_t *own = r->out + at * size;
            bool begins = !r->before.done;
            ssize_t w = take_message(&r->before,
                                     taken < adds ? r->taken : own, &due);
            if (w == LINK_AGAIN)
                break;
            if (w <= 0)
                gone(r, false, w);
            moved = true;
            if (begins && traced)
                trace_rust("TRACE", "ring", "recv : idx: 0, j: 0 start");
            if (!has_passed(&r->before))
                continue;
            if (traced)
                trace_rust("TRACE", "ring", "recv : idx: 0, j: 0 done");
            if (taken < adds) {
                const void *both[] = {r->taken, r->in + at * size};
                if (traced)
                    trace_rust("TRACE", "ring", "reduce: task_id: 0, idx: 0, "
                               "i: 0, start");
                reduce(r->o->type, own, both, 2, elements);
                if (traced)
                    trace_rust("TRACE", "ring", "reduce: task_id: 0, idx: 0, "
                               "i: 0, done, count: %llu",
                               (unsigned long long)taken + 1);
            }
            taken++;
            break;                      /* what was taken can be sent on    */
        }
        if (moved)
            continue;
        if (taken < all) {
            /* A rank sends a chunk in one go, header first. */
            place(r, taken, false, &at, &elements);
            wait_for_message(&r->before, elements * size);
        }
        struct pollfd polled[2] = {
            {r->before.fd, taken < all ? POLLIN : 0, 0},
            {r->next.fd, sent < all && (sent < r->each
                                     || sent - r->each < taken)
             ? POLLOUT : 0, 0}};
        if (poll(polled, 2, r->o->timeout * 1000) == 0)
            fail("rank %u: its neighbour, rank %u, sent nothing for %u s: "
                 "it hangs, or its link is down", r->o->rank,
                 (uint32_t)((r->o->rank + n - 1) % n), r->o->timeout);
        if (polled[1].revents & (POLLERR | POLLHUP))
            gone(r, true, 0);
    }
}

/* An all-reduce of one element per rank. */
static void barrier(void *self)
{
    static uint32_t in[MAX_RANKS], out[MAX_RANKS];
    struct ring *r = self;
    all_reduce(r, in, out, r->o->nrank * size_of(r->o->type), false);
}

static void end(void *self)
{
    struct ring *r = self;
    close(r->next.fd);
    close(r->before.fd);
}

/* The neighbour that comes before; others are dropped. */
static int accept_before(const struct options *o, int listener)
{
    double until = now() + o->timeout;
    uint32_t due = (o->rank + o->nrank - 1) % o->nrank;
    while (now() < until) {
        struct pollfd polled = {listener, POLLIN, 0};
        struct join join;
        char why[216];
        if (poll(&polled, 1, 1000) <= 0)
            continue;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0 && accept_peer(fd, o, &join, why, sizeof why)
                && join.rank == due)
            return fd;
        if (fd >= 0)
            close(fd);
    }
    fail("rank %u: its neighbour, rank %u, did not connect within %u "
         "s", o->rank, due,
         o->timeout);
}

void *ring_way(const struct options *o, struct way *way)
{
    struct ring *r = get(sizeof *r);
    struct neighbour next;
    struct sockaddr_in own;
    socklen_t length = sizeof own;
    char here[INET_ADDRSTRLEN], where[64], name[96];
    r->o = o;
    r->taken = get(o->count * size_of(o->type));
    /* The server only says who comes next. */
    const char *meeting = o->service.servers[0].name;
    int server = connect_to(meeting, o->timeout);
    getsockname(server, (void *)&own, &length);
    inet_ntop(AF_INET, &own.sin_addr, here, sizeof here);
    int listener = listen_at(here, "0", 0);
    length = sizeof own;
    getsockname(listener, (void *)&own, &length);
    join_server(server, o, meeting, own.sin_addr.s_addr,
                ntohs(own.sin_port));
    if (!read_whole(server, &next, sizeof next) || next.magic != MAGIC)
        fail("rank %u: %s did not send the address of the next rank: were all "
             "%u ranks started?", o->rank, meeting, o->nrank);
    close(server);
    inet_ntop(AF_INET, &(struct in_addr){next.address}, here, sizeof here);
    snprintf(where, sizeof where, "%s:%u", here, next.port);
    snprintf(name, sizeof name, "%s (rank %u)", where,
             (o->rank + 1) % o->nrank);
    /* The connection to the next is accepted by the kernel at once, so that
     * no rank waits for another that waits too; the handshake needs both. */
    if (o->rank == 0) {
        r->next.fd = connect_to(where, o->timeout);
        join_server(r->next.fd, o, name, 0, 0);
        r->before.fd = accept_before(o, listener);
    } else {
        r->before.fd = accept_before(o, listener);
        r->next.fd = connect_to(where, o->timeout);
        join_server(r->next.fd, o, name, 0, 0);
    }
    close(listener);
    send_at_once(r->before.fd);
    *way = (struct way){all_reduce, barrier, end};
    return r;
}
