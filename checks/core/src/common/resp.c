/* resp.c - see resp.h. */
#define _GNU_SOURCE
#include "resp.h"
#include "program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { INPUT = 1 << 16, MAX_LINE = 4096 };

/* --- the first line of a value ------------------------------------------- */
bool parse_integer(const char *text, long long *n)
{
    const char *digits = text + (*text == '-');
    char *end;

    if (*digits < '0' || *digits > '9')
        return false;
    errno = 0;
    *n = strtoll(text, &end, 10);
    return !*end && !errno;
}

const char *read_head(const char *line, struct head *h)
{
    *h = (struct head){.type = *line};
    switch (*line) {
    case '+':
    case '-':
        return NULL;
    case ':':
        return parse_integer(line + 1, &h->n) ? NULL
               : "an integer that is none";
    case '$':
    case '*':
        if (!parse_integer(line + 1, &h->n) || h->n < -1)
            return "a length that is not a number";
        if ((unsigned long long)h->n + 1
            > (*line == '$' ? MAX_VALUE : MAX_ELEMENTS) + 1)
            return "a length beyond all bounds";
        return NULL;
    default:
        return "an answer of an unknown kind";
    }
}

/* --- errors -------------------------------------------------------------- */
/* Part of a server's error -> advice; the first match counts. */
static const struct { const char *words, *advice; } advices[] = {
    {"without any password", "the server has no password: give none"},
    {"NOAUTH", "give the password in the file of --service"},
    {"unauthenticated", "give the password in the file of --service"},
    {"WRONGPASS", "user or password is not the server's"},
    {"Auth failure", "user or password is not the server's"},
    {"authentication failure", "user or password is not the server's"},
    {"OOM", "the store is full: its memory limit is below the data; raise "
            "the limit or ask for fewer or smaller values"},
    {"out of memory", "the store is full: its memory limit is below the "
                      "data; raise the limit or ask for fewer or smaller "
                      "values"},
    {"too large", "the value is above the store's limit for an item"},
    {"MISCONF", "the store cannot write its data: is the disk full?"},
    {"MOVED", "the node has not the slot: a cluster needs the line 'cluster' "
              "in the file of --service; with it, slots moved under the load"},
    {"ASK ", "slots of the cluster are being moved: wait until they are"},
    {"CLUSTERDOWN", "the cluster is not whole: are all its nodes alive?"},
    {"cluster support disabled", "no cluster: remove the line 'cluster' "
                                 "from the file of --service"},
    {"CROSSSLOT", "a cluster needs the line 'cluster' in the file of "
                  "--service"},
    {"LOADING", "the store still reads its data: wait until it is ready"},
    {"READONLY", "this is a replica: name the master"},
    {"NOPERM", "the user may not do this: another --service user, or ACL"},
    {"DENIED", "the server needs a password or another address to bind to"},
    {"max number of clients", "raise the server's limit of clients or of "
                              "open files, or ask for fewer connections"},
    {"Too many open conn", "raise the server's limit of connections, or ask "
                           "for fewer"},
    {"unknown command", "the server is too old for this, or no such store"},
    {"WRONGTYPE", "keys of another kind are there: another --key-prefix, or "
                  "an empty store"},
};

_Noreturn void refused(const struct server *s, const char *said)
{
    const char *advice = "the server's log may say why";

    for (size_t i = 0; i < sizeof advices / sizeof *advices; i++)
        if (strcasestr(said, advices[i].words)) {
            advice = advices[i].advice;
            break;
        }
    fail("%s: %s: %s", s->name, printable(said), advice);
}

/* --- a blocking connection ----------------------------------------------- */
static _Noreturn void lost(const struct wire *w, ssize_t how)
{
    if (how == LINK_AGAIN)
        fail("%s: no answer for %g s to %s: does the server hang, or is it "
             "at its limit of connections?", w->server->name, w->timeout,
             w->asked);
    fail("%s closed the connection before it answered %s (%s): did the "
         "server die, has it too many connections, or does it need TLS?",
         w->server->name, w->asked, how ? link_error() : "end of stream");
}

static _Noreturn void unexpected(const struct wire *w, const char *line)
{
    fail("%s: no RESP server: it answers %s with '%.40s'", w->server->name,
         w->asked, printable(line));
}

void wire_open(struct wire *w, const struct server *s, double timeout)
{
    int fd = start_connect(s, timeout);

    *w = (struct wire){.server = s, .timeout = timeout,
                       .asked = "the greeting", .input = malloc(INPUT)};
    if (fd < 0)
        fail("%s: %s: does the server run, and listen there?", s->name,
             strerror(errno));
    if (!w->input)
        fail("%s: no memory for a connection", s->name);
    w->fd = fd;
}

void wire_close(struct wire *w)
{
    link_close(w->fd, false);
    free(w->input);
    w->input = NULL;
}

static size_t read_some(struct wire *w, void *to, size_t room)
{
    errno = 0;
    ssize_t got = link_read(w->fd, to, room);

    if (got <= 0)
        lost(w, got);
    return (size_t)got;
}

/* More bytes behind those that are not used yet. */
static void more(struct wire *w)
{
    memmove(w->input, w->input + w->at, w->filled - w->at);
    w->filled -= w->at;
    w->at = 0;
    w->filled += read_some(w, w->input + w->filled, INPUT - w->filled);
}

static char *wire_line(struct wire *w)
{
    char *end;

    while (!(end = memchr(w->input + w->at, '\n', w->filled - w->at))) {
        if (w->filled - w->at > MAX_LINE)
            fail("%s: no RESP server: it answers %s with a line without end",
                 w->server->name, w->asked);
        more(w);
    }
    char *line = w->input + w->at;
    w->at = (size_t)(end - w->input) + 1;
    end[-(end > line && end[-1] == '\r')] = '\0';
    return line;
}

/* Large texts are received in place, without a copy. */
void wire_take(struct wire *w, void *to, size_t n)
{
    char *out = to;

    while (n) {
        size_t has = w->filled - w->at;
        if (!has && out && n >= INPUT) {
            has = read_some(w, out, n);
        } else if (!has) {
            more(w);
            continue;
        } else {
            has = has < n ? has : n;
            if (out)
                memcpy(out, w->input + w->at, has);
            w->at += has;
        }
        out = out ? out + has : NULL;
        n -= has;
    }
}

/* --- RESP2 over it ------------------------------------------------------- */
void resp_ask(struct wire *w, const struct word *words, int count)
{
    char heads[MAX_WORDS][40], last[] = "\r\n";
    struct iovec v[2 * MAX_WORDS + 1];
    int n = 0;

    if (count > MAX_WORDS)
        fail("a command of %d words", count);
    for (int i = 0; i < count; i++) {
        v[n].iov_base = heads[i];
        v[n++].iov_len = (size_t)(
            i ? sprintf(heads[i], "\r\n$%zu\r\n", words[i].size)
              : sprintf(heads[i], "*%d\r\n$%zu\r\n", count, words[i].size));
        v[n++] = (struct iovec){(void *)words[i].at, words[i].size};
    }
    v[n++] = (struct iovec){last, 2};
    w->asked = words->at;
    ssize_t sent = link_write_all(w->fd, v, n);
    if (sent < 0)
        lost(w, sent);
}

char *resp_head(struct wire *w, struct head *h)
{
    char *line = wire_line(w);

    if (*line == '-')
        refused(w->server, line + 1);
    if (read_head(line, h))
        unexpected(w, line);
    return line;
}

long long resp_number(struct wire *w, char type)
{
    struct head h;
    char *line = resp_head(w, &h);

    if (h.type != type)
        unexpected(w, line);
    return h.n;
}

void resp_ok(struct wire *w)
{
    struct head h;
    char *line = resp_head(w, &h);

    if (strcmp(line, "+OK"))
        unexpected(w, line);
}

void resp_greet(struct wire *w, const char *user, const char *password)
{
    struct word auth[3] = {TEXT("AUTH")};
    struct head h;
    int count = 1;

    if (password) {
        if (user)
            auth[count++] = TEXT(user);
        auth[count++] = TEXT(password);
        resp_ask(w, auth, count);
        resp_ok(w);
    }
    resp_ask(w, (struct word[]){TEXT("PING")}, 1);
    char *line = resp_head(w, &h);
    if (strcmp(line, "+PONG"))
        unexpected(w, line);
}

/* The length of a text; -1: null. A simple text is moved to *simple. */
static long long text_size(struct wire *w, const char **simple)
{
    struct head h;
    char *line = resp_head(w, &h);

    *simple = h.type == '+' ? line + 1 : NULL;
    if (!strchr("$+", h.type))
        unexpected(w, line);
    if (h.n > MAX_SAID)
        unexpected(w, "a text that is too long");
    return *simple ? (long long)strlen(*simple) : h.n;
}

static void take_text(struct wire *w, char *out, size_t n)
{
    char end[2];

    wire_take(w, out, n);
    wire_take(w, end, 2);
    if (memcmp(end, "\r\n", 2))
        unexpected(w, "a text that is longer than was said");
}

void resp_text(struct wire *w, char *out, size_t room)
{
    const char *simple;
    long long n = text_size(w, &simple);

    if (n >= (long long)room)
        unexpected(w, "a text that is too long");
    if (simple)
        memcpy(out, simple, (size_t)n);
    else if (n >= 0)
        take_text(w, out, (size_t)n);
    out[n > 0 ? n : 0] = '\0';
}

void resp_skip(struct wire *w, unsigned values)
{
    struct head h;

    for (unsigned seen = 1; values; values--, seen++) {
        resp_head(w, &h);
        if (h.type == '$' && h.n > MAX_SAID)
            unexpected(w, "a text that is too long");
        if (h.type == '$' && h.n >= 0)
            take_text(w, NULL, (size_t)h.n);
        else if (h.type == '*' && h.n > 0)
            values += (unsigned)h.n;
        if (seen + values > MAX_ELEMENTS)
            unexpected(w, "an answer without end");
    }
}
