/* probe.c - what the first server of a cluster answers to the load generator: greeting
 * and CLUSTER SLOTS. The first byte says whether there is a password, the
 * second how the answers are cut. */
#define _GNU_SOURCE
#include "feed.h"
#include "harness.h"

#include <stdlib.h>
#include <string.h>
#define malloc(n) tracked((malloc)(n))
#define calloc(n, size) tracked((calloc)(n, size))
/* What ends well frees its own. */
#define free(p) ((void)(p))
#include "../../checks/core/src/common/cluster.c"
#include "../../checks/core/src/common/resp.c"
#include "../../checks/loadgen/src/nodes.c"
#undef calloc
#undef free
#undef malloc

int __wrap_start_connect(const struct server *s, double timeout)
{
    (void)s, (void)timeout;
    return 1000;
}

ssize_t __wrap_link_read(int fd, void *buffer, size_t n)
{
    (void)fd;
    return (ssize_t)feed_next(buffer, n);
}

ssize_t __wrap_link_write(int fd, const struct iovec *v, int count)
{
    (void)fd, (void)count;
    return (ssize_t)v->iov_len;
}

ssize_t __wrap_link_write_all(int fd, struct iovec *v, int count)
{
    (void)fd, (void)v, (void)count;
    return 0;
}

void __wrap_link_close(int fd, bool abort) { (void)fd, (void)abort; }

static void reader(void *unused)
{
    (void)unused;
    find_nodes();
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
        opt.data_size = 5;
        opt.keys = 50;
        opt.threads = 1;
        opt.clients = 4;
        prepare_draw();
    }
    opt.service = (struct service){
        .servers = &server, .count = 1, .cluster = true,
        .password = data[0] & 8 ? "geheim" : NULL};
    feed.bytes = data + 2;
    feed.left = size - 2;
    feed.piece = 1 + data[1] * 7u;
    if (survives(reader, NULL))
        free_tracked();
    return 0;
}
