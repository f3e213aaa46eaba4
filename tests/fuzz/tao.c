/* tao.c - what a client asks tao_server: requests cut into pieces and a
 * client that reads slowly. The first bytes say how large the pieces are; what
 * is answered must be whole answers. */
#define main tao_main
#include "../../checks/taobench/src/serve.c"
#include "../../checks/taobench/src/main.c"
#undef main
#include "feed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static size_t bytes_out, window;
static char *out;
static bool again, closed;

void __wrap_link_close(int fd, bool abort)
{
    (void)fd, (void)abort;
    closed = true;
}

ssize_t __wrap_link_read(int fd, void *buffer, size_t n)
{
    (void)fd;
    if ((again = !again))
        return LINK_AGAIN;
    return (ssize_t)feed_next(buffer, n);
}

ssize_t __wrap_link_write(int fd, const struct iovec *v, int count)
{
    size_t n = v->iov_len < window ? v->iov_len : window;

    (void)fd, (void)count;
    if (!n)
        return LINK_AGAIN;
    if (window != SIZE_MAX)
        window -= n;
    out = realloc(out, bytes_out + n);
    memcpy(out + bytes_out, v->iov_base, n);
    bytes_out += n;
    return (ssize_t)n;
}

/* A slow path without threads: a full queue, no memory, or a value. */
bool __wrap_queue_miss(struct request *r, unsigned queue)
{
    (void)queue;
    if (r->key[0] == 'f')
        return false;
    r->value_size = 31;
    memset(r->value, 'v', r->value_size);
    r->stored = r->key[0] != 'm' && cache_set(r->key, r->key_size, r->hash, r->value,
                                              r->value_size);
    atomic_store(&r->done, true);
    return true;
}

void __wrap_poll_sleep(unsigned ns, bool *once) { (void)ns, (void)once; }

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    opt.memory = 1;
    opt.dispatchers = 1;
    opt.slow_threads = 1;
    opt.threads = 1;
    prepare_cache();
    start_stats();
    fasts = calloc(1, sizeof *fasts);
    fasts->n = counters;
    fasts->in = malloc(sizeof ((struct connection *)0)->in + CHUNK);
    fasts->out = malloc(CHUNK + ANSWER);
    fasts->epoll = -1;
    return 0;
}

/* Answers must be complete, also for a client that reads slowly or quits
 * before it has read them. */
static void check_answers(void)
{
    size_t at = 0;

    while (at < bytes_out) {
        struct header h;
        if (bytes_out - at < sizeof h)
            abort();
        memcpy(&h, out + at, sizeof h);
        if (h.magic != RESPONSE || ntohl(h.total) > bytes_out - at - sizeof h
            || h.extras + ntohs(h.key) > ntohl(h.total))
            abort();
        at += sizeof h + ntohl(h.total);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4)
        return 0;
    struct connection *c = calloc(1, sizeof *c);
    c->fast = fasts;
    connections.open++;
    feed.piece = 1 + data[0] * 16u;
    feed.bytes = data + 3;
    feed.left = size - 3;
    bytes_out = 0;
    out = NULL;
    closed = false;
    bool slow = data[1] != 0;
    for (unsigned turn = 0; !closed; turn++) {
        window = slow ? data[1] * 8u : SIZE_MAX;
        again = true;
        handle(c);
        if (turn > 1 << 20)
            abort();
    }
    check_answers();
    free(out);
    return 0;
}
