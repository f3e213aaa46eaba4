/* cluster.c - which server of a cluster has which key; see resp.h. */
#include "program.h"
#include "resp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint16_t slot_server[SLOTS];
static uint16_t crc_table[256];

/* CRC-16/XMODEM */
__attribute__((constructor)) static void prepare_crc(void)
{
    for (unsigned i = 0; i < 256; i++) {
        unsigned crc = i << 8;
        for (int bit = 0; bit < 8; bit++)
            crc = crc << 1 ^ (crc & 0x8000 ? 0x1021 : 0);
        crc_table[i] = (uint16_t)crc;
    }
}

uint16_t crc16(uint16_t crc, const char *p, size_t n)
{
    while (n--)
        crc = (uint16_t)(crc << 8
                         ^ crc_table[(crc >> 8 ^ (unsigned char)*p++) & 255]);
    return crc;
}

unsigned slot_of_text(const char *key, size_t n)
{
    const char *open = memchr(key, '{', n);
    const char *shut = open ? memchr(open, '}', n - (size_t)(open - key))
                            : NULL;

    if (shut && shut > open + 1) {
        key = open + 1;
        n = (size_t)(shut - key);
    }
    return crc16(0, key, n) % SLOTS;
}

/* HOST:PORT of a server; a host that is not named is the one that was
 * asked. */
static void take_address(struct wire *w, char *where, size_t room)
{
    char host[128];
    const char *asked = w->server->name;

    resp_text(w, host, sizeof host);
    if (strcmp(host, printable(host)))
        fail("%s: CLUSTER SLOTS names a node '%s'", asked, printable(host));
    if (!*host || *host == '?')
        snprintf(host, sizeof host, "%.*s",
                 (int)(strrchr(asked, ':') - asked), asked);
    snprintf(where, room, "%s:%lld", host, resp_number(w, ':'));
}

/* The index of a server, which is added if it is a new one. */
static int index_of(const struct wire *w, struct server *servers, int *count,
                    const char *where)
{
    int i = 0;

    while (i < *count && strcmp(servers[i].name, where))
        i++;
    if (i == MAX_SERVERS)
        fail("%s: CLUSTER SLOTS names more than %d nodes", w->server->name,
             MAX_SERVERS);
    if (i == *count && !resolve(&servers[(*count)++], where, AF_UNSPEC))
        fail("%s: CLUSTER SLOTS names a node '%s'", w->server->name, where);
    return i;
}

/* CLUSTER SLOTS: from, to, then the master's address, then its replicas.
 * Returns how many servers there are; `servers` has room for MAX_SERVERS. */
static int read_slots(struct wire *w, struct server *servers)
{
    bool covered[SLOTS] = {false};
    int count = 0;

    resp_ask(w, (struct word[]){TEXT("CLUSTER"), TEXT("SLOTS")}, 2);
    w->asked = "CLUSTER SLOTS";
    for (long long ranges = resp_number(w, '*'); ranges > 0; ranges--) {
        long long parts = resp_number(w, '*');
        long long from = resp_number(w, ':'), to = resp_number(w, ':');
        long long words = resp_number(w, '*');
        char where[160];
        take_address(w, where, sizeof where);
        resp_skip(w, words > 2 ? (unsigned)words - 2 : 0);
        resp_skip(w, parts > 3 ? (unsigned)parts - 3 : 0);
        int i = index_of(w, servers, &count, where);
        if (from < 0 || to >= SLOTS)
            fail("%s: CLUSTER SLOTS is out of bounds", w->server->name);
        for (long long s = from; s <= to; s++) {
            slot_server[s] = (uint16_t)i;
            covered[s] = true;
        }
    }
    for (int s = 0; s < SLOTS; s++)
        if (!covered[s])
            fail("%s: slot %d is served by no node: is the cluster whole?",
                 w->server->name, s);
    return count;
}

void find_masters(struct service *s, double timeout)
{
    struct server *masters = calloc(MAX_SERVERS, sizeof *masters);
    struct wire w;

    if (!masters)
        fail("no memory for %d servers", MAX_SERVERS);
    wire_open(&w, s->servers, timeout);
    resp_greet(&w, s->user, s->password);
    s->count = read_slots(&w, masters);
    s->servers = masters;
    wire_close(&w);
}
