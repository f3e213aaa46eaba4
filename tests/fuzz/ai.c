/* ai.c - argument vectors and payloads for the module of RedisAI's commands,
 * in a server of a few hundred lines: its strings and keys are pieces of
 * memory of their own, so that ASan sees every byte too far.
 *
 * An input is commands, one a line (0x1e ends it, 0x1f ends a word). A word
 * @N is N bytes of zeros. Besides the module's commands there are
 *
 *     text KEY            a key of another type
 *     wait                for what runs
 *
 * Checked besides: a command has one whole answer or blocks; errors have no
 * control characters; strings are counted in the server's own thread alone. */
#include "../../checks/stores/src/ai/api.h"
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define CHECK(good) \
    do { \
        if (!(good)) { \
            fprintf(stderr, "ai.c:%d: %s\n", __LINE__, #good); \
            abort(); \
        } \
    } while (0)

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int RedisModule_OnLoad(Context *context, String **argv, int argc);

/* A type of a key of which only modules of the server know. */
enum { KEY_MODULE = 6 };
enum { COMMANDS = 32, KINDS = 3, WORDS = 200, LINES = 40, LARGEST = 1 << 16 };

struct server_string { int refs; size_t size; char *data; };
struct server_type { Methods methods; };
struct value { struct value *next; String *name; Type *type; void *value; };
struct server_key { String *name; struct value *value; int mode; };
struct server_context { int (*get)(const char *, void *); Blocked *blocked; };
struct server_blocked { Blocked *next; Command *answer;
                        void (*discard)(Context *, void *); void *data;
                        int done; };

static struct { const char *name; Command *run; } commands[COMMANDS];
static struct server_type types[KINDS], other;
static int command_count, type_count;
static struct value *keys;
static Blocked *blocked;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t main_thread;
/* Answers that the command still owes. */
static long long owed;

/* --- strings ---------------------------------------------------------------- */

static void in_main(void)
{
    CHECK(pthread_equal(pthread_self(), main_thread));
}

static String *make(const void *data, size_t size)
{
    String *s = malloc(sizeof *s);
    *s = (String){1, size, malloc(size ? size : 1)};
    if (size)
        memcpy(s->data, data, size);
    return s;
}

static String *fake_HoldString(Context *c, String *s)
{
    (void)c;
    in_main();
    s->refs++;
    return s;
}

static void fake_FreeString(Context *c, String *s)
{
    (void)c;
    in_main();
    CHECK(s->refs > 0);
    if (!--s->refs) {
        free(s->data);
        free(s);
    }
}

static const char *fake_StringPtrLen(const String *s, size_t *size)
{
    if (size)
        *size = s->size;
    return s->data;
}

static int fake_StringToLongLong(const String *s, long long *value)
{
    char text[32], again[32];
    if (!s->size || s->size >= sizeof text)
        return BAD;
    memcpy(text, s->data, s->size);
    text[s->size] = 0;
    errno = 0;
    char *end;
    *value = strtoll(text, &end, 10);
    snprintf(again, sizeof again, "%lld", *value);
    return errno || *end || strcmp(text, again) ? BAD : GOOD;
}

/* --- keys ------------------------------------------------------------------- */

static struct value **place_of(const String *name)
{
    struct value **at = &keys;
    while (*at && ((*at)->name->size != name->size ||
                   memcmp((*at)->name->data, name->data, name->size)))
        at = &(*at)->next;
    return at;
}

static void drop(struct value **at)
{
    struct value *v = *at;
    *at = v->next;
    if (v->type != &other)
        v->type->methods.free(v->value);
    fake_FreeString(NULL, v->name);
    free(v);
}

static void *fake_OpenKey(Context *c, String *name, int mode)
{
    (void)c;
    in_main();
    struct value *v = *place_of(name);
    if (!v && mode == READ)
        return NULL;
    Key *key = malloc(sizeof *key);
    *key = (Key){fake_HoldString(NULL, name), v, mode};
    return key;
}

static void fake_CloseKey(Key *key)
{
    if (key)
        fake_FreeString(NULL, key->name);
    free(key);
}

static int fake_KeyType(Key *key)
{
    return !key || !key->value ? KEY_EMPTY
        : key->value->type == &other ? 1 : KEY_MODULE;
}

static Type *fake_ModuleTypeGetType(Key *key)
{
    return fake_KeyType(key) == KEY_MODULE ? key->value->type : NULL;
}

static void *fake_ModuleTypeGetValue(Key *key)
{
    return fake_KeyType(key) == KEY_MODULE ? key->value->value : NULL;
}

static int fake_ModuleTypeSetValue(Key *key, Type *type, void *value)
{
    if (key->value)
        drop(place_of(key->name));
    struct value *v = malloc(sizeof *v);
    *v = (struct value){keys, fake_HoldString(NULL, key->name), type, value};
    key->value = keys = v;
    return GOOD;
}

static int fake_ModuleTypeReplaceValue(Key *key, Type *type, void *value,
                                       void **old)
{
    CHECK(key->mode & WRITE && key->value && key->value->type == type);
    *old = key->value->value;
    key->value->value = value;
    return GOOD;
}

/* --- answers ---------------------------------------------------------------- */

static int answered(long long more)
{
    in_main();
    CHECK(owed > 0);
    owed += more - 1;
    return GOOD;
}

static int fake_ReplyWithError(Context *c, const char *text)
{
    (void)c;
    CHECK(*text >= 'A' && *text <= 'Z');
    for (; *text; text++)
        CHECK((unsigned char)*text >= ' ' && (unsigned char)*text < 127);
    return answered(0);
}

static int fake_WrongArity(Context *c)
{
    (void)c;
    return answered(0);
}

static int fake_ReplyWithSimpleString(Context *c, const char *text)
{
    (void)c;
    CHECK(!strpbrk(text, "\r\n"));
    return answered(0);
}

static int fake_ReplyWithArray(Context *c, long size)
{
    (void)c;
    CHECK(size >= 0);
    return answered(size);
}

static int fake_ReplyWithLongLong(Context *c, long long value)
{
    (void)c, (void)value;
    return answered(0);
}

/* Reads all of it: a copy for the client. */
static int fake_ReplyWithStringBuffer(Context *c, const char *data,
                                      size_t size)
{
    (void)c;
    String *s = make(data, size);
    fake_FreeString(NULL, s);
    return answered(0);
}

static int fake_ReplyWithString(Context *c, String *s)
{
    return fake_ReplyWithStringBuffer(c, s->data, s->size);
}

/* --- its log ----------------------------------------------------------------- */

static void fake_Log(Context *c, const char *level, const char *format, ...)
{
    (void)c, (void)level, (void)format;
}

/* --- clients that wait ------------------------------------------------------ */

static Blocked *fake_BlockClient(Context *c, Command *answer,
                                 Command *timeout,
                                 void (*discard)(Context *, void *),
                                 long long limit)
{
    (void)timeout, (void)limit;
    CHECK(!c->blocked);
    pthread_mutex_lock(&lock);
    c->blocked = malloc(sizeof *blocked);
    *c->blocked = (Blocked){blocked, answer, discard, NULL, 0};
    blocked = c->blocked;
    pthread_mutex_unlock(&lock);
    return c->blocked;
}

static int fake_UnblockClient(Blocked *b, void *data)
{
    pthread_mutex_lock(&lock);
    CHECK(!b->done);
    b->data = data;
    b->done = 1;
    pthread_mutex_unlock(&lock);
    return GOOD;
}

static void *fake_GetBlockedClientPrivateData(Context *c)
{
    return c->blocked->data;
}

/* Answers those that are done; the number of those that are not. */
static int answer_done(int gone)
{
    int waiting = 0;
    for (Blocked **at = &blocked; *at;) {
        Blocked *b = *at;
        pthread_mutex_lock(&lock);
        int done = b->done;
        pthread_mutex_unlock(&lock);
        if (!done) {
            waiting++;
            at = &b->next;
            continue;
        }
        Context context = {.blocked = b};
        if (!gone) {
            owed = 1;
            b->answer(&context, NULL, 0);
            CHECK(!owed);
        }
        b->discard(&context, b->data);
        *at = b->next;
        free(b);
    }
    return waiting;
}

/* --- the rest of the server ------------------------------------------------- */

static void fake_SetModuleAttribs(Context *c, const char *name, int version,
                                  int api)
{
    (void)c, (void)name, (void)version, (void)api;
}

static int fake_CreateCommand(Context *c, const char *name, Command *run,
                              const char *how, int first, int last, int step)
{
    (void)c, (void)how, (void)first, (void)last, (void)step;
    CHECK(command_count < COMMANDS);
    commands[command_count].name = name;
    commands[command_count++].run = run;
    return GOOD;
}

static Type *fake_CreateDataType(Context *c, const char *name, int version,
                                 Methods *methods)
{
    (void)c, (void)version;
    CHECK(strlen(name) == 9 && methods->version == 3 && type_count < KINDS);
    /* The server calls these whether they are there or not. */
    CHECK(methods->load && methods->save && methods->rewrite);
    types[type_count].methods = *methods;
    return &types[type_count++];
}

static void *fake_Alloc(size_t size)
{
    void *memory = malloc(size ? size : 1);
    CHECK(memory);
    return memory;
}

static void *fake_Calloc(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size ? size : 1);
    CHECK(memory);
    return memory;
}

static void fake_Free(void *memory)
{
    free(memory);
}

static int get_api(const char *name, void *to)
{
#define GIVEN(result, api, arguments) \
    if (!strcmp(name, "RedisModule_" #api)) { \
        result (*function) arguments = fake_##api; \
        memcpy(to, &function, sizeof function); \
        return GOOD; \
    }
    API(GIVEN)
    return BAD;
}

/* --- inputs ----------------------------------------------------------------- */

static void free_words(String **words, int count)
{
    while (count--)
        fake_FreeString(NULL, words[count]);
}

static int named(const String *word, const char *name)
{
    return word->size == strlen(name) &&
        !strncasecmp(word->data, name, word->size);
}

static void short_sleep(void)
{
    nanosleep(&(struct timespec){0, 100000}, NULL);
}

static void run(String **argv, int argc)
{
    if (named(argv[0], "text") && argc == 2) {
        Key key = {argv[1], *place_of(argv[1]), WRITE};
        fake_ModuleTypeSetValue(&key, &other, NULL);
    }
    if (named(argv[0], "wait"))
        for (int i = 0; i < 20 && answer_done(0); i++)
            short_sleep();
    for (int i = 0; i < command_count; i++) {
        if (!named(argv[0], commands[i].name))
            continue;
        Context context = {0};
        owed = 1;
        commands[i].run(&context, argv, argc);
        CHECK(owed == !!context.blocked);
    }
    answer_done(0);
    for (struct value *v = keys; v; v = v->next)
        CHECK(v->type == &other || !v->type->methods.size
              || v->type->methods.size(v->value) >= 1);
}

static String *word(const uint8_t *data, size_t size)
{
    char text[8];
    if (size > 1 && size < sizeof text && *data == '@') {
        memcpy(text, data + 1, size - 1);
        text[size - 1] = 0;
        int zeros = atoi(text);
        if (zeros > 0 && zeros <= LARGEST) {
            String *s = malloc(sizeof *s);
            *s = (String){1, zeros, calloc(1, zeros)};
            return s;
        }
    }
    return make(data, size);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    static const char *const given[] = {"THREADS_PER_QUEUE", "2"};
    enum { GIVEN_WORDS = sizeof given / sizeof *given };
    String *words[GIVEN_WORDS];
    main_thread = pthread_self();
    for (int i = 0; i < GIVEN_WORDS; i++)
        words[i] = make(given[i], strlen(given[i]) + 1);
    for (int i = 0; i < GIVEN_WORDS; i++)
        words[i]->size--;
    Context context = {.get = get_api};
    CHECK(RedisModule_OnLoad(&context, words, GIVEN_WORDS) == GOOD);
    free_words(words, GIVEN_WORDS);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int line = 0; size && line < LINES; line++) {
        String *words[WORDS];
        int count = 0, more = 1;
        while (more && size) {
            size_t end = 0;
            while (end < size && data[end] != 0x1e && data[end] != 0x1f)
                end++;
            if (count < WORDS)
                words[count++] = word(data, end);
            more = end < size && data[end] == 0x1f;
            size_t used = end < size ? end + 1 : end;
            data += used;
            size -= used;
        }
        if (count)
            run(words, count);
        free_words(words, count);
    }
    /* All clients leave. */
    for (int i = 0; answer_done(1); i++) {
        CHECK(i < 100000);
        short_sleep();
    }
    while (keys)
        drop(&keys);
    return 0;
}
