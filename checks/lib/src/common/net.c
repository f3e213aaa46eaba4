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

/* --- TLS ----------------------------------------------------------------- */
#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>

const bool with_tls = true;
static SSL_CTX *tls;
static bool serves;

static const char *tls_error(void)
{
    static _Thread_local char why[256];
    unsigned long code = ERR_get_error();

    if (!code)
        return NULL;
    ERR_error_string_n(code, why, sizeof why);
    return why;
}

void prepare_tls(bool as_server, const char *ca, const char *cert,
                 const char *key)
{
    serves = as_server;
    tls = SSL_CTX_new(serves ? TLS_server_method() : TLS_client_method());
    if (!tls)
        fail("TLS: %s", tls_error());
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE
                     | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    if (serves)
        SSL_CTX_set_mode(tls, SSL_MODE_RELEASE_BUFFERS);
    /* One recv a message: header and body of a record at once. */
    SSL_CTX_set_read_ahead(tls, 1);
    if (cert && SSL_CTX_use_certificate_chain_file(tls, cert) != 1)
        fail("%s: no certificate: %s", cert, tls_error());
    if (cert
        && (SSL_CTX_use_PrivateKey_file(tls, key, SSL_FILETYPE_PEM) != 1
            || SSL_CTX_check_private_key(tls) != 1))
        fail("%s: not the key of the certificate %s: %s", key, cert,
             tls_error());
    if (!ca)
        return;
    /* The CA is the run's own: its certificate is proof enough. */
    if (SSL_CTX_load_verify_locations(tls, ca, NULL) != 1)
        fail("%s: no certificates of a CA: %s", ca, tls_error());
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
                       NULL);
}

static int tls_result(struct link *l, int result)
{
    switch (SSL_get_error(l->ssl, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return LINK_AGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    case SSL_ERROR_SYSCALL:
        return errno ? LINK_BROKEN : 0;
    default:
        return LINK_BROKEN;
    }
}

static bool tls_open(struct link *l)
{
    if (!tls)
        return true;
    l->ssl = SSL_new(tls);
    if (!l->ssl || SSL_set_fd(l->ssl, l->fd) != 1)
        return false;
    (serves ? SSL_set_accept_state : SSL_set_connect_state)(l->ssl);
    return true;
}

int link_handshake(struct link *l)
{
    if (!l->ssl)
        return 1;
    ERR_clear_error();
    errno = 0;
    int result = SSL_do_handshake(l->ssl);
    if (result == 1)
        return 1;
    result = tls_result(l, result);
    return result ? result : LINK_BROKEN;
}

static ssize_t tls_read(struct link *l, void *buffer, size_t n)
{
    ERR_clear_error();
    errno = 0;
    int got = SSL_read(l->ssl, buffer, n > 1 << 30 ? 1 << 30 : (int)n);
    return got > 0 ? got : tls_result(l, got);
}

static ssize_t tls_write(struct link *l, const struct iovec *v)
{
    ERR_clear_error();
    errno = 0;
    size_t n = v->iov_len;
    int put = SSL_write(l->ssl, v->iov_base, n > 1 << 30 ? 1 << 30 : (int)n);
    if (put > 0)
        return put;
    put = tls_result(l, put);
    return put ? put : LINK_BROKEN;
}

bool link_pending(const struct link *l)
{
    return l->ssl && SSL_has_pending(l->ssl);
}

static void tls_close(struct link *l)
{
    SSL_free(l->ssl);
    l->ssl = NULL;
}
#else
const bool with_tls = false;
static const char *tls_error(void) { return NULL; }
static bool tls_open(struct link *l) { (void)l; return true; }
int link_handshake(struct link *l) { (void)l; return 1; }
bool link_pending(const struct link *l) { (void)l; return false; }
static void tls_close(struct link *l) { (void)l; }

void prepare_tls(bool as_server, const char *ca, const char *cert,
                 const char *key)
{
    (void)as_server, (void)ca, (void)cert, (void)key;
    usage("built without TLS: build it where openssl/ssl.h is");
}

static ssize_t tls_read(struct link *l, void *buffer, size_t n)
{
    (void)l, (void)buffer, (void)n;
    return LINK_BROKEN;
}

static ssize_t tls_write(struct link *l, const struct iovec *v)
{
    (void)l, (void)v;
    return LINK_BROKEN;
}
#endif

const char *link_error(void)
{
    int code = errno;
    const char *why = tls_error();

    return why ? why : code ? strerror(code) : "closed";
}

bool link_open(struct link *l, int fd)
{
    *l = (struct link){.fd = fd};
    return tls_open(l);
}

static ssize_t outcome(ssize_t n)
{
    return n >= 0 ? n : errno == EAGAIN ? LINK_AGAIN : LINK_BROKEN;
}

ssize_t link_read(struct link *l, void *buffer, size_t n)
{
    ssize_t got;

    if (l->ssl)
        return tls_read(l, buffer, n);
    /* A socket with a timeout is interrupted by any signal. */
    do
        got = recv(l->fd, buffer, n, 0);
    while (got < 0 && errno == EINTR);
    return outcome(got);
}

ssize_t link_write(struct link *l, const struct iovec *v, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)v,
                             .msg_iovlen = (size_t)count};
    ssize_t put;

    if (l->ssl)
        return tls_write(l, v);
    do
        put = count == 1
            ? send(l->fd, v->iov_base, v->iov_len, MSG_NOSIGNAL)
            : sendmsg(l->fd, &message, MSG_NOSIGNAL);
    while (put < 0 && errno == EINTR);
    return outcome(put);
}

void link_close(struct link *l, bool abort)
{
    struct linger at_once = {.l_onoff = 1};

    if (l->ssl)
        tls_close(l);
    /* A reset leaves no port in TIME_WAIT: there are 28 000 of them. */
    if (abort)
        setsockopt(l->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(l->fd);
    l->fd = -1;
}
