#include "run.h"
#include "devices.h"
#include "torch.h"
#include <stdio.h>
#include <string.h>

static const char wrong_type[] =
    "WRONGTYPE Operation against a key holding the wrong kind of value";
static const char no_tensor[] =
    "ERR tensor key is empty or in a different shard";

/* --- keys ----------------------------------------------------------------- */

const char *put_tensor(Context *context, String *name, struct tensor *tensor)
{
    Key *key = RM_OpenKey(context, name, READ | WRITE);
    const char *error = NULL;
    if (RM_KeyType(key) == KEY_EMPTY)
        RM_ModuleTypeSetValue(key, tensor_type, tensor_hold(tensor));
    else if (RM_ModuleTypeGetType(key) == tensor_type) {
        void *old;
        RM_ModuleTypeReplaceValue(key, tensor_type, tensor_hold(tensor),
                                  &old);
        tensor_drop(old);
        /* As SET does. */
        if (RM_GetExpire(key) != NO_EXPIRY)
            RM_SetExpire(key, NO_EXPIRY);
    } else
        error = wrong_type;
    RM_CloseKey(key);
    return error;
}

void *value_at(Context *context, String *name, Type *type, const char *empty,
               const char **error)
{
    Key *key = RM_OpenKey(context, name, READ);
    void *value = NULL;
    if (RM_KeyType(key) == KEY_EMPTY)
        *error = empty;
    else if (RM_ModuleTypeGetType(key) != type)
        *error = wrong_type;
    else
        value = RM_ModuleTypeGetValue(key);
    RM_CloseKey(key);
    return value;
}

/* --- argument vectors ----------------------------------------------------- */

struct span {
    int at, count;
};

/* What the words of a command say; positions in its argument vector. */
struct request {
    struct span inputs, outputs;
    long long timeout;                  /* ms; 0: none */
    char words[160];                    /* for an error with a name in it */
};

/* The text with what the client sent, shortened, without line ends. */
static const char *with_word(struct request *r, const char *text,
                             const String *word)
{
    size_t size, used = snprintf(r->words, sizeof r->words, "%s", text);
    const char *from = RM_StringPtrLen(word, &size);
    for (size_t i = 0; i < size && i < 80; i++) {
        unsigned char c = (unsigned char)from[i];
        r->words[used++] = c < ' ' || c > '~' ? ' ' : (char)c;
    }
    r->words[used] = 0;
    return r->words;
}

static const char *parse_timeout(String **argv, int argc, int *at,
                                 struct request *r)
{
    if (*at >= argc)
        return "ERR No value provided for TIMEOUT";
    if (RM_StringToLongLong(argv[(*at)++], &r->timeout) != GOOD ||
        r->timeout <= 0 || r->timeout > 1ll << 40)
        return "ERR Invalid value for TIMEOUT";
    return NULL;
}

/* n and as many words.  *at is behind it. */
static const char *parse_count(String **argv, int argc, int *at,
                               struct span *span, const char *bad,
                               const char *small, const char *few)
{
    long long count;
    if (*at >= argc || RM_StringToLongLong(argv[(*at)++], &count) != GOOD)
        return bad;
    if (count <= 0)
        return small;
    if (count > argc - *at)
        return few;
    *span = (struct span){*at, (int)count};
    *at += (int)count;
    return NULL;
}

/* key INPUTS n .. OUTPUTS n .. [TIMEOUT t] */
static const char *parse_model_execute(String **argv, int argc,
                                       struct request *r)
{
    int at = 2;
    const char *error;
    if (!is_word(argv[at++], "INPUTS"))
        return "ERR INPUTS not specified";
    if ((error = parse_count(
             argv, argc, &at, &r->inputs,
             "ERR Invalid argument for input_count",
             "ERR Input count must be a positive integer",
             "ERR number of input keys to AI.MODELEXECUTE command does not "
             "match the number of given arguments")))
        return error;
    if (at >= argc || !is_word(argv[at++], "OUTPUTS"))
        return "ERR OUTPUTS not specified";
    if ((error = parse_count(
             argv, argc, &at, &r->outputs,
             "ERR Invalid argument for output_count",
             "ERR Output count must be a positive integer",
             "ERR number of output keys to AI.MODELEXECUTE command does not "
             "match the number of given arguments")))
        return error;
    if (at < argc && is_word(argv[at], "TIMEOUT")) {
        at++;
        if ((error = parse_timeout(argv, argc, &at, r)))
            return error;
    }
    return at < argc ? with_word(r, "ERR Invalid argument: ", argv[at])
                     : NULL;
}

/* key function INPUTS .. OUTPUTS .. */
static const char *parse_script_run(String **argv, int argc,
                                    struct request *r)
{
    int at = 4;
    if (!is_word(argv[3], "INPUTS"))
        return "ERR INPUTS not specified";
    r->inputs.at = at;
    while (at < argc && !is_word(argv[at], "OUTPUTS"))
        at++;
    r->inputs.count = at - r->inputs.at;
    if (at < argc)
        r->outputs = (struct span){at + 1, argc - at - 1};
    return NULL;
}

/* --- the answer ----------------------------------------------------------- */

/* In the server's own thread, if the client is still there. */
static int answer(Context *context, String **argv, int argc)
{
    (void)argv, (void)argc;
    struct job *job = RM_GetBlockedClientPrivateData(context);
    if (job->timed_out)
        return RM_ReplyWithSimpleString(context, "TIMEDOUT");
    if (job->error)
        return RM_ReplyWithError(context, job->error);
    /* All or none. */
    for (int i = 0; i < job->outputs; i++) {
        const char *error = NULL;
        value_at(context, job->names[i], tensor_type, NULL, &error);
        if (error)
            return RM_ReplyWithError(context, error);
    }
    for (int i = 0; i < job->outputs; i++)
        put_tensor(context, job->names[i], job->out[i]);
    return RM_ReplyWithSimpleString(context, "OK");
}

/* In the server's own thread, whether it was answered or not. */
static void discard(Context *context, void *data)
{
    (void)context;
    struct job *job = data;
    for (int i = 0; i < job->inputs; i++)
        tensor_drop(job->in[i]);
    for (int i = 0; i < job->outputs; i++) {
        tensor_drop(job->out[i]);
        RM_FreeString(NULL, job->names[i]);
    }
    if (job->function)
        RM_FreeString(NULL, job->function);
    object_drop(job->object);
    RM_Free(job);
}

/* A job that waits for others might wait for ever. */
static void left(Context *context, Blocked *client)
{
    (void)context;
    devices_forget(client);
}

/* --- the commands --------------------------------------------------------- */

/* One piece of memory; nothing is held yet. */
static struct job *job_new(int inputs, int outputs)
{
    size_t pointers = inputs + 2ull * outputs;
    struct job *job = RM_Calloc(1, sizeof *job + pointers * sizeof(void *));
    job->in = (struct tensor **)(job + 1);
    job->out = job->in + inputs;
    job->names = (String **)(job->out + outputs);
    return job;
}

/* Inputs from their keys. */
static const char *take_inputs(Context *context, String **argv,
                               const struct request *r, struct job *job)
{
    for (; job->inputs < r->inputs.count; job->inputs++) {
        const char *error = NULL;
        struct tensor *tensor =
            value_at(context, argv[r->inputs.at + job->inputs], tensor_type,
                     no_tensor, &error);
        if (!tensor)
            return error;
        job->in[job->inputs] = tensor_hold(tensor);
    }
    return NULL;
}

static const char *fit_model(struct request *r, struct job *job)
{
    const struct network *network = job->object->network;
    const struct tensor *in = job->in[0];
    if (!network) {                     /* its program says what it takes */
        job->images = in->dims ? in->shape[0] : 1;
        return NULL;
    }
    long long shape[3], classes;
    char has[64];
    network_shape(network, shape, &classes);
    if (in->type != FLOAT || in->dims != 4 ||
        memcmp(in->shape + 1, shape, sizeof shape)) {
        tensor_words(in, has, sizeof has);
        snprintf(r->words, sizeof r->words, "ERR network %s takes FLOAT n x "
                 "%lld x %lld x %lld, not %s", network_name(network),
                 shape[0], shape[1], shape[2], has);
        return r->words;
    }
    job->images = in->shape[0];
    return NULL;
}

/* What the model or script can do with so many inputs and outputs. */
static const char *fit_counts(const struct object *object,
                              const String *function, struct request *r,
                              const struct kernel **kernel)
{
    if (!object->script) {
        if (object->program)
            return NULL;                /* seen when it is run */
        if (!object->network)
            return "ERR the model is TorchScript, which this module cannot "
                   "run: it has the networks tiny, small, resnet50, named by "
                   "the blob's first line 'plumbline-network 1 NAME'";
        if (r->inputs.count != 1)
            return "Number of keys given as INPUTS here does not match model "
                   "definition";
        return r->outputs.count == 1 ? NULL
            : "Number of keys given as OUTPUTS here does not match model "
              "definition";
    }
    size_t size;
    const char *name = RM_StringPtrLen(function, &size);
    if (!script_defines(object, name, size))
        return with_word(r, "ERR Function does not exist: ", function);
    if (object->program)
        return NULL;
    if (!object->marked)
        return "ERR the script is TorchScript, which this module cannot run: "
               "it has the kernels pre_process_3ch, pre_process_4ch, "
               "post_process, copy, for scripts with the first line "
               "'# plumbline-kernels 1'";
    *kernel = kernel_named(name, size);
    if ((*kernel)->inputs >= 0 ? r->inputs.count != (*kernel)->inputs
                               : !r->inputs.count)
        return with_word(r, "ERR Wrong number of inputs provided to "
                         "function: ", function);
    int outputs = (*kernel)->outputs >= 0 ? (*kernel)->outputs
                                          : r->inputs.count;
    return r->outputs.count == outputs ? NULL
        : with_word(r, "ERR Function returned unexpected number of outputs "
                    "- ", function);
}

typedef const char *parser(String **, int, struct request *);

static int execute(Context *context, String **argv, int argc, int script,
                   int least, const char *few, parser *parse)
{
    struct request r = {.timeout = 0};
    const char *error;
    if (RM_IsKeysPositionRequest(context)) {
        /* The server asks before it knows that there is one. */
        if (argc > 1)
            RM_KeyAtPos(context, 1);
        if (argc < least || parse(argv, argc, &r))
            return GOOD;
        const struct span *spans[] = {&r.inputs, &r.outputs};
        for (int s = 0; s < 2; s++)
            for (int i = 0; i < spans[s]->count; i++)
                RM_KeyAtPos(context, spans[s]->at + i);
        return GOOD;
    }
    if (RM_GetContextFlags(context) &
        (IN_SCRIPT | IN_TRANSACTION | MAY_NOT_BLOCK))
        return RM_ReplyWithError(context, "ERR Cannot run RedisAI command "
                                 "within a transaction or a LUA script");
    if (argc < least)
        return RM_ReplyWithError(context, few);
    struct object *object =
        value_at(context, argv[1], script ? script_type : model_type,
                 script ? "ERR script key is empty" : "ERR model key is empty",
                 &error);
    const struct kernel *kernel = NULL;
    if (!object || (error = parse(argv, argc, &r)))
        return RM_ReplyWithError(context, error);
    struct job *job = job_new(r.inputs.count, r.outputs.count);
    job->object = object_hold(object);
    if ((error = fit_counts(object, argv[2], &r, &kernel)) ||
        (error = take_inputs(context, argv, &r, job)) ||
        (!script && (error = fit_model(&r, job)))) {
        object_count(object, 0, 1, 0);
        discard(context, job);
        return RM_ReplyWithError(context, error);
    }
    job->kernel = kernel;
    if (script && object->program)
        job->function = RM_HoldString(NULL, argv[2]);
    job->deadline = r.timeout * 1000;
    for (; job->outputs < r.outputs.count; job->outputs++)
        job->names[job->outputs] =
            RM_HoldString(NULL, argv[r.outputs.at + job->outputs]);
    job->client = RM_BlockClient(context, answer, NULL, discard, 0);
    RM_SetDisconnectCallback(job->client, left);
    device_add(object->device, job);
    return GOOD;
}

int model_execute(Context *context, String **argv, int argc)
{
    return execute(context, argv, argc, 0, 8, "ERR wrong number of arguments "
                   "for 'AI.MODELEXECUTE' command", parse_model_execute);
}

int script_run(Context *context, String **argv, int argc)
{
    return execute(context, argv, argc, 1, 6, "ERR wrong number of arguments "
                   "for 'AI.SCRIPTRUN' command", parse_script_run);
}
