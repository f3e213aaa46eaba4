/* net.c - connections, and the handshake, in which a client sends the run's
 * secret, as clients of Redis do. */
#define _GNU_SOURCE
#include "optcast.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

bool read_whole(int fd, void *data, size_t size)
{
    for (size_t have = 0; have < size;) {
        errno = 0;
        ssize_t n = recv(fd, (char *)data + have, size - have, MSG_WAITALL);
        if (n > 0)
            have += n;
        else if (n == 0 || errno != EINTR)
            return false;
    }
    return true;
}

void name_of(int fd, bool peer, char out[ADDRESS])
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    char text[INET_ADDRSTRLEN];
    (peer ? getpeername : getsockname)(fd, (void *)&at, &size);
    inet_ntop(AF_INET, &at.sin_addr, text, sizeof text);
    snprintf(out, ADDRESS, "%s:%u", text, ntohs(at.sin_port));
}

int connect_to(const char *where)
{
    struct server server;
    double until = now() + o.timeout;
    if (!resolve(&server, where, AF_INET))
        fail("%s is not HOST:PORT", where);
    for (;;) {
        int fd = start_connect(&server, o.timeout);
        if (fd >= 0)
            return fd;
        /* The original's plugin does not try again. */
        if (errno != ECONNREFUSED || now() > until)
            fail("cannot connect to the server %s: %s", where, strerror(errno));
        usleep(20000);
    }
}

/* Compares whole fields, so that the time does not show where they differ. */
static bool knows_secret(const struct join *join)
{
    char secret[SECRET] = "", differs = 0;
    memcpy(secret, o.service.password, strlen(o.service.password));
    for (int i = 0; i < SECRET; i++)
        differs |= secret[i] ^ join->secret[i];
    return !differs;
}

bool accept_peer(int fd, struct join *join, const char **why)
{
    static struct answer answer;
    answer = (struct answer){.magic = MAGIC};
    *why = "";
    set_timeout(fd, o.timeout < 10 ? o.timeout : 10);
    if (!read_whole(fd, join, sizeof *join))
        return false;                   /* who only looks whether we are up */
    join->ring[ADDRESS - 1] = 0;
    if (join->magic != MAGIC)
        *why = "speaks another protocol";
    else if (!knows_secret(join))
        *why = "does not know this run's secret";
    if (**why)
        return false;
    *why = answer.why;
    if (join->nrank != o.nrank || join->rank >= o.nrank
            || join->type != o.type)
        snprintf(answer.why, sizeof answer.why, "rank %u of %u, or its "
                 "--data-type, is not that of a server with --nrank %u",
                 join->rank, join->nrank, o.nrank);
    else if (!*join->ring && join->count != o.count)
        snprintf(answer.why, sizeof answer.why, "rank %u sends messages of "
                 "%llu elements (chunksize / size of an element), the server "
                 "was started with --count %llu", join->rank,
                 (unsigned long long)join->count,
                 (unsigned long long)o.count);
    return write(fd, &answer, sizeof answer) == sizeof answer && !**why;
}

void join_server(int fd, const char *name, const char *ring)
{
    struct answer answer;
    struct join join = {.magic = MAGIC, .rank = o.rank, .nrank = o.nrank,
                        .type = o.type, .count = o.count};
    strcpy(join.ring, ring);
    strcpy(join.secret, o.service.password);
    set_timeout(fd, o.timeout);
    if (write(fd, &join, sizeof join) != sizeof join
            || !read_whole(fd, &answer, sizeof answer))
        fail("%s: the server closed the connection: does it have the secret "
             "of this run?", name);
    if (answer.magic != MAGIC)
        fail("%s is not a reduction server of this version: another program "
             "uses the server's port", name);
    answer.why[sizeof answer.why - 1] = 0;
    if (*answer.why)
        fail("%s refuses the connection: %s", name, answer.why);
}

void lost(const struct end *end, const char *what)
{
    if (errno == EAGAIN)
        fail("%s %s for %u s: it hangs, or its link is down", end->peer, what,
             o.timeout);
    fail("%s %s: see the message of that process", end->peer,
         !errno || errno == ECONNRESET || errno == EPIPE
         ? "closed the connection before its end" : strerror(errno));
}

void send_message(struct end *to, uint32_t magic, void *data, uint64_t bytes)
{
    struct header head = {magic, to->seq++, bytes};
    struct iovec parts[] = {{&head, sizeof head}, {data, bytes}};
    if (link_write_all(to->fd, parts, 2) < 0)
        lost(to, "took no data");
}

struct header take_message(struct end *from, void *data, uint64_t most)
{
    struct header head;
    if (!read_whole(from->fd, &head, sizeof head))
        lost(from, "sent nothing");
    if ((head.magic != DATA && head.magic != BARRIER && head.magic != BYE)
            || head.seq != from->seq++ || head.bytes > most
            || head.bytes % size_of(o.type))
        fail("%s sent message %u of %llu bytes instead of message %u of at "
             "most %llu: is chunksize the same?", from->peer, head.seq,
             (unsigned long long)head.bytes, from->seq - 1,
             (unsigned long long)most);
    if (!read_whole(from->fd, data, head.bytes))
        lost(from, "stopped in the middle of a message");
    return head;
}
