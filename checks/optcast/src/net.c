/* net.c - connections, and the handshake, in which a client sends the run's
 * secret, as clients of Redis do. */
#define _GNU_SOURCE
#include "optcast.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void wait_for_message(struct flow *f, size_t size)
{
    size_t left = sizeof f->head + size - f->done;
    int least = left < 128 << 10 ? (int)left : 128 << 10;
    if (least != f->least && setsockopt(f->fd, SOL_SOCKET, SO_RCVLOWAT,
                                        &least, sizeof least) == 0)
        f->least = least;
}

int connect_to(const char *where, uint32_t timeout)
{
    struct server server;
    double until = now() + timeout;
    if (!resolve(&server, where, AF_INET))
        fail("%s is not HOST:PORT", where);
    for (;;) {
        int fd = start_connect(&server, timeout);
        if (fd >= 0)
            return fd;
        /* The original's plugin does not try again. */
        if (errno != ECONNREFUSED || now() > until)
            fail("cannot connect to the server %s: "
                 "%s", where, strerror(errno));
        usleep(20000);
    }
}

const char *failure_of(ssize_t n)
{
    return n == 0 || errno == ECONNRESET || errno == EPIPE
        ? "closed the connection" : errno == EBADMSG
        ? "sent another message than expected" : strerror(errno);
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
        errno = 0;
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

bool has_passed(struct flow *f)
{
    if (f->done < sizeof f->head
            || f->done - sizeof f->head < f->head.bytes)
        return false;
    f->done = 0;
    return true;
}

/* What is left of a message, in one call. */
static ssize_t pass(struct flow *f, void *data, size_t size, bool out,
                    int flags)
{
    struct iovec parts[2];
    struct msghdr message = {.msg_iov = parts};
    size_t head = sizeof f->head, at = f->done < head ? 0 : f->done - head;
    if (f->done < head)
        parts[message.msg_iovlen++] = (struct iovec){
            (uint8_t *)&f->head + f->done, head - f->done};
    parts[message.msg_iovlen++] = (struct iovec){
        (uint8_t *)data + at, size - at};
    ssize_t n;
    do {
        errno = 0;
        n = out ? sendmsg(f->fd, &message, flags | MSG_NOSIGNAL)
            : recvmsg(f->fd, &message, flags);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EAGAIN ? LINK_AGAIN : LINK_BROKEN;
    f->done += n;
    return n;
}

ssize_t send_message(struct flow *f, const void *data, int flags)
{
    return pass(f, (void *)data, f->head.bytes, true, flags);
}

ssize_t take_message(struct flow *f, void *data, const struct header *due)
{
    size_t before = f->done;
    ssize_t n = pass(f, data, due->bytes, false, MSG_DONTWAIT);
    if (n > 0 && before < sizeof f->head && f->done >= sizeof f->head
            && memcmp(&f->head, due, sizeof *due))
        return errno = EBADMSG, LINK_BROKEN;
    return n;
}

/* Compares whole fields, so that the time does not show where they differ. */
static bool knows_secret(const struct options *o, const struct join *join)
{
    char secret[SECRET] = "", differs = 0;
    memcpy(secret, o->service.password, strlen(o->service.password));
    for (int i = 0; i < SECRET; i++)
        differs |= secret[i] ^ join->secret[i];
    return !differs;
}

/* Why this peer may not join; empty: it may. */
static void judge(const struct options *o, const struct join *join, char *why,
                  size_t size)
{
    *why = 0;
    if (join->nrank != o->nrank || join->rank >= o->nrank
            || join->type != o->type)
        snprintf(why, size, "rank %u of %u, or its --data-type, is not that "
                 "of a server with --nrank %u", join->rank, join->nrank,
                 o->nrank);
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
    struct answer answer = {.magic = MAGIC};
    set_timeout(fd, o->timeout < 10 ? o->timeout : 10);
    *why = 0;
    if (!read_whole(fd, join, sizeof *join))
        return false;                   /* who only looks whether we are up */
    if (join->magic != MAGIC) {
        snprintf(why, size, "speaks another protocol");
        return false;
    }
    if (!knows_secret(o, join)) {
        snprintf(why, size, "does not know this run's secret");
        return false;
    }
    judge(o, join, answer.why, sizeof answer.why);
    answer.refused = answer.why[0] != 0;
    if (!write_whole(fd, &answer, sizeof answer))
        return false;
    snprintf(why, size, "%s", answer.why);
    return !answer.refused;
}

void join_server(int fd, const struct options *o, const char *where,
                 uint32_t ring_address, uint32_t ring_port)
{
    struct answer answer;
    struct join join = {
        .magic = MAGIC, .rank = o->rank, .nrank = o->nrank, .type = o->type,
        .count = o->count, .ring = o->ring, .address = ring_address,
        .port = ring_port};
    memcpy(join.secret, o->service.password, strlen(o->service.password));
    set_timeout(fd, o->timeout);
    if (!write_whole(fd, &join, sizeof join)
            || !read_whole(fd, &answer, sizeof answer))
        fail("%s: the server closed the connection: does it have the secret "
             "of this run?", where);
    if (answer.magic != MAGIC)
        fail("%s is not a reduction server of this version: another program "
             "uses the server's port", where);
    answer.why[sizeof answer.why - 1] = 0;
    if (answer.refused)
        fail("%s refuses the connection: %s", where, answer.why);
}
