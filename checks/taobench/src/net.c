/* net.c - listening sockets, and connections with or without TLS. */
#define _GNU_SOURCE
#include "tao.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int listen_at(const char *address, const char *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int code = getaddrinfo(address, port, &hints, &found), on = 1;

    if (code)
        fail("-l %s: %s: is it an address of this machine?", address,
             gai_strerror(code));
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC
                    | SOCK_NONBLOCK, 0);
    if (fd < 0)
        fail("socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (found->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, 1024))
        fail("%s:%s: %s%s", address, port, strerror(errno),
             errno == EADDRINUSE ? ": another server has this port, perhaps "
             "another memcached: stop it or take another (-p)" :
             errno == EADDRNOTAVAIL ? ": no address of this machine (-l)" :
             "");
    freeaddrinfo(found);
    return fd;
}

#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>

static SSL_CTX *tls;

static const char *tls_error(void)
{
    static _Thread_local char why[256];

    ERR_error_string_n(ERR_get_error(), why, sizeof why);
    return why;
}

void prepare_tls(void)
{
    if (!opt.tls)
        return;
    tls = SSL_CTX_new(TLS_server_method());
    if (!tls)
        fail("TLS: %s", tls_error());
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE
                     | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER
                     | SSL_MODE_RELEASE_BUFFERS);
    /* One recv a request: header and body of a record at once. */
    SSL_CTX_set_read_ahead(tls, 1);
    if (SSL_CTX_use_certificate_chain_file(tls, opt.cert) != 1)
        fail("ssl_chain_cert=%s: no certificate: %s", opt.cert, tls_error());
    if (SSL_CTX_use_PrivateKey_file(tls, opt.key, SSL_FILETYPE_PEM) != 1
        || SSL_CTX_check_private_key(tls) != 1)
        fail("ssl_key=%s: not the key of that certificate: %s", opt.key,
             tls_error());
    if (!opt.ca)
        return;
    if (SSL_CTX_load_verify_locations(tls, opt.ca, NULL) != 1)
        fail("ssl_ca_cert=%s: no certificates of a CA: %s", opt.ca,
             tls_error());
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
    default:
        return LINK_BROKEN;
    }
}

bool link_open(struct link *l, int fd)
{
    *l = (struct link){.fd = fd};
    if (!tls)
        return true;
    l->ssl = SSL_new(tls);
    return l->ssl && SSL_set_fd(l->ssl, fd) == 1;
}

int link_accept(struct link *l)
{
    if (!l->ssl)
        return 1;
    ERR_clear_error();
    int result = SSL_accept(l->ssl);
    if (result == 1)
        return 1;
    return tls_result(l, result) == LINK_AGAIN ? LINK_AGAIN : LINK_BROKEN;
}

static ssize_t tls_read(struct link *l, void *buffer, size_t n)
{
    ERR_clear_error();
    int got = SSL_read(l->ssl, buffer, (int)n);
    return got > 0 ? got : tls_result(l, got);
}

static ssize_t tls_write(struct link *l, const void *buffer, size_t n)
{
    ERR_clear_error();
    int put = SSL_write(l->ssl, buffer, (int)n);
    if (put > 0)
        return put;
    return tls_result(l, put) == LINK_AGAIN ? LINK_AGAIN : LINK_BROKEN;
}

bool link_pending(const struct link *l)
{
    return l->ssl && SSL_has_pending(l->ssl);
}

static void tls_close(struct link *l) { SSL_free(l->ssl); }
#else
void prepare_tls(void) { }
int link_accept(struct link *l) { (void)l; return 1; }
bool link_pending(const struct link *l) { (void)l; return false; }
static void tls_close(struct link *l) { (void)l; }

bool link_open(struct link *l, int fd)
{
    *l = (struct link){.fd = fd};
    return true;
}

static ssize_t tls_read(struct link *l, void *buffer, size_t n)
{
    (void)l, (void)buffer, (void)n;
    return LINK_BROKEN;
}

static ssize_t tls_write(struct link *l, const void *buffer, size_t n)
{
    (void)l, (void)buffer, (void)n;
    return LINK_BROKEN;
}
#endif

static ssize_t outcome(ssize_t n)
{
    return n >= 0 ? n : errno == EAGAIN || errno == EINTR ? LINK_AGAIN
                                                          : LINK_BROKEN;
}

/* Bytes; 0 at the end; LINK_AGAIN; LINK_BROKEN. */
ssize_t link_read(struct link *l, void *buffer, size_t n)
{
    return l->ssl ? tls_read(l, buffer, n)
                  : outcome(recv(l->fd, buffer, n, 0));
}

ssize_t link_write(struct link *l, const void *buffer, size_t n)
{
    return l->ssl ? tls_write(l, buffer, n)
                  : outcome(send(l->fd, buffer, n, MSG_NOSIGNAL));
}

void link_close(struct link *l)
{
    if (l->ssl)
        tls_close(l);
    close(l->fd);
}
