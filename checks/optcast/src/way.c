/* way.c - all-reduce through reduction servers, as seen by a client: one
 * thread, all servers at once.
 *
 * The data are cut into chunks, each into nsplit parts; part p goes to server
 * p % servers, and its sum comes back from there. At most nreq chunks are
 * under way: with more of them clients run ahead of each other, and servers
 * wait. The servers have a part each in turn: one that had all of its parts at
 * once would wait for those that other clients send elsewhere meanwhile.
 *
 * chunksize is the most. A small all-reduce is cut into smaller parts, for
 * the first sum comes down when the first parts of all clients are up, and the
 * last one when nothing goes up any more: 1 / OVERLAP of the time each. */
#define _GNU_SOURCE
#include "optcast.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* So many parts go to each server, and none is smaller than LEAST bytes, below
 * which a message costs more than its bytes. */
enum { OVERLAP = 32, LEAST = 8 << 10 };

struct channel {                        /* to one server                    */
    const char *name;
    uint32_t sent, got;                 /* messages, ever                   */
    uint64_t next_out, next_in;         /* parts of this all-reduce         */
    struct flow out, in;
};

struct way_state {
    const struct options *o;
    struct channel *links;
    struct slot {
        uint64_t chunk;
        uint32_t parts, begun, sent, got;
        bool busy;
    } *slots;
    /* The all-reduce under way. */
    const uint8_t *from;
    uint8_t *to;
    uint64_t bytes, part, parts, chunks, started, done;
    uint32_t magic;
    bool traced;
};

static size_t bytes_of(const struct way_state *w, uint64_t part)
{
    uint64_t at = part * w->part;
    return w->bytes - at < w->part ? w->bytes - at : w->part;
}

static struct slot *slot_of(struct way_state *w, uint64_t part)
{
    return w->slots + part / w->o->nsplit % w->o->nreq;
}

#define TRACE(line, what) \
    if (w->traced) \
        trace_nccl(line, "req(%p)/idx(%d) " what, (void *)slot, \
                   (int)(slot - w->slots) % 10)

static void start(struct way_state *w)
{
    while (w->started < w->chunks) {
        struct slot *slot = w->slots + w->started % w->o->nreq;
        if (slot->busy)
            return;
        uint64_t first = w->started * w->o->nsplit;
        uint64_t parts = w->parts - first;
        *slot = (struct slot){
            w->started++, parts < w->o->nsplit ? parts : w->o->nsplit, 0, 0,
            0, true};
        TRACE(259, "allreduce start");
    }
}

static void gone(const struct way_state *w, const struct channel *link,
                 ssize_t n)
{
    fail("rank %u: the server %s %s in the middle of an all-reduce of %llu B: "
         "see the message of that server", w->o->rank, link->name,
         failure_of(n), (unsigned long long)w->bytes);
}

static bool send_parts(struct way_state *w, struct channel *link)
{
    bool moved = false;
    while (link->next_out < w->parts
            && link->next_out / w->o->nsplit < w->started) {
        struct slot *slot = slot_of(w, link->next_out);
        bool begins = !link->out.done;
        if (begins)
            link->out.head = (struct header){w->magic, link->sent,
                                             bytes_of(w, link->next_out)};
        ssize_t n = send_message(&link->out, w->from + link->next_out
                                 * w->part, MSG_DONTWAIT);
        if (n == LINK_AGAIN)
            return moved;
        if (n <= 0)
            gone(w, link, n);
        moved = true;
        if (begins && ++slot->begun == slot->parts)
            TRACE(281, "allreduce requested");
        if (has_passed(&link->out)) {
            link->next_out += w->o->service.count;
            link->sent++;
            if (++slot->sent == slot->parts)
                TRACE(305, "send done");
            if (w->o->service.count > 1)
                break;                  /* the others have their turn   */
        }
    }
    return moved;
}

static bool take_parts(struct way_state *w, struct channel *link)
{
    bool moved = false;
    while (link->next_in < link->next_out) {
        struct header due = {w->magic, link->got, bytes_of(w, link->next_in)};
        ssize_t n = take_message(&link->in, w->to + link->next_in * w->part,
                                 &due);
        if (n == LINK_AGAIN)
            return moved;
        if (n <= 0)
            gone(w, link, n);
        moved = true;
        if (has_passed(&link->in)) {
            struct slot *slot = slot_of(w, link->next_in);
            link->next_in += w->o->service.count;
            link->got++;
            if (++slot->got == slot->parts) {
                TRACE(322, "recv done");
                slot->busy = false;
                w->done++;
            }
        }
    }
    return moved;
}

static void transfer(struct way_state *w)
{
    struct pollfd polled[MAX_SERVERS];
    for (int s = 0; s < w->o->service.count; s++)
        w->links[s].next_out = w->links[s].next_in = s;
    w->started = w->done = 0;
    for (;;) {
        bool moved = false;
        start(w);
        for (int s = 0; s < w->o->service.count; s++) {
            /* Clients begin with different servers, else all of them would
             * send to the first one at once. */
            struct channel *link = w->links
                + (s + w->o->rank) % w->o->service.count;
            moved |= take_parts(w, link);
            start(w);
            moved |= send_parts(w, link);
        }
        if (w->done == w->chunks)
            return;
        if (moved)
            continue;
        int open = 0, of[MAX_SERVERS];
        for (int s = 0; s < w->o->service.count; s++) {
            struct channel *link = w->links + s;
            short events = 0;
            if (link->next_out < w->parts
                    && link->next_out / w->o->nsplit < w->started)
                events |= POLLOUT;
            if (link->next_in < link->next_out || link->out.done)
                events |= POLLIN;
            if (link->next_in < link->next_out)
                wait_for_message(&link->in, bytes_of(w, link->next_in));
            if (events) {
                of[open] = s;
                polled[open++] = (struct pollfd){link->in.fd, events, 0};
            }
        }
        if (poll(polled, open, w->o->timeout * 1000) == 0)
            fail("rank %u: the server %s sent nothing for %u s: it hangs, or "
                 "its link is down", w->o->rank,
                 w->links[of[0]].name, w->o->timeout);
        for (int i = 0; i < open; i++)
            /* Nothing is due from it, and yet it speaks: it has closed. */
            if (polled[i].revents & (POLLERR | POLLHUP)
                    && !(polled[i].revents & POLLIN))
                gone(w, w->links + of[i], 0);
    }
}

/* Bytes of a part. */
static uint64_t part_of(const struct way_state *w, uint64_t bytes)
{
    uint64_t most = w->o->count * size_of(w->o->type);
    uint64_t part = bytes / (OVERLAP * w->o->service.count) / LEAST * LEAST;
    part = part < LEAST ? LEAST : part;
    return part < most ? part : most;
}

static void all_reduce(void *self, const void *in, void *out, uint64_t bytes,
                       bool traced)
{
    struct way_state *w = self;
    w->from = in;
    w->to = out;
    w->bytes = bytes;
    w->part = part_of(w, bytes);
    w->parts = (bytes + w->part - 1) / w->part;
    w->chunks = (w->parts + w->o->nsplit - 1) / w->o->nsplit;
    w->magic = DATA;
    w->traced = traced;
    transfer(w);
}

/* An all-reduce of one number, over the first server. */
static void barrier(void *self)
{
    static uint64_t in, out;
    struct way_state *w = self;
    w->from = (void *)&in;
    w->to = (void *)&out;
    w->bytes = w->part = size_of(w->o->type);
    w->parts = w->chunks = 1;
    w->magic = BARRIER;
    w->traced = false;
    transfer(w);
}

static void end(void *self)
{
    struct way_state *w = self;
    for (int s = 0; s < w->o->service.count; s++) {
        struct header bye = {BYE, w->links[s].sent, 0};
        write_whole(w->links[s].out.fd, &bye, sizeof bye);
        close(w->links[s].out.fd);
    }
}

void *optcast_way(const struct options *o, struct way *way)
{
    struct way_state *w = get(sizeof *w);
    w->o = o;
    w->links = get(o->service.count * sizeof *w->links);
    w->slots = get(o->nreq * sizeof *w->slots);
    for (int s = 0; s < o->service.count; s++) {
        struct channel *link = w->links + s;
        link->name = o->service.servers[s].name;
        trace_rust("INFO", "client", "connecting to %s", link->name);
        link->out.fd = link->in.fd = connect_to(link->name, o->timeout);
        join_server(link->in.fd, o, link->name, 0, 0);
    }
    trace_rust("INFO", "client", "client connected");
    *way = (struct way){all_reduce, barrier, end};
    return w;
}
