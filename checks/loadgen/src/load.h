/*
 * load.h - what the files of the embedded memtier_benchmark share: a load
 * generator for stores that speak RESP or memcached's binary protocol.
 * docs/reference/families/keyvalue.md describes it.
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

#define VERSION "2.0"
#define MAX_PREFIX 240       /* a key may have 250 bytes in memcached   */

enum protocol { REDIS, MEMCACHE_BINARY };
/* Kinds of requests. COMMAND: that of --command. */
enum kind { SET, GET, COMMAND, KINDS };
enum verify { VERIFY_NONE, VERIFY_LENGTH, VERIFY_BYTES };
/* Which write a value comes from: the fill, or a later one. */
enum generation { ANY, FILLED, OVERWRITTEN };
enum on_miss { MISS_COUNTS, MISS_FAILS, MISS_SETS };
extern const char *const protocol_names[];

/* --- histogram.c: log-linear, buckets at most 1/128 wide ---------------- */
enum { STEPS = 128, BUCKETS = 40 * STEPS };   /* up to 2^46 ns, 19 hours */
struct histogram {
    uint64_t bucket[BUCKETS], sum, min, max;
};
unsigned bucket_of(uint64_t value);
uint64_t bucket_lower(unsigned index);
double percentile(const uint64_t *bucket, uint64_t count, double share);
void print_buckets(const uint64_t *bucket, FILE *out);

/* A server, and what all threads know of it. */
struct node {
    const struct server *server;
    const char *name;             /* the server's                         */
    bool owns_keys;
    _Atomic uint64_t next_fill;   /* the next key that a fill sets here   */
};
enum { BUFFER = 1 << 16 };        /* bytes a recv may bring               */

/* --- options.c --------------------------------------------------------- */
enum { MAX_COMMAND = 64, MAX_PERCENTILES = 16 };
extern const char KEY_WORD[], DATA_WORD[];        /* of --command         */
struct options {
    struct service service;       /* where the servers are                */
    struct node *nodes;           /* all of them                          */
    int node_count;
    enum protocol protocol;
    double sets, gets;            /* shares; 0 and 0 with --command       */
    struct word words[MAX_COMMAND];       /* of --command                 */
    int word_count;
    bool msets;                   /* --command MSET                       */
    bool fills;                   /* --key-pattern P:P: each key once     */
    unsigned threads, clients, pipeline, reconnect;   /* clients: a thread */
    uint64_t keys, requests, data_size, seed;
    const char *prefix;
    size_t prefix_size;
    unsigned key_digits;          /* of a key's number, at the least      */
    enum verify verify;
    enum on_miss on_miss;
    double rate;                  /* of each connection                   */
    double duration, warmup, timeout;
    double percentiles[MAX_PERCENTILES];
    unsigned percentile_count;
    const char *data_sizes;       /* --data-size-list                     */
    const char *json, *ratio, *pattern, *requests_text;
};
extern struct options opt;
void read_options(int argc, char **argv);

/* --- draw.c: keys, sizes and values ------------------------------------ */
struct rng { uint64_t state; };
/* Each seed and each stream has other numbers. */
void rng_seed(struct rng *r, uint64_t seed, uint64_t stream);
uint64_t rng_next(struct rng *r);
double rng_unit(struct rng *r);                   /* in [0, 1)            */
void prepare_draw(void);
uint64_t draw_key(struct rng *r);
size_t value_size(uint64_t key);
size_t largest_value(void);
/* The bytes stay valid until the program ends. */
const char *value_of(uint64_t key, size_t size, enum generation of);
unsigned decimal(char *out, uint64_t value);      /* digits written       */
unsigned key_number(char *out, uint64_t key);
unsigned slot_of(uint64_t key);
bool node_owns(const struct node *n, uint64_t key);

/* --- nodes.c ----------------------------------------------------------- */
/* Fills opt.nodes. Each node of a cluster must have some key. */
void find_nodes(void);

/* --- engine.c ---------------------------------------------------------- */
struct op {
    uint64_t start, key;
    size_t bytes;                 /* of the request                       */
    enum kind kind;
    enum generation due;          /* that the value read must have        */
};
/* Bytes to send: small ones are copied to `bytes`, large values are sent from
 * where they are. */
struct piece { const char *at; size_t offset, size; };
struct conn {
    int fd;
    struct node *node;
    struct thread *thread;
    enum { CLOSED, CONNECTING, OPEN } state;
    unsigned greetings;           /* replies to come before the load      */
    uint64_t since;               /* last progress; for timeouts, ns      */
    uint64_t begun;               /* to connect                           */
    struct op *ops;               /* a ring of requests in flight         */
    unsigned head, in_flight;
    /* out */
    char *bytes;
    size_t filled, room;
    uint64_t queued;              /* bytes of all requests so far         */
    struct piece *pieces;
    unsigned piece_count, piece_room, piece_first;
    /* the reply that is being read */
    char line[512];
    unsigned line_size;
    bool in_body, broken;         /* broken: it is an error reply         */
    bool is_value, kept;          /* the body; kept: copied to `line`     */
    size_t received;              /* bytes of the reply so far            */
    enum generation found;        /* of the value so far                  */
    bool has_value;
    uint32_t sent, answered;      /* requests, as `opaque` counts them    */
    size_t body, at, skip, size;  /* bytes left, position, value in body  */
};
struct write { struct conn *conn; uint64_t key; };
/* Of one kind; by_second: how many were answered in each second. */
struct tally {
    uint64_t count, misses, sent, received, *by_second;
    size_t seconds;
};
struct thread {
    unsigned index, conn_count, up;
    struct conn *conns;
    int epoll;
    struct rng rng;
    char *buffer;
    uint64_t now, next_check, in_flight, opening, left;
    uint64_t answered;            /* warm-up and all                      */
    double due;                   /* open loop: the next intended send    */
    struct conn **credits;        /* a ring of free pipeline slots        */
    unsigned credit_first, credit_count;
    bool running, measuring;
    struct usage { double cpu, waited, at; } usage[2];          /* seconds */
    uint64_t last_answer, lag_last;
    struct write *sample;         /* the last writes, a ring; or NULL     */
    uint64_t sample_size, written;
    struct tally tally[KINDS];
    struct histogram *histogram;  /* one a kind                           */
};
extern uint64_t begin_ns, end_ns;
extern struct thread *threads;
void open_connections(struct thread *t);
void run_load(struct thread *t);
void consume(struct conn *c, const char *p, size_t n);

/* --- protocol.c -------------------------------------------------------- */
void put_greeting(struct conn *c);
size_t put_request(struct conn *c, const struct op *op);  /* its bytes */
/* Reads from *p, at most *n bytes, to the end of one reply, and moves both.
 * True: the reply to the oldest request (or to a greeting) is complete;
 * false: all bytes are used, more must come. */
bool read_reply(struct conn *c, const char **p, size_t *n);

/* --- report.c ---------------------------------------------------------- */
void print_report(void);

#endif
