/* protocol.c - encodes requests and decodes replies. Replies are decoded as
 * their bytes come: a value of any size needs no buffer. */
#include "load.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Values up to this size are copied behind their header, so that one send
 * takes both. Unit: bytes. */
enum { COPIED = 16 << 10 };

/* --- out ----------------------------------------------------------------- */
static void *grown(void *p, size_t bytes)
{
    if (!(p = realloc(p, bytes)))
        fail("no memory for %zu bytes", bytes);
    return p;
}

static struct piece *last_piece(struct conn *c, const char *at)
{
    struct piece *p;

    if (c->piece_count > c->piece_first && !at
        && !(p = &c->pieces[c->piece_count - 1])->at)
        return p;
    if (c->piece_count == c->piece_room) {
        c->piece_room = c->piece_room ? 2 * c->piece_room : 4;
        c->pieces = grown(c->pieces, c->piece_room * sizeof *c->pieces);
    }
    p = &c->pieces[c->piece_count++];
    *p = (struct piece){.at = at, .offset = c->filled};
    return p;
}

/* Room for n more bytes at the end of what is to be sent. */
static char *room(struct conn *c, size_t n)
{
    if (c->filled + n > c->room) {
        c->room = 2 * (c->filled + n);
        c->bytes = grown(c->bytes, c->room);
    }
    return c->bytes + c->filled;
}

static void added(struct conn *c, const char *end)
{
    size_t n = (size_t)(end - (c->bytes + c->filled));

    last_piece(c, NULL)->size += n;
    c->filled += n;
    c->queued += n;
}

static char *put(char *p, const char *text, size_t n)
{
    memcpy(p, text, n);
    return p + n;
}

#define PUT(p, literal) put(p, literal, sizeof literal - 1)

static char *put_number(char *p, char type, uint64_t value)
{
    *p++ = type;
    p += decimal(p, value);
    return PUT(p, "\r\n");
}

static void put_value(struct conn *c, uint64_t key, size_t size)
{
    const char *value = value_of(key, size,
                                 opt.fills ? FILLED : OVERWRITTEN);

    if (size <= COPIED) {
        added(c, put(room(c, size), value, size));
    } else {
        last_piece(c, value)->size = size;
        c->queued += size;
    }
}

static char *put_bulk(char *p, const char *text, size_t n)
{
    p = put_number(p, '$', n);
    p = put(p, text, n);
    return PUT(p, "\r\n");
}

static char *put_key(char *p, uint64_t key)
{
    char digits[20];
    unsigned n = key_number(digits, key);

    p = put_number(p, '$', opt.prefix_size + n);
    p = put(p, opt.prefix, opt.prefix_size);
    p = put(p, digits, n);
    return PUT(p, "\r\n");
}

static void put_resp_value(struct conn *c, uint64_t key)
{
    size_t size = value_size(key);

    added(c, put_number(room(c, 32), '$', size));
    put_value(c, key, size);
    added(c, PUT(room(c, 2), "\r\n"));
}

/* --command: its first __key__ is the request's, each further one is drawn;
 * __data__ is the value of the key before it. */
static void put_command(struct conn *c, uint64_t key)
{
    bool first = true;

    added(c, put_number(room(c, 32), '*', (uint64_t)opt.word_count));
    for (int i = 0; i < opt.word_count; i++) {
        const struct word *w = &opt.words[i];
        if (w->at == DATA_WORD) {
            put_resp_value(c, key);
        } else if (w->at == KEY_WORD) {
            key = first ? key : draw_key(&c->thread->rng);
            first = false;
            added(c, put_key(room(c, opt.prefix_size + 64), key));
        } else {
            added(c, put_bulk(room(c, w->size + 32), w->at, w->size));
        }
    }
}

static void put_resp(struct conn *c, const struct op *op)
{
    char *p = room(c, opt.prefix_size + 128);

    if (op->kind == COMMAND) {
        put_command(c, op->key);
    } else if (op->kind == GET) {
        added(c, put_key(PUT(p, "*2\r\n$3\r\nGET\r\n"), op->key));
    } else {
        added(c, put_key(PUT(p, "*3\r\n$3\r\nSET\r\n"), op->key));
        put_resp_value(c, op->key);
    }
}

/* --- memcached, binary: 24 bytes of header, then extras, key, value ------ */
enum { BIN_GET = 0, BIN_SET = 1, BIN_VERSION = 11 };
enum { BIN_MISS = 1, BIN_RESPONSE = 0x81, BIN_FLAGS = 4 };
struct header {
    uint8_t magic, opcode;
    uint16_t key;
    uint8_t extras, type;
    uint16_t status;
    uint32_t total, opaque;
    uint64_t cas;
} __attribute__((packed));

/* The server echoes `opaque`: it numbers the requests. */
static char *put_header(struct conn *c, char *p, uint8_t opcode, size_t key,
                        uint8_t extras, size_t value)
{
    struct header h = {
        .magic = 0x80, .opcode = opcode, .key = htons((uint16_t)key),
        .extras = extras, .total = htonl((uint32_t)(extras + key + value)),
        .opaque = htonl(c->sent++)};

    return put(p, (const char *)&h, sizeof h);
}

static void put_binary(struct conn *c, const struct op *op)
{
    bool set = op->kind == SET;
    size_t size = set ? value_size(op->key) : 0;
    char *p = room(c, sizeof(struct header) + 8 + opt.prefix_size + 20);
    char digits[20];
    unsigned n = key_number(digits, op->key);

    p = put_header(c, p, set ? BIN_SET : BIN_GET, opt.prefix_size + n,
                   set ? 8 : 0, size);
    if (set)
        p = put(p, "\0\0\0\0\0\0\0\0", 8);   /* flags, never expires */
    p = put(p, opt.prefix, opt.prefix_size);
    added(c, put(p, digits, n));
    if (set)
        put_value(c, op->key, size);
}

size_t put_request(struct conn *c, const struct op *op)
{
    uint64_t before = c->queued;

    if (opt.protocol == MEMCACHE_BINARY)
        put_binary(c, op);
    else
        put_resp(c, op);
    return c->queued - before;
}

/* --- greeting: the first round trip shows that a connection is served ---- */
void put_greeting(struct conn *c)
{
    const char *user = opt.service.user, *password = opt.service.password;
    size_t words = (user ? strlen(user) : 0)
                   + (password ? strlen(password) : 0);
    char *p = room(c, words + 128);

    c->greetings = 1;
    if (opt.protocol == MEMCACHE_BINARY) {
        p = put_header(c, p, BIN_VERSION, 0, 0, 0);
    } else if (password) {
        p = PUT(put_number(p, '*', user ? 3 : 2), "$4\r\nAUTH\r\n");
        if (user)
            p = put_bulk(p, user, strlen(user));
        p = put_bulk(p, password, strlen(password));
    } else {
        p = PUT(p, "*1\r\n$4\r\nPING\r\n");
    }
    added(c, p);
}

/* --- in ------------------------------------------------------------------ */
static _Noreturn void malformed_answer(const struct conn *c, const char *what)
{
    fail("%s: %s: no %s server, or an answer that was cut", c->node->name,
         what, protocol_names[opt.protocol]);
}

/* NULL: the answer is to a greeting. */
static const struct op *asked(const struct conn *c)
{
    if (c->greetings)
        return NULL;
    if (!c->in_flight)
        malformed_answer(c, "an answer to no request");
    return &c->ops[c->head];
}

/* A well-formed answer that does not fit the request. */
static _Noreturn void unexpected_answer(const struct conn *c, const char *said)
{
    const char *const names[] = {"SET", "GET", opt.words[0].at};
    const struct op *op = asked(c);

    fail("%s: it answers %s with '%s', of another kind than was asked for: "
         "no %s server, or one that does not do what it is told",
         c->node->name, op ? names[op->kind] : "the greeting",
         printable(said), protocol_names[opt.protocol]);
}

/* Always true: the reply is complete. */
static bool reply_done(struct conn *c)
{
    if (c->broken)
        refused(c->node->server, c->line);
    c->answered++;
    return true;
}

/* A text of `size` bytes begins: the value that was read, or a message. */
static void value_begins(struct conn *c, size_t size)
{
    const struct op *op = asked(c);
    size_t right;

    c->size = size;
    c->is_value = op && op->kind == GET;
    if (!c->is_value)
        return;
    c->has_value = true;
    c->found = op->due == OVERWRITTEN ? OVERWRITTEN : FILLED;
    if (opt.verify == VERIFY_NONE)
        return;
    right = value_size(op->key);
    if (size != right)
        fail("%s: key %s%llu has %zu bytes, not %zu as written: another "
             "--data-size than the fill's, or the store lost it",
             c->node->name, opt.prefix, (unsigned long long)op->key, size,
             right);
}

static size_t common_prefix(const char *p, const char *q, size_t n)
{
    size_t i = 0;

    if (memcmp(p, q, n) == 0)
        return n;
    while (p[i] == q[i])
        i++;
    return i;
}

/* A value must come as a whole from the fill or from a later write. At the
 * first difference from the one, it may still be the other, if both have the
 * same bytes so far. */
static void compare(struct conn *c, const char *p, size_t from, size_t n)
{
    const struct op *op = &c->ops[c->head];
    enum generation other = c->found == FILLED ? OVERWRITTEN : FILLED;
    const char *right = value_of(op->key, c->size, c->found);
    size_t good = common_prefix(p, right + from, n);

    if (good == n)
        return;
    const char *also = value_of(op->key, c->size, other);
    size_t as_good = memcmp(right, also, from)
                     ? 0 : common_prefix(p, also + from, n);
    if (op->due == ANY && as_good > good) {
        c->found = other;
        right = also;
        good = as_good;
    }
    if (good == n)
        return;
    if (op->due == OVERWRITTEN && as_good == n)
        fail("%s: key %s%llu holds what it held before it was overwritten: "
             "the store acknowledges a write and drops it", c->node->name,
             opt.prefix, (unsigned long long)op->key);
    fail("%s: key %s%llu is wrong at byte %zu: 0x%02x, written was 0x%02x: "
         "the store mixed it up",
         c->node->name, opt.prefix, (unsigned long long)op->key, from + good,
         (unsigned char)p[good], (unsigned char)right[from + good]);
}

/* The next n bytes of a body; `size` of them, from `skip`, are the text. */
static void body(struct conn *c, const char *p, size_t n)
{
    size_t end = c->skip + c->size, last = c->at + n < end ? c->at + n : end;
    size_t from = c->at < c->skip ? c->skip : c->at;

    if (from < last && c->kept) {
        size_t fits = sizeof c->line - 1 - c->line_size;
        size_t take = last - from < fits ? last - from : fits;
        memcpy(c->line + c->line_size, p + (from - c->at), take);
        c->line_size += (unsigned)take;
        c->line[c->line_size] = '\0';
    } else if (from < last && c->is_value && opt.verify == VERIFY_BYTES) {
        compare(c, p + (from - c->at), from - c->skip, last - from);
    }
    if (opt.protocol != MEMCACHE_BINARY)
        for (size_t i = c->at < end ? end : c->at; i < c->at + n; i++)
            if (p[i - c->at] != "\r\n"[i - end])
                malformed_answer(c, "a value that is longer than was said");
    c->at += n;
    c->body -= n;
}

/* A body of text protocols: the value and CR LF. */
static void body_begins(struct conn *c, size_t size)
{
    c->body = size + 2;
    c->at = c->skip = 0;
    c->in_body = true;
    value_begins(c, size);
}

/* A whole line without CR LF; NULL if more bytes must come. */
static char *line_of(struct conn *c, const char **p, size_t *n)
{
    const char *end = memchr(*p, '\n', *n);
    size_t take = end ? (size_t)(end - *p) + 1 : *n;

    if (c->line_size + take >= sizeof c->line)
        malformed_answer(c, "a line without end");
    memcpy(c->line + c->line_size, *p, take);
    c->line_size += (unsigned)take;
    *p += take;
    *n -= take;
    if (!end)
        return NULL;
    if (c->line_size < 2 || c->line[c->line_size - 2] != '\r')
        malformed_answer(c, "a line that does not end in CR LF");
    c->line[c->line_size - 2] = '\0';
    if (strlen(c->line) != c->line_size - 2)
        malformed_answer(c, "a line with a NUL in it");
    c->line_size = 0;
    return c->line;
}

/* --- RESP ---------------------------------------------------------------- */
/* The answers of these commands; of others each that is not an error or a list. */
static const struct { const char *command; char type; } answers[] = {
    {"MSET", '+'}, {"LPUSH", ':'}, {"RPUSH", ':'}, {"XADD", '$'}};

/* Whether a reply to this request may begin with this line. */
static bool fits(const struct op *op, const char *line, const struct head *h)
{
    char type = 0;

    if (!op)
        return !strcmp(line, opt.service.password ? "+OK" : "+PONG");
    if (op->kind != COMMAND)
        return op->kind == GET ? h->type == '$' : !strcmp(line, "+OK");
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (!strcasecmp(opt.words[0].at, answers[i].command))
            type = answers[i].type;
    return strcmp(line, "+QUEUED") && h->type != '*'
           && (!type || (type == h->type && (type == '+' || h->n > 0)));
}

/* This and those below: whether the reply is complete. */
static bool resp_line(struct conn *c, const char *line)
{
    const struct op *op = asked(c);
    struct head h;
    const char *why = read_head(line, &h);

    if (*line == '-')
        refused(c->node->server, line + 1);
    if (!fits(op, line, &h))
        unexpected_answer(c, line);
    if (why)
        malformed_answer(c, why);
    c->has_value = false;
    if (h.type == '$' && h.n >= 0) {
        body_begins(c, (size_t)h.n);
        return false;
    }
    return reply_done(c);
}

/* --- binary -------------------------------------------------------------- */
static void binary_header(struct conn *c)
{
    struct header h;
    const struct op *op = asked(c);
    bool get = op && op->kind == GET;
    unsigned status, extras;
    char said[40];

    c->has_value = false;
    memcpy(&h, c->line, sizeof h);
    c->line_size = 0;
    status = ntohs(h.status);
    c->body = ntohl(h.total);
    c->at = 0;
    c->skip = h.extras + ntohs(h.key);
    c->in_body = true;
    c->is_value = c->kept = c->broken = false;
    c->line[sizeof h] = '\0';
    if (strncmp(c->line, "ERROR ", 6) == 0)  /* before it reads a request   */
        refused(c->node->server, c->line);
    snprintf(said, sizeof said, "magic 0x%02x, opcode 0x%02x", h.magic,
             h.opcode);
    if (h.magic != BIN_RESPONSE || h.type || c->skip > c->body
        || h.opcode != (op ? get ? BIN_GET : BIN_SET : BIN_VERSION))
        unexpected_answer(c, said);
    if (ntohl(h.opaque) != c->answered)
        fail("%s: it answers request %u where the answer to request %u (its "
             "opaque) is due: a store that mixes them up", c->node->name,
             ntohl(h.opaque), c->answered);
    extras = get && !status ? BIN_FLAGS : 0;
    snprintf(said, sizeof said, "status 0, a body of %zu bytes", c->body);
    if (!status && (h.extras != extras || h.key
                    || (op && !get && c->body)))
        unexpected_answer(c, said);
    if ((status || !op) && c->body > MAX_SAID)
        malformed_answer(c, "a message that is too long");
    c->size = c->body - c->skip;
    if (get && !status)
        value_begins(c, c->size);
    else if (status && !(get && status == BIN_MISS)) {
        c->broken = c->kept = true;
        c->line_size = (unsigned)sprintf(c->line, "status 0x%04x ", status);
    }
}

/* --- the bytes as they come ---------------------------------------------- */
bool read_reply(struct conn *c, const char **p, size_t *n)
{
    bool binary = opt.protocol == MEMCACHE_BINARY, complete = false;

    while (!complete && (*n || (c->in_body && !c->body))) {
        if (c->in_body) {
            size_t take = *n < c->body ? *n : c->body;
            body(c, *p, take);
            *p += take;
            *n -= take;
            if (c->body)
                return false;
            c->in_body = false;
            complete = reply_done(c);
        } else if (binary) {
            size_t want = sizeof(struct header) - c->line_size;
            size_t take = *n < want ? *n : want;
            memcpy(c->line + c->line_size, *p, take);
            c->line_size += (unsigned)take;
            *p += take;
            *n -= take;
            if (c->line_size == sizeof(struct header))
                binary_header(c);
        } else {
            const char *line = line_of(c, p, n);
            if (line)
                complete = resp_line(c, line);
        }
    }
    return complete;
}
