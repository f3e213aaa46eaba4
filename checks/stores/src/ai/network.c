/* Weights: value i of a network is u(i) times the scale of its layer, where
 *
 *     z = (i + 1) * 0x9E3779B97F4A7C15            (modulo 2^64)
 *     z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9
 *     z = (z ^ z >> 27) * 0x94D049BB133111EB
 *     u = ((z ^ z >> 31) >> 40) / 2^23 - 1
 *
 * (SplitMix64, Steele, Lea, Flood 2014).  The layers follow each other in the
 * order in which they run; each has weights [out][in][row][column], whose
 * scale is its gain times sqrt(6 / (in * rows * columns)), then a bias [out],
 * whose scale is 0.1.  Both scales are rounded to single precision, and so is
 * each product. */
#define _GNU_SOURCE
#include "network.h"
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Activations live in slots; -1 is none. */
enum { SLOTS = 4, MAX_LAYERS = 80, IMAGES = 8 };
enum operation { CONVOLUTION, MAXIMUM, MEAN };

struct layer {
    enum operation operation;
    int from, add, to, relu;
    int inputs, rows, columns;          /* of what it reads */
    int outputs, height, width;         /* of what it makes */
    int size, stride, pad;
    float scale;
    size_t first;                       /* number of its first weight */
    size_t packed;                      /* where its packed weights are */
};

struct network {
    const char *name;
    int channels, height, width, classes;
    void (*build)(struct network *);
    int layers;
    struct layer layer[MAX_LAYERS];
    size_t weights, packed;
    size_t slot[SLOTS];                 /* floats of an image */
    float *pack;                        /* NULL until someone runs it */
};

/* --- the networks --------------------------------------------------------- */

/* One more layer; its input is what slot `from` has. */
static void add_layer(struct network *n, struct layer l)
{
    /* What a slot holds at this time. */
    int inputs = n->channels, rows = n->height, columns = n->width;
    for (int i = 0; i < n->layers; i++)
        if (n->layer[i].to == l.from) {
            inputs = n->layer[i].outputs;
            rows = n->layer[i].height;
            columns = n->layer[i].width;
        }
    l.inputs = inputs;
    l.rows = rows;
    l.columns = columns;
    if (l.operation == MEAN) {
        l.outputs = inputs;
        l.height = l.width = 1;
    } else {
        if (l.operation == MAXIMUM)
            l.outputs = inputs;
        l.height = (rows + 2 * l.pad - l.size) / l.stride + 1;
        l.width = (columns + 2 * l.pad - l.size) / l.stride + 1;
    }
    if (l.operation == CONVOLUTION) {
        size_t each = (size_t)inputs * l.size * l.size;
        l.scale = (float)(l.scale * sqrt(6.0 / each));
        l.first = n->weights;
        l.packed = n->packed;
        n->weights += (each + 1) * l.outputs;
        /* Four outputs side by side. */
        n->packed += (each + 1) * ((l.outputs + 3) / 4 * 4);
    }
    size_t floats = (size_t)l.outputs * l.height * l.width;
    if (floats > n->slot[l.to])
        n->slot[l.to] = floats;
    n->layer[n->layers++] = l;
}

static void convolution(struct network *n, int from, int to, int outputs,
                        int size, int stride, int relu, double gain)
{
    add_layer(n, (struct layer){
        CONVOLUTION, from, -1, to, relu, .outputs = outputs, .size = size,
        .stride = stride, .pad = size / 2, .scale = (float)gain});
}

static void pool(struct network *n, int from, int to)
{
    add_layer(n, (struct layer){MAXIMUM, from, -1, to, .size = 3,
                                .stride = 2, .pad = 1});
}

static void head(struct network *n, int from, int to)
{
    add_layer(n, (struct layer){MEAN, from, -1, to, .relu = 0});
    convolution(n, to, from, n->classes, 1, 1, 0, 0.75);
}

/* Three convolutions and a way around them (He et al. 2015, with the stride
 * in the 3 x 3 one).  Reads and writes slot 0. */
static void bottleneck(struct network *n, int middle, int stride, int project)
{
    int around = 0;
    if (project) {
        convolution(n, 0, 3, 4 * middle, 1, stride, 0, 0.75);
        around = 3;
    }
    convolution(n, 0, 1, middle, 1, 1, 1, 1);
    convolution(n, 1, 2, middle, 3, stride, 1, 1);
    add_layer(n, (struct layer){
        CONVOLUTION, 2, around, 0, 1, .outputs = 4 * middle, .size = 1,
        .stride = 1, .scale = 0.5f});
}

static void build_tiny(struct network *n)
{
    convolution(n, 0, 1, 6, 3, 1, 1, 1);
    pool(n, 1, 0);
    bottleneck(n, 5, 2, 1);
    bottleneck(n, 5, 1, 0);
    head(n, 0, 1);
}

static void build_small(struct network *n)
{
    convolution(n, 0, 1, 16, 7, 2, 1, 1);
    pool(n, 1, 0);
    convolution(n, 0, 1, 32, 3, 2, 1, 1);
    convolution(n, 1, 0, 64, 3, 2, 1, 1);
    convolution(n, 0, 1, 128, 3, 2, 1, 1);
    head(n, 1, 0);
}

static void build_resnet50(struct network *n)
{
    static const int blocks[] = {3, 4, 6, 3};
    convolution(n, 0, 1, 64, 7, 2, 1, 1);
    pool(n, 1, 0);
    for (int stage = 0; stage < 4; stage++)
        for (int block = 0; block < blocks[stage]; block++)
            bottleneck(n, 64 << stage, stage && !block ? 2 : 1, !block);
    head(n, 0, 1);
}

static struct network networks[] = {
    {"tiny", 3, 16, 16, 10, build_tiny, .layers = 0},
    {"small", 3, 224, 224, 1000, build_small, .layers = 0},
    {"resnet50", 3, 224, 224, 1000, build_resnet50, .layers = 0},
};
enum { NETWORKS = sizeof networks / sizeof *networks };
const char network_names[] = "tiny, small, resnet50";

static void build_all(void)
{
    for (int i = 0; i < NETWORKS; i++) {
        struct network *n = &networks[i];
        n->slot[0] = (size_t)n->channels * n->height * n->width;
        n->build(n);
    }
}

const struct network *network_next(const struct network *network)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, build_all);
    const struct network *next = network ? network + 1 : networks;
    return next < networks + NETWORKS ? next : NULL;
}

const struct network *network_named(const char *name, size_t size)
{
    const struct network *n = NULL;
    while ((n = network_next(n)))
        if (size == strlen(n->name) && !memcmp(name, n->name, size))
            break;
    return n;
}

const char *network_name(const struct network *network)
{
    return network->name;
}

void network_shape(const struct network *n, long long shape[3],
                   long long *classes)
{
    shape[0] = n->channels;
    shape[1] = n->height;
    shape[2] = n->width;
    *classes = n->classes;
}

unsigned long long network_flops(const struct network *n)
{
    unsigned long long flops = 0;
    for (int i = 0; i < n->layers; i++) {
        const struct layer *l = &n->layer[i];
        if (l->operation == CONVOLUTION)
            flops += 2ull * l->inputs * l->size * l->size * l->outputs *
                     l->height * l->width;
    }
    return flops;
}

/* --- weights -------------------------------------------------------------- */

static float weight(uint64_t i)
{
    uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (float)((z ^ z >> 31) >> 40) * 0x1p-23f - 1;
}

/* Packed: groups of four outputs, for each first the four biases, then for
 * each input the four weights. */
static void pack_layer(const struct layer *l, float *pack)
{
    size_t each = (size_t)l->inputs * l->size * l->size;
    size_t biases = l->first + each * l->outputs;
    for (int group = 0; group < l->outputs; group += 4)
        for (int lane = 0; lane < 4; lane++) {
            int output = group + lane;
            float *place = pack + group * (each + 1) + lane;
            for (size_t i = 0; i < each; i++)
                place[(i + 1) * 4] = output < l->outputs
                    ? weight(l->first + output * each + i) * l->scale : 0;
            *place = output < l->outputs
                ? weight(biases + output) * 0.1f : 0;
        }
}

/* The first who runs a network computes its weights; they are never freed. */
static const float *packed_weights(const struct network *constant)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct network *n = (struct network *)constant;
    pthread_mutex_lock(&lock);
    if (!n->pack && (n->pack = malloc(n->packed * sizeof(float))))
        for (int i = 0; i < n->layers; i++)
            if (n->layer[i].operation == CONVOLUTION)
                pack_layer(&n->layer[i], n->pack + n->layer[i].packed);
    const float *pack = n->pack;
    pthread_mutex_unlock(&lock);
    return pack;
}

/* --- a layer -------------------------------------------------------------- */

/* Positions of all images are in one line; a panel has so many. */
enum { PANEL = 64, TILE = 16 };
struct job {
    const struct layer *layer;
    const float *weights, *from, *add;
    float *to;
    int images, positions;
    float *panels;                      /* one for each thread */
    size_t panel_floats;
};

/* Four outputs at sixteen positions: sums over all inputs, in vectors of some
 * lanes.  Each sum has a name: an array of them would not stay in registers. */
#define DEFINE_TILE(tile, attributes, lanes) \
    attributes static void tile(const float *first, const float *begin, \
                                size_t each, float *sums) \
    { \
        typedef float vector __attribute__((vector_size(4 * lanes), \
                                            aligned(4), may_alias)); \
        for (int p = 0; p < TILE; p += 2 * lanes) { \
            const float *weights = first, *panel = begin + p; \
            const vector zero = {0}; \
            vector a0 = zero + weights[0], a1 = a0; \
            vector b0 = zero + weights[1], b1 = b0; \
            vector c0 = zero + weights[2], c1 = c0; \
            vector d0 = zero + weights[3], d1 = d0; \
            for (size_t i = 0; i < each; i++, panel += PANEL) { \
                weights += 4; \
                vector left = *(const vector *)panel; \
                vector right = *(const vector *)(panel + lanes); \
                a0 += weights[0] * left; \
                a1 += weights[0] * right; \
                b0 += weights[1] * left; \
                b1 += weights[1] * right; \
                c0 += weights[2] * left; \
                c1 += weights[2] * right; \
                d0 += weights[3] * left; \
                d1 += weights[3] * right; \
            } \
            const vector all[] = {a0, a1, b0, b1, c0, c1, d0, d1}; \
            for (int i = 0; i < 8; i++) \
                *(vector *)(sums + i / 2 * TILE + p + i % 2 * lanes) = \
                    all[i]; \
        } \
    }

DEFINE_TILE(tile_plain, , 4)
static void (*tile)(const float *, const float *, size_t, float *) =
    tile_plain;

#ifdef __x86_64__
DEFINE_TILE(tile_avx2, __attribute__((target("avx2,fma"))), 8)

/* One build runs on all nodes. */
static void pick_tile(void)
{
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        tile = tile_avx2;
}
#else
static void pick_tile(void)
{
}
#endif

/* Where in its image each position of a panel is. */
struct place {
    const float *image;
    float *out;
    const float *add;
    int row, column;
};

/* What the kernel sees at each position: panel[input, row, column][]. */
static void gather(const struct layer *l, const struct place *places,
                   int count, float *panel)
{
    for (int input = 0; input < l->inputs; input++)
        for (int y = 0; y < l->size; y++)
            for (int x = 0; x < l->size; x++, panel += PANEL)
                for (int p = 0; p < PANEL; p++) {
                    float value = 0;
                    if (p < count) {
                        int row = places[p].row + y;
                        int column = places[p].column + x;
                        if ((unsigned)row < (unsigned)l->rows &&
                            (unsigned)column < (unsigned)l->columns)
                            value = places[p].image[
                                ((size_t)input * l->rows + row) * l->columns
                                + column];
                    }
                    panel[p] = value;
                }
}

static void convolve_panel(void *of, int index, int thread)
{
    const struct job *job = of;
    const struct layer *l = job->layer;
    size_t each = (size_t)l->inputs * l->size * l->size;
    size_t area = (size_t)l->height * l->width;
    int first = index * PANEL;
    int count = job->positions - first < PANEL ? job->positions - first
                                               : PANEL;
    struct place places[PANEL];
    for (int p = 0; p < count; p++) {
        size_t image = (first + p) / area, at = (first + p) % area;
        size_t out = image * l->outputs * area + at;
        places[p] = (struct place){
            job->from + image * l->inputs * l->rows * l->columns,
            job->to + out, job->add ? job->add + out : NULL,
            (int)(at / l->width) * l->stride - l->pad,
            (int)(at % l->width) * l->stride - l->pad};
    }
    float *panel = job->panels + thread * job->panel_floats;
    gather(l, places, count, panel);
    float sums[4 * TILE];
    for (int group = 0; group < l->outputs; group += 4)
        for (int t = 0; t < count; t += TILE) {
            tile(job->weights + group * (each + 1), panel + t, each, sums);
            for (int o = 0; o < 4 && group + o < l->outputs; o++)
                for (int p = 0; p < TILE && t + p < count; p++) {
                    const struct place *place = &places[t + p];
                    float value = sums[o * TILE + p];
                    if (place->add)
                        value += place->add[(group + o) * area];
                    place->out[(group + o) * area] =
                        l->relu && value < 0 ? 0 : value;
                }
        }
}

/* One channel of one image. */
static void shrink_channel(void *of, int index, int thread)
{
    (void)thread;
    const struct job *job = of;
    const struct layer *l = job->layer;
    const float *from = job->from + (size_t)index * l->rows * l->columns;
    float *to = job->to + (size_t)index * l->height * l->width;
    if (l->operation == MEAN) {
        double sum = 0;
        for (int i = 0; i < l->rows * l->columns; i++)
            sum += from[i];
        *to = (float)(sum / (l->rows * l->columns));
        return;
    }
    for (int y = 0; y < l->height; y++)
        for (int x = 0; x < l->width; x++) {
            float most = -INFINITY;
            for (int i = 0; i < l->size * l->size; i++) {
                int row = y * l->stride - l->pad + i / l->size;
                int column = x * l->stride - l->pad + i % l->size;
                if ((unsigned)row < (unsigned)l->rows &&
                    (unsigned)column < (unsigned)l->columns &&
                    from[row * l->columns + column] > most)
                    most = from[row * l->columns + column];
            }
            *to++ = most;
        }
}

/* --- a run ---------------------------------------------------------------- */

struct room {
    float *slot[SLOTS], *panels;
    size_t floats[SLOTS], panel_floats;
};

struct room *room_new(void)
{
    return calloc(1, sizeof(struct room));
}

static int grow(float **memory, size_t *has, size_t needs)
{
    if (*has >= needs)
        return 1;
    free(*memory);
    *memory = malloc(needs * sizeof **memory);
    *has = *memory ? needs : 0;
    return *memory != NULL;
}

static int run_few(const struct network *n, struct room *room,
                   struct team *team, const float *weights, int images)
{
    for (int i = 0; i < n->layers; i++) {
        const struct layer *l = &n->layer[i];
        struct job job = {
            l, weights + l->packed, room->slot[l->from],
            l->add < 0 ? NULL : room->slot[l->add], room->slot[l->to],
            images, images * l->height * l->width, NULL, 0};
        if (l->operation != CONVOLUTION) {
            team_run(team, shrink_channel, &job, images * l->outputs);
            continue;
        }
        job.panel_floats = (size_t)l->inputs * l->size * l->size * PANEL;
        if (!grow(&room->panels, &room->panel_floats,
                  job.panel_floats * team_threads(team)))
            return 0;
        job.panels = room->panels;
        team_run(team, convolve_panel, &job,
                 (job.positions + PANEL - 1) / PANEL);
    }
    return 1;
}

int network_run(const struct network *n, struct room *room,
                struct team *team, const char *const *images,
                size_t count, char *const *scores)
{
    size_t in = (size_t)n->channels * n->height * n->width;
    const float *weights = packed_weights(n);
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, pick_tile);
    if (!weights)
        return 0;
    /* A few images at a time: activations take a bounded memory. */
    for (size_t first = 0; first < count; first += IMAGES) {
        size_t few = count - first < IMAGES ? count - first : IMAGES;
        for (int i = 0; i < SLOTS; i++)
            if (!grow(&room->slot[i], &room->floats[i], few * n->slot[i]))
                return 0;
        for (size_t i = 0; i < few; i++)
            memcpy(room->slot[0] + i * in, images[first + i],
                   in * sizeof(float));
        if (!run_few(n, room, team, weights, (int)few))
            return 0;
        const float *out = room->slot[n->layer[n->layers - 1].to];
        for (size_t i = 0; i < few; i++)
            memcpy(scores[first + i], out + i * n->classes,
                   n->classes * sizeof(float));
    }
    return 1;
}
