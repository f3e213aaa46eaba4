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

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static uint8_t *taken;                  /* one chunk                        */
static uint64_t each;                   /* chunks of a block                */

/* Chunk k that passes a link: where it lies, and its size. */
static uint64_t place(const struct way *w, bool out, uint64_t k,
                      uint64_t *bytes)
{
    uint64_t n = o.nrank, size = size_of(o.type), all = w->bytes / size;
    uint64_t block = (o.rank + 2 * n - k / each - !out) % n;
    uint64_t first = all * block / n, last = all * (block + 1) / n;
    uint64_t at = first + k % each * o.count;
    at = at < last ? at : last;
    *bytes = (last - at < o.count ? last - at : o.count) * size;
    return at * size;
}

/* Whether what comes in chunk k is to be added. */
static bool adds(uint64_t k)
{
    return k < each * (o.nrank - 1);
}

/* The first block that is sent is this rank's own; then what was taken. */
static void begin(struct way *w)
{
    uint64_t all = w->bytes / size_of(o.type);
    each = ((all + o.nrank - 1) / o.nrank + o.count - 1) / o.count;
    w->messages = each * 2 * (o.nrank - 1);
    w->window = each;
}

static struct message message(struct way *w, uint64_t k, bool out)
{
    struct message m = {out ? &w->links->out : &w->links->in, NULL, 0};
    uint64_t at = place(w, out, k, &m.bytes);
    m.data = !out && adds(k) ? taken : (out && k < each ? w->from : w->to) + at;
    return m;
}

static void add(struct way *w, uint64_t k)
{
    uint64_t bytes, at = place(w, false, k, &bytes);
    const void *both[] = {taken, w->from + at};
    if (adds(k))
        reduce(o.type, w->to + at, both, 2, bytes / size_of(o.type));
}

/* The neighbour that comes before; others are dropped. */
static int accept_before(int listener, uint32_t rank)
{
    double until = now() + o.timeout;
    while (now() < until) {
        struct pollfd polled = {listener, POLLIN, 0};
        struct join join;
        const char *why;
        if (poll(&polled, 1, 1000) <= 0)
            continue;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0 && accept_peer(fd, &join, &why) && join.rank == rank)
            return fd;
        if (fd >= 0)
            close(fd);
    }
    fail("rank %u: its neighbour, rank %u, did not connect within %u s",
         o.rank, rank, o.timeout);
}

static int join_next(const char *where, const struct end *next)
{
    int fd = connect_to(where);
    join_server(fd, next->peer, where);
    return fd;
}

void ring_way(struct way *w)
{
    uint32_t before = (o.rank + o.nrank - 1) % o.nrank;
    char here[ADDRESS], where[ADDRESS];
    *w = (struct way){.count = 1, .begin = begin, .message = message,
                      .add = add};
    w->links = get(sizeof *w->links);
    struct end *in = &w->links->in, *out = &w->links->out;
    snprintf(out->peer, sizeof out->peer, "rank %u: its neighbour, rank %u,",
             o.rank, (o.rank + 1) % o.nrank);
    snprintf(in->peer, sizeof in->peer, "rank %u: its neighbour, rank %u,",
             o.rank, before);
    taken = get(o.count * size_of(o.type));
    /* The server only says who comes next. */
    const char *meeting = o.service.servers[0].name;
    int server = connect_to(meeting);
    name_of(server, false, here);
    *strchr(here, ':') = 0;
    int listener = listen_at(here, "0", 0);
    name_of(listener, false, here);
    join_server(server, meeting, here);
    if (!read_whole(server, where, sizeof where) || where[ADDRESS - 1])
        fail("rank %u: %s did not send the address of the next rank: were all "
             "%u ranks started?", o.rank, meeting, o.nrank);
    close(server);
    /* The connection to the next is accepted by the kernel at once, so that
     * no rank waits for another that waits too; the handshake needs both. */
    if (o.rank == 0)
        out->fd = join_next(where, out);
    in->fd = accept_before(listener, before);
    if (o.rank > 0)
        out->fd = join_next(where, out);
    close(listener);
    send_at_once(in->fd);
}
