/* cache.c - items in bounded memory, as in memcached: pages are divided into
 * chunks of size classes, each 1.25 times the one before; a class that gets no
 * further page evicts its own items. A page holds as many
 * chunks as go into 64 KiB: with memcached's 1 MiB, a cache of some MiB would
 * lose a tenth of it to pages that are half used. The largest class holds the
 * longest key and value.
 *
 * Locks: a stripe of the hash table guards its buckets and the items in
 * them, a class its chunks and its list. A stripe is taken before a class;
 * eviction holds the class, so it only tries the stripe (trylock). */
#define _GNU_SOURCE
#include "tao.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* As large as memcached's with its CAS: as many items fit into -m. */
_Static_assert(sizeof(struct item) == 56, "not memcached's item");

enum { SMALLEST = 96, CLASSES = 11, CUT = 1 << 16, STRIPES = 1 << 13,
       SECOND_TURNS = 50, TRIES = 1000 };

struct class {
    pthread_mutex_t lock;
    uint32_t size;
    struct item *free, *newest, *oldest;
    char *page;                       /* the one that is being cut           */
    uint32_t left;                    /* chunks in it                        */
    uint64_t mapped, items, bytes, evictions;
} __attribute__((aligned(64)));

static struct class classes[CLASSES];
static _Atomic uint64_t unmapped;
static struct item **buckets;
static uint32_t bucket_mask;
static pthread_mutex_t *stripes;

void prepare_cache(void)
{
    uint32_t size = SMALLEST;
    uint64_t count = 1 << 16;

    for (unsigned i = 0; i < CLASSES; i++) {
        pthread_mutex_init(&classes[i].lock, NULL);
        classes[i].size = size;
        size = (size * 5 / 4 + 7) / 8 * 8;
    }
    /* A hundredth stays free: the account alone makes 0.90 of the original's
     * keys hits, and the original finds 0.88 to 0.90. */
    unmapped = (uint64_t)opt.memory * MIB / 100 * 99;
    /* About a bucket for each item of the size that they have here. */
    while (count * 512 < (uint64_t)opt.memory * MIB)
        count *= 2;
    bucket_mask = (uint32_t)(count - 1);
    buckets = calloc(count, sizeof *buckets);
    stripes = malloc(STRIPES * sizeof *stripes);
    if (!buckets || !stripes)
        fail("cannot allocate a hash table of %u MB: reduce -m",
             opt.memory);
    for (unsigned i = 0; i < STRIPES; i++)
        pthread_mutex_init(&stripes[i], NULL);
}

/* Eight bytes a step; the fold brings the high bits down. */
uint32_t hash_of(const char *key, size_t n)
{
    uint64_t h = n, word;

    for (; n >= 8; n -= 8, key += 8) {
        memcpy(&word, key, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    word = 0;
    memcpy(&word, key, n);
    h = (h ^ word) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 32) * 0x94d049bb133111ebu;
    return (uint32_t)(h >> 32);
}

static pthread_mutex_t *stripe_of(uint32_t hash)
{
    return &stripes[hash & (STRIPES - 1)];
}

/* memcached's own account: header with CAS, key and NUL, value and CR LF. */
static size_t item_size(size_t key, size_t value)
{
    return sizeof(struct item) + key + 1 + value + 2;
}

static char *key_of(struct item *it) { return (char *)(it + 1); }

static char *value_of(struct item *it)
{
    return key_of(it) + it->key_size + 1;
}

/* --- the list of a class; its lock is held ------------------------------- */
static void list_remove(struct class *c, struct item *it)
{
    *(it->newer ? &it->newer->older : &c->newest) = it->older;
    *(it->older ? &it->older->newer : &c->oldest) = it->newer;
}

static void list_push(struct class *c, struct item *it)
{
    it->newer = NULL;
    it->older = c->newest;
    *(c->newest ? &c->newest->newer : &c->oldest) = it;
    c->newest = it;
}

static void give_back(struct class *c, struct item *it)
{
    it->next = c->free;
    c->free = it;
}

/* --- the table; the stripe is held --------------------------------------- */
static struct item **place_of(const char *key, size_t n, uint32_t hash)
{
    struct item **place = &buckets[hash & bucket_mask];

    while (*place && ((*place)->hash != hash || (*place)->key_size != n
                      || memcmp(key_of(*place), key, n)))
        place = &(*place)->next;
    return place;
}

/* Out of table and list, and free; class and stripe are held. */
static void drop(struct class *c, struct item *it)
{
    struct item **place = &buckets[it->hash & bucket_mask];

    while (*place != it)
        place = &(*place)->next;
    *place = it->next;
    list_remove(c, it);
    c->items--;
    c->bytes -= item_size(it->key_size, it->value_size);
    give_back(c, it);
}

static void drop_at(struct item *it)
{
    struct class *c = &classes[it->class];

    pthread_mutex_lock(&c->lock);
    drop(c, it);
    pthread_mutex_unlock(&c->lock);
}

/* --- chunks; the class is held ------------------------------------------- */
/* The first page of a class is always given, else a class that comes late
 * could hold nothing; so memory is -m and at most a page a class. */
static bool new_page(struct class *c)
{
    uint32_t chunks = CUT / c->size;
    uint64_t size = (uint64_t)chunks * c->size, left = unmapped, after;

    do
        after = left > size ? left - size : 0;
    while ((left >= size || !c->mapped)
           && !atomic_compare_exchange_weak(&unmapped, &left, after));
    if (left < size && c->mapped)
        return false;
    char *page = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        unmapped += left - after;
        return false;
    }
    c->page = page;
    c->left = chunks;
    c->mapped += size;
    return true;
}

/* Evicts the oldest item that was not read since it was queued; others get a
 * second turn (CLOCK): a hit need not lock the list. */
static bool evict(struct class *c)
{
    struct item *it = c->oldest, *newer;

    for (unsigned i = 0; it && i < TRIES; i++, it = newer) {
        pthread_mutex_t *stripe = stripe_of(it->hash);
        newer = it->newer;
        if (it->active && newer && i < SECOND_TURNS) {
            it->active = false;
            list_remove(c, it);
            list_push(c, it);
        } else if (!pthread_mutex_trylock(stripe)) {
            drop(c, it);
            c->evictions++;
            pthread_mutex_unlock(stripe);
            return true;
        }
    }
    return false;
}

static struct item *allocate(struct class *c)
{
    struct item *it = NULL;

    pthread_mutex_lock(&c->lock);
    if (!c->free && !c->left && !new_page(c))
        evict(c);
    if (c->free) {
        it = c->free;
        c->free = it->next;
    } else if (c->left) {
        it = (struct item *)(c->page + --c->left * (size_t)c->size);
    }
    pthread_mutex_unlock(&c->lock);
    return it;
}

/* --- what the others call ------------------------------------------------ */
bool cache_get(const char *key, size_t n, uint32_t hash, struct hit *hit)
{
    pthread_mutex_lock(stripe_of(hash));
    struct item *it = *place_of(key, n, hash);
    if (!it) {
        pthread_mutex_unlock(stripe_of(hash));
        return false;
    }
    if (!it->active)
        it->active = true;
    *hit = (struct hit){value_of(it), it->value_size};
    return true;
}

void cache_release(uint32_t hash) { pthread_mutex_unlock(stripe_of(hash)); }

bool cache_set(const char *key, size_t n, uint32_t hash, const char *value,
               size_t size)
{
    size_t bytes = item_size(n, size);
    unsigned i = 0;

    while (classes[i].size < bytes)
        i++;
    struct class *c = &classes[i];
    struct item *it = allocate(c);
    if (!it)
        return false;
    it->hash = hash;
    it->value_size = (uint32_t)size;
    it->key_size = (uint8_t)n;
    it->class = (uint8_t)i;
    it->active = false;
    memcpy(key_of(it), key, n);
    memcpy(value_of(it), value, size);

    pthread_mutex_lock(stripe_of(hash));
    struct item *old = *place_of(key, n, hash);
    if (old)
        drop_at(old);
    it->next = buckets[hash & bucket_mask];
    buckets[hash & bucket_mask] = it;
    pthread_mutex_lock(&c->lock);
    list_push(c, it);
    c->items++;
    c->bytes += bytes;
    pthread_mutex_unlock(&c->lock);
    pthread_mutex_unlock(stripe_of(hash));
    return true;
}

struct cache_state cache_now(void)
{
    struct cache_state s = {0};

    for (unsigned i = 0; i < CLASSES; i++) {
        struct class *c = &classes[i];
        pthread_mutex_lock(&c->lock);
        s.items += c->items;
        s.bytes += c->bytes;
        s.evictions += c->evictions;
        s.mapped += c->mapped;
        pthread_mutex_unlock(&c->lock);
    }
    return s;
}
