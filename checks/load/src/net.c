/* net.c - addresses, sockets, TLS, and messages of failures. */
#define _GNU_SOURCE
#include "load.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

uint64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

_Noreturn void fail(const char *format, ...)
{
    static pthread_mutex_t speaking = PTHREAD_MUTEX_INITIALIZER;
    va_list args;

    pthread_mutex_lock(&speaking);          /* never unlocked: one line    */
    fputs(PROGRAM ": ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    _exit(1);
}

/* Part of a server's error -> advice; the first match counts. */
static const struct { const char *words, *advice; } advices[] = {
    {"without any password", "the server has no password: give none"},
    {"NOAUTH", "give the password (--password-file or --service)"},
    {"unauthenticated", "give the password (--password-file or --service)"},
    {"WRONGPASS", "user or password is not the server's"},
    {"Auth failure", "user or password is not the server's"},
    {"authentication failure", "user or password is not the server's"},
    {"OOM", "the store is full: its memory limit is below the data; raise "
            "the limit or ask for fewer or smaller values"},
    {"out of memory", "the store is full: its memory limit is below the "
                      "data; raise the limit or ask for fewer or smaller "
                      "values"},
    {"too large", "the value is above the store's limit for an item"},
    {"MISCONF", "the store cannot write its data: is the disk full?"},
    {"MOVED", "the node has not the slot: a cluster wants --cluster; with "
              "it, slots moved under the load"},
    {"ASK ", "slots of the cluster are being moved: wait until they are"},
    {"CLUSTERDOWN", "the cluster is not whole: are all its nodes alive?"},
    {"cluster support disabled", "no cluster: leave out --cluster"},
    {"CROSSSLOT", "a cluster wants --cluster"},
    {"LOADING", "the store still reads its data: wait until it is ready"},
    {"READONLY", "this is a replica: name the master"},
    {"NOPERM", "the user may not do this: another --service user, or ACL"},
    {"DENIED", "the server wants a password or another address to bind to"},
    {"max number of clients", "raise the server's limit of clients or of "
                              "open files, or ask for fewer connections"},
    {"Too many open conn", "raise the server's limit of connections, or ask "
                           "for fewer"},
    {"NOPROTO", "the server does not speak RESP3: --protocol resp2"},
    {"unknown command", "the server is too old for this, or no such store"},
    {"WRONGTYPE", "keys of another kind are there: another --key-prefix, or "
                  "an empty store"},
};

/* Text from the network, without control characters, for a terminal. */
const char *printable(const char *said)
{
    static _Thread_local char text[161];
    size_t i = 0;

    for (; said[i] && i < sizeof text - 1; i++)
        text[i] = said[i] >= ' ' && said[i] <= '~' ? said[i] : '?';
    text[i] = '\0';
    return text;
}

_Noreturn void refused(const struct node *n, const char *said)
{
    const char *advice = "the server's log may say why";

    for (size_t i = 0; i < sizeof advices / sizeof *advices; i++)
        if (strcasestr(said, advices[i].words)) {
            advice = advices[i].advice;
            break;
        }
    fail("%s: %s: %s", n->name, printable(said), advice);
}

/* HOST:PORT, [HOST]:PORT or unix:PATH */
bool resolve(struct node *n, const char *where)
{
    char host[sizeof n->name];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    struct sockaddr_un *local = (struct sockaddr_un *)&n->address;
    char *start = host, *port;

    if (strlen(where) >= sizeof host)
        return false;
    strcpy(host, where);
    strcpy(n->name, where);
    if (strncmp(where, "unix:", 5) == 0) {
        if (!where[5] || strlen(where + 5) >= sizeof local->sun_path)
            return false;
        local->sun_family = AF_UNIX;
        strcpy(local->sun_path, where + 5);
        n->address_size = sizeof *local;
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
    memcpy(&n->address, found->ai_addr, found->ai_addrlen);
    n->address_size = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

int start_connect(const struct node *n, double timeout)
{
    bool local = n->address.ss_family == AF_UNIX;
    int on = 1;
    int fd = socket(n->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool blocking = timeout > 0;
    struct timeval limit = {.tv_sec = (time_t)timeout + 1};

    if (fd < 0)
        return -1;
    if (!local)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (blocking) {
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    } else if (!local) {
        fcntl(fd, F_SETFL, O_NONBLOCK);
    }
    if (connect(fd, (const struct sockaddr *)&n->address, n->address_size)
        && errno != EINPROGRESS) {
        int code = errno;
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

#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>

bool with_tls = true;
static SSL_CTX *tls;

static const char *tls_error(void)
{
    static _Thread_local char why[256];
    unsigned long code = ERR_get_error();

    if (!code)
        return NULL;
    ERR_error_string_n(code, why, sizeof why);
    return why;
}

void prepare_tls(const char *ca, const char *cert, const char *key)
{
    tls = SSL_CTX_new(TLS_client_method());
    if (!tls)
        fail("TLS: %s", tls_error());
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE
                     | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    /* One recv a reply: header and body of a record at once. */
    SSL_CTX_set_read_ahead(tls, 1);
    /* The CA is the run's own: its certificate is proof enough. */
    SSL_CTX_set_verify(tls, SSL_VERIFY_PEER, NULL);
    if (SSL_CTX_load_verify_locations(tls, ca, NULL) != 1)
        fail("%s: no certificates of a CA: %s", ca, tls_error());
    if (cert
        && (SSL_CTX_use_certificate_chain_file(tls, cert) != 1
            || SSL_CTX_use_PrivateKey_file(tls, key, SSL_FILETYPE_PEM) != 1
            || SSL_CTX_check_private_key(tls) != 1))
        fail("%s and %s: no certificate with its key: %s", cert, key,
             tls_error());
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

int tls_step(struct link *l)
{
    if (!tls)
        return 1;
    if (!l->ssl) {
        l->ssl = SSL_new(tls);
        if (!l->ssl || SSL_set_fd(l->ssl, l->fd) != 1)
            fail("TLS: %s", tls_error());
    }
    ERR_clear_error();
    errno = 0;
    int result = SSL_connect(l->ssl);
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
bool with_tls = false;
static const char *tls_error(void) { return NULL; }
void prepare_tls(const char *ca, const char *cert, const char *key)
{
    (void)ca, (void)cert, (void)key;        /* options.c has refused it    */
}
int tls_step(struct link *l) { (void)l; return 1; }

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

bool link_pending(const struct link *l) { (void)l; return false; }
static void tls_close(struct link *l) { (void)l; }
#endif

const char *link_error(void)
{
    int code = errno;
    const char *why = tls_error();

    return why ? why : code ? strerror(code) : "closed";
}

/* Bytes read; 0 at the end; LINK_AGAIN; LINK_BROKEN (see link_error). */
ssize_t link_read(struct link *l, void *buffer, size_t n)
{
    if (l->ssl)
        return tls_read(l, buffer, n);
    ssize_t got = recv(l->fd, buffer, n, 0);
    return got >= 0 ? got : errno == EAGAIN ? LINK_AGAIN : LINK_BROKEN;
}

ssize_t link_write(struct link *l, const struct iovec *v, int count)
{
    ssize_t put;

    if (l->ssl)
        return tls_write(l, v);
    if (count == 1) {
        put = send(l->fd, v->iov_base, v->iov_len, MSG_NOSIGNAL);
    } else {
        struct msghdr message = {.msg_iov = (struct iovec *)v,
                                 .msg_iovlen = (size_t)count};
        put = sendmsg(l->fd, &message, MSG_NOSIGNAL);
    }
    return put >= 0 ? put : errno == EAGAIN ? LINK_AGAIN : LINK_BROKEN;
}

void link_close(struct link *l, bool abort)
{
    struct linger now = {.l_onoff = 1};

    if (l->ssl)
        tls_close(l);
    /* A reset leaves no port in TIME_WAIT: there are 28 000 of them. */
    if (abort)
        setsockopt(l->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(l->fd);
    l->fd = -1;
}
