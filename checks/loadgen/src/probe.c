/* probe.c - asks once, with blocking reads, which store it is and which node
 * serves which slot. */
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

char store_name[32] = "unknown", store_version[64];

static struct wire wire;

static void say(const char *what, const char *bytes, size_t n)
{
    if (wire.at != wire.filled)
        fail("%s: it answers %s with more than was asked for",
             wire.server->name, wire.asked);
    wire.asked = what;
    wire_send(&wire, &(struct iovec){(char *)bytes, n}, 1);
}

/* --- RESP ---------------------------------------------------------------- */
/* HELLO or AUTH, where there is one, then PING. */
static void want_greeting(unsigned greetings)
{
    struct head h;

    while (greetings--) {
        char *line = resp_head(&wire, &h);
        if (greetings && opt.protocol == RESP3 && h.type == '%')
            resp_skip(&wire, 2 * (unsigned)h.n);
        else if (strcmp(line, greetings ? "+OK" : "+PONG")
                 || (greetings && opt.protocol == RESP3))
            unexpected(&wire, line);
    }
}

static bool field(const char *info, const char *name, char *out, size_t size)
{
    const char *at = strstr(info, name);

    if (!at)
        return false;
    at += strlen(name);
    char said[256];
    snprintf(said, sizeof said, "%.*s", (int)strcspn(at, "\r\n"), at);
    snprintf(out, size, "%s", printable(said));
    return true;
}

static void ask_resp(void)
{
    char program[256];

    say("INFO", "*2\r\n$4\r\nINFO\r\n$6\r\nserver\r\n", 26);
    char *info = resp_long_text(&wire), *dragonfly = "dragonfly_version:df-v";

    if (field(info, dragonfly, store_version, sizeof store_version))
        strcpy(store_name, "dragonfly");
    else if (field(info, "valkey_version:", store_version,
                   sizeof store_version))
        strcpy(store_name, "valkey");
    else if (field(info, "redis_version:", store_version,
                   sizeof store_version))
        strcpy(store_name, "redis");
    /* KeyDB says it is a Redis; its file name does not. */
    if (field(info, "executable:", program, sizeof program)
        && strstr(program, "keydb"))
        strcpy(store_name, "keydb");
    free(info);
}

/* Connections to a node without a key would draw keys without end. */
void check_owners(void)
{
    bool group = opt.operation == OP_MSET;
    uint64_t keys = group ? opt.keys / opt.batch : opt.keys;
    int without = opt.node_count;

    for (uint64_t k = 0; k < keys && without; k++) {
        struct node *n = &opt.nodes[slot_server[slot_of(k, group)]];
        without -= !n->owns_keys;
        n->owns_keys = true;
    }
    for (int i = 0; i < opt.node_count; i++)
        if (!opt.nodes[i].owns_keys)
            fail("%s: none of the keys %s0 to %llu is in its slots: ask for "
                 "more keys, or leave the {tag} out of --key-prefix",
                 opt.nodes[i].name, opt.prefix,
                 (unsigned long long)keys - 1);
    if (opt.connections < (unsigned)opt.node_count)
        fail("%u connections for %d masters: each needs one",
             opt.connections, opt.node_count);
}

static const char *want_line(bool last, size_t *n)
{
    const char *line = wire_line(&wire);

    if (strstr(line, "ERROR"))
        refused(wire.server, line);
    if (last ? strncmp(line, "VERSION ", 8) : strcmp(line, "STORED"))
        unexpected(&wire, line);
    line += last ? 8 : 0;
    *n = strlen(line);
    return line;
}

static const char *want_body(bool last, unsigned number, size_t *n)
{
    static char text[4096];
    struct header h;
    char said[160];

    wire_take(&wire, &h, sizeof h);
    if (h.magic != 0x81)
        fail("%s: no binary server: it answers %s with byte 0x%02x",
             wire.server->name, wire.asked, h.magic);
    *n = ntohl(h.total);
    if (*n > sizeof text)
        unexpected(&wire, "a body that is too long");
    wire_take(&wire, text, *n);
    snprintf(said, sizeof said, "status 0x%04x %.*s", ntohs(h.status),
             (int)*n, text);
    if (h.status)
        refused(wire.server, said);
    if (h.opcode != (last ? BIN_VERSION : BIN_AUTH) || h.key || h.extras
        || h.type || ntohl(h.opaque) != number)
        unexpected(&wire, "an answer to another request");
    return text;
}

static void ask_memcached(unsigned greetings)
{
    const char *text = "";
    size_t n = 0;

    strcpy(store_name, "memcached");
    for (unsigned i = 0; i < greetings; i++)
        text = opt.protocol == META ? want_line(i + 1 == greetings, &n)
                                    : want_body(i + 1 == greetings, i, &n);
    char said[64];
    snprintf(said, sizeof said, "%.*s", (int)n, text);
    strcpy(store_version, printable(said));
}

/* The servers that were named, or all masters of their cluster. */
static void make_nodes(void)
{
    struct service *s = &opt.service;

    if (s->cluster) {
        struct server *masters = calloc(MAX_SERVERS, sizeof *masters);
        if (!masters)
            fail("no memory for %d nodes", MAX_SERVERS);
        s->count = resp_slots(&wire, masters);
        s->servers = masters;
    }
    opt.node_count = s->count;
    opt.nodes = calloc((size_t)s->count, sizeof *opt.nodes);
    if (!opt.nodes)
        fail("no memory for %d nodes", s->count);
    for (int i = 0; i < s->count; i++)
        opt.nodes[i] = (struct node){.server = &s->servers[i],
                                     .name = s->servers[i].name};
}

void probe(void)
{
    struct conn greeting = {0};

    wire_open(&wire, opt.service.servers, opt.timeout);
    wire.protocol = protocol_names[opt.protocol];
    wire.resp2 = opt.protocol == RESP2;
    put_greeting(&greeting);
    say(wire.asked, greeting.bytes, greeting.filled);
    if (opt.protocol >= BINARY) {
        ask_memcached(greeting.greetings);
    } else {
        want_greeting(greeting.greetings);
        ask_resp();
    }
    make_nodes();
    free(greeting.bytes);
    free(greeting.pieces);
    wire_close(&wire);
}
