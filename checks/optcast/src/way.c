/* way.c - passes the messages of an all-reduce over all links of a client, in one
 * thread. */
#define _GNU_SOURCE
#include "optcast.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

static _Noreturn void gone(const struct way *w, const struct flow *f, ssize_t n)
{
    fail("rank %u: %s %s in the middle of an all-reduce of %llu B: see the "
         "message of that process", o.rank, f->peer,
         n == 0 || errno == ECONNRESET || errno == EPIPE
         ? "closed the connection" : errno == EBADMSG
         ? "sent another message than expected" : strerror(errno),
         (unsigned long long)w->bytes);
}

/* What is left of a message, in one call. Returns the bytes that passed now; 0: the
 * peer has closed; LINK_AGAIN: none passed; LINK_BROKEN: errno says why, EBADMSG:
 * another header than the one that is due. */
static ssize_t pass(struct flow *f, uint8_t *data, const struct header *due,
                    bool out)
{
    struct iovec parts[2];
    struct msghdr message = {.msg_iov = parts};
    size_t head = sizeof f->head, before = f->done;
    size_t at = before < head ? 0 : before - head;
    if (out)
        f->head = *due;
    if (before < head)
        parts[message.msg_iovlen++] = (struct iovec){
            (uint8_t *)&f->head + before, head - before};
    parts[message.msg_iovlen++] = (struct iovec){data + at, due->bytes - at};
    ssize_t n;
    do {
        errno = 0;
        n = out ? sendmsg(f->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
            : recvmsg(f->fd, &message, MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EAGAIN ? LINK_AGAIN : LINK_BROKEN;
    f->done += n;
    if (!out && before < head && f->done >= head
            && memcmp(&f->head, due, head))
        return errno = EBADMSG, LINK_BROKEN;
    return n;
}

/* Passes one message, or a part of it; whether anything has moved. */
static bool move(struct way *w, int link, bool out)
{
    struct flow *f = out ? &w->links[link].out : &w->links[link].in;
    struct header due = {w->magic, f->seq, 0};
    uint8_t *data = w->due(w, link, out, f->passed, &due.bytes);
    if (!data)
        return false;
    bool begins = !f->done;
    ssize_t n = pass(f, data, &due, out);
    if (n == LINK_AGAIN)
        return false;
    if (n <= 0)
        gone(w, f, n);
    if (begins)
        w->progress(w, link, out, f->passed, false);
    if (f->done == sizeof f->head + due.bytes) {
        f->done = 0;
        f->seq++;
        w->progress(w, link, out, f->passed++, true);
    }
    return true;
}

/* Has poll() wait until a message of this size is there, which must be on its
 * way: fewer, larger reads. */
static void wait_for_message(struct flow *f, size_t size)
{
    size_t left = sizeof f->head + size - f->done;
    int least = left < 128 << 10 ? (int)left : 128 << 10;
    if (least != f->least && setsockopt(f->fd, SOL_SOCKET, SO_RCVLOWAT,
                                        &least, sizeof least) == 0)
        f->least = least;
}

/* Sleeps until a message that is due can move; false: none is due any more. */
static bool wait_for_links(struct way *w)
{
    static struct pollfd polled[2 * MAX_SERVERS];
    static struct flow *flows[2 * MAX_SERVERS];
    int count = 0;
    for (int i = 0; i < 2 * w->count; i++) {
        bool out = i % 2;
        struct flow *f = out ? &w->links[i / 2].out : &w->links[i / 2].in;
        uint64_t bytes;
        if (!w->due(w, i / 2, out, f->passed, &bytes))
            continue;
        if (!out)
            wait_for_message(f, bytes);
        flows[count] = f;
        polled[count++] = (struct pollfd){f->fd, out ? POLLOUT : POLLIN, 0};
    }
    if (count && poll(polled, count, o.timeout * 1000) == 0)
        fail("rank %u: %s sent nothing for %u s: it hangs, or its link is "
             "down", o.rank, flows[0]->peer, o.timeout);
    for (int i = 0; i < count; i++)
        if (polled[i].revents & (POLLERR | POLLHUP)
                && !(polled[i].revents & POLLIN))
            gone(w, flows[i], 0);
    return count;
}

void all_reduce(struct way *w, void *in, void *out, uint64_t bytes,
                uint32_t magic)
{
    w->from = in;
    w->to = out;
    w->bytes = bytes;
    w->magic = magic;
    for (int i = 0; i < w->count; i++)
        w->links[i].out.passed = w->links[i].in.passed = 0;
    w->begin(w);
    bool moved = true;
    while (moved || wait_for_links(w)) {
        moved = false;
        for (int i = 0; i < w->count; i++) {
            /* Clients begin with different servers, else all of them would
             * send to the first one at once. */
            int link = (i + o.rank) % w->count;
            moved |= move(w, link, false);
            moved |= move(w, link, true);
        }
    }
}
