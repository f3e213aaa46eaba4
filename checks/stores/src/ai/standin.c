/* The stand-in for models and scripts without libtorch: networks that are
 * stacks of matrix products, and one function of scripts.
 *
 * Layer l is Y = max(0, W[l] X), with W [side][side] and X [side][columns].
 * X begins with the image: value i is added to number i modulo its size. The
 * scores are the first values of the last product, without max. Value i of
 * all W, layer by layer, is u(i) times sqrt(6 / side), where
 *
 *     z = (i + 1) * 0x9E3779B97F4A7C15            (modulo 2^64)
 *     z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9
 *     z = (z ^ z >> 27) * 0x94D049BB133111EB
 *     u = ((z ^ z >> 31) >> 40) / 2^23 - 1
 *
 * (SplitMix64, Steele, Lea, Flood 2014). */
#include "module.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- networks ------------------------------------------------------------- */

/* Columns of X side by side in memory. */
enum { PANEL = 16 };

/* A network, or without a name the kernels of scripts. */
struct program {
    const char *name;
    int pixels, classes;                /* pixels of an image's side */
    /* Operations per image: 2 * layers * side * side * columns. */
    int layers, side, columns;
};

static struct program networks[] = {
    {"tiny", 16, 10, 3, 16, 48},
    {"small", 224, 1000, 10, 128, 256},
    /* ResNet-50 has 8 178 368 512 operations; this has 8 187 281 408. */
    {"resnet50", 224, 1000, 61, 512, 256},
};
enum { NETWORKS = sizeof networks / sizeof *networks };

static int begins_with(const char *text, size_t size, const char *word)
{
    return size >= strlen(word) && !memcmp(text, word, strlen(word));
}

struct program *program_of_model(const char *blob, size_t size,
                                 const char **error)
{
    for (int i = 0; i < NETWORKS; i++) {
        char line[64];
        snprintf(line, sizeof line, "plumbline-network 1 %s\n",
                 networks[i].name);
        if (begins_with(blob, size, line))
            return &networks[i];
    }
    *error = begins_with(blob, size, "plumbline-network ")
        ? "ERR no such network: this module has tiny, small, resnet50"
        : "ERR this module was built without libtorch: a blob's first line "
          "must be 'plumbline-network 1 NAME'";
    return NULL;
}

static float weight(uint64_t number)
{
    uint64_t z = (number + 1) * 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return (float)((z ^ z >> 31) >> 40) / (1 << 23) - 1;
}

/* Weights of a network, four rows side by side: [layer][row / 4][column][row
 * % 4]. The first who runs it computes them; they are never freed. */
static const float *packed_weights(const struct program *n)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static float *packs[NETWORKS];
    float **pack = &packs[n - networks];
    size_t side = n->side, rows = n->layers * side;
    pthread_mutex_lock(&lock);
    if (!*pack && (*pack = malloc(rows * side * sizeof **pack)))
        for (size_t row = 0; row < rows; row++)
            for (size_t i = 0; i < side; i++)
                (*pack)[(row / 4 * side + i) * 4 + row % 4] =
                    weight(row * side + i) * sqrtf(6.0f / side);
    pthread_mutex_unlock(&lock);
    return *pack;
}

/* Four rows of W times one panel [side][PANEL] of X. Each sum has a name: an
 * array of them would not stay in registers. */
typedef float vector __attribute__((vector_size(4 * PANEL), aligned(4),
                                    may_alias));
#define DEFINE_PRODUCT(product, attributes) \
    attributes static void product(const float *weights, const float *panel, \
                                   size_t side, float *sums) \
    { \
        vector a = {0}, b = a, c = a, d = a; \
        for (size_t i = 0; i < side; i++, panel += PANEL, weights += 4) { \
            const vector x = *(const vector *)panel; \
            a += weights[0] * x; \
            b += weights[1] * x; \
            c += weights[2] * x; \
            d += weights[3] * x; \
        } \
        *(vector *)sums = a; \
        *(vector *)(sums + PANEL) = b; \
        *(vector *)(sums + 2 * PANEL) = c; \
        *(vector *)(sums + 3 * PANEL) = d; \
    }

typedef void product(const float *, const float *, size_t, float *);
DEFINE_PRODUCT(product_plain, )
#ifdef __x86_64__
DEFINE_PRODUCT(product_avx2, __attribute__((target("avx2,fma"))))
#endif

/* One build runs on all nodes. */
static product *fastest_product(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return product_avx2;
#endif
    return product_plain;
}

/* Scores of one image; X and Y have side * columns values, as panels. */
static void run_image(const struct program *n, const float *weights,
                      const float *image, float *x, float *y, float *scores)
{
    product *multiply = fastest_product();
    size_t side = n->side, values = side * n->columns;
    size_t pixels = 3ul * n->pixels * n->pixels;
    memset(x, 0, values * sizeof *x);
    for (size_t i = 0; i < pixels; i++)
        x[i % values] += image[i];
    for (int layer = 0; layer < n->layers; layer++) {
        for (size_t at = 0; at < values; at += side * PANEL)
            for (size_t row = 0; row < side; row += 4)
                multiply(weights + (layer * side + row) * side, x + at, side,
                         y + at + row * PANEL);
        float *other = x;
        x = y;
        y = other;
        for (size_t i = 0; layer < n->layers - 1 && i < values; i++)
            x[i] = x[i] < 0 ? 0 : x[i];
    }
    memcpy(scores, x, n->classes * sizeof *scores);
}

static const char *run_network(const struct program *n, struct job *job)
{
    static __thread char words[128];
    const struct tensor *in = job->in;
    const long long shape[] = {3, n->pixels, n->pixels};
    const char *error = NULL;
    if (in->type != FLOAT || in->dims != 4 ||
        memcmp(in->shape + 1, shape, sizeof shape)) {
        snprintf(words, sizeof words, "ERR network %s takes FLOAT n x 3 x %d x "
                 "%d", n->name, n->pixels, n->pixels);
        return words;
    }
    const long long out[] = {in->shape[0], n->classes};
    if (!(job->out = tensor_new(FLOAT, out, 2, NULL, &error)))
        return error;
    const float *weights = packed_weights(n);
    float *room = malloc(2 * sizeof *room * n->side * n->columns);
    if (!weights || !room)
        error = "ERR not enough memory to run the network";
    size_t pixels = in->length / in->shape[0];
    for (long long i = 0; !error && i < out[0]; i++)
        run_image(n, weights, (float *)in->data + i * pixels, room,
                  room + (size_t)n->side * n->columns,
                  (float *)job->out->data + i * n->classes);
    free(room);
    return error;
}

/* --- kernels of scripts --------------------------------------------------- */

struct program *program_of_script(const char *source, size_t size,
                                  const char **error)
{
    static struct program kernels;
    if (begins_with(source, size, "# plumbline-kernels 1\n"))
        return &kernels;
    *error = "ERR this module was built without libtorch: a script's first "
             "line must be '# plumbline-kernels 1'";
    return NULL;
}

/* pre_process_3ch: an image FLOAT [height][width][3], 0 to 255, to
 * [1][3][height][width], less the mean of ImageNet's images, in units of their
 * deviation. */
static const char *pre_process_3ch(struct job *job)
{
    static const float mean[] = {0.485f, 0.456f, 0.406f};
    static const float deviation[] = {0.229f, 0.224f, 0.225f};
    const struct tensor *image = job->in;
    const char *error = NULL;
    if (image->type != FLOAT || image->dims != 3 || image->shape[2] != 3)
        return "ERR pre_process_3ch takes one image, FLOAT height x width x 3";
    const long long shape[] = {1, 3, image->shape[0], image->shape[1]};
    if (!(job->out = tensor_new(FLOAT, shape, 4, NULL, &error)))
        return error;
    const float *from = (const float *)image->data;
    float *to = (float *)job->out->data;
    for (size_t c = 0; c < 3; c++)
        for (size_t i = c; i < image->length; i += 3)
            *to++ = (from[i] / 255 - mean[c]) / deviation[c];
    return NULL;
}

/* --- programs ------------------------------------------------------------- */

const char *program_run(struct program *program, struct job *jobs)
{
    const char *error = NULL;
    if (!program->name)
        return strcmp(jobs->function, "pre_process_3ch")
            ? "ERR Function does not exist: this stand-in has pre_process_3ch"
            : pre_process_3ch(jobs);
    for (struct job *job = jobs; !error && job; job = job->next)
        error = run_network(program, job);
    return error;
}

void program_drop(struct program *program)
{
    (void)program;
}

const char *program_version(void)
{
    return "stand-in";
}

const char *programs_begin(void)
{
    return settings.inter_op > 1 || settings.intra_op > 1
        ? "INTER_OP_PARALLELISM and INTRA_OP_PARALLELISM above 1 need a module "
          "that was built with libtorch" : NULL;
}

void programs_begin_thread(void) {}
