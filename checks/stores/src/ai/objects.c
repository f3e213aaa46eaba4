#include "objects.h"
#include "devices.h"
#include "torch.h"
#include <string.h>

static const char model_mark[] = "plumbline-network 1 ";
static const char script_mark[] = "# plumbline-kernels 1";
Type *model_type, *script_type;

struct object *object_hold(struct object *object)
{
    __atomic_add_fetch(&object->refs, 1, __ATOMIC_RELAXED);
    return object;
}

void object_drop(struct object *object)
{
    if (!object || __atomic_sub_fetch(&object->refs, 1, __ATOMIC_ACQ_REL))
        return;
    if (object->held)
        RM_FreeString(NULL, object->held);
    else
        RM_Free(object->text);
#ifdef WITH_TORCH
    torch_drop(object->program);
#endif
    RM_Free(object->tag);
    RM_Free(object);
}

static struct object *object_new(int script, struct device *device,
                                 const String *tag)
{
    size_t size = 0;
    const char *text = tag ? RM_StringPtrLen(tag, &size) : "";
    struct object *object = RM_Calloc(1, sizeof *object);
    object->refs = 1;
    object->script = script;
    object->device = device;
    object->tag = RM_Alloc(size + 1);
    object->tag_size = size;
    memcpy(object->tag, text, size);
    return object;
}

/* One string is held as it is; chunks are put together. */
static void take_text(struct object *object, String **chunks, int count)
{
    if (count == 1) {
        object->held = RM_HoldString(NULL, *chunks);
        object->text = (char *)RM_StringPtrLen(object->held, &object->size);
        return;
    }
    size_t size, at = 0;
    for (int i = 0; i < count; i++) {
        RM_StringPtrLen(chunks[i], &size);
        object->size += size;
    }
    object->text = RM_Alloc(object->size + 1);
    for (int i = 0; i < count; i++) {
        const char *text = RM_StringPtrLen(chunks[i], &size);
        memcpy(object->text + at, text, size);
        at += size;
    }
}

/* --- models --------------------------------------------------------------- */

static int begins(const char *text, size_t size, const char *with)
{
    return size >= strlen(with) && !memcmp(text, with, strlen(with));
}

/* What the blob says that the model is. */
static const char *read_model(struct object *model)
{
    const char *text = model->text;
    size_t size = model->size, mark = sizeof model_mark - 1;
    if (begins(text, size, model_mark)) {
        size_t name = mark;
        while (name < size && name < mark + 32 && text[name] != '\n')
            name++;
        model->network = network_named(text + mark, name - mark);
        return model->network ? NULL
            : "ERR no such network: this module has tiny, small, resnet50";
    }
    /* A file of torch.jit.save is an archive. */
    const char *error = NULL;
    if (begins(text, size, "PK\3\4")) {
#ifdef WITH_TORCH
        model->program = torch_model(text, size, &error);
#endif
        return error;               /* without libtorch it is kept, no more */
    }
    return "ERR the blob is no model: its first line must be "
           "'plumbline-network 1 NAME', NAME one of tiny, small, resnet50";
}

/* WORD n, where it is there: a number that is not negative. */
static int option(String **argv, int argc, int *at, const char *word,
                  long long *value)
{
    if (*at >= argc || !is_word(argv[*at], word))
        return 1;
    *at += 2;
    return *at <= argc &&
        RM_StringToLongLong(argv[*at - 1], value) == GOOD && *value >= 0 &&
        *value <= 1ll << 40;
}

struct object *model_parse(String **argv, int argc, const char **error)
{
    static const char *const backends[] = {"TORCH", "TF", "TFLITE", "ONNX"};
    int backend = 0, at = 4;
    while (backend < 4 && !is_word(argv[2], backends[backend]))
        backend++;
    if (backend == 4) {
        *error = "ERR unsupported backend";
        return NULL;
    }
    struct device *device = device_named(argv[3], error);
    if (!device)
        return NULL;
    if (backend) {
        *error = "ERR Could not load backend";
        return NULL;
    }
    String *tag = NULL;
    if (at + 1 < argc && is_word(argv[at], "TAG")) {
        tag = argv[at + 1];
        at += 2;
    }
    long long batch = 0, least = 0, batch_timeout = 0;
    *error = NULL;
    if (!option(argv, argc, &at, "BATCHSIZE", &batch))
        *error = "ERR Invalid argument for BATCHSIZE";
    else if (!option(argv, argc, &at, "MINBATCHSIZE", &least))
        *error = "ERR Invalid argument for MINBATCHSIZE";
    else if (least && !batch)
        *error = "ERR MINBATCHSIZE specified without BATCHSIZE";
    else if (!option(argv, argc, &at, "MINBATCHTIMEOUT", &batch_timeout))
        *error = "ERR Invalid argument for MINBATCHTIMEOUT";
    else if (batch_timeout && !least)
        *error = "ERR MINBATCHTIMEOUT specified without MINBATCHSIZE";
    else if (at >= argc)
        *error = "ERR Insufficient arguments, missing model BLOB";
    else if (is_word(argv[at], "INPUTS"))
        *error = "ERR INPUTS argument should not be specified for this "
                 "backend";
    else if (!is_word(argv[at], "BLOB"))
        *error = "ERR Invalid argument, expected BLOB";
    else if (++at >= argc)
        *error = "ERR Insufficient arguments, missing model BLOB";
    if (*error)
        return NULL;
    struct object *model = object_new(0, device, tag);
    take_text(model, argv + at, argc - at);
    model->batch = batch;
    model->min_batch = least;
    model->batch_timeout = batch_timeout;
    if ((*error = read_model(model))) {
        object_drop(model);
        return NULL;
    }
    return model;
}

/* --- scripts -------------------------------------------------------------- */

/* The next function that the source defines, from *at on: a line that begins
 * with `def NAME(`, blanks aside (SmartRedis sends a function of a function
 * as it stands there).  Moves *at behind it. */
static const char *next_function(const struct object *script, size_t *at,
                                 size_t *size)
{
    const char *text = script->text;
    while (*at < script->size) {
        const char *line = text + *at;
        size_t left = script->size - *at;
        const char *end = memchr(line, '\n', left);
        size_t length = end ? (size_t)(end - line) : left;
        *at += length + 1;
        for (; length && (*line == ' ' || *line == '\t'); length--)
            line++;
        if (!begins(line, length, "def "))
            continue;
        const char *bracket = memchr(line, '(', length);
        if (!bracket)
            continue;
        line += 4;
        while (line < bracket && *line == ' ')
            line++;
        while (bracket > line && bracket[-1] == ' ')
            bracket--;
        *size = bracket - line;
        return line;
    }
    return NULL;
}

int script_defines(const struct object *script, const char *name, size_t size)
{
    size_t at = 0, length;
    const char *found;
    while ((found = next_function(script, &at, &length)))
        if (length == size && !memcmp(found, name, size))
            return 1;
    return 0;
}

static const char *read_script(struct object *script)
{
    size_t at = 0, size;
    const char *name;
    int functions = 0;
    const char *error = NULL;
    script->marked = begins(script->text, script->size, script_mark);
    for (; (name = next_function(script, &at, &size)); functions++)
        if (script->marked && !kernel_named(name, size))
            return "ERR no such kernel: this module has pre_process_3ch, "
                   "pre_process_4ch, post_process, copy";
    if (!functions)
        return "ERR the script defines no function";
#ifdef WITH_TORCH
    if (!script->marked)
        script->program = torch_script(script->text, script->size, &error);
#endif
    return error;
}

struct object *script_parse(String **argv, int argc, const char **error)
{
    struct device *device = device_named(argv[2], error);
    if (!device)
        return NULL;
    int at = 3;
    String *tag = NULL;
    if (at + 1 < argc && is_word(argv[at], "TAG")) {
        tag = argv[at + 1];
        at += 2;
    }
    if (argc - at != 2 || !is_word(argv[at], "SOURCE")) {
        *error = "ERR Insufficient arguments, missing script SOURCE";
        return NULL;
    }
    struct object *script = object_new(1, device, tag);
    take_text(script, argv + at + 1, 1);
    if ((*error = read_script(script))) {
        object_drop(script);
        return NULL;
    }
    return script;
}

/* --- keys ----------------------------------------------------------------- */

static size_t size_of(const void *value)
{
    const struct object *o = value;
    return sizeof *o + o->tag_size + o->size;
}

static void free_value(void *value)
{
    object_drop(value);
}

int objects_register(Context *context)
{
    model_type = type_new(context, "AI--MODEL", size_of, free_value);
    script_type = type_new(context, "AI-SCRIPT", size_of, free_value);
    return model_type && script_type ? GOOD : BAD;
}
