/* optcast.h - reduction servers, their clients, and a ring, over TCP.
 *
 * What passes between two peers, in the order of their bytes (both ends must
 * have the same one: the first word tells):
 *
 *   client -> server  struct join     who it is, and the secret of the run
 *   server -> client  struct answer   whether it may stay, or why not
 *
 * then messages: struct header, and as many bytes as it says. */
#ifndef OPTCAST_H
#define OPTCAST_H

#include "../../core/src/common/net.h"
#include "../../core/src/common/program.h"
#include "../../core/src/common/service.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define VERSION "1.0"
#define MAX_RANKS 256
#define MAX_JOBS 64
#define MAX_THREADS 256
#define SECRET 64                   /* with the zero at its end              */
#define ADDRESS 64                  /* HOST:PORT, with the zero at its end   */

enum { MAGIC = 0x3343504f, DATA = 0x41544144, BARRIER = 0x52524142,
       BYE = 0x00455942 };
enum type { F32, F16, BF16, TYPES };

struct join {
    uint32_t magic, rank, nrank, type;
    uint64_t count;                 /* elements of a message, at most         */
    char ring[ADDRESS];             /* where its neighbour in a ring connects */
    char secret[SECRET];
};

struct answer {
    uint32_t magic;
    char why[220];                  /* empty: the client may stay             */
};

struct header {
    uint32_t magic, seq;
    uint64_t bytes;
};

/* options.c: what the command line says; names are those of Optcast's server. */
extern struct options {
    bool client, ring;
    const char *address, *service_file, *trace;
    uint32_t port, rank, nrank, jobs, threads, recvs, sends;
    uint32_t iterations, warmup, timeout;
    enum type type;
    uint64_t count, chunk;          /* elements; bytes                        */
    uint64_t size[64];              /* bytes                                  */
    int sizes;
    struct service service;         /* servers, the secret, the gate          */
} o;
extern char host[64];               /* name of this machine, set by main()    */
void take_options(int argc, char **argv);

static inline size_t size_of(enum type type)
{
    return type == F32 ? 4 : 2;
}

/* trace.c: the original's lines; silent until it is opened. Without a path: on
 * standard output, and no spans. */
void trace_open(const char *path);
void trace_rust(const char *level, const char *module, const char *, ...)
    __attribute__((format(printf, 3, 4)));
void trace_nccl(int line, const char *, ...)
    __attribute__((format(printf, 2, 3)));
void trace_flush(void);

/* net.c */
struct end {                        /* one direction of a connection          */
    int fd;
    uint32_t seq;                   /* of its next message                    */
    char peer[160];                 /* for messages                           */
    /* Of a client: the message under way, of which so many bytes have passed. */
    struct header head;
    size_t done;
    int least;                      /* SO_RCVLOWAT                            */
};
struct link { struct end out, in; };

bool read_whole(int fd, void *, size_t);    /* false: closed, late, an error */
/* HOST:PORT of this end of a connection, or of its peer. */
void name_of(int fd, bool peer, char out[ADDRESS]);
/* A connection to HOST:PORT, which may come up within the timeout. */
int connect_to(const char *where);
/* Both sides of the handshake. accept_peer: whether the peer may stay; otherwise
 * *why, which is empty if it sent nothing. ring: see struct join, or "". */
bool accept_peer(int fd, struct join *, const char **why);
void join_server(int fd, const char *name, const char *ring);
/* The end of the program: the peer hangs, or has closed the connection. */
_Noreturn void lost(const struct end *, const char *what);
void send_message(struct end *, uint32_t magic, void *data, uint64_t bytes);
/* A message of at most so many bytes. */
struct header take_message(struct end *, void *data, uint64_t most);

/* reduce.c */
void *get(size_t);                  /* memory at the begin of a page          */
void reduce(enum type, void *out, const void *const *in, int inputs,
            size_t count);
void to_number(enum type, void *, size_t at, float);

/* server.c, client.c */
int serve(void);
int run_client(void);

/* How clients all-reduce: servers.c or ring.c says which messages there are,
 * all_reduce() passes them. */
struct message {
    struct end *end;
    uint8_t *data;
    uint64_t bytes;
};
enum { WINDOW = 4 };                /* parts per server that are under way    */
struct way {
    int count;
    struct link *links;
    /* Sets how many messages an all-reduce of so many bytes sends, and takes; and
     * so many are sent before one was taken. */
    void (*begin)(struct way *);
    uint64_t messages, window;
    struct message (*message)(struct way *, uint64_t k, bool out);
    /* Adds what was taken in message k to it; or NULL. */
    void (*add)(struct way *, uint64_t k);
    /* The all-reduce under way. */
    uint8_t *from, *to;
    uint64_t bytes, sent, taken;
    uint32_t magic;
};
void servers_way(struct way *);
void ring_way(struct way *);
/* magic: DATA or BARRIER */
void all_reduce(struct way *, void *in, void *out, uint64_t bytes,
                uint32_t magic);

#endif
