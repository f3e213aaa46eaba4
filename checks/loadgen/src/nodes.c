/* nodes.c - the server of the load, or the masters of its cluster. */
#include "load.h"

#include <inttypes.h>
#include <stdlib.h>

/* Connections to a node without a key would draw keys without end. */
static void check_owners(void)
{
    int without = opt.node_count;

    for (uint64_t k = 0; k < opt.keys && without; k++) {
        struct node *n = &opt.nodes[slot_server[slot_of(k)]];
        without -= !n->owns_keys;
        n->owns_keys = true;
    }
    for (int i = 0; i < opt.node_count; i++)
        if (!opt.nodes[i].owns_keys)
            fail("%s: none of the %" PRIu64 " keys %s is in its slots: ask for "
                 "more keys", opt.nodes[i].name, opt.keys, opt.prefix);
    if (opt.threads * opt.clients < (unsigned)opt.node_count)
        fail("%u connections for %d masters: each needs one",
             opt.threads * opt.clients, opt.node_count);
}

void find_nodes(void)
{
    const struct service *s = &opt.service;

    if (s->cluster)
        find_masters(&opt.service, opt.timeout);
    opt.node_count = s->count;
    if (!(opt.nodes = calloc((size_t)s->count, sizeof *opt.nodes)))
        fail("no memory for %d nodes", s->count);
    for (int i = 0; i < s->count; i++)
        opt.nodes[i] = (struct node){.server = &s->servers[i],
                                     .name = s->servers[i].name};
    if (s->cluster)
        check_owners();
}
