/* net.c - see net.h. */
#define _GNU_SOURCE
#include "net.h"
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

bool resolve(struct server *s, const char *where, int family)
{
    char host[sizeof s->name];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_family = family}, *found;
    struct sockaddr_un *local = (struct sockaddr_un *)&s->address;
    char *start = host, *port;

    if (strlen(where) >= sizeof host)
        return false;
    strcpy(host, where);
    strcpy(s->name, where);
    if (strncmp(where, "unix:", 5) == 0) {
        if (!where[5] || strlen(where + 5) >= sizeof local->sun_path)
            return false;
        local->sun_family = AF_UNIX;
        strcpy(local->sun_path, where + 5);
        s->address_size = sizeof *local;
        return true;
    }
    port = strrchr(host, ':');
    if (!port || port == host || !port[1])
        return false;
    *port++ = '\0';
    if (*host == '[' && port[-2] == ']') {
        start++;
        port[-2] = '\0';
    }
    int code = getaddrinfo(start, port, &hints, &found);
    if (code)
        fail("%s: %s: is the name of the server right?", where,
             gai_strerror(code));
    memcpy(&s->address, found->ai_addr, found->ai_addrlen);
    s->address_size = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

void send_at_once(int fd)
{
    int on = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void set_timeout(int fd, unsigned seconds)
{
    struct timeval limit = {.tv_sec = seconds};

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

int start_connect(const struct server *s, double timeout)
{
    bool local = s->address.ss_family == AF_UNIX, blocking = timeout > 0;
    int fd = socket(s->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    if (!local)
        send_at_once(fd);
    if (blocking)
        set_timeout(fd, (unsigned)timeout + 1);
    else if (!local)
        fcntl(fd, F_SETFL, O_NONBLOCK);
    if (connect(fd, (const struct sockaddr *)&s->address, s->address_size)
        && (blocking || errno != EINPROGRESS)) {
        /* What Linux says when SO_SNDTIMEO is over. */
        int code = errno == EINPROGRESS ? ETIMEDOUT : errno;
        close(fd);
        errno = code;
        return -1;
    }
    /* After connect(): on a non-blocking Unix socket a full listen queue gives
     * EAGAIN at once instead of a wait. */
    if (!blocking && local)
        fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

int listen_at(const char *address, const char *port, int flags)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int code = getaddrinfo(address, port, &hints, &found), on = 1;

    if (code)
        fail("%s: %s: is it an address of this machine?", address,
             gai_strerror(code));
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
    if (fd < 0)
        fail("socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (found->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, 1024))
        fail("%s:%s: %s%s", address, port, strerror(errno),
             errno == EADDRINUSE ? ": another program has this port: stop it "
             "or choose another port" :
             errno == EADDRNOTAVAIL ? ": not an address of this machine" :
             "");
    freeaddrinfo(found);
    return fd;
}

const char *link_error(void)
{
    return errno ? strerror(errno) : "closed";
}

static ssize_t outcome(ssize_t n)
{
    return n >= 0 ? n : errno == EAGAIN ? LINK_AGAIN : LINK_BROKEN;
}

ssize_t link_read(int fd, void *buffer, size_t n)
{
    ssize_t got;

    /* A socket with a timeout is interrupted by any signal. */
    do
        got = recv(fd, buffer, n, 0);
    while (got < 0 && errno == EINTR);
    return outcome(got);
}

ssize_t link_write(int fd, const struct iovec *v, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)v,
                             .msg_iovlen = (size_t)count};
    ssize_t put;

    do
        put = count == 1
            ? send(fd, v->iov_base, v->iov_len, MSG_NOSIGNAL)
            : sendmsg(fd, &message, MSG_NOSIGNAL);
    while (put < 0 && errno == EINTR);
    return outcome(put);
}

ssize_t link_write_all(int fd, struct iovec *v, int count)
{
    while (count) {
        ssize_t put = link_write(fd, v, count);
        if (put < 0)
            return put;
        for (; count && (size_t)put >= v->iov_len; v++, count--)
            put -= (ssize_t)v->iov_len;
        if (count) {
            v->iov_base = (char *)v->iov_base + put;
            v->iov_len -= (size_t)put;
        }
    }
    return 0;
}

void link_close(int fd, bool abort)
{
    struct linger at_once = {.l_onoff = 1};

    /* A reset leaves no port in TIME_WAIT: there are 28 000 of them. */
    if (abort)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(fd);
}
