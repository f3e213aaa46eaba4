#include "tensor.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* The largest string that a client can send; zeros take no more either. */
#define MAX_BYTES ((size_t)512 << 20)

const char *const type_names[TYPES] = {
    "FLOAT", "DOUBLE", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16",
    "BOOL", "STRING"};
static const unsigned char sizes[TYPES] = {4, 8, 1, 2, 4, 8, 1, 2, 1, 1};
static const char mismatch[] =
    "ERR data length does not match tensor shape and type";
Type *tensor_type;

size_t type_size(enum type type)
{
    return sizes[type];
}

int is_word(const String *string, const char *word)
{
    size_t size;
    const char *text = RM_StringPtrLen(string, &size);
    return size == strlen(word) && !strncasecmp(text, word, size);
}

/* Without data; a string's length is not known from its shape. */
static struct tensor *tensor_new(enum type type, const long long *shape,
                                 int dims, const char **error)
{
    size_t length = 1, bytes;
    for (int i = 0; i < dims; i++)
        if (shape[i] <= 0 ||
            __builtin_mul_overflow(length, (size_t)shape[i], &length)) {
            *error = "ERR invalid or negative value found in tensor shape";
            return NULL;
        }
    if (__builtin_mul_overflow(length, type_size(type), &bytes)) {
        *error = "ERR invalid or negative value found in tensor shape";
        return NULL;
    }
    struct tensor *t = RM_Alloc(sizeof *t + dims * sizeof *shape);
    *t = (struct tensor){.refs = 1, .type = type, .dims = dims,
                         .length = length, .bytes = bytes};
    if (dims)
        memcpy(t->shape, shape, dims * sizeof *shape);
    return t;
}

static size_t count_ends(const char *text, size_t size)
{
    size_t ends = 0;
    for (const char *end = text + size;
         text < end && (text = memchr(text, 0, end - text)); text++)
        ends++;
    return ends;
}

/* Does the data fit its shape and type? */
static const char *fault(const struct tensor *t, const char *data,
                         size_t size)
{
    if (t->type == STRING)
        return size && !data[size - 1] && count_ends(data, size) == t->length
            ? NULL : "ERR Number of string elements in data blob does not "
                     "match tensor length";
    if (size != t->bytes)
        return mismatch;
    if (t->type == BOOL)
        for (size_t i = 0; i < size; i++)
            if (data[i] & ~1)
                return "ERR BOOL tensor elements must be 0 or 1";
    return NULL;
}

struct tensor *tensor_of(enum type type, const long long *shape, int dims,
                         String *blob, const char **error)
{
    struct tensor *t = tensor_new(type, shape, dims, error);
    if (!t)
        return NULL;
    size_t size;
    const char *data = RM_StringPtrLen(blob, &size);
    if ((*error = fault(t, data, size))) {
        RM_Free(t);
        return NULL;
    }
    /* No copy: as SET does, the key keeps what the client sent. */
    t->blob = RM_HoldString(NULL, blob);
    t->data = (char *)RM_StringPtrLen(t->blob, &t->bytes);
    return t;
}

struct tensor *tensor_zeros(enum type type, const long long *shape, int dims,
                            const char **error)
{
    struct tensor *t = tensor_new(type, shape, dims, error);
    if (!t)
        return NULL;
    if (t->bytes > MAX_BYTES) {
        *error = "ERR a tensor has at most 512 MiB";
        RM_Free(t);
        return NULL;
    }
    t->data = RM_Calloc(1, t->bytes);
    return t;
}

struct tensor *tensor_hold(struct tensor *tensor)
{
    __atomic_add_fetch(&tensor->refs, 1, __ATOMIC_RELAXED);
    return tensor;
}

void tensor_drop(struct tensor *tensor)
{
    if (!tensor || __atomic_sub_fetch(&tensor->refs, 1, __ATOMIC_ACQ_REL))
        return;
    if (tensor->blob)
        RM_FreeString(NULL, tensor->blob);
    else
        RM_Free(tensor->data);
    RM_Free(tensor);
}

void tensor_words(const struct tensor *tensor, char *text, size_t size)
{
    size_t used = snprintf(text, size, "%s", type_names[tensor->type]);
    for (int i = 0; i < tensor->dims && used < size; i++)
        used += snprintf(text + used, size - used, "%s%lld",
                         i ? " x " : " ", tensor->shape[i]);
}

/* One number of VALUES into the tensor. */
static int put_value(struct tensor *t, size_t index, const String *word)
{
    static const long long low[] = {[INT8] = INT8_MIN, [INT16] = INT16_MIN,
                                    [INT32] = INT32_MIN,
                                    [INT64] = INT64_MIN, [BOOL] = 0};
    static const long long high[] = {
        [INT8] = INT8_MAX, [INT16] = INT16_MAX, [INT32] = INT32_MAX,
        [INT64] = INT64_MAX, [UINT8] = UINT8_MAX, [UINT16] = UINT16_MAX,
        [BOOL] = 1};
    char *place = t->data + index * type_size(t->type);
    if (t->type <= DOUBLE) {
        double value;
        if (RM_StringToDouble(word, &value) != GOOD)
            return 0;
        float narrow = (float)value;
        if (t->type == FLOAT)
            memcpy(place, &narrow, sizeof narrow);
        else
            memcpy(place, &value, sizeof value);
        return 1;
    }
    long long value;
    if (RM_StringToLongLong(word, &value) != GOOD || value < low[t->type] ||
        value > high[t->type])
        return 0;
    /* Little-endian, as the blobs of all clients are. */
    for (size_t i = 0; i < type_size(t->type); i++)
        place[i] = (char)((unsigned long long)value >> 8 * i);
    return 1;
}

/* The words, an end after each, as one string. */
static struct tensor *parse_strings(const long long *shape, int dims,
                                    String **words, int count,
                                    const char **error)
{
    size_t total = 0, size;
    for (int i = 0; i < count; i++) {
        const char *text = RM_StringPtrLen(words[i], &size);
        size_t ends = count_ends(text, size);
        if (ends > 1 || (ends == 1 && text[size - 1])) {
            *error = "ERR C-string value contains null character";
            return NULL;
        }
        total += size - ends + 1;
    }
    char *data = RM_Calloc(1, total), *place = data;
    for (int i = 0; i < count; i++) {
        const char *text = RM_StringPtrLen(words[i], &size);
        memcpy(place, text, size);
        place += size + !(size && !text[size - 1]);
    }
    struct tensor *t = tensor_new(STRING, shape, dims, error);
    if (!t) {
        RM_Free(data);
        return NULL;
    }
    t->data = data;
    t->bytes = total;
    return t;
}

static struct tensor *parse_values(enum type type, const long long *shape,
                                   int dims, String **words, int count,
                                   const char **error)
{
    if (type == STRING)
        return parse_strings(shape, dims, words, count, error);
    struct tensor *t = tensor_zeros(type, shape, dims, error);
    for (int i = 0; t && i < count; i++)
        if (!put_value(t, i, words[i])) {
            *error = "ERR invalid value";
            tensor_drop(t);
            return NULL;
        }
    return t;
}

struct tensor *tensor_parse(String **argv, int argc, const char **error)
{
    int type = 0, dims = 0, at = 3;
    while (type < TYPES && !is_word(argv[2], type_names[type]))
        type++;
    if (type == TYPES) {
        *error = "ERR invalid data type";
        return NULL;
    }
    long long shape[MAX_DIMS], size;
    unsigned long long length = 1;
    for (; at < argc; at++) {
        if (RM_StringToLongLong(argv[at], &size) != GOOD) {
            if (is_word(argv[at], "BLOB")) {
                if (argc - at == 2)
                    return tensor_of(type, shape, dims, argv[at + 1], error);
                *error = "ERR a single binary string should come after the "
                         "BLOB argument in 'AI.TENSORSET' command";
                return NULL;
            }
            if (is_word(argv[at], "VALUES")) {
                at++;
                if ((unsigned long long)(argc - at) == length)
                    return parse_values(type, shape, dims, argv + at,
                                        argc - at, error);
                *error = "ERR wrong number of values was given in "
                         "'AI.TENSORSET' command";
                return NULL;
            }
            size = 0;
        }
        if (size <= 0 || __builtin_mul_overflow(length, size, &length)) {
            *error = "ERR invalid or negative value found in tensor shape";
            return NULL;
        }
        if (dims == MAX_DIMS) {
            *error = "ERR a tensor has at most 32 dimensions";
            return NULL;
        }
        shape[dims++] = size;
    }
    /* No data: zeros. */
    return tensor_zeros(type, shape, dims, error);
}

static void reply_values(Context *context, const struct tensor *t)
{
    RM_ReplyWithArray(context, (long)t->length);
    const char *place = t->data;
    for (size_t i = 0; i < t->length; i++) {
        if (t->type == STRING) {
            size_t size = strlen(place);
            RM_ReplyWithStringBuffer(context, place, size);
            place += size + 1;
            continue;
        }
        if (t->type == FLOAT) {
            float value;
            memcpy(&value, place, sizeof value);
            RM_ReplyWithDouble(context, value);
        } else if (t->type == DOUBLE) {
            double value;
            memcpy(&value, place, sizeof value);
            RM_ReplyWithDouble(context, value);
        } else {
            size_t size = type_size(t->type);
            unsigned long long value = 0;
            for (size_t j = 0; j < size; j++)
                value |= (unsigned long long)(unsigned char)place[j] << 8 * j;
            /* Signs of the narrow types. */
            if (t->type >= INT8 && t->type <= INT32 &&
                value >> (8 * size - 1))
                value |= ~0ull << 8 * size;
            RM_ReplyWithLongLong(context, (long long)value);
        }
        place += type_size(t->type);
    }
}

static void reply_word(Context *context, const char *word)
{
    RM_ReplyWithStringBuffer(context, word, strlen(word));
}

void tensor_reply(Context *context, const struct tensor *t, int meta,
                  int blob, int values)
{
    if (meta) {
        RM_ReplyWithArray(context, blob || values ? 6 : 4);
        reply_word(context, "dtype");
        reply_word(context, type_names[t->type]);
        reply_word(context, "shape");
        RM_ReplyWithArray(context, t->dims);
        for (int i = 0; i < t->dims; i++)
            RM_ReplyWithLongLong(context, t->shape[i]);
        if (blob || values)
            reply_word(context, blob ? "blob" : "values");
    }
    if (values)
        reply_values(context, t);
    else if (blob && t->blob)
        RM_ReplyWithString(context, t->blob);
    else if (blob)
        RM_ReplyWithStringBuffer(context, t->data, t->bytes);
}

static void shape_strings(const struct tensor *t, String **shape)
{
    for (int i = 0; i < t->dims; i++) {
        char text[24];
        int size = snprintf(text, sizeof text, "%lld", t->shape[i]);
        shape[i] = RM_CreateString(NULL, text, size);
    }
}

static void shape_free(const struct tensor *t, String **shape)
{
    for (int i = 0; i < t->dims; i++)
        RM_FreeString(NULL, shape[i]);
}

void tensor_replicate(Context *context, String *key, const struct tensor *t)
{
    String *shape[MAX_DIMS];
    shape_strings(t, shape);
    RM_Replicate(context, "AI.TENSORSET", "scvcb", key, type_names[t->type],
                 shape, (size_t)t->dims, "BLOB", t->data, t->bytes);
    shape_free(t, shape);
}

static void rewrite(Io *io, String *key, void *value)
{
    const struct tensor *t = value;
    String *shape[MAX_DIMS];
    shape_strings(t, shape);
    RM_EmitAOF(io, "AI.TENSORSET", "scvcb", key, type_names[t->type], shape,
               (size_t)t->dims, "BLOB", t->data, t->bytes);
    shape_free(t, shape);
}

/* A snapshot holds type, number of dimensions, shape, data. */
static void save(Io *io, void *value)
{
    const struct tensor *t = value;
    RM_SaveUnsigned(io, t->type);
    RM_SaveUnsigned(io, t->dims);
    for (int i = 0; i < t->dims; i++)
        RM_SaveUnsigned(io, t->shape[i]);
    RM_SaveStringBuffer(io, t->data, t->bytes);
}

/* Also from RESTORE: a payload is not to be trusted. */
static void *load(Io *io, int version)
{
    const char *error = "an encoding of another version";
    struct tensor *t = NULL;
    if (version == 0) {
        error = "damaged";
        uint64_t type = RM_LoadUnsigned(io), dims = RM_LoadUnsigned(io);
        if (RM_IsIOError(io) || type >= TYPES || dims > MAX_DIMS)
            goto bad;
        long long shape[MAX_DIMS];
        for (unsigned i = 0; i < dims; i++) {
            shape[i] = (long long)RM_LoadUnsigned(io);
            if (RM_IsIOError(io))
                goto bad;
        }
        String *blob = RM_LoadString(io);
        if (!blob || RM_IsIOError(io)) {
            if (blob)
                RM_FreeString(NULL, blob);
            goto bad;
        }
        t = tensor_of((enum type)type, shape, (int)dims, blob, &error);
        RM_FreeString(NULL, blob);
    }
bad:
    if (!t)
        RM_LogIOError(io, "warning", "a tensor in a snapshot is no tensor: "
                      "%s", error);
    return t;
}

static size_t size_of(const void *value)
{
    const struct tensor *t = value;
    return sizeof *t + t->dims * sizeof *t->shape + t->bytes;
}

static void *copy(String *from, String *to, const void *value)
{
    (void)from, (void)to;
    return tensor_hold((struct tensor *)value);
}

static void free_value(void *value)
{
    tensor_drop(value);
}

int tensor_register(Context *context)
{
    Methods methods = {.version = 3, .load = load, .save = save,
                       .rewrite = rewrite, .size = size_of,
                       .free = free_value, .copy = copy};
    tensor_type = RM_CreateDataType(context, "AI-TENSOR", 0, &methods);
    return tensor_type ? GOOD : BAD;
}
