/* replies.c - what a server answers to the load: RESP2 or
 * memcached's binary protocol. The first two bytes say which, to
 * what, and how it is cut; cut or whole, the outcome must be the same. */
#define _GNU_SOURCE
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIPELINE = 8 };

struct input { const uint8_t *data; size_t size, piece; };
struct outcome {
    char said[400];
    uint64_t answered;
    unsigned in_flight, greetings, up;
};
static struct thread thread;
static struct conn conn;
static struct op ops[PIPELINE];

static void reader(void *argument)
{
    const struct input *in = argument;

    for (size_t at = 0; at < in->size && conn.state != CLOSED;) {
        size_t left = in->size - at;
        size_t n = in->piece && in->piece < left ? in->piece : left;
        /* A block of its own: a byte beyond it is found. */
        char *bytes = malloc(n);
        memcpy(bytes, in->data + at, n);
        tracked(bytes);
        consume(&conn, bytes, n);
        at += n;
    }
}

static struct outcome deliver(struct input *in)
{
    static const enum kind kinds[] = {GET, SET, COMMAND, COMMAND, COMMAND};
    static const char *const commands[] = {"", "", "MSET", "LPUSH", "XADD"};
    unsigned what = in->data[0] >> 2;
    struct outcome result = {.answered = 0};

    opt.protocol = in->data[0] & 2 ? MEMCACHE_BINARY : REDIS;
    unsigned choice = what % (opt.protocol == MEMCACHE_BINARY ? 2 : 5);
    enum kind kind = kinds[choice];
    opt.words[0] = TEXT(commands[choice]);
    opt.words[1] = (struct word){KEY_WORD, 1};
    opt.words[2] = (struct word){DATA_WORD, 1};
    opt.word_count = kind == COMMAND ? 3 : 0;
    opt.verify = in->data[1] & 3 ? VERIFY_LENGTH : VERIFY_BYTES;
    if ((in->data[1] & 3) == 2)
        opt.verify = VERIFY_NONE;
    opt.service.password = in->data[1] & 0x20 ? "geheim" : NULL;
    opt.sets = opt.gets = kind == COMMAND ? 0 : 1;
    conn = (struct conn){
        .thread = &thread, .node = opt.nodes, .ops = ops, .state = OPEN,
        .fd = -1, .bytes = conn.bytes, .room = conn.room,
        .pieces = conn.pieces, .piece_room = conn.piece_room};
    thread.answered = thread.in_flight = thread.up = 0;
    if (in->data[1] & 0x80) {
        put_greeting(&conn);
    } else {
        for (unsigned i = 0; i < PIPELINE; i++) {
            ops[i] = (struct op){.key = i, .kind = kind};
            ops[i].start = !(in->data[1] & 0x40);  /* else it is read back */
            ops[i].bytes = put_request(&conn, &ops[i]);
        }
        thread.in_flight = conn.in_flight = PIPELINE;
    }
    struct input rest = {in->data + 3, in->size - 3, in->piece};
    if (!survives(reader, &rest))
        snprintf(result.said, sizeof result.said, "%s", said);
    else
        free_tracked();
    result.answered = thread.answered;
    result.in_flight = conn.in_flight;
    result.greetings = conn.greetings;
    result.up = thread.up;
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4)
        return 0;
    if (!thread.histogram) {
        static struct server server = {.name = "127.0.0.1:1"};
        static struct node node = {.server = &server, .name = server.name};
        opt.nodes = &node;
        opt.data_size = 5;
        opt.prefix_size = strlen(opt.prefix);
        opt.on_miss = MISS_COUNTS;
        opt.pipeline = PIPELINE;
        prepare_draw();
        thread.histogram = calloc(KINDS, sizeof *thread.histogram);
        thread.now = 2;
        end_ns = UINT64_MAX;
    }
    struct outcome whole = deliver(&(struct input){data, size, 0});
    struct outcome cut = deliver(&(struct input){data, size, 1 + data[2] % 31});
    if (memcmp(&whole, &cut, sizeof whole)) {
        dprintf(2, "whole: %llu answers, %u left, %s\n",
                (unsigned long long)whole.answered, whole.in_flight,
                whole.said);
        wrong("cut into pieces it is another answer");
    }
    return 0;
}
