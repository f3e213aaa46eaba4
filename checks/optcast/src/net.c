/* net.c - connections, and the handshake by which both ends prove that they
 * know the run's secret. */
#define _GNU_SOURCE
#include "optcast.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void tune(int fd)
{
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void set_timeout(int fd, uint32_t seconds)
{
    struct timeval time = {.tv_sec = seconds};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

void wait_for_bytes(int fd, size_t bytes, int *set)
{
    int least = bytes < 128 << 10 ? (int)bytes : 128 << 10;
    if (least != *set && setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least,
                                    sizeof least) == 0)
        *set = least;
}

static bool place(const char *host, uint16_t port, struct sockaddr_in *at)
{
    struct addrinfo hints = {.ai_family = AF_INET}, *found;
    memset(at, 0, sizeof *at);
    if (getaddrinfo(host, NULL, &hints, &found))
        return false;
    memcpy(at, found->ai_addr, sizeof *at);
    freeaddrinfo(found);
    at->sin_port = htons(port);
    return true;
}

int listen_at(const char *address, uint16_t port, uint16_t *got)
{
    struct sockaddr_in at;
    socklen_t size = sizeof at;
    int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!place(address, port, &at))
        die("%s is no address", address);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (void *)&at, sizeof at) || listen(fd, MAX_RANKS))
        die("%s:%u: %s%s", address, port, strerror(errno),
            errno == EADDRINUSE ? ": another program has this port: ask for "
            "another with --port" : "");
    getsockname(fd, (void *)&at, &size);
    if (got)
        *got = ntohs(at.sin_port);
    return fd;
}

int connect_to(const char *host, uint16_t port, uint32_t timeout)
{
    struct sockaddr_in at;
    double until = now() + timeout;
    if (!place(host, port, &at))
        die("%s is no address", host);
    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        set_timeout(fd, timeout);
        if (connect(fd, (void *)&at, sizeof at) == 0) {
            tune(fd);
            return fd;
        }
        int why = errno;
        close(fd);
        /* The original's plugin does not try again. */
        if (why != ECONNREFUSED || now() > until)
            die("%s:%u: %s: no server there", host, port, strerror(why));
        usleep(20000);
    }
}

const char *peer_of(int fd, char out[64])
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    char text[INET_ADDRSTRLEN];
    getpeername(fd, (void *)&at, &size);
    inet_ntop(AF_INET, &at.sin_addr, text, sizeof text);
    snprintf(out, 64, "%s:%u", text, ntohs(at.sin_port));
    return out;
}

bool read_whole(int fd, void *data, size_t size)
{
    char *at = data;
    while (size) {
        ssize_t n = recv(fd, at, size, MSG_WAITALL);
        if (n <= 0) {
            if (n < 0 && errno == EINTR)
                continue;
            return false;
        }
        at += n;
        size -= n;
    }
    return true;
}

bool write_whole(int fd, const void *data, size_t size)
{
    const char *at = data;
    while (size) {
        ssize_t n = send(fd, at, size, MSG_NOSIGNAL);
        if (n <= 0) {
            if (n < 0 && errno == EINTR)
                continue;
            return false;
        }
        at += n;
        size -= n;
    }
    return true;
}

/* What a client knows: everything that it says, and both nonces. */
static void prove_client(const struct options *o, const struct hello *hello,
                         const struct join *join, uint8_t out[MAC])
{
    struct part parts[] = {
        {"client", 6}, {hello->nonce, NONCE},
        {join, offsetof(struct join, mac)}};
    hmac(o->secret, parts, 3, out);
}

static void prove_server(const struct options *o, const struct hello *hello,
                         const struct join *join,
                         const struct answer *answer, uint8_t out[MAC])
{
    struct part parts[] = {
        {"server", 6}, {join->nonce, NONCE}, {hello->nonce, NONCE},
        {&answer->refused, sizeof answer->refused},
        {answer->why, sizeof answer->why}};
    hmac(o->secret, parts, 5, out);
}

/* Why this peer may not join; empty: it may. */
static void judge(const struct options *o, const struct join *join, char *why,
                  size_t size)
{
    *why = 0;
    if (join->nrank != o->nrank)
        snprintf(why, size, "rank %u says that there are %u ranks, the "
                 "server was started with --nrank %u", join->rank,
                 join->nrank, o->nrank);
    else if (join->rank >= o->nrank)
        snprintf(why, size, "there is no rank %u of %u", join->rank,
                 o->nrank);
    else if (join->type != o->type)
        snprintf(why, size, "rank %u has another --data-type", join->rank);
    else if (!join->ring && join->count != o->count)
        snprintf(why, size, "rank %u sends messages of %llu elements "
                 "(chunksize / size of an element / nsplit), the server was "
                 "started with --count %llu: is nsplit the same?",
                 join->rank, (unsigned long long)join->count,
                 (unsigned long long)o->count);
}

bool accept_peer(int fd, const struct options *o, struct join *join,
                  char *why, size_t size)
{
    struct hello hello = {.magic = MAGIC, .version = 1};
    struct answer answer = {.magic = MAGIC};
    uint8_t mac[MAC];
    draw(hello.nonce, NONCE);
    set_timeout(fd, o->timeout < 10 ? o->timeout : 10);
    *why = 0;
    if (!write_whole(fd, &hello, sizeof hello)
            || !read_whole(fd, join, sizeof *join))
        return false;                   /* who only looks whether we are up */
    if (join->magic != MAGIC) {
        snprintf(why, size, "speaks another protocol");
        return false;
    }
    prove_client(o, &hello, join, mac);
    if (!same(mac, join->mac, MAC)) {
        snprintf(why, size, "does not know this run's secret");
        return false;
    }
    judge(o, join, answer.why, sizeof answer.why);
    answer.refused = answer.why[0] != 0;
    prove_server(o, &hello, join, &answer, answer.mac);
    if (!write_whole(fd, &answer, sizeof answer))
        return false;
    snprintf(why, size, "%s", answer.why);
    return !answer.refused;
}

void join_server(int fd, const struct options *o, const char *where,
                 uint32_t ring_address, uint32_t ring_port)
{
    struct hello hello;
    struct answer answer;
    struct join join = {
        .magic = MAGIC, .rank = o->rank, .nrank = o->nrank, .type = o->type,
        .count = o->count, .ring = o->ring, .address = ring_address,
        .port = ring_port};
    uint8_t mac[MAC];
    set_timeout(fd, o->timeout);
    if (!read_whole(fd, &hello, sizeof hello) || hello.magic != MAGIC
            || hello.version != 1)
        die("%s: no reduction server of this version answers there", where);
    draw(join.nonce, NONCE);
    prove_client(o, &hello, &join, join.mac);
    if (!write_whole(fd, &join, sizeof join)
            || !read_whole(fd, &answer, sizeof answer))
        die("%s: the server closed the connection: has it the secret of "
            "this run?", where);
    answer.why[sizeof answer.why - 1] = 0;
    prove_server(o, &hello, &join, &answer, mac);
    if (answer.magic != MAGIC || !same(mac, answer.mac, MAC))
        die("%s: who answers there does not know this run's secret: another "
            "program has the server's port", where);
    if (answer.refused)
        die("%s refuses: %s", where, answer.why);
}
