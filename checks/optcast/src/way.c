/* way.c - passes the messages of an all-reduce: a second thread sends them, in the
 * order in which the calling thread takes those of the peers. */
#include "optcast.h"

#include <pthread.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
/* Messages of the all-reduce under way. */
static uint64_t sent, taken;

/* The lines of NCCL's plugin about one message. */
static void trace(const struct way *w, uint64_t k, int line, const char *what)
{
    static char requests[WINDOW * MAX_SERVERS];
    int slot = k % (WINDOW * w->count);
    if (w->magic == DATA && !o.ring && k < w->messages)
        trace_nccl(line, "req(%p)/idx(%d) %s", (void *)(requests + slot),
                   slot % 10, what);
}

static void *send_messages(void *way)
{
    struct way *w = way;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (sent == w->messages || sent == taken + w->window)
            pthread_cond_wait(&moved, &lock);
        pthread_mutex_unlock(&lock);
        struct message m = w->message(w, sent, true);
        trace(w, sent, 281, "allreduce requested");
        send_message(m.end, w->magic, m.data, m.bytes);
        trace(w, sent, 305, "send done");
        pthread_mutex_lock(&lock);
        sent++;
        pthread_cond_signal(&moved);
    }
    return NULL;
}

void start_way(struct way *w)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, send_messages, w))
        fail("cannot start a thread");
}

void all_reduce(struct way *w, void *in, void *out, uint64_t bytes,
                uint32_t magic)
{
    pthread_mutex_lock(&lock);
    w->from = in;
    w->to = out;
    w->bytes = bytes;
    w->magic = magic;
    w->begin(w);
    sent = taken = 0;
    for (uint64_t k = 0; k < w->window; k++)
        trace(w, k, 259, "allreduce start");
    pthread_cond_signal(&moved);
    while (taken < w->messages) {
        pthread_mutex_unlock(&lock);
        struct message m = w->message(w, taken, false);
        struct header head = take_message(m.end, m.data, m.bytes);
        if (head.magic != magic || head.bytes != m.bytes)
            fail("%s sent another message than expected", m.end->peer);
        if (w->add)
            w->add(w, taken);
        pthread_mutex_lock(&lock);
        /* The trace has the end of what was sent before its sum. */
        while (!o.ring && sent == taken)
            pthread_cond_wait(&moved, &lock);
        trace(w, taken, 322, "recv done");
        trace(w, taken + w->window, 259, "allreduce start");
        taken++;
        pthread_cond_signal(&moved);
    }
    while (sent < w->messages)
        pthread_cond_wait(&moved, &lock);
    pthread_mutex_unlock(&lock);
}
