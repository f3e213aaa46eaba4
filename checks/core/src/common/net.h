/*
 * net.h - addresses, sockets, and connections.
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

/* Bytes; 0 at the end; LINK_AGAIN (also: the timeout); LINK_BROKEN. */
ssize_t link_read(int fd, void *buffer, size_t n);
ssize_t link_write(int fd, const struct iovec *v, int count);
/* Everything, on a socket that blocks; changes v. 0, LINK_AGAIN or LINK_BROKEN. */
ssize_t link_write_all(int fd, struct iovec *v, int count);
void link_close(int fd, bool abort);
/* Why a link is broken. */
const char *link_error(void);

#endif
