#include "kernels.h"
#include <string.h>

const char kernel_names[] =
    "pre_process_3ch, pre_process_4ch, post_process, copy";

static float number(enum type type, const char *data, size_t index)
{
    data += index * type_size(type);
#define AS(kind, ctype) \
    case kind: { ctype value; memcpy(&value, data, sizeof value); \
                 return (float)value; }
    switch (type) {
    AS(FLOAT, float)
    AS(DOUBLE, double)
    AS(INT8, int8_t)
    AS(INT16, int16_t)
    AS(INT32, int32_t)
    AS(INT64, int64_t)
    AS(UINT16, uint16_t)
    default:
        return *(const unsigned char *)data;
    }
}

/* An image [height][width][channels], 0 to 255, to [1][3][height][width],
 * less the mean of ImageNet's images, in units of their deviation. */
static const char *normalise(const struct tensor *image, int channels,
                             struct tensor **out)
{
    static const float mean[] = {0.485f, 0.456f, 0.406f};
    static const float deviation[] = {0.229f, 0.224f, 0.225f};
    if (image->dims != 3 || image->shape[2] != channels)
        return channels == 3
            ? "ERR pre_process_3ch wants an image height x width x 3"
            : "ERR pre_process_4ch wants an image height x width x 4";
    const char *error = NULL;
    long long shape[] = {1, 3, image->shape[0], image->shape[1]};
    if (!(*out = tensor_zeros(FLOAT, shape, 4, &error)))
        return error;
    size_t area = image->length / channels;
    for (size_t c = 0; c < 3; c++)
        for (size_t i = 0; i < area; i++) {
            float value = number(image->type, image->data,
                                 i * channels + c) / 255;
            value = (value - mean[c]) / deviation[c];
            memcpy((*out)->data + (c * area + i) * sizeof value, &value,
                   sizeof value);
        }
    return NULL;
}

static const char *pre_process_3ch(struct tensor *const *in, int inputs,
                                   struct tensor **out)
{
    (void)inputs;
    return normalise(*in, 3, out);
}

static const char *pre_process_4ch(struct tensor *const *in, int inputs,
                                   struct tensor **out)
{
    (void)inputs;
    return normalise(*in, 4, out);
}

/* Scores [count][classes] to the number of each row's greatest, the first of
 * several. */
static const char *post_process(struct tensor *const *in, int inputs,
                                struct tensor **out)
{
    (void)inputs;
    const struct tensor *scores = *in;
    if (scores->dims != 2)
        return "ERR post_process wants scores count x classes";
    const char *error = NULL;
    if (!(*out = tensor_zeros(INT64, scores->shape, 1, &error)))
        return error;
    size_t classes = scores->shape[1];
    for (long long row = 0; row < scores->shape[0]; row++) {
        int64_t best = 0;
        for (size_t i = 1; i < classes; i++)
            if (number(scores->type, scores->data, row * classes + i) >
                number(scores->type, scores->data, row * classes + best))
                best = i;
        memcpy((*out)->data + row * sizeof best, &best, sizeof best);
    }
    return NULL;
}

static const char *copy(struct tensor *const *in, int inputs,
                        struct tensor **out)
{
    for (int i = 0; i < inputs; i++)
        out[i] = tensor_hold(in[i]);
    return NULL;
}

static const struct kernel kernels[] = {
    {"pre_process_3ch", 1, 1, pre_process_3ch},
    {"pre_process_4ch", 1, 1, pre_process_4ch},
    {"post_process", 1, 1, post_process},
    {"copy", -1, -1, copy},
};

const struct kernel *kernel_named(const char *name, size_t size)
{
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (size == strlen(kernels[i].name) &&
            !memcmp(name, kernels[i].name, size))
            return &kernels[i];
    return NULL;
}
