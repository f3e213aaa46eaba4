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

enum { MAGIC = 0x3243504f, DATA = 0x41544144, BARRIER = 0x52524142,
       BYE = 0x00455942 };
enum type { F32, F16, BF16, TYPES };

struct join {
    uint32_t magic, rank, nrank, type;
    uint64_t count;                 /* elements of a message, at most         */
    uint32_t ring, address, port;   /* where its neighbour in a ring connects */
    uint32_t unused;
    char secret[SECRET];
};

struct answer {
    uint32_t magic, refused;
    char why[216];
};

struct header {
    uint32_t magic, seq;
    uint64_t bytes;
};

struct neighbour {                  /* of a ring: who comes next              */
    uint32_t magic, address, port;
};

/* What the command line says; names are those of Optcast's server. */
struct options {
    bool client, ring;
    const char *address, *service_file, *trace, *host;
    uint32_t port, rank, nrank, jobs, threads, recvs, sends, nreq, nsplit;
    uint32_t iterations, warmup, timeout;
    enum type type;
    uint64_t count, chunk;          /* elements; bytes                        */
    uint64_t size[64];              /* bytes                                  */
    int sizes;
    struct service service;         /* servers, the secret, the gate          */
};

static inline size_t size_of(enum type type)
{
    return type == F32 ? 4 : 2;
}

/* trace.c: the original's lines; silent until it is opened. Without a path: on
 * standard output, and no spans. */
void trace_open(const char *path, const char *host);
bool tracing(void);
void trace_rust(const char *level, const char *module, const char *, ...)
    __attribute__((format(printf, 3, 4)));
void trace_nccl(int line, const char *, ...)
    __attribute__((format(printf, 2, 3)));
void trace_flush(void);

/* net.c */
/* A connection to HOST:PORT, which may come up within the timeout. */
int connect_to(const char *where, uint32_t timeout);
const char *peer_of(int fd, char out[64]);
bool read_whole(int fd, void *, size_t);    /* false: closed, late, an error */
bool write_whole(int fd, const void *, size_t);

/* One direction of a connection, and the message that is under way. */
struct flow {
    int fd, least;
    struct header head;
    size_t done;                    /* bytes of it that have passed           */
};
/* Whether it has passed as a whole; then another one may begin. */
bool has_passed(struct flow *);
/* Pass what is left of a message. Both return the bytes that passed now; 0: the
 * peer has closed; LINK_AGAIN: none passed; LINK_BROKEN: errno says why, EBADMSG:
 * another header than the one that is due. */
ssize_t send_message(struct flow *, const void *data, int flags);
ssize_t take_message(struct flow *, void *data, const struct header *due);
/* What a peer did after one of them returned 0 or LINK_BROKEN. */
const char *failure_of(ssize_t);
/* Has poll() wait until a message of this size is there, which must be on its
 * way: fewer, larger reads. */
void wait_for_message(struct flow *, size_t size);

/* Both sides of the handshake; accept_peer tells who came. */
bool accept_peer(int fd, const struct options *, struct join *, char *why,
                  size_t);
void join_server(int fd, const struct options *, const char *where,
                 uint32_t ring_address, uint32_t ring_port);

/* reduce.c */
void *get(size_t);                  /* memory at the begin of a page          */
void reduce(enum type, void *out, const void *const *in, int inputs,
            size_t count);
void to_number(enum type, void *, size_t at, float);

/* server.c, client.c, ring.c */
int serve(const struct options *);
int run_client(struct options *);

/* An all-reduce over some way: in and out of `bytes`; a barrier. */
struct way {
    void (*all_reduce)(void *self, const void *in, void *out, uint64_t bytes,
                       bool traced);
    void (*barrier)(void *self);
    void (*end)(void *self);
};
void *optcast_way(const struct options *, struct way *);
void *ring_way(const struct options *, struct way *);

#endif
