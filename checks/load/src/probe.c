/* probe.c - asks once, with blocking reads, which store it is and which node
 * serves which slot. */
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

char store_name[32] = "unknown", store_version[64];

static struct {
    struct link link;
    char *bytes;
    size_t at, filled, room;
} in;
static const char *asked;
enum { MAX_ANSWER = 16 << 20 };  /* bytes; CLUSTER SLOTS may have 2 MB     */

static void more(void)
{
    if (in.filled > MAX_ANSWER)
        fail("%s: its answer to %s has no end", opt.nodes->name, asked);
    if (in.room - in.filled < BUFFER
        && !(in.bytes = realloc(in.bytes, in.room += BUFFER)))
        fail("no memory for an answer");
    errno = 0;
    ssize_t n = link_read(&in.link, in.bytes + in.filled,
                          in.room - in.filled);
    if (n == LINK_AGAIN)
        fail("%s: no answer for %g s to %s: does the server hang, or is it "
             "at its limit of connections?", opt.nodes->name, opt.timeout,
             asked);
    if (n <= 0)
        fail("%s closed the connection before it answered %s (%s): too many "
             "connections for it, or a server that wants TLS?",
             opt.nodes->name, asked, n ? link_error() : "end of stream");
    in.filled += (size_t)n;
}

/* The next n bytes. */
static const char *take(size_t n)
{
    while (in.filled - in.at < n)
        more();
    in.at += n;
    return in.bytes + in.at - n;
}

static char *take_line(void)
{
    char *end;
    size_t start = in.at;

    while (!(end = in.filled > start ? memchr(in.bytes + start, '\n',
                                              in.filled - start) : NULL)) {
        if (in.filled - start > 4096)
            fail("%s: no %s server: it answers %s with a line without end",
                 opt.nodes->name, protocol_names[opt.protocol], asked);
        more();
    }
    in.at = (size_t)(end - in.bytes) + 1;
    *end = '\0';
    if (end > in.bytes + start && end[-1] == '\r')
        end[-1] = '\0';
    return in.bytes + start;
}

static void say(const char *what, const char *bytes, size_t n)
{
    if (in.at != in.filled)
        fail("%s: it answers %s with more than was asked for",
             opt.nodes->name, asked);
    asked = what;
    in.at = in.filled = 0;
    while (n) {
        struct iovec v = {(char *)bytes, n};
        ssize_t sent = link_write(&in.link, &v, 1);
        if (sent < 0)
            fail("%s: %s: %s", opt.nodes->name, what, link_error());
        bytes += sent;
        n -= (size_t)sent;
    }
}

/* --- RESP, value by value ------------------------------------------------ */
static _Noreturn void unexpected(const char *line)
{
    fail("%s: no %s server: it answers %s with '%.40s'", opt.nodes->name,
         protocol_names[opt.protocol], asked, printable(line));
}

/* The line of the next value, decoded to `h`. */
static char *head(struct head *h)
{
    char *line = take_line();

    if (*line == '-')
        refused(opt.nodes, line + 1);
    if (read_head(line, h))
        unexpected(line);
    return line;
}

/* The text that follows a head. */
static const char *take_text(const struct head *h)
{
    if (h->n > MAX_SAID)
        unexpected("a text that is too long");
    const char *from = take((size_t)h->n + 2);
    if (memcmp(from + h->n, "\r\n", 2))
        unexpected("a text that is longer than was said");
    return from;
}

/* Skips so many values with all their elements. */
static void skip(unsigned todo)
{
    struct head h;

    for (unsigned seen = 1; todo; todo--, seen++) {
        head(&h);
        if (strchr("$=", h.type) && h.n >= 0)
            take_text(&h);
        else if (strchr("*~%", h.type) && h.n > 0)
            todo += (unsigned)h.n * (h.type == '%' ? 2 : 1);
        if (seen + todo > MAX_ELEMENTS)
            unexpected("an answer without end");
    }
}

static long long want(char type)
{
    struct head h;
    char *line = head(&h);

    if (h.type != type)
        unexpected(line);
    return h.n;
}

static char *want_text(void)
{
    struct head h;
    char *line = head(&h), *text;

    if (!strchr("$=", h.type))
        unexpected(line);
    text = h.n < 0 ? strdup("") : strndup(take_text(&h), (size_t)h.n);
    if (!text)
        fail("no memory for an answer");
    return text;
}

/* HELLO or AUTH, where there is one, then PING. */
static void want_greeting(unsigned greetings)
{
    struct head h;

    while (greetings--) {
        char *line = head(&h);
        if (greetings && opt.protocol == RESP3 && h.type == '%')
            skip(2 * (unsigned)h.n);
        else if (strcmp(line, greetings ? "+OK" : "+PONG")
                 || (greetings && opt.protocol == RESP3))
            unexpected(line);
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
    char *info = want_text(), *dragonfly = "dragonfly_version:df-v";

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

/* CLUSTER SLOTS: from, to, then the master's address, then its replicas. */
static void ask_slots(void)
{
    struct node seed = opt.nodes[0];
    char *colon = strrchr(seed.name, ':');
    bool covered[SLOTS] = {false};

    say("CLUSTER SLOTS", "*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n", 28);
    opt.node_count = 0;
    for (long long ranges = want('*'); ranges > 0; ranges--) {
        long long parts = want('*'), from = want(':'), to = want(':');
        long long words = want('*');
        char *host = want_text(), where[160];
        long long port = want(':');
        while (words-- > 2)
            skip(1);
        while (parts-- > 3)
            skip(1);
        if (strcmp(host, printable(host)))
            fail("%s: CLUSTER SLOTS names a node '%s'", seed.name,
                 printable(host));
        if (*host && *host != '?')
            snprintf(where, sizeof where, "%s:%lld", host, port);
        else                                /* the node that was asked     */
            snprintf(where, sizeof where, "%.*s:%lld",
                     (int)(colon - seed.name), seed.name, port);
        free(host);
        int i = 0;
        while (i < opt.node_count && strcmp(opt.nodes[i].name, where))
            i++;
        if (i == MAX_NODES || from < 0 || to >= SLOTS)
            fail("%s: CLUSTER SLOTS is out of bounds", seed.name);
        if (i == opt.node_count && !resolve(&opt.nodes[opt.node_count++],
                                            where))
            fail("%s: CLUSTER SLOTS names a node '%s'", seed.name, where);
        for (long long s = from; s <= to; s++) {
            slot_node[s] = (uint16_t)i;
            covered[s] = true;
        }
    }
    for (int s = 0; s < SLOTS; s++)
        if (!covered[s])
            fail("%s: slot %d is served by no node: is the cluster whole?",
                 seed.name, s);
}

/* Connections to a node without a key would draw keys without end. */
void check_owners(void)
{
    bool group = opt.operation == OP_MSET;
    uint64_t keys = group ? opt.keys / opt.batch : opt.keys;
    int without = opt.node_count;

    for (uint64_t k = 0; k < keys && without; k++) {
        struct node *n = &opt.nodes[slot_node[slot_of(k, group)]];
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
        fail("%u connections for %d masters: each wants one",
             opt.connections, opt.node_count);
}

static const char *want_line(bool last, size_t *n)
{
    const char *line = take_line();

    if (strstr(line, "ERROR"))
        refused(opt.nodes, line);
    if (last ? strncmp(line, "VERSION ", 8) : strcmp(line, "STORED"))
        unexpected(line);
    line += last ? 8 : 0;
    *n = strlen(line);
    return line;
}

static const char *want_body(bool last, unsigned number, size_t *n)
{
    struct header h;
    char said[160];

    memcpy(&h, take(sizeof h), sizeof h);
    if (h.magic != 0x81)
        fail("%s: no binary server: it answers %s with byte 0x%02x",
             opt.nodes->name, asked, h.magic);
    *n = ntohl(h.total);
    if (*n > 4096)
        unexpected("a body that is too long");
    const char *text = take(*n);
    snprintf(said, sizeof said, "status 0x%04x %.*s", ntohs(h.status),
             (int)*n, text);
    if (h.status)
        refused(opt.nodes, said);
    if (h.opcode != (last ? BIN_VERSION : BIN_AUTH) || h.key || h.extras
        || h.type || ntohl(h.opaque) != number)
        unexpected("an answer to another request");
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

void probe(void)
{
    struct conn greeting = {0};
    int done;

    asked = "the greeting";
    in.link.fd = start_connect(opt.nodes, opt.timeout);
    if (in.link.fd < 0)
        fail("%s: %s: does the server run, and listen there?",
             opt.nodes->name, strerror(errno));
    done = tls_step(&in.link);
    if (done != 1)
        fail("%s: TLS: %s: does the server speak TLS, and is the CA its "
             "own?", opt.nodes->name,
             done == LINK_AGAIN ? "no answer" : link_error());
    put_greeting(&greeting);
    in.at = in.filled = 0;
    say(asked, greeting.bytes, greeting.filled);
    if (opt.protocol >= BINARY) {
        ask_memcached(greeting.greetings);
    } else {
        want_greeting(greeting.greetings);
        ask_resp();
        if (opt.cluster)
            ask_slots();
    }
    free(greeting.bytes);
    free(greeting.pieces);
    free(in.bytes);
    link_close(&in.link, false);
}
