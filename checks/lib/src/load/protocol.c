/* protocol.c - requests into bytes, and bytes into replies. A reply is read
 * as it comes: a value of any size needs no room of its own. */
#include "load.h"

#include <arpa/inet.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

/* Up to here a value is copied beside its header, so that one plain send
 * takes both. */
enum { COPIED = 16 << 10 };

const char *const protocol_names[] = {"resp2", "resp3", "binary", "meta",
                                      NULL};
const char *const operation_names[] = {
    "get", "set", "mixed", "mset", "lpush", "xadd", "connect", "fill", NULL};
const char *const kind_names[] = {"get", "set", "mset", "lpush", "xadd",
                                  "connect"};

/* --- out ----------------------------------------------------------------- */
static void *grown(void *p, size_t bytes)
{
    if (!(p = realloc(p, bytes)))
        fail("no memory for %zu bytes", bytes);
    return p;
}

static struct piece *last_piece(struct conn *c, const char *at)
{
    struct piece *p = &c->pieces[c->piece_count - 1];

    if (c->piece_count > c->piece_first && !p->at && !at)
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
    const char *value = value_of(key, size);

    if (size <= COPIED)
        added(c, put(room(c, size), value, size));
    else
        last_piece(c, value)->size = size;
}

static void put_text(struct conn *c, const char *text)
{
    added(c, put(room(c, strlen(text)), text, strlen(text)));
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
    unsigned n = decimal(digits, key);

    p = put_number(p, '$', opt.prefix_size + n);
    p = put(p, opt.prefix, opt.prefix_size);
    p = put(p, digits, n);
    return PUT(p, "\r\n");
}

static size_t put_resp_value(struct conn *c, uint64_t key)
{
    size_t size = value_size(key);

    added(c, put_number(room(c, 32), '$', size));
    put_value(c, key, size);
    put_text(c, "\r\n");
    return size;
}

/* The keys of a group share its slot: PREFIX{GROUP}:I. */
static size_t put_mset(struct conn *c, uint64_t group)
{
    char name[MAX_PREFIX + 64], *p;
    size_t bytes = 0;
    uint64_t key;

    added(c, PUT(put_number(room(c, 64), '*', 1 + 2ull * opt.batch),
                 "$4\r\nMSET\r\n"));
    for (unsigned i = 0; i < opt.batch; i++) {
        if (opt.cluster) {
            key = group * opt.batch + i;
            p = PUT(put(name, opt.prefix, opt.prefix_size), "{");
            p = PUT(p + decimal(p, group), "}:");
            p += decimal(p, i);
            added(c, put_bulk(room(c, sizeof name + 32), name,
                              (size_t)(p - name)));
        } else {
            key = i ? draw_key(&c->thread->rng, opt.keys) : group;
            added(c, put_key(room(c, opt.prefix_size + 64), key));
        }
        bytes += put_resp_value(c, key);
    }
    return bytes;
}

static size_t put_resp(struct conn *c, const struct op *op)
{
    char *p = room(c, opt.prefix_size + 128);

    switch (op->kind) {
    case GET:
        p = put_key(PUT(p, "*2\r\n$3\r\nGET\r\n"), op->key);
        added(c, p);
        return 0;
    case SET:
        p = put_key(PUT(p, "*3\r\n$3\r\nSET\r\n"), op->key);
        break;
    case LPUSH:
        p = put_key(PUT(p, "*3\r\n$5\r\nLPUSH\r\n"), op->key);
        break;
    case XADD:
        p = put_key(PUT(p, "*5\r\n$4\r\nXADD\r\n"), op->key);
        p = PUT(p, "$1\r\n*\r\n$1\r\nv\r\n");
        break;
    default:
        return put_mset(c, op->key);
    }
    added(c, p);
    return put_resp_value(c, op->key);
}

/* --- memcached, binary: 24 bytes of header, then extras, key, value ------ */
struct header {
    uint8_t magic, opcode;
    uint16_t key;
    uint8_t extras, type;
    uint16_t status;
    uint32_t total, opaque;
    uint64_t cas;
} __attribute__((packed));
enum { BIN_GET = 0, BIN_SET = 1, BIN_VERSION = 11, BIN_AUTH = 0x21 };
enum { BIN_MISS = 1 };

static char *put_header(char *p, uint8_t opcode, size_t key, uint8_t extras,
                        size_t value)
{
    struct header h = {
        .magic = 0x80, .opcode = opcode, .key = htons((uint16_t)key),
        .extras = extras, .total = htonl((uint32_t)(extras + key + value))};

    return put(p, (const char *)&h, sizeof h);
}

static size_t put_binary(struct conn *c, const struct op *op)
{
    bool set = op->kind == SET;
    size_t size = set ? value_size(op->key) : 0;
    char *p = room(c, sizeof(struct header) + 8 + opt.prefix_size + 20);
    char digits[20];
    unsigned n = decimal(digits, op->key);

    p = put_header(p, set ? BIN_SET : BIN_GET, opt.prefix_size + n,
                   set ? 8 : 0, size);
    if (set)
        p = put(p, "\0\0\0\0\0\0\0\0", 8);   /* flags, never expires */
    p = put(p, opt.prefix, opt.prefix_size);
    added(c, put(p, digits, n));
    if (set)
        put_value(c, op->key, size);
    return size;
}

/* --- memcached, meta commands of 1.6 ------------------------------------- */
static size_t put_meta(struct conn *c, const struct op *op)
{
    bool set = op->kind == SET;
    size_t size = set ? value_size(op->key) : 0;
    char *p = room(c, opt.prefix_size + 64);

    p = set ? PUT(p, "ms ") : PUT(p, "mg ");
    p = put(p, opt.prefix, opt.prefix_size);
    p += decimal(p, op->key);
    *p++ = ' ';
    if (!set) {
        added(c, PUT(p, "v\r\n"));
        return 0;
    }
    p += decimal(p, size);
    added(c, PUT(p, "\r\n"));
    put_value(c, op->key, size);
    put_text(c, "\r\n");
    return size;
}

size_t put_request(struct conn *c, const struct op *op)
{
    return opt.protocol == BINARY ? put_binary(c, op)
           : opt.protocol == META ? put_meta(c, op) : put_resp(c, op);
}

/* --- how a connection begins: a round trip shows that it is served ------- */
static void greet_resp(struct conn *c)
{
    const char *user = opt.user ? opt.user : "default";
    size_t words = strlen(user) + (opt.password ? strlen(opt.password) : 0);
    char *p = room(c, words + 128);

    if (opt.protocol == RESP3) {
        p = PUT(put_number(p, '*', opt.password ? 5 : 2), "$5\r\nHELLO\r\n");
        p = put_bulk(p, "3", 1);
        if (opt.password) {
            p = put_bulk(PUT(p, "$4\r\nAUTH\r\n"), user, strlen(user));
            p = put_bulk(p, opt.password, strlen(opt.password));
        }
        c->greetings++;
    } else if (opt.password) {
        p = PUT(put_number(p, '*', opt.user ? 3 : 2), "$4\r\nAUTH\r\n");
        if (opt.user)
            p = put_bulk(p, user, strlen(user));
        p = put_bulk(p, opt.password, strlen(opt.password));
        c->greetings++;
    }
    added(c, PUT(p, "*1\r\n$4\r\nPING\r\n"));
    c->greetings++;
}

static void greet_binary(struct conn *c)
{
    const char *user = opt.user ? opt.user : "";
    size_t words = strlen(user) + (opt.password ? strlen(opt.password) : 0);
    char *p = room(c, words + 128);

    if (opt.password) {                     /* SASL: \0 user \0 password   */
        p = PUT(put_header(p, BIN_AUTH, 5, 0, words + 2), "PLAIN");
        p = put(p, "", 1);
        p = put(put(p, user, strlen(user)), "", 1);
        p = put(p, opt.password, strlen(opt.password));
        c->greetings++;
    }
    added(c, put_header(p, BIN_VERSION, 0, 0, 0));
    c->greetings++;
}

static void greet_meta(struct conn *c)
{
    if (opt.password) {                     /* memcached -Y, auth.txt      */
        const char *user = opt.user ? opt.user : "";
        size_t words = strlen(user) + strlen(opt.password) + 1;
        char *p = room(c, words + 64);

        p += sprintf(p, "set auth 0 0 %zu\r\n%s %s\r\n", words, user,
                     opt.password);
        added(c, p);
        c->greetings++;
    }
    put_text(c, "version\r\n");
    c->greetings++;
}

void put_greeting(struct conn *c)
{
    if (opt.protocol == BINARY)
        greet_binary(c);
    else if (opt.protocol == META)
        greet_meta(c);
    else
        greet_resp(c);
}

/* --- in ------------------------------------------------------------------ */
static _Noreturn void garbage(const struct conn *c, const char *what)
{
    fail("%s: %s: no %s server, or an answer that was cut", c->node->name,
         what, protocol_names[opt.protocol]);
}

static const struct op *asked(const struct conn *c)
{
    if (c->greetings)
        return NULL;
    if (!c->in_flight)
        garbage(c, "an answer to no request");
    return &c->ops[c->head];
}

static void reply_done(struct conn *c)
{
    if (c->broken)
        refused(c->node, c->line);
    op_done(c);
    c->miss = false;
}

/* A value of that many bytes begins. */
static void value_begins(struct conn *c, size_t size)
{
    const struct op *op = asked(c);

    c->size = size;
    if (op && op->kind == GET && opt.verify && size != value_size(op->key))
        fail("%s: key %s%llu has %zu bytes, not %zu as written: another "
             "--value-size or --seed than the fill's, or the store lost it",
             c->node->name, opt.prefix, (unsigned long long)op->key, size,
             value_size(op->key));
}

static void compare(const struct conn *c, const char *p, size_t from,
                    size_t n)
{
    const struct op *op = &c->ops[c->head];
    const char *right = value_of(op->key, c->size) + from;

    if (memcmp(p, right, n) == 0)
        return;
    size_t i = 0;
    while (p[i] == right[i])
        i++;
    fail("%s: key %s%llu is wrong at byte %zu: 0x%02x, written was 0x%02x: "
         "another --seed than the fill's, or the store mixed it up",
         c->node->name, opt.prefix, (unsigned long long)op->key, from + i,
         (unsigned char)p[i], (unsigned char)right[i]);
}

/* The next n bytes of a body; the value is a part of it. */
static void body(struct conn *c, const char *p, size_t n)
{
    if (c->broken) {                        /* the words of an error       */
        size_t fits = sizeof c->line - 2 - c->line_size;
        size_t take = n < fits ? n : fits;
        memcpy(c->line + c->line_size, p, take);
        c->line_size += (unsigned)take;
        c->line[c->line_size] = '\0';
    } else if (opt.verify && !c->greetings && c->size
               && c->at + n > c->skip && c->at < c->skip + c->size) {
        size_t from = c->at < c->skip ? c->skip - c->at : 0;
        size_t end = c->skip + c->size - c->at;
        compare(c, p + from, c->at + from - c->skip,
                (end < n ? end : n) - from);
    }
    c->at += n;
    c->body -= n;
}

/* A whole line without its end, NULL if it has not all come. */
static char *line_of(struct conn *c, const char **p, size_t *n)
{
    const char *end = memchr(*p, '\n', *n);
    size_t take = end ? (size_t)(end - *p) + 1 : *n;

    if (c->line_size + take >= sizeof c->line)
        garbage(c, "a line without end");
    memcpy(c->line + c->line_size, *p, take);
    c->line_size += (unsigned)take;
    *p += take;
    *n -= take;
    if (!end)
        return NULL;
    if (c->line_size < 2 || c->line[c->line_size - 2] != '\r')
        garbage(c, "a line that does not end in CR LF");
    c->line[c->line_size - 2] = '\0';
    c->line_size = 0;
    return c->line;
}

/* --- RESP ---------------------------------------------------------------- */
static void element_done(struct conn *c)
{
    if (!--c->elements)
        reply_done(c);
}

/* What a reply to this kind must begin with; a null is a miss. */
static bool fits(const struct op *op, char type)
{
    switch (op->kind) {
    case SET:
    case MSET:
        return type == '+';
    case LPUSH:
        return type == ':';
    default:
        return type == '$' || (type == '_' && op->kind == GET);
    }
}

static void resp_line(struct conn *c, const char *line)
{
    const struct op *op = asked(c);
    char *end = (char *)line + 1;
    long long n = strchr("$=*~%", *line) && *line ? strtoll(end, &end, 10)
                                                  : 0;
    if (*line == '-')
        refused(c->node, line + 1);
    if (!c->elements) {
        if (op && !fits(op, *line))
            garbage(c, "an answer of another kind than was asked for");
        c->elements = 1;
    }
    switch (*line) {
    case '$':
    case '=':
    case '*':
    case '~':
    case '%':
        if (end == line + 1 || *end || n < -1 || n > 1ll << 32)
            garbage(c, "a length that is no number");
        break;
    case '+':
    case ':':
    case '_':
    case '#':
    case ',':
    case '(':
        c->miss = *line == '_';
        element_done(c);
        return;
    default:
        garbage(c, "an answer of an unknown kind");
    }
    if (n < 0) {
        c->miss = true;
        element_done(c);
    } else if (*line == '$' || *line == '=') {
        c->body = (size_t)n + 2;
        c->at = c->skip = 0;
        c->in_body = true;
        value_begins(c, (size_t)n);
    } else {
        c->elements += (unsigned)n * (*line == '%' ? 2 : 1);
        element_done(c);
    }
}

/* --- meta ---------------------------------------------------------------- */
static bool begins(const char *line, const char *word)
{
    size_t n = strlen(word);

    return strncmp(line, word, n) == 0 && (line[n] == ' ' || !line[n]);
}

static void meta_line(struct conn *c, const char *line)
{
    const struct op *op = asked(c);
    char *end;

    if (strstr(line, "ERROR"))
        refused(c->node, line);
    if (!op ? begins(line, "VERSION") || begins(line, "STORED")
            : op->kind == SET && begins(line, "HD")) {
        reply_done(c);
    } else if (op && op->kind == GET && begins(line, "EN")) {
        c->miss = true;
        reply_done(c);
    } else if (op && op->kind == GET && begins(line, "VA")) {
        unsigned long long n = strtoull(line + 2, &end, 10);
        if (end == line + 2 || (*end && *end != ' ') || n > 1ull << 32)
            garbage(c, "a length that is no number");
        c->body = n + 2;
        c->at = c->skip = 0;
        c->in_body = true;
        value_begins(c, n);
    } else if (op && op->kind == SET && begins(line, "NS")) {
        refused(c->node, "NS (not stored)");
    } else {
        garbage(c, "an answer of another kind than was asked for");
    }
}

/* --- binary -------------------------------------------------------------- */
static void binary_header(struct conn *c)
{
    struct header h;
    const struct op *op = asked(c);
    unsigned status;

    memcpy(&h, c->line, sizeof h);
    c->line_size = 0;
    status = ntohs(h.status);
    c->body = ntohl(h.total);
    c->at = 0;
    c->skip = h.extras + ntohs(h.key);
    c->in_body = true;
    c->size = 0;
    c->line[sizeof h] = '\0';
    if (strncmp(c->line, "ERROR ", 6) == 0)  /* before it reads a request   */
        refused(c->node, c->line);
    if (h.magic != 0x81 || c->skip > c->body
        || (op && h.opcode != (op->kind == SET ? BIN_SET : BIN_GET)))
        garbage(c, "an answer of another kind than was asked for");
    if (op && op->kind == GET && status == BIN_MISS) {
        c->miss = true;
    } else if (status) {
        c->broken = true;
        c->line_size = (unsigned)sprintf(c->line, "status 0x%04x ", status);
    } else if (op && op->kind == GET) {
        value_begins(c, c->body - c->skip);
    }
}

/* --- the bytes as they come ---------------------------------------------- */
void consume(struct conn *c, const char *p, size_t n)
{
    bool binary = opt.protocol == BINARY;

    while (n || (c->in_body && !c->body)) {
        if (c->in_body) {
            size_t take = n < c->body ? n : c->body;
            body(c, p, take);
            p += take;
            n -= take;
            if (c->body)
                return;
            c->in_body = false;
            if (!binary && p[-1] != '\n')
                garbage(c, "a value that is longer than was said");
            if (binary || opt.protocol == META)
                reply_done(c);
            else
                element_done(c);
        } else if (binary) {
            size_t want = sizeof(struct header) - c->line_size;
            size_t take = n < want ? n : want;
            memcpy(c->line + c->line_size, p, take);
            c->line_size += (unsigned)take;
            p += take;
            n -= take;
            if (c->line_size == sizeof(struct header))
                binary_header(c);
        } else {
            const char *line = line_of(c, &p, &n);
            if (line && opt.protocol == META)
                meta_line(c, line);
            else if (line)
                resp_line(c, line);
        }
        if (c->state == CLOSED)             /* measured and gone           */
            return;
    }
}
