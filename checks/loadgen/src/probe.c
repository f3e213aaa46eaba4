/* probe.c - the servers of the load: those that were named, or the masters of
 * a cluster. */
#include "load.h"

#include <stdlib.h>

/* Connections to a node without a key would draw keys without end. */
static void check_owners(void)
{
    bool group = opt.operation == OP_MSET;
    uint64_t keys = group ? opt.keys / opt.batch : opt.keys;
    int without = opt.node_count;

    for (uint64_t k = 0; k < keys && without; k++) {
        struct node *n = &opt.nodes[slot_server[slot_of(k, group)]];
        without -= !n->owns_keys;
        n->owns_keys = true;
    }
    for (int i = 0; i < opt.node_count; i++)
        if (!opt.nodes[i].owns_keys)
            fail("%s: none of the keys %s0 to %llu is in its slots: ask for "
                 "more keys, or leave the {tag} out of --key-prefix",
                 opt.nodes[i].name, opt.prefix,
                 (unsigned long long)keys - 1);
    if (opt.connections < (unsigned)opt.node_count)
        fail("%u connections for %d masters: each needs one",
             opt.connections, opt.node_count);
}

static void make_nodes(void)
{
    const struct service *s = &opt.service;

    opt.node_count = s->count;
    opt.nodes = calloc((size_t)s->count, sizeof *opt.nodes);
    if (!opt.nodes)
        fail("no memory for %d nodes", s->count);
    for (int i = 0; i < s->count; i++)
        opt.nodes[i] = (struct node){.server = &s->servers[i],
                                     .name = s->servers[i].name};
}

void probe(void)
{
    if (opt.service.cluster)
        find_masters(&opt.service, opt.timeout);
    make_nodes();
    if (opt.service.cluster)
        check_owners();
}
