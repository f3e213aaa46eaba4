/*
 * net.h - addresses, sockets, and connections with or without TLS. TLS is
 * there where build.sh found OpenSSL (WITH_TLS).
 */
#ifndef NET_H
#define NET_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/uio.h>

struct server {
    char name[128];               /* HOST:PORT or unix:PATH               */
    struct sockaddr_storage address;
    socklen_t address_size;
};
struct link { int fd; void *ssl; };
enum { LINK_AGAIN = -1, LINK_BROKEN = -2 };

/* HOST:PORT, [HOST]:PORT or unix:PATH; false: it has another form. `family`:
 * AF_UNSPEC, or the only one that may be found. */
bool resolve(struct server *s, const char *where, int family);
/* A socket that is being connected; -1 with errno. With a timeout (seconds)
 * it blocks for at most that time and a second; with 0 it does not block. */
int start_connect(const struct server *s, double timeout);
/* A socket that listens; flags: those of socket(). Fails with one line. */
int listen_at(const char *address, const char *port, int flags);
void send_at_once(int fd);                        /* TCP_NODELAY           */
void set_timeout(int fd, unsigned seconds);       /* of send and receive   */

extern const bool with_tls;
/* All links that are opened from here on use TLS, as clients or as servers.
 * ca: certificates that a peer's must be signed with; NULL: of a client no
 * certificate is asked for. cert and key: of this end, or NULL. */
void prepare_tls(bool as_server, const char *ca, const char *cert,
                 const char *key);
/* False: no memory. */
bool link_open(struct link *l, int fd);
int link_handshake(struct link *l);   /* 1 done, LINK_AGAIN, LINK_BROKEN   */
/* Bytes; 0 at the end; LINK_AGAIN (also: the timeout); LINK_BROKEN. */
ssize_t link_read(struct link *l, void *buffer, size_t n);
ssize_t link_write(struct link *l, const struct iovec *v, int count);
bool link_pending(const struct link *l);          /* bytes that epoll does
                                                   * not report            */
void link_close(struct link *l, bool abort);
/* Why a link is broken. */
const char *link_error(void);

#endif
