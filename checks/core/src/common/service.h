/* service.h - the file that lists the servers of a client. */
#ifndef SERVICE_H
#define SERVICE_H

#include "net.h"

#include <stdio.h>

#define MAX_SERVERS 1024

struct service {
    struct server *servers;
    int count, family;            /* family: of addresses, see resolve()  */
    const char *user, *password;
    bool cluster, gate;
};

/* Another server, HOST:PORT or unix:PATH. False: it has another form. */
bool add_server(struct service *s, const char *where);
/* Lines 'server HOST PORT' (or 'server unix:PATH'), 'user NAME', 'password
 * WORD', 'cluster' and 'gate'. Another line ends the program. `name`: of the
 * file, for messages. */
void read_service(struct service *s, FILE *file, const char *name);
/* The same for a file by its path. */
void open_service(struct service *s, const char *path);
/* Wait for a common start: print "ready\n" on standard error, and read "go\n" from
 * standard input. */
void pass_gate(void);

#endif
