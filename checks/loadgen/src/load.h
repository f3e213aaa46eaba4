/*
 * load.h - what the files of plumbload share: a load generator for stores
 * that speak RESP or memcached's protocols. docs/reference/families/loadgen.md
 * describes it.
 */
#ifndef LOAD_H
#define LOAD_H

#include "../../core/src/common/net.h"
#include "../../core/src/common/options.h"
#include "../../core/src/common/program.h"
#include "../../core/src/common/resp.h"
#include "../../core/src/common/service.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define VERSION "1.1"
#define MAX_PREFIX 240       /* a key may have 250 bytes in memcached   */

enum protocol { RESP2, BINARY };
enum operation {
    OP_GET, OP_SET, OP_MIXED, OP_MSET, OP_LPUSH, OP_XADD, OP_CONNECT, OP_FILL
};
/* Kinds of requests; a mixed load has two of them. Those after KINDS are not
 * measured: they read back what was written. */
enum kind {
    GET, SET, MSET, LPUSH, XADD, CONNECT, KINDS,
    READ_LIST = KINDS, READ_STREAM, READ_GROUP
};
enum verify { VERIFY_BYTES, VERIFY_LENGTH, VERIFY_NONE };
/* Which write a value comes from: the fill, or a later one. */
enum generation { ANY, FILLED, OVERWRITTEN };
enum on_miss { MISS_FAILS, MISS_COUNTS, MISS_SETS };
extern const char *const kind_names[KINDS];
extern const char *const protocol_names[];
extern const char *const operation_names[];
extern const char *const verify_names[], *const miss_names[];

/* --- histogram.c: log-linear, buckets at most 1/128 wide ---------------- */
enum { STEPS = 128, BUCKETS = 40 * STEPS };   /* up to 2^46 ns, 19 hours */
struct histogram {
    /* One thread writes, the main thread only reads: relaxed is enough. */
    _Atomic uint64_t bucket[BUCKETS], sum, min, max;
};
unsigned bucket_of(uint64_t value);
uint64_t bucket_lower(unsigned index);
uint64_t percentile(const uint64_t *bucket, uint64_t count, double share);
void print_buckets(const uint64_t *bucket, FILE *out);

/* Where the i-th of n equal parts of a total begins. */
static inline uint64_t part(uint64_t total, unsigned i, unsigned n)
{
    return (uint64_t)((unsigned __int128)total * i / n);
}

static inline uint64_t peek(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static inline void poke(_Atomic uint64_t *counter, uint64_t value)
{
    atomic_store_explicit(counter, value, memory_order_relaxed);
}

static inline void bump(_Atomic uint64_t *counter, uint64_t by)
{
    poke(counter, peek(counter) + by);
}

/* A server, and what all threads know of it. */
struct node {
    const struct server *server;
    const char *name;             /* the server's                         */
    bool owns_keys;
    _Atomic uint64_t next_fill;   /* the next key that `fill` sets here   */
    _Atomic uint64_t *written;    /* a bit a key: its SET was acknowledged */
};
enum { BUFFER = 1 << 16 };        /* bytes a recv may bring               */

/* --- options.c --------------------------------------------------------- */
struct options {
    struct service service;       /* where the servers are                */
    struct node *nodes;           /* all of them, known after probe()     */
    int node_count;
    enum protocol protocol;
    enum operation operation;
    double gets;                  /* share of GETs in a mixed load        */
    const char *ratio;
    unsigned batch, connections, threads, pipeline;
    unsigned share, shares;
    uint64_t keys, seed, value_seed, requests;
    const char *prefix;
    size_t prefix_size;
    unsigned key_digits;          /* of a key's number, at the least      */
    const char *value_size;
    enum verify verify;
    enum on_miss on_miss;
    double rate, duration, warmup, timeout, interval;
    const char *series, *name;
};
extern struct options opt;
void read_options(int argc, char **argv);

/* --- draw.c: keys, sizes and values ------------------------------------ */
struct rng { uint64_t s[4]; };
void rng_seed(struct rng *r, uint64_t a, uint64_t b);
uint64_t rng_next(struct rng *r);
double rng_unit(struct rng *r);                   /* in [0, 1)            */
void prepare_draw(void);
uint64_t draw_key(struct rng *r, uint64_t keys);
size_t value_size(uint64_t key);
size_t largest_value(void);
/* The bytes stay valid until the program ends. */
const char *value_of(uint64_t key, size_t size, enum generation of);
unsigned decimal(char *out, uint64_t value);      /* digits written       */
unsigned key_number(char *out, uint64_t key);
unsigned slot_of(uint64_t key, bool group);
bool node_owns(const struct node *n, uint64_t key, bool group);

/* --- probe.c ----------------------------------------------------------- */
/* Fills opt.nodes. Each node of a cluster must have some key. */
void probe(void);

/* --- engine.c ---------------------------------------------------------- */
struct op {
    uint64_t start, key;
    size_t bytes;
    enum kind kind;
    enum generation due;          /* that the value read must have        */
};
/* Bytes to send: small ones are copied to `bytes`, large values are sent from
 * where they are. */
struct piece { const char *at; size_t offset, size; };
struct conn {
    struct link link;
    struct node *node;
    struct thread *thread;
    enum { CLOSED, CONNECTING, HANDSHAKE, OPEN } state;
    unsigned greetings;           /* replies to come before the load      */
    uint64_t since;               /* last progress; for timeouts, ns      */
    struct op *ops;               /* a ring of requests in flight         */
    unsigned head, in_flight;
    /* out */
    char *bytes;
    size_t filled, room;
    struct piece *pieces;
    unsigned piece_count, piece_room, piece_first;
    /* the reply that is being read */
    char line[512];
    unsigned line_size;
    bool in_body, broken;         /* broken: it is an error reply         */
    bool is_value, kept;          /* the body; kept: copied to `line`     */
    enum generation found;        /* of the value so far                  */
    unsigned elements, seen;      /* to come, and all of this reply       */
    unsigned bulks, values;
    uint32_t sent, answered;      /* requests, as `opaque` counts them    */
    size_t body, at, skip, size;  /* bytes left, position, value in body  */
};
struct tally { _Atomic uint64_t count, misses, bytes; };
struct thread {
    unsigned index, conn_count, up;
    struct conn *conns;
    int epoll;
    struct rng rng;
    char *buffer;
    uint64_t now, next_check, in_flight, left;
    _Atomic uint64_t answered;    /* warm-up and all                      */
    double due;                   /* open loop: the next intended send    */
    struct conn **credits;        /* a ring of free pipeline slots        */
    unsigned credit_first, credit_count;
    bool running, measuring;
    struct usage { double user, system, waited, at; } usage[2]; /* seconds */
    uint64_t last_answer, lag_max, lag_last;
    struct tally tally[KINDS];
    struct histogram *histogram;  /* one a kind                           */
};
extern uint64_t begin_ns, end_ns;
extern struct thread *threads;
void open_connections(struct thread *t);
void track_writes(struct node *n);
void run_load(struct thread *t);
void consume(struct conn *c, const char *p, size_t n);

/* --- protocol.c -------------------------------------------------------- */
bool is_read(enum kind kind);
void put_greeting(struct conn *c);
size_t put_request(struct conn *c, const struct op *op);  /* value bytes */
/* Reads from *p, at most *n bytes, to the end of one reply, and moves both.
 * True: the reply to the oldest request (or to a greeting) is complete;
 * false: all bytes are used, more must come. */
bool read_reply(struct conn *c, const char **p, size_t *n);

/* --- report.c ---------------------------------------------------------- */
void print_report(double wall);
void write_series(void);          /* returns when the threads are done     */
extern _Atomic unsigned running_threads;

#endif
