/* feed.h - a simulated peer that sends the bytes of an input in pieces. */
#ifndef FEED_H
#define FEED_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static struct { const uint8_t *bytes; size_t left, piece; } feed;

/* The next of them, at most n; how many. */
static size_t feed_next(void *buffer, size_t n)
{
    n = n < feed.left ? n : feed.left;
    n = n < feed.piece ? n : feed.piece;
    memcpy(buffer, feed.bytes, n);
    feed.bytes += n;
    feed.left -= n;
    return n;
}
#endif
