/* servers.c - all-reduce through reduction servers, as seen by a client.
 *
 * The data are cut into parts; part p goes to server p % servers, and its sum comes
 * back from there. At most WINDOW parts per server are under way: with more of them
 * clients run ahead of each other, and servers wait. The servers have a part each in
 * turn: one that had all of its parts at once would wait for those that other clients
 * send elsewhere meanwhile.
 *
 * chunksize is the most. A small all-reduce is cut into smaller parts, for
 * the first sum comes down when the first parts of all clients are up, and the
 * last one when nothing goes up any more: 1 / OVERLAP of the time each. */
#include "optcast.h"

/* So many parts go to each server, and none is smaller than LEAST bytes, below
 * which a message costs more than its bytes. */
enum { OVERLAP = 32, LEAST = 8 << 10, WINDOW = 4 };

static uint64_t part, parts, started;

/* Message k of a link is this part. */
static uint64_t part_of(const struct way *w, int link, uint64_t k)
{
    return link + k * w->count;
}

static void trace_part(const struct way *w, uint64_t p, int line,
                       const char *what)
{
    static char requests[WINDOW * MAX_SERVERS];
    int slot = p % (WINDOW * w->count);
    if (w->magic == DATA)
        trace_nccl(line, "req(%p)/idx(%d) %s", (void *)(requests + slot),
                   slot % 10, what);
}

/* Starts parts as those before them end. */
static void start(const struct way *w)
{
    uint64_t oldest = parts;
    for (int i = 0; i < w->count; i++) {
        uint64_t p = part_of(w, i, w->links[i].in.passed);
        oldest = p < oldest ? p : oldest;
    }
    for (; started < parts && started < oldest + WINDOW * w->count; started++)
        trace_part(w, started, 259, "allreduce start");
}

static void begin(struct way *w)
{
    uint64_t most = o.count * size_of(o.type);
    part = w->bytes / (OVERLAP * w->count) / LEAST * LEAST;
    part = part < LEAST ? LEAST : part;
    part = part < most ? part : most;
    parts = (w->bytes + part - 1) / part;
    started = 0;
    start(w);
}

static uint8_t *due(struct way *w, int link, bool out, uint64_t k,
                    uint64_t *bytes)
{
    uint64_t p = part_of(w, link, k), at = p * part;
    if (out ? p >= started : k >= w->links[link].out.passed)
        return NULL;
    *bytes = w->bytes - at < part ? w->bytes - at : part;
    return (out ? w->from : w->to) + at;
}

static void progress(struct way *w, int link, bool out, uint64_t k, bool whole)
{
    uint64_t p = part_of(w, link, k);
    if (out && !whole)
        trace_part(w, p, 281, "allreduce requested");
    else if (out)
        trace_part(w, p, 305, "send done");
    else if (whole) {
        trace_part(w, p, 322, "recv done");
        start(w);
    }
}

void servers_way(struct way *w)
{
    *w = (struct way){.count = o.service.count, .begin = begin, .due = due,
                      .progress = progress};
    w->links = get(w->count * sizeof *w->links);
    for (int i = 0; i < w->count; i++) {
        const char *name = o.service.servers[i].name;
        struct flow *f = &w->links[i].out;
        trace_rust("INFO", "client", "connecting to %s", name);
        f->fd = connect_to(name);
        snprintf(f->peer, sizeof f->peer, "the server %s", name);
        join_server(f->fd, name, "");
        w->links[i].in = *f;
    }
    trace_rust("INFO", "client", "client connected");
}
