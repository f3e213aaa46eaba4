/* resp.c - the suite's own client: the commands that SmartRedis sends, over
 * the load generator's sockets and protocol code (checks/load/src). */
#define _GNU_SOURCE
#include "../../load/src/load.h"
#include "tensor.h"

#include <errno.h>
#include <ifaddrs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

enum { INPUT = 1 << 16, WINDOW = 64, WORDS = 40, DIMS = 8, NAME = 160 };

/* A blocking connection to one server. */
struct wire {
    struct link link;
    const struct node *node;
    char *input;
    size_t at, filled;
};
/* The connections of a rank, or of a thread of the consumer. */
struct wires { struct wire *of; };
static struct wires mine;

/* --- one connection ----------------------------------------------------- */
static _Noreturn void lost(const struct wire *w, ssize_t how)
{
    die("%s: %s", w->node->name,
        how == LINK_AGAIN ? "no answer in time: does the server hang?"
        : how == 0 ? "the server closed the connection"
        : link_error());
}

static void send_all(struct wire *w, struct iovec *v, int count)
{
    while (count) {
        ssize_t put = link_write(&w->link, v, count);
        if (put < 0)
            lost(w, put);
        while (count && (size_t)put >= v->iov_len)
            put -= (ssize_t)v->iov_len, v++, count--;
        if (count) {
            v->iov_base = (char *)v->iov_base + put;
            v->iov_len -= (size_t)put;
        }
    }
}

static void more(struct wire *w)
{
    if (w->at == w->filled)
        w->at = w->filled = 0;
    if (w->filled == INPUT) {
        if (!w->at)
            die("%s: an answer's line has no end", w->node->name);
        memmove(w->input, w->input + w->at, w->filled - w->at);
        w->filled -= w->at;
        w->at = 0;
    }
    errno = 0;
    ssize_t got = link_read(&w->link, w->input + w->filled,
                            INPUT - w->filled);
    if (got <= 0)
        lost(w, got);
    w->filled += (size_t)got;
}

/* The next line of an answer, decoded; an error ends the program. */
static const char *line_of(struct wire *w, struct head *h)
{
    char *end;

    while (!(end = memchr(w->input + w->at, '\n', w->filled - w->at)))
        more(w);
    char *line = w->input + w->at;
    w->at = (size_t)(end - w->input) + 1;
    end[-(end > line && end[-1] == '\r')] = '\0';
    if (*line == '-')
        refused(w->node, line + 1);
    const char *why = read_head(line, h);
    if (why)
        die("%s: %s: '%.40s'", w->node->name, why, printable(line));
    return line;
}

/* n bytes of an answer; to NULL: skipped. Large ones are received where they
 * belong. */
static void take(struct wire *w, char *to, size_t n)
{
    while (n) {
        size_t has = w->filled - w->at;
        if (!has && to && n >= INPUT) {
            errno = 0;
            ssize_t got = link_read(&w->link, to, n);
            if (got <= 0)
                lost(w, got);
            to += got, n -= (size_t)got;
            continue;
        }
        if (!has) {
            more(w);
            continue;
        }
        has = has < n ? has : n;
        if (to)
            memcpy(to, w->input + w->at, has), to += has;
        w->at += has, n -= has;
    }
}

static void skip(struct wire *w, unsigned values)
{
    struct head h;

    while (values--) {
        line_of(w, &h);
        if (h.type == '$' && h.n >= 0)
            take(w, NULL, (size_t)h.n + 2);
        else if (h.type == '*' && h.n > 0)
            values += (unsigned)h.n;
    }
}

static void want_ok(struct wire *w)
{
    struct head h;
    const char *line = line_of(w, &h);

    if (strcmp(line, "+OK"))
        die("%s: expected OK, got '%.40s'", w->node->name, printable(line));
}

static long long want_number(struct wire *w)
{
    struct head h;
    const char *line = line_of(w, &h);

    if (h.type != ':')
        die("%s: expected a number, got '%.40s'", w->node->name,
            printable(line));
    return h.n;
}

/* --- commands ----------------------------------------------------------- */
struct word { const void *at; size_t size; };
#define TEXT(text) ((struct word){text, strlen(text)})

static void ask(struct wire *w, const struct word *words, int count)
{
    char heads[WORDS][40], last[] = "\r\n";
    struct iovec v[2 * WORDS + 1];
    int n = 0;

    if (count > WORDS)
        die("a command of %d words", count);
    for (int i = 0; i < count; i++) {
        v[n].iov_base = heads[i];
        v[n++].iov_len = (size_t)(
            i ? sprintf(heads[i], "\r\n$%zu\r\n", words[i].size)
              : sprintf(heads[i], "*%d\r\n$%zu\r\n", count, words[i].size));
        v[n++] = (struct iovec){(void *)words[i].at, words[i].size};
    }
    v[n++] = (struct iovec){last, 2};
    send_all(w, v, n);
}

static void connect_to(struct wire *w, struct node *node)
{
    struct head h;

    w->node = node;
    if (!(w->input = malloc(INPUT)))
        die("no memory for a connection");
    if ((w->link.fd = start_connect(node, arg.limit)) < 0)
        die("%s: %s: does the server run, and listen there?", node->name,
            strerror(errno));
    if (tls_step(&w->link) != 1)
        die("%s: TLS: %s", node->name, link_error());
    if (opt.password) {
        struct word auth[3] = {TEXT("AUTH")};
        int count = 1;
        if (opt.user)
            auth[count++] = TEXT(opt.user);
        auth[count++] = TEXT(opt.password);
        ask(w, auth, count);
        want_ok(w);
    }
    ask(w, (struct word[]){TEXT("PING")}, 1);
    if (strcmp(line_of(w, &h), "+PONG"))
        die("%s: no PONG", node->name);
}

static void open_wires(struct wires *to)
{
    to->of = calloc((size_t)opt.node_count, sizeof *to->of);
    if (!to->of)
        die("no memory for connections");
    for (int i = 0; i < opt.node_count; i++)
        connect_to(&to->of[i], &opt.nodes[i]);
}


static struct wire *owner(struct wires *all, const char *key)
{
    return &all->of[opt.cluster ? slot_node[slot_of_text(key, strlen(key))]
                                : 0];
}

static bool is_here(const struct node *n)
{
    const struct sockaddr_in *to = (const void *)&n->address;
    struct ifaddrs *all, *one;
    bool here = false;

    if (n->address.ss_family == AF_UNIX)
        return !access(((const struct sockaddr_un *)&n->address)->sun_path,
                       F_OK);
    if (n->address.ss_family != AF_INET || getifaddrs(&all))
        return false;
    for (one = all; one && !here; one = one->ifa_next) {
        const struct sockaddr_in *has = (const void *)one->ifa_addr;
        here = has && has->sin_family == AF_INET
               && has->sin_addr.s_addr == to->sin_addr.s_addr;
    }
    freeifaddrs(all);
    return here;
}

/* A colocated database has one server on each node. */
static void keep_local(void)
{
    int i = 0;

    while (i < opt.node_count && !is_here(&opt.nodes[i]))
        i++;
    if (i == opt.node_count)
        die("none of the %d servers is on this node", opt.node_count);
    opt.nodes[0] = opt.nodes[i];
    opt.node_count = 1;
}

void choose_servers(void)
{
    char *words[] = {PROGRAM, "--service", (char *)arg.service, "--keys",
                     "1", "--threads", "1", "--connections", "1", NULL};

    if (opt.nodes)
        return;
    read_options(9, words);
    prepare_draw();
    if (opt.tls)
        prepare_tls(opt.ca, opt.cert, opt.key);
    opt.timeout = arg.limit;
    if (arg.colocated)
        keep_local();
}

static void open_client(void)
{
    choose_servers();
    probe();
    open_wires(&mine);
}

/* --- tensors ------------------------------------------------------------ */
static void send_tensor(struct wires *to, const char *key, const float *data,
                        size_t n, const int *dims, int dim_count)
{
    struct word words[16] = {TEXT("AI.TENSORSET"), TEXT(key), TEXT("FLOAT")};
    char text[8][16];
    int count = 3;

    if (arg.plain) {
        words[0] = TEXT("SET");
        words[2] = (struct word){data, n * sizeof *data};
        ask(owner(to, key), words, 3);
        return;
    }
    for (int i = 0; i < dim_count; i++) {
        sprintf(text[i], "%d", dims[i]);
        words[count++] = TEXT(text[i]);
    }
    words[count++] = TEXT("BLOB");
    words[count++] = (struct word){data, n * sizeof *data};
    ask(owner(to, key), words, count);
}

static void ask_tensor(struct wires *to, const char *key)
{
    struct word words[] = {TEXT(arg.plain ? "GET" : "AI.TENSORGET"),
                           TEXT(key), TEXT("META"), TEXT("BLOB")};

    ask(owner(to, key), words, arg.plain ? 2 : 4);
}

/* The text of a bulk reply, as far as it fits. */
static void short_text(struct wire *w, char *out, size_t room)
{
    struct head h;
    const char *line = line_of(w, &h);

    if ((h.type != '$' && h.type != '+') || h.n < 0)
        die("%s: expected a text, got '%.40s'", w->node->name,
            printable(line));
    if (h.type == '+') {
        snprintf(out, room, "%s", line + 1);
        return;
    }
    if ((size_t)h.n >= room)
        die("%s: a text of %lld bytes where a word was due", w->node->name,
            h.n);
    take(w, out, (size_t)h.n);
    out[h.n] = '\0';
    take(w, NULL, 2);
}

enum { TYPE = 32 };

/* What comes before the bytes of a tensor: type and dimensions. Returns how
 * many dimensions. */
static int take_shape(struct wire *w, const char *key, char *type,
                      long long *dims)
{
    char word[TYPE];
    struct head h;
    const char *line = line_of(w, &h);

    if (h.type != '*' || h.n != 6)
        die("%s: %s: no tensor: '%.40s'", w->node->name, key,
            printable(line));
    short_text(w, word, TYPE);                  /* dtype                   */
    short_text(w, type, TYPE);
    short_text(w, word, TYPE);                  /* shape                   */
    line = line_of(w, &h);
    if (h.type != '*' || h.n < 0 || h.n > DIMS)
        die("%s: %s: no shape: '%.40s'", w->node->name, key,
            printable(line));
    int count = (int)h.n;
    for (int i = 0; i < count; i++)
        dims[i] = want_number(w);
    short_text(w, word, TYPE);                  /* blob                    */
    return count;
}

/* The head of a tensor's bytes: how many there are. */
static size_t take_size(struct wire *w, const char *key)
{
    struct head h;
    const char *line = line_of(w, &h);

    if (h.type != '$')
        die("%s: %s: no bytes: '%.40s'", w->node->name, key,
            printable(line));
    if (h.n < 0)
        die("%s: %s is not there: was it evicted?", w->node->name, key);
    return (size_t)h.n;
}

static void take_tensor(struct wires *from, const char *key, float *data,
                        size_t n)
{
    struct wire *w = owner(from, key);

    if (!arg.plain) {
        char type[TYPE];
        long long dims[DIMS], elements = 1;
        int count = take_shape(w, key, type, dims);
        if (strcmp(type, "FLOAT"))
            die("%s: %s: FLOAT was written, %s came back", w->node->name,
                key, type);
        for (int i = 0; i < count; i++)
            elements *= dims[i];
        if (elements != (long long)n)
            die("%s: %s: %zu elements were due, %lld came", w->node->name,
                key, n, elements);
    }
    size_t size = take_size(w, key);
    if (size != n * sizeof *data)
        die("%s: %s: %zu bytes were due, %zu came", w->node->name, key,
            n * sizeof *data, size);
    take(w, (char *)data, size);
    take(w, NULL, 2);
}

static void put_tensor(const char *key, const float *data, size_t n)
{
    send_tensor(&mine, key, data, n, (int[]){1, (int)n}, 2);
    want_ok(owner(&mine, key));
}

static void unpack_tensor(const char *key, float *data, size_t n)
{
    ask_tensor(&mine, key);
    take_tensor(&mine, key, data, n);
}

/* --- datasets and lists: a hash, tensors beside it, a list of names ------ */
static void put_dataset(const char *name, const float *data, size_t n,
                        int count)
{
    char meta[NAME], key[NAME], names[16 * 64] = "";

    snprintf(meta, sizeof meta, "{%s}.meta", name);
    for (int i = 0; i < count && i < 64; i++)
        sprintf(names + strlen(names), "%stensor_%d", i ? " " : "", i);
    struct word hash[] = {TEXT("HMSET"), TEXT(meta), TEXT(".tensor_names"),
                          TEXT(names)};
    ask(owner(&mine, meta), hash, 4);
    want_ok(owner(&mine, meta));
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof key, "{%s}.tensor_%d", name, i);
        send_tensor(&mine, key, data + (size_t)i * n, n, (int[]){1, (int)n},
                    2);
        want_ok(owner(&mine, key));
    }
    struct word done[] = {TEXT("HSET"), TEXT(meta), TEXT(".COMPLETE"),
                          TEXT("1")};
    ask(owner(&mine, meta), done, 4);
    want_number(owner(&mine, meta));
}

static void append_to_list(const char *list, const char *dataset)
{
    char name[NAME];

    snprintf(name, sizeof name, "{%s}", dataset);
    ask(owner(&mine, list), (struct word[]){TEXT("RPUSH"), TEXT(list),
                                            TEXT(name)}, 3);
    want_number(owner(&mine, list));
}

static long list_length(const char *list)
{
    ask(owner(&mine, list), (struct word[]){TEXT("LLEN"), TEXT(list)}, 2);
    return (long)want_number(owner(&mine, list));
}

static void delete_list(const char *list)
{
    ask(owner(&mine, list), (struct word[]){TEXT("DEL"), TEXT(list)}, 2);
    want_number(owner(&mine, list));
}

/* What one thread reads: every `step`-th dataset from `first` on. */
struct share {
    struct wires wires;
    char (*names)[NAME];
    float *data;
    size_t first, step, datasets, n;
    int count;
};

/* Requests go out in windows: more would fill both ends' buffers. */
static void *read_share(void *argument)
{
    struct share *s = argument;
    char key[2 * NAME];
    struct head h;

    for (size_t d = s->first; d < s->datasets; d += s->step) {
        snprintf(key, sizeof key, "%s.meta", s->names[d]);
        struct wire *w = owner(&s->wires, key);
        ask(w, (struct word[]){TEXT("HGETALL"), TEXT(key)}, 2);
        line_of(w, &h);
        if (h.type != '*' || h.n != 4)
            die("%s: the dataset %s is not whole", w->node->name,
                s->names[d]);
        skip(w, 4);
        for (int begin = 0; begin < s->count; begin += WINDOW) {
            int end = begin + WINDOW < s->count ? begin + WINDOW : s->count;
            for (int t = begin; t < end; t++) {
                snprintf(key, sizeof key, "%s.tensor_%d", s->names[d], t);
                ask_tensor(&s->wires, key);
            }
            for (int t = begin; t < end; t++) {
                snprintf(key, sizeof key, "%s.tensor_%d", s->names[d], t);
                take_tensor(&s->wires, key, s->data + (
                    d * (size_t)s->count + (size_t)t) * s->n, s->n);
            }
        }
    }
    return NULL;
}

static struct share *pool;
static int pool_size;

static void get_list(const char *list, float *data, long *who,
                     size_t datasets, size_t n, int count, int threads)
{
    char (*names)[NAME] = calloc(datasets, sizeof *names);
    struct head h;
    struct wire *w = owner(&mine, list);

    /* Connections of the threads, once. */
    if (!pool) {
        pool = calloc((size_t)threads, sizeof *pool);
        if (!pool)
            die("no memory for %d threads", threads);
        pool_size = threads;
        for (int i = 1; i < threads; i++)
            open_wires(&pool[i].wires);
        pool->wires = mine;
    }
    if (!names)
        die("no memory for %zu names", datasets);
    ask(w, (struct word[]){TEXT("LRANGE"), TEXT(list), TEXT("0"),
                           TEXT("-1")}, 4);
    line_of(w, &h);
    if (h.type != '*' || (size_t)h.n != datasets)
        die("%s: %s has %lld datasets, %zu were due", w->node->name, list,
            h.n, datasets);
    for (size_t d = 0; d < datasets; d++)
        short_text(w, names[d], sizeof names[d]);
    for (size_t d = 0; d < datasets; d++)
        who[d] = producer_of(names[d]);
    for (int i = 0; i < pool_size; i++) {
        struct wires wires = pool[i].wires;
        pool[i] = (struct share){
            .wires = wires, .names = names, .data = data, .first = (size_t)i,
            .step = (size_t)pool_size, .datasets = datasets, .n = n,
            .count = count};
    }
    in_threads(pool_size, read_share, pool, sizeof *pool);
    free(names);
}

/* --- models and scripts --------------------------------------------------- */
static void put_shaped(const char *key, const float *data, const int *dims,
                       int dim_count)
{
    size_t n = 1;

    for (int i = 0; i < dim_count; i++)
        n *= (size_t)dims[i];
    send_tensor(&mine, key, data, n, dims, dim_count);
    want_ok(owner(&mine, key));
}

static void delete_tensor(const char *key)
{
    ask(owner(&mine, key), (struct word[]){TEXT("DEL"), TEXT(key)}, 2);
    want_number(owner(&mine, key));
}

/* Servers that have a copy of each model and script. */
static int copies(void)
{
    return opt.cluster ? opt.node_count : 1;
}

/* A key on the given server: "name", in a cluster "{tag}.name" with a tag of
 * one of that server's slots. */
static const char *key_on(char *out, int server, const char *name)
{
    static char (*tags)[16];
    char tag[16];

    if (!opt.cluster)
        return key_of(out, NAME, "%s", name);
    if (!tags && !(tags = calloc((size_t)opt.node_count, sizeof *tags)))
        die("no memory for the tags of %d servers", opt.node_count);
    for (unsigned i = 0; !*tags[server]; i++) {
        sprintf(tag, "%u", i);
        int node = slot_node[slot_of_text(tag, strlen(tag))];
        if (!*tags[node])
            strcpy(tags[node], tag);
    }
    return key_of(out, NAME, "{%s}.%s", tags[server], name);
}

static bool exists(const char *name)
{
    char key[NAME];
    int found = 0;

    for (int i = 0; i < copies(); i++) {
        ask(&mine.of[i], (struct word[]){
            TEXT("EXISTS"), TEXT(key_on(key, i, name))}, 2);
        found += want_number(&mine.of[i]) > 0;
    }
    return found == copies();
}

static void set_model(const char *name, const char *device, int batch,
                      const char *blob, size_t size)
{
    char text[16], key[NAME];

    sprintf(text, "%d", batch);
    for (int i = 0; i < copies(); i++) {
        key_on(key, i, name);
        struct word words[] = {
            TEXT("AI.MODELSTORE"), TEXT(key), TEXT("TORCH"), TEXT(device),
            TEXT("BATCHSIZE"), TEXT(text), TEXT("BLOB"), {blob, size}};
        ask(&mine.of[i], words, 8);
        want_ok(&mine.of[i]);
    }
}

static void set_script(const char *name, const char *device,
                       const char *source, size_t size)
{
    char key[NAME];

    for (int i = 0; i < copies(); i++) {
        key_on(key, i, name);
        struct word words[] = {TEXT("AI.SCRIPTSET"), TEXT(key), TEXT(device),
                               TEXT("SOURCE"), {source, size}};
        ask(&mine.of[i], words, 5);
        want_ok(&mine.of[i]);
    }
}

/* Gets a tensor of any type and puts it under another key. */
static void copy_tensor(const char *from, const char *to)
{
    static char *bytes;
    static size_t room;
    struct wire *w = owner(&mine, from);
    char type[TYPE], text[DIMS][24];
    long long dims[DIMS];
    int count = 3;

    ask_tensor(&mine, from);
    int dim_count = take_shape(w, from, type, dims);
    size_t size = take_size(w, from);
    if (size > room && !(bytes = realloc(bytes, room = size)))
        die("no memory for a tensor of %zu bytes", size);
    take(w, bytes, size);
    take(w, NULL, 2);
    struct word words[5 + DIMS] = {TEXT("AI.TENSORSET"), TEXT(to),
                                   TEXT(type)};
    for (int i = 0; i < dim_count; i++) {
        sprintf(text[i], "%lld", dims[i]);
        words[count++] = TEXT(text[i]);
    }
    words[count++] = TEXT("BLOB");
    words[count++] = (struct word){bytes, size};
    ask(owner(&mine, to), words, count);
    want_ok(owner(&mine, to));
}

/* Where something is run: the server that has its input. A command of a
 * cluster has keys of one slot alone, so that, as SmartRedis does it, the
 * input is copied beside that server's copy of the model, and the output from
 * there. */
struct place {
    struct wire *wire;
    char name[NAME], in[NAME], out[NAME];
};

static void go_to(struct place *p, const char *name, const char *in,
                  const char *out)
{
    p->wire = owner(&mine, in);
    int server = (int)(p->wire - mine.of);
    key_on(p->name, server, name);
    key_on(p->in, server, in);
    key_on(p->out, server, out);
    if (opt.cluster)
        copy_tensor(in, p->in);
}

static void come_back(struct place *p, const char *out)
{
    want_ok(p->wire);
    if (!opt.cluster)
        return;
    copy_tensor(p->out, out);
    ask(p->wire, (struct word[]){TEXT("DEL"), TEXT(p->in), TEXT(p->out)}, 3);
    want_number(p->wire);
}

static void run_script(const char *name, const char *function,
                       const char *in, const char *out)
{
    struct place p;

    go_to(&p, name, in, out);
    struct word words[] = {TEXT("AI.SCRIPTRUN"), TEXT(p.name),
                           TEXT(function), TEXT("INPUTS"), TEXT(p.in),
                           TEXT("OUTPUTS"), TEXT(p.out)};
    ask(p.wire, words, 7);
    come_back(&p, out);
}

static void run_model(const char *name, const char *in, const char *out)
{
    struct place p;

    go_to(&p, name, in, out);
    struct word words[] = {
        TEXT("AI.MODELEXECUTE"), TEXT(p.name), TEXT("INPUTS"), TEXT("1"),
        TEXT(p.in), TEXT("OUTPUTS"), TEXT("1"), TEXT(p.out),
        TEXT("TIMEOUT"), TEXT("60000000")};
    ask(p.wire, words, 10);
    come_back(&p, out);
}

static const char *commands(void)
{
    return arg.plain ? "SET" : "AI.TENSORSET";
}

const struct client embedded = {
    .name = "embedded", .commands = commands, .open = open_client,
    .put_tensor = put_tensor, .unpack_tensor = unpack_tensor,
    .put_dataset = put_dataset, .append_to_list = append_to_list,
    .list_length = list_length, .get_list = get_list,
    .delete_list = delete_list, .put_shaped = put_shaped, .exists = exists,
    .set_model = set_model, .set_script = set_script,
    .run_script = run_script, .run_model = run_model,
    .delete_tensor = delete_tensor,
};
