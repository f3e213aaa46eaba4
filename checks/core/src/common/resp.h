/*
 * resp.h - RESP, the protocol of Redis and its like: the first line of each
 * value, and a client with blocking sockets.
 */
#ifndef RESP_H
#define RESP_H

#include "net.h"
#include "service.h"

#include <stdint.h>

/* Longer texts and more elements than these are no valid answer to questions
 * about the server. */
enum { MAX_ELEMENTS = 1 << 20, MAX_SAID = 1 << 20 };
#define MAX_VALUE (1ull << 32)

/* Digits, perhaps after a minus, that fit into 64 bits. */
bool parse_integer(const char *text, long long *n);
/* The first line of a value, without CR LF: its type and number. Returns what
 * is wrong with it, or NULL. */
struct head { char type; long long n; };
const char *read_head(const char *line, struct head *h);
/* Ends the program with a server's error and advice on what to do. */
_Noreturn void refused(const struct server *s, const char *said);

/* --- a blocking connection to one server --------------------------------- */
struct wire {
    int fd;
    const struct server *server;
    double timeout;               /* for one read or write, seconds       */
    const char *asked;            /* what the server has to answer        */
    char *input;
    size_t at, filled;
};
/* All of these end the program with one line if something is wrong. */
void wire_open(struct wire *w, const struct server *s, double timeout);
void wire_close(struct wire *w);
/* n bytes; to NULL: they are skipped. */
void wire_take(struct wire *w, void *to, size_t n);

/* --- RESP2 over it ------------------------------------------------------- */
struct word { const void *at; size_t size; };
#define TEXT(text) ((struct word){text, strlen(text)})
enum { MAX_WORDS = 40 };
void resp_ask(struct wire *w, const struct word *words, int count);
/* AUTH, if there is a password, then PING. */
void resp_greet(struct wire *w, const char *user, const char *password);
/* The line of the next value, decoded; it stays valid until the next call. An
 * error of the server ends. */
char *resp_head(struct wire *w, struct head *h);
long long resp_number(struct wire *w, char type);   /* : or a length       */
void resp_ok(struct wire *w);
/* A text that fits into `room`; a null is an empty one. */
void resp_text(struct wire *w, char *out, size_t room);
/* So many values with all their elements. */
void resp_skip(struct wire *w, unsigned values);

/* --- clusters ------------------------------------------------------------ */
#define SLOTS 16384
extern uint16_t slot_server[SLOTS];   /* index of the server               */
uint16_t crc16(uint16_t crc, const char *p, size_t n);
/* The slot of a key, with a {tag} or without. */
unsigned slot_of_text(const char *key, size_t n);
/* Asks the first server of a cluster for the others. Replaces s->servers by all
 * masters, and fills slot_server. */
void find_masters(struct service *s, double timeout);

#endif
