/* way.c - passes the messages of an all-reduce, in one thread that sends and takes
 * what can move. */
#define _GNU_SOURCE
#include "optcast.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

/* The lines of NCCL's plugin about one message. */
static void trace(const struct way *w, uint64_t k, int line, const char *what)
{
    static char requests[WINDOW * MAX_SERVERS];
    int slot = k % (WINDOW * w->count);
    if (w->magic == DATA && !o.ring && k < w->messages)
        trace_nccl(line, "req(%p)/idx(%d) %s", (void *)(requests + slot),
                   slot % 10, what);
}

/* Message *k has passed as a whole. */
static void has_passed(struct way *w, uint64_t *k, bool out)
{
    if (out)
        trace(w, *k, 305, "send done");
    else {
        if (w->add)
            w->add(w, *k);
        trace(w, *k, 322, "recv done");
        trace(w, *k + w->window, 259, "allreduce start");
    }
    ++*k;
}

/* Passes what is left of message *k, in one call. False: nothing can move now. */
static bool pass(struct way *w, uint64_t *k, bool out)
{
    struct message m = w->message(w, *k, out);
    struct end *end = m.end;
    struct header due = {w->magic, end->seq, m.bytes};
    size_t before = end->done, at = before < sizeof due ? 0
        : before - sizeof due;
    struct iovec parts[2];
    struct msghdr message = {.msg_iov = parts};
    if (out)
        end->head = due;
    if (before < sizeof due)
        parts[message.msg_iovlen++] = (struct iovec){
            (uint8_t *)&end->head + before, sizeof due - before};
    parts[message.msg_iovlen++] = (struct iovec){m.data + at, m.bytes - at};
    errno = 0;
    ssize_t n = out ? sendmsg(end->fd, &message, MSG_DONTWAIT)
        : recvmsg(end->fd, &message, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0)
        lost(end, "");
    end->done += n;
    if (out && !before)
        trace(w, *k, 281, "allreduce requested");
    if (!out && end->done >= sizeof due
            && memcmp(&end->head, &due, sizeof due))
        fail("%s sent another message than expected", end->peer);
    if (end->done == sizeof due + m.bytes) {
        end->done = 0;
        end->seq++;
        has_passed(w, k, out);
    }
    return true;
}

/* Has the kernel wake this thread when the rest of a message is there, which is on
 * its way: fewer, larger reads. */
static void wait_for_whole(struct end *end, uint64_t bytes)
{
    uint64_t left = sizeof end->head + bytes - end->done;
    int least = left < 128 << 10 ? (int)left : 128 << 10;
    if (least != end->least && setsockopt(end->fd, SOL_SOCKET, SO_RCVLOWAT,
                                          &least, sizeof least) == 0)
        end->least = least;
}

/* Sleeps until one of the messages can move. */
static void wait_for_link(struct way *w, bool takes, bool sends)
{
    struct pollfd polled[] = {{-1, POLLIN, 0}, {-1, POLLOUT, 0}};
    struct message m = {0};
    if (sends) {
        m = w->message(w, w->sent, true);
        polled[1].fd = m.end->fd;
    }
    if (takes) {
        m = w->message(w, w->taken, false);
        polled[0].fd = m.end->fd;
        wait_for_whole(m.end, m.bytes);
    }
    if (poll(polled, 2, o.timeout * 1000) == 0) {
        errno = EAGAIN;
        lost(m.end, takes ? "sent nothing" : "took no data");
    }
}

void all_reduce(struct way *w, void *in, void *out, uint64_t bytes,
                uint32_t magic)
{
    w->from = in;
    w->to = out;
    w->bytes = bytes;
    w->magic = magic;
    w->sent = w->taken = 0;
    w->begin(w);
    for (uint64_t k = 0; k < w->window; k++)
        trace(w, k, 259, "allreduce start");
    while (w->taken < w->messages || w->sent < w->messages) {
        /* A sum comes when its part was sent. */
        bool takes = w->taken < (o.ring ? w->messages : w->sent);
        bool sends = w->sent < w->messages && w->sent < w->taken + w->window;
        bool moved = takes && pass(w, &w->taken, false);
        moved |= sends && pass(w, &w->sent, true);
        if (!moved)
            wait_for_link(w, takes, sends);
    }
}
