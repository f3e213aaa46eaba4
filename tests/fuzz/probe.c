/* probe.c - what a server answers to plumbload's first questions: greeting,
 * INFO, CLUSTER SLOTS, memcached's version. The first byte says which
 * protocol, the second how the answers are cut. */
#define _GNU_SOURCE
#include "feed.h"
#include "harness.h"

#include <stdlib.h>
#include <string.h>
#define malloc(n) tracked((malloc)(n))
#define calloc(n, size) tracked((calloc)(n, size))
/* What ends well frees its own. */
#define free(p) ((void)(p))
#include "../../checks/core/src/common/resp.c"
#include "../../checks/loadgen/src/probe.c"
#undef calloc
#undef free
#undef malloc

int __wrap_start_connect(const struct server *s, double timeout)
{
    (void)s, (void)timeout;
    return 1000;
}

ssize_t __wrap_link_read(struct link *l, void *buffer, size_t n)
{
    (void)l;
    return (ssize_t)feed_next(buffer, n);
}

ssize_t __wrap_link_write(struct link *l, const struct iovec *v, int count)
{
    (void)l, (void)count;
    return (ssize_t)v->iov_len;
}

void __wrap_link_close(struct link *l, bool abort) { (void)l, (void)abort; }

void __real_put_greeting(struct conn *c);

void __wrap_put_greeting(struct conn *c)
{
    __real_put_greeting(c);
    tracked(c->bytes);
    tracked(c->pieces);
}

static void reader(void *unused)
{
    (void)unused;
    probe();
    if (opt.service.cluster)
        check_owners();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct server server = {.name = "127.0.0.1:1"};
    static bool prepared;

    if (size < 3)
        return 0;
    if (!prepared) {
        prepared = true;
        opt.prefix_size = strlen(opt.prefix);
        opt.value_size = "5";
        opt.keys = 50;
        opt.connections = 4;
        prepare_draw();
    }
    opt.protocol = data[0] & 3;
    opt.service = (struct service){
        .servers = &server, .count = 1,
        .cluster = data[0] & 4 && opt.protocol < BINARY,
        .password = data[0] & 8 ? "geheim" : NULL};
    feed.bytes = data + 2;
    feed.left = size - 2;
    feed.piece = 1 + data[1] * 7u;
    if (survives(reader, NULL))
        free_tracked();
    return 0;
}
