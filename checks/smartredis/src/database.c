/* database.c - the client of a database: the commands that SmartRedis
 * sends. */
#define _GNU_SOURCE
#include "../../core/src/common/resp.h"
#include "../../core/src/common/service.h"
#include "tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64, DIMS = 8, NAME = 160 };

/* The servers, all of them after open_client(). */
static struct service service;
/* The connections of this rank, one per server. */
static struct wire *mine;

/* --- connections --------------------------------------------------------- */
static struct wire *open_wires(void)
{
    struct wire *all = calloc((size_t)service.count, sizeof *all);

    if (!all)
        fail("cannot allocate connections");
    for (int i = 0; i < service.count; i++) {
        wire_open(&all[i], &service.servers[i], arg.limit);
        resp_greet(&all[i], service.user, service.password);
    }
    return all;
}

static struct wire *owner(struct wire *all, const char *key)
{
    return &all[service.cluster ? slot_server[slot_of_text(key, strlen(key))] : 0];
}

struct service *read_servers(void)
{
    open_service(&service, arg.service);
    if (!service.count)
        usage("%s names no server", arg.service);
    return &service;
}

static void open_client(void)
{
    read_servers();
    if (service.cluster)
        find_masters(&service, arg.limit);
    mine = open_wires();
}

/* --- tensors ------------------------------------------------------------ */
static void send_tensor(struct wire *to, const char *key, const char *type,
                        const void *data, size_t size, const long long *dims,
                        int dim_count)
{
    struct word words[5 + DIMS] = {TEXT("AI.TENSORSET"), TEXT(key),
                                   TEXT(type)};
    char text[DIMS][24];
    int count = 3;

    if (arg.plain)
        resp_ask(owner(to, key), (struct word[]){
            TEXT("SET"), TEXT(key), {data, size}}, count);
    else {
        for (int i = 0; i < dim_count; i++) {
            sprintf(text[i], "%lld", dims[i]);
            words[count++] = TEXT(text[i]);
        }
        words[count++] = TEXT("BLOB");
        words[count++] = (struct word){data, size};
        resp_ask(owner(to, key), words, count);
    }
    resp_ok(owner(to, key));
}

static void ask_tensor(struct wire *to, const char *key)
{
    struct word words[] = {TEXT(arg.plain ? "GET" : "AI.TENSORGET"),
                           TEXT(key), TEXT("META"), TEXT("BLOB")};

    resp_ask(owner(to, key), words, arg.plain ? 2 : 4);
}

enum { TYPE = 32 };

/* What comes before the bytes of a tensor: type and dimensions. Returns how
 * many dimensions. */
static int take_shape(struct wire *w, const char *key, char *type,
                      long long *dims)
{
    char word[TYPE];
    struct head h;
    const char *line = resp_head(w, &h);

    if (h.type != '*' || h.n != 6)
        fail("%s: %s is not a tensor: '%.40s'", w->server->name, key,
             printable(line));
    resp_text(w, word, TYPE);                  /* dtype                   */
    resp_text(w, type, TYPE);
    resp_text(w, word, TYPE);                  /* shape                   */
    line = resp_head(w, &h);
    if (h.type != '*' || h.n < 0 || h.n > DIMS)
        fail("%s: %s has no shape: '%.40s'", w->server->name, key,
             printable(line));
    int count = (int)h.n;
    for (int i = 0; i < count; i++)
        dims[i] = resp_number(w, ':');
    resp_text(w, word, TYPE);                  /* blob                    */
    return count;
}

/* The head of a tensor's bytes: how many there are. */
static size_t take_size(struct wire *w, const char *key)
{
    struct head h;
    const char *line = resp_head(w, &h);

    if (h.type != '$')
        fail("%s: %s has no bytes: '%.40s'", w->server->name, key,
             printable(line));
    if (h.n < 0)
        fail("%s: %s does not exist: was it evicted?", w->server->name, key);
    return (size_t)h.n;
}

static void take_tensor(struct wire *from, const char *key, float *data,
                        size_t n)
{
    struct wire *w = owner(from, key);

    if (!arg.plain) {
        char type[TYPE];
        long long dims[DIMS], elements = 1;
        int count = take_shape(w, key, type, dims);
        if (strcmp(type, "FLOAT"))
            fail("%s: %s was written as FLOAT, but read as %s",
                 w->server->name, key, type);
        for (int i = 0; i < count; i++)
            elements *= dims[i];
        if (elements != (long long)n)
            fail("%s: %s was written with %zu elements, but read with %lld",
                 w->server->name, key, n, elements);
    }
    size_t size = take_size(w, key);
    if (size != n * sizeof *data)
        fail("%s: %s was written with %zu bytes, but read with %zu",
             w->server->name, key, n * sizeof *data, size);
    wire_take(w, (char *)data, size);
    wire_take(w, NULL, 2);
}

static void put_tensor(const char *key, const float *data,
                       const long long *dims, int dim_count)
{
    size_t size = sizeof *data;

    for (int i = 0; i < dim_count; i++)
        size *= (size_t)dims[i];
    send_tensor(mine, key, "FLOAT", data, size, dims, dim_count);
}

static void unpack_tensor(const char *key, float *data, size_t n)
{
    ask_tensor(mine, key);
    take_tensor(mine, key, data, n);
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
    resp_ask(owner(mine, meta), hash, 4);
    resp_ok(owner(mine, meta));
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof key, "{%s}.tensor_%d", name, i);
        put_tensor(key, data + (size_t)i * n, (long long[]){1, (long long)n},
                   2);
    }
    struct word done[] = {TEXT("HSET"), TEXT(meta), TEXT(".COMPLETE"),
                          TEXT("1")};
    resp_ask(owner(mine, meta), done, 4);
    resp_number(owner(mine, meta), ':');
}

static void append_to_list(const char *list, const char *dataset)
{
    char name[NAME];

    snprintf(name, sizeof name, "{%s}", dataset);
    resp_ask(owner(mine, list), (struct word[]){TEXT("RPUSH"), TEXT(list),
                                            TEXT(name)}, 3);
    resp_number(owner(mine, list), ':');
}

static long list_length(const char *list)
{
    resp_ask(owner(mine, list), (struct word[]){TEXT("LLEN"), TEXT(list)}, 2);
    return (long)resp_number(owner(mine, list), ':');
}

static void delete_key(const char *key)
{
    resp_ask(owner(mine, key), (struct word[]){TEXT("DEL"), TEXT(key)}, 2);
    resp_number(owner(mine, key), ':');
}

/* What one thread reads: every `step`-th dataset from `first` on. */
struct share {
    struct wire *wires;
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
        struct wire *w = owner(s->wires, key);
        resp_ask(w, (struct word[]){TEXT("HGETALL"), TEXT(key)}, 2);
        resp_head(w, &h);
        if (h.type != '*' || h.n != 4)
            fail("%s: the dataset %s is incomplete", w->server->name,
                 s->names[d]);
        resp_skip(w, 4);
        for (int begin = 0; begin < s->count; begin += WINDOW) {
            int end = begin + WINDOW < s->count ? begin + WINDOW : s->count;
            for (int t = begin; t < end; t++) {
                snprintf(key, sizeof key, "%s.tensor_%d", s->names[d], t);
                ask_tensor(s->wires, key);
            }
            for (int t = begin; t < end; t++) {
                snprintf(key, sizeof key, "%s.tensor_%d", s->names[d], t);
                take_tensor(s->wires, key, s->data + (
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
    struct wire *w = owner(mine, list);

    /* Connections of the threads, once. */
    if (!pool) {
        pool = calloc((size_t)threads, sizeof *pool);
        if (!pool)
            fail("cannot allocate %d threads", threads);
        pool_size = threads;
        for (int i = 1; i < threads; i++)
            pool[i].wires = open_wires();
        pool->wires = mine;
    }
    if (!names)
        fail("cannot allocate %zu names", datasets);
    resp_ask(w, (struct word[]){TEXT("LRANGE"), TEXT(list), TEXT("0"),
                           TEXT("-1")}, 4);
    resp_head(w, &h);
    if (h.type != '*' || (size_t)h.n != datasets)
        fail("%s: %s has %lld datasets instead of %zu", w->server->name, list,
             h.n, datasets);
    for (size_t d = 0; d < datasets; d++)
        resp_text(w, names[d], sizeof names[d]);
    for (size_t d = 0; d < datasets; d++)
        who[d] = producer_of(names[d]);
    for (int i = 0; i < pool_size; i++) {
        pool[i] = (struct share){
            .wires = pool[i].wires, .names = names, .data = data, .first = (size_t)i,
            .step = (size_t)pool_size, .datasets = datasets, .n = n,
            .count = count};
    }
    in_threads(pool_size, read_share, pool, sizeof *pool);
    free(names);
}

/* --- models and scripts --------------------------------------------------- */
/* Servers that have a copy of each model and script. */
static int copies(void)
{
    return service.cluster ? service.count : 1;
}

/* A key on the given server: "name", in a cluster "{tag}.name" with a tag of
 * one of that server's slots. */
static const char *key_on(char *out, int server, const char *name)
{
    static char (*tags)[16];
    char tag[16];

    if (!service.cluster)
        return key_of(out, NAME, "%s", name);
    if (!tags && !(tags = calloc((size_t)service.count, sizeof *tags)))
        fail("cannot allocate the tags of %d servers", service.count);
    for (unsigned i = 0; !*tags[server]; i++) {
        sprintf(tag, "%u", i);
        int node = slot_server[slot_of_text(tag, strlen(tag))];
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
        resp_ask(&mine[i], (struct word[]){
            TEXT("EXISTS"), TEXT(key_on(key, i, name))}, 2);
        found += resp_number(&mine[i], ':') > 0;
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
        resp_ask(&mine[i], words, 8);
        resp_ok(&mine[i]);
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
        resp_ask(&mine[i], words, 5);
        resp_ok(&mine[i]);
    }
}

/* Gets a tensor of any type and puts it under another key. */
static void copy_tensor(const char *from, const char *to)
{
    static char *bytes;
    static size_t room;
    struct wire *w = owner(mine, from);
    char type[TYPE];
    long long dims[DIMS];

    ask_tensor(mine, from);
    int dim_count = take_shape(w, from, type, dims);
    size_t size = take_size(w, from);
    if (size > room && !(bytes = realloc(bytes, room = size)))
        fail("cannot allocate a tensor of %zu bytes", size);
    wire_take(w, bytes, size);
    wire_take(w, NULL, 2);
    send_tensor(mine, to, type, bytes, size, dims, dim_count);
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
    p->wire = owner(mine, in);
    int server = (int)(p->wire - mine);
    key_on(p->name, server, name);
    key_on(p->in, server, in);
    key_on(p->out, server, out);
    if (service.cluster)
        copy_tensor(in, p->in);
}

static void come_back(struct place *p, const char *out)
{
    resp_ok(p->wire);
    if (!service.cluster)
        return;
    copy_tensor(p->out, out);
    resp_ask(p->wire, (struct word[]){TEXT("DEL"), TEXT(p->in),
                                      TEXT(p->out)}, 3);
    resp_number(p->wire, ':');
}

static void run_script(const char *name, const char *function,
                       const char *in, const char *out)
{
    struct place p;

    go_to(&p, name, in, out);
    struct word words[] = {TEXT("AI.SCRIPTRUN"), TEXT(p.name),
                           TEXT(function), TEXT("INPUTS"), TEXT(p.in),
                           TEXT("OUTPUTS"), TEXT(p.out)};
    resp_ask(p.wire, words, 7);
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
    resp_ask(p.wire, words, 10);
    come_back(&p, out);
}

const struct client embedded = {
    .name = "embedded", .open = open_client,
    .put_tensor = put_tensor, .unpack_tensor = unpack_tensor,
    .put_dataset = put_dataset, .append_to_list = append_to_list,
    .list_length = list_length, .get_list = get_list,
    .delete_list = delete_key, .exists = exists,
    .set_model = set_model, .set_script = set_script,
    .run_script = run_script, .run_model = run_model,
    .delete_tensor = delete_key,
};
