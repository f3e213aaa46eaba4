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
enum { OVERLAP = 32, LEAST = 8 << 10 };

static uint64_t part;                   /* bytes                            */

static void begin(struct way *w)
{
    uint64_t most = o.count * size_of(o.type);
    part = w->bytes / (OVERLAP * w->count) / LEAST * LEAST;
    part = part < LEAST ? LEAST : part;
    part = part < most ? part : most;
    w->messages = (w->bytes + part - 1) / part;
    w->window = WINDOW * w->count;
}

static struct message message(struct way *w, uint64_t k, bool out)
{
    /* Clients begin with different servers, else all of them would send to the
     * first one at once. */
    uint64_t first = k - k % w->count, left = w->messages - first;
    uint64_t turn = left < (uint64_t)w->count ? left : (uint64_t)w->count;
    uint64_t p = first + (k + o.rank) % turn, at = p * part;
    struct link *link = &w->links[p % w->count];
    return (struct message){
        out ? &link->out : &link->in, (out ? w->from : w->to) + at,
        w->bytes - at < part ? w->bytes - at : part};
}

void servers_way(struct way *w)
{
    *w = (struct way){.count = o.service.count, .begin = begin,
                      .message = message};
    w->links = get(w->count * sizeof *w->links);
    for (int i = 0; i < w->count; i++) {
        const char *name = o.service.servers[i].name;
        struct end *end = &w->links[i].out;
        trace_rust("INFO", "client", "connecting to %s", name);
        end->fd = connect_to(name);
        snprintf(end->peer, sizeof end->peer, "rank %u: the server %s", o.rank,
                 name);
        join_server(end->fd, name, "");
        w->links[i].in = *end;
    }
    trace_rust("INFO", "client", "client connected");
}
