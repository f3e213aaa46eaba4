/* serve.c - fast threads: each has an epoll and its share of connections,
 * answers hits at once, and waits for the slow path on a miss. */
#define _GNU_SOURCE
#include "tao.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* One recv reads up to CHUNK; no answer is longer than ANSWER. */
enum { CHUNK = 1 << 16, ANSWER = 4096, EVENTS = 256 };

struct header {
    uint8_t magic, opcode;
    uint16_t key;
    uint8_t extras, type;
    uint16_t status;                  /* of a request: reserved              */
    uint32_t total, opaque;
    uint64_t cas;
} __attribute__((packed));
enum { REQUEST = 0x80, RESPONSE = 0x81 };
enum { GET = 0, QUIT = 7, NOOP = 10, GET_VERSION = 11, STAT = 16 };
enum { FINE = 0, NOT_FOUND = 1, INVALID = 4, UNKNOWN = 0x81,
       OUT_OF_MEMORY = 0x82 };

struct connection {
    int fd;
    struct fast *fast;
    unsigned queue;                   /* the dispatcher of its next miss     */
    bool closing;                     /* nothing more is read from it: it is
                                       * closed when all is sent             */
    bool broken;                      /* closed at once                      */
    char in[sizeof(struct header) + MAX_KEY];    /* an unfinished request    */
    char *out;                        /* unsent bytes                        */
    size_t in_size, out_size;
};

/* A fast thread. */
struct fast {
    int epoll;
    char *in, *out;
    size_t filled;                    /* of out                              */
    struct request request;           /* the one miss that it waits for      */
    struct counters *n;
} __attribute__((aligned(64)));

static struct fast *fasts;
static int listener;

static void watch(struct connection *c, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.ptr = c};

    epoll_ctl(c->fast->epoll, EPOLL_CTL_MOD, c->fd, &e);
}

static void close_connection(struct connection *c)
{
    link_close(c->fd, false);
    free(c->out);
    free(c);
    atomic_fetch_sub(&connections.open, 1);
}

/* --- out ----------------------------------------------------------------- */
/* Bytes that were sent; fewer than n where the socket takes no more. */
static size_t send_some(struct connection *c, const char *from, size_t n)
{
    size_t sent = 0;

    while (sent < n) {
        const struct iovec rest = {(char *)from + sent, n - sent};
        ssize_t put = link_write(c->fd, &rest, 1);
        if (put == LINK_BROKEN)
            c->broken = true;
        if (put < 0)
            break;
        sent += (size_t)put;
    }
    return sent;
}

/* Unsent bytes are kept with the connection, which reads no further until they
 * are sent. */
static void flush(struct connection *c)
{
    struct fast *f = c->fast;
    size_t sent = c->out ? 0 : send_some(c, f->out, f->filled);
    size_t left = f->filled - sent;

    f->filled = 0;
    if (!left || c->broken)
        return;
    char *out = realloc(c->out, c->out_size + left);
    if (!out) {
        c->broken = true;
        return;
    }
    memcpy(out + c->out_size, f->out + sent, left);
    if (!c->out)
        watch(c, EPOLLOUT);
    c->out = out;
    c->out_size += left;
}

static void put(struct fast *f, const void *bytes, size_t n)
{
    memcpy(f->out + f->filled, bytes, n);
    f->filled += n;
}

static void put_header(struct fast *f, const struct header *to,
                       uint16_t status, size_t extras, size_t key,
                       size_t value)
{
    struct header h = {
        .magic = RESPONSE, .opcode = to->opcode, .status = htons(status),
        .extras = (uint8_t)extras, .key = htons((uint16_t)key),
        .total = htonl((uint32_t)(extras + key + value)),
        .opaque = to->opaque};

    put(f, &h, sizeof h);
}

static void put_status(struct fast *f, const struct header *to,
                       uint16_t status, const char *text)
{
    put_header(f, to, status, 0, 0, strlen(text));
    put(f, text, strlen(text));
}

static void put_hit(struct fast *f, const struct header *to,
                    const struct hit *hit)
{
    const uint32_t flags = 0;

    put_header(f, to, FINE, sizeof flags, 0, hit->size);
    put(f, &flags, sizeof flags);
    put(f, hit->value, hit->size);
}

/* --- requests ------------------------------------------------------------ */
static void count(struct fast *f, enum count what)
{
    add(&f->n->counts[what], 1);
}

/* The thread does nothing else until the slow path has answered, as in the
 * original, whose polling state never leaves its loop. */
static void wait_for(const struct request *r)
{
    bool again = false;

    do
        poll_sleep(opt.worker_sleep, &again);
    while (!atomic_load_explicit(&r->done, memory_order_acquire));
}

static void miss(struct connection *c, const struct header *h,
                 const char *key, size_t n, uint32_t hash)
{
    struct fast *f = c->fast;
    struct request *r = &f->request;
    unsigned queue = c->queue;

    count(f, MISSES);
    c->queue = (queue + 1) % opt.dispatchers;
    memcpy(r->key, key, n);
    r->key_size = (uint8_t)n;
    r->hash = hash;
    if (!queue_miss(r, queue)) {
        put_status(f, h, NOT_FOUND, "Not found");
        return;
    }
    count(f, ASKED);
    wait_for(r);
    if (r->stored) {
        put_hit(f, h, &(struct hit){r->value, (uint32_t)r->value_size});
    } else {
        count(f, SLOW_OOM);
        put_status(f, h, OUT_OF_MEMORY, "Out of memory on a slow path.");
    }
    count(f, SLOW);
}

static void get(struct connection *c, const struct header *h,
                const char *key, size_t n)
{
    struct fast *f = c->fast;
    uint32_t hash = hash_of(key, n);
    struct hit hit;

    count(f, GETS);
    if (!cache_get(key, n, hash, &hit)) {
        miss(c, h, key, n, hash);
        return;
    }
    put_hit(f, h, &hit);
    cache_release(hash);
    count(f, FAST);
}

static void put_stat(struct fast *f, const struct header *to, const char *name,
                     const char *value)
{
    put_header(f, to, FINE, 0, strlen(name), strlen(value));
    put(f, name, strlen(name));
    put(f, value, strlen(value));
}

static double seconds(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

/* The answer to `stats`, under memcached's names. */
static void put_stats(struct fast *f, const struct header *to)
{
    struct totals t = totals_now();
    struct cache_state c = cache_now();
    struct rusage used;

    getrusage(RUSAGE_SELF, &used);
    const uint64_t *n = t.counts;
    const struct { const char *name; int digits; double value; } stats[] = {
        {"pid", 0, getpid()},
        {"rusage_user", 6, seconds(used.ru_utime)},
        {"rusage_system", 6, seconds(used.ru_stime)},
        {"curr_connections", 0, (double)t.connections},
        {"total_connections", 0, (double)t.accepted},
        {"cmd_get", 0, (double)n[GETS]},
        {"get_hits", 0, (double)(n[GETS] - n[MISSES])},
        {"get_misses", 0, (double)n[MISSES]},
        {"limit_maxbytes", 0, (double)opt.memory * MIB},
        {"bytes", 0, (double)c.bytes},
        {"total_malloced", 0, (double)c.mapped},
        {"curr_items", 0, (double)c.items},
        {"evictions", 0, (double)c.evictions},
        {"tao_fast_responses", 0, (double)n[FAST]},
        {"tao_slow_requests", 0, (double)n[ASKED]},
        {"tao_slow_responses", 0, (double)n[SLOW]},
        {"tao_slow_responses_oom", 0, (double)n[SLOW_OOM]},
    };
    put_stat(f, to, "version", VERSION);
    for (size_t i = 0; i < sizeof stats / sizeof *stats; i++) {
        char value[32];
        snprintf(value, sizeof value, "%.*f", stats[i].digits, stats[i].value);
        put_stat(f, to, stats[i].name, value);
    }
    put_header(f, to, FINE, 0, 0, 0);
}

/* One whole request; `h` is in the byte order of this machine. */
static void answer(struct connection *c, const struct header *h,
                   const char *key)
{
    struct fast *f = c->fast;
    bool bare = h->key == h->total;

    if (h->opcode == GET && bare && h->key) {
        get(c, h, key, h->key);
    } else if (h->opcode == GET_VERSION) {
        put_status(f, h, FINE, VERSION);
    } else if (h->opcode == NOOP || h->opcode == QUIT) {
        put_header(f, h, FINE, 0, 0, 0);
        c->closing = h->opcode == QUIT;
    } else if (h->opcode == STAT && !h->total) {
        put_stats(f, h);
    } else {
        bool known = h->opcode == GET || h->opcode == STAT;
        put_status(f, h, known ? INVALID : UNKNOWN,
                   known ? "Invalid arguments" : "Unknown command");
        c->closing = true;
    }
}

/* Bytes used; 0: the request is not complete. */
static size_t one_request(struct connection *c, const char *p, size_t n)
{
    struct header h;

    if (n < sizeof h)
        return 0;
    memcpy(&h, p, sizeof h);
    h.key = ntohs(h.key);
    h.total = ntohl(h.total);
    if (h.magic != REQUEST || h.key + h.extras > h.total
        || h.total > MAX_KEY) {
        put_status(c->fast, &h, INVALID, "Invalid arguments");
        c->closing = true;
        return n;
    }
    if (n < sizeof h + h.total)
        return 0;
    answer(c, &h, p + sizeof h);
    return sizeof h + h.total;
}

/* --- in ------------------------------------------------------------------ */
/* Answers all complete requests and keeps the rest of the last one. */
static void consume(struct connection *c, const char *p, size_t n)
{
    while (n && !c->closing && !c->broken) {
        size_t used = one_request(c, p, n);
        if (!used)
            break;
        p += used;
        n -= used;
        if (c->fast->filled > CHUNK)
            flush(c);
    }
    flush(c);
    c->in_size = c->closing || c->broken ? 0 : n;
    memcpy(c->in, p, c->in_size);
}

static void input(struct connection *c)
{
    struct fast *f = c->fast;

    ssize_t n = link_read(c->fd, f->in + c->in_size, CHUNK);
    if (n == LINK_AGAIN)
        return;
    if (n <= 0) {
        c->broken = true;
        return;
    }
    memcpy(f->in, c->in, c->in_size);
    consume(c, f->in, c->in_size + (size_t)n);
}

/* It reads nothing more before all is sent: answers do not pile up. */
static void output(struct connection *c)
{
    size_t sent = send_some(c, c->out, c->out_size);

    c->out_size -= sent;
    memmove(c->out, c->out + sent, c->out_size);
    if (c->out_size || c->broken)
        return;
    free(c->out);
    c->out = NULL;
    watch(c, EPOLLIN);
}

static void handle(struct connection *c)
{
    if (c->out)
        output(c);
    else
        input(c);
    if (c->broken || (c->closing && !c->out))
        close_connection(c);
}

static void *serve(void *argument)
{
    struct epoll_event events[EVENTS];
    struct fast *f = argument;

    for (;;) {
        int n = epoll_wait(f->epoll, events, EVENTS, -1);
        for (int i = 0; i < n; i++)
            handle(events[i].data.ptr);
    }
    return NULL;
}

/* --- new connections ----------------------------------------------------- */
static void refuse(int fd, const char *words)
{
    send(fd, words, strlen(words), MSG_NOSIGNAL | MSG_DONTWAIT);
    close(fd);
}

static void open_connection(int fd, struct fast *f)
{
    struct connection *c = calloc(1, sizeof *c);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};

    if (!c) {
        refuse(fd, "SERVER_ERROR out of memory\r\n");
        return;
    }
    send_at_once(fd);
    c->fd = fd;
    c->fast = f;
    add(&connections.accepted, 1);
    atomic_fetch_add(&connections.open, 1);
    epoll_ctl(f->epoll, EPOLL_CTL_ADD, fd, &e);
}

static void *accept_all(void *argument)
{
    (void)argument;
    for (unsigned next = 0;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0 && load(&connections.open) >= opt.connections)
            refuse(fd, "ERROR Too many open connections\r\n");
        else if (fd >= 0)
            open_connection(fd, &fasts[next++ % opt.threads]);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM)
            usleep(10000);            /* until a connection is closed        */
    }
    return NULL;
}

void prepare_serving(void)
{
    listener = listen_at(opt.address, opt.port, 0);
}

void start_serving(void)
{
    char name[32];

    fasts = aligned_alloc(64, opt.threads * sizeof *fasts);
    if (!fasts)
        fail("cannot allocate %u threads", opt.threads);
    memset(fasts, 0, opt.threads * sizeof *fasts);
    for (unsigned i = 0; i < opt.threads; i++) {
        struct fast *f = &fasts[i];
        f->n = &counters[i];
        f->in = malloc(sizeof ((struct connection *)0)->in + CHUNK);
        f->out = malloc(CHUNK + ANSWER);
        f->epoll = epoll_create1(EPOLL_CLOEXEC);
        if (!f->in || !f->out || f->epoll < 0)
            fail("fast thread %u of %u: %s", i + 1, opt.threads,
                 strerror(errno));
        snprintf(name, sizeof name, "fast-%u", i);
        start_thread(serve, f, name);
    }
    start_thread(accept_all, NULL, "accept");
}
