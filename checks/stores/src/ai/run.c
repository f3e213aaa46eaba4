/* AI.MODELEXECUTE and AI.SCRIPTRUN: queues of requests, one per device, and
 * the threads that run them. */
#include "module.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { DEVICES = 64 };
struct settings settings = {1, 1, 1};

struct queue {
    pthread_mutex_t lock;
    pthread_cond_t added;
    struct job *first, **last;
};

/* --- what a thread runs --------------------------------------------------- */

static long long rows(const struct job *job)
{
    return job->in[0]->dims ? job->in[0]->shape[0] : 1;
}

/* Whether two requests with one input each can be one run: the inputs differ
 * in the number of rows alone. */
static int fit_together(const struct job *a, const struct job *b)
{
    const struct tensor *one = a->in[0], *other = b->in[0];
    return a->object == b->object && a->inputs == 1 && b->inputs == 1 &&
        a->outputs == b->outputs && one->type == other->type && one->dims &&
        one->dims == other->dims &&
        !memcmp(one->shape + 1, other->shape + 1,
                (one->dims - 1) * sizeof *one->shape);
}

/* The first request, and those of a model with a BATCHSIZE that fit to it,
 * until they have as many rows as a batch. */
static struct job *take_jobs(struct queue *queue)
{
    struct job *first = queue->first, **end = &first->next;
    struct job **at = &queue->first;
    long long have = rows(first), batch = first->object->batch;
    *at = first->next;
    while (*at && have < batch) {
        struct job *job = *at;
        if (!fit_together(first, job)) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        have += rows(job);
        *end = job;
        end = &job->next;
    }
    *end = NULL;
    while (*at)
        at = &(*at)->next;
    queue->last = at;
    return first;
}

static const char *run_jobs(struct job *jobs)
{
    const struct object *object = jobs->object;
#ifdef WITH_TORCH
    if (object->program)
        return torch_run(object->program, jobs->function
                         ? RM_StringPtrLen(jobs->function, NULL) : "forward",
                         jobs);
#endif
    return object->script ? kernel_run(jobs)
                          : network_run(object->network, jobs);
}

static void *work(void *argument)
{
    struct queue *queue = argument;
#ifdef WITH_TORCH
    torch_threads((int)settings.intra_op);
#endif
    for (;;) {
        pthread_mutex_lock(&queue->lock);
        while (!queue->first)
            pthread_cond_wait(&queue->added, &queue->lock);
        struct job *jobs = take_jobs(queue), *next;
        pthread_mutex_unlock(&queue->lock);
        const char *error = run_jobs(jobs);
        /* The text may be this thread's; answers are the server's thread's. */
        for (struct job *job = jobs; error && job; job = job->next)
            job->error = error == job->words ? error
                : strncpy(job->words, error, sizeof job->words - 1);
        for (struct job *job = jobs; job; job = next) {
            next = job->next;
            RM_UnblockClient(job->client, job);
        }
    }
    return NULL;
}

void queue_add(struct queue *queue, struct job *job)
{
    pthread_mutex_lock(&queue->lock);
    *queue->last = job;
    queue->last = &job->next;
    pthread_cond_signal(&queue->added);
    pthread_mutex_unlock(&queue->lock);
}

static struct queue *queue_start(void)
{
    struct queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return NULL;
    queue->last = &queue->first;
    pthread_mutex_init(&queue->lock, NULL);
    pthread_cond_init(&queue->added, NULL);
    for (int i = 0; i < settings.threads_per_queue; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, queue))
            return i ? queue : NULL;    /* fewer do the same work */
        pthread_detach(thread);
    }
    return queue;
}

struct queue *queue_named(const String *name, const char **error)
{
    static struct queue *queues[DEVICES];
    int number = 0;
    size_t size, at = 4;
    const char *text = RM_StringPtrLen(name, &size);
    int numbered = size > 4 && size < 8 && !strncasecmp(text, "CPU:", 4);
    for (; numbered && at < size && text[at] >= '0' && text[at] <= '9'; at++)
        number = 10 * number + text[at] - '0';
    if (!is_word(name, "CPU") && !(numbered && at == size)) {
        *error = "ERR Invalid DEVICE: this stand-in has CPU and CPU:n";
        return NULL;
    }
    if (number >= DEVICES ||
        (!queues[number] && !(queues[number] = queue_start()))) {
        *error = "ERR Could not initialize queue on requested device";
        return NULL;
    }
    return queues[number];
}

/* --- argument vectors ----------------------------------------------------- */

struct span {
    int at, count;
};

/* WORD n and n words; *at is moved behind them. */
static const char *parse_span(String **argv, int argc, int *at,
                              const char *word, struct span *span)
{
    long long count;
    if (*at + 1 >= argc || !is_word(argv[*at], word))
        return *word == 'I' ? "ERR INPUTS not specified"
                            : "ERR OUTPUTS not specified";
    if (RM_StringToLongLong(argv[*at + 1], &count) != GOOD || count <= 0 ||
        count > argc - *at - 2)
        return "ERR number of keys to AI.MODELEXECUTE command does not match "
               "the number of given arguments";
    *span = (struct span){*at + 2, (int)count};
    *at += 2 + (int)count;
    return NULL;
}

/* key INPUTS n .. OUTPUTS n .. [TIMEOUT ms]; no request ends earlier: clients
 * send the same 60 000 s with each. */
static const char *parse_model_execute(String **argv, int argc,
                                       struct span spans[2])
{
    int at = 2;
    const char *error = parse_span(argv, argc, &at, "INPUTS", &spans[0]);
    if (!error)
        error = parse_span(argv, argc, &at, "OUTPUTS", &spans[1]);
    if (!error && at == argc - 2 && is_word(argv[at], "TIMEOUT"))
        at += 2;
    if (!error && at < argc)
        error = "ERR Invalid argument after the keys of OUTPUTS";
    return error;
}

/* key function INPUTS .. OUTPUTS .. */
static const char *parse_script_run(String **argv, int argc,
                                    struct span spans[2])
{
    int at = 4;
    if (!is_word(argv[3], "INPUTS"))
        return "ERR INPUTS not specified";
    while (at < argc && !is_word(argv[at], "OUTPUTS"))
        at++;
    spans[0] = (struct span){4, at - 4};
    spans[1] = (struct span){at + 1, argc - at - 1};
    return at == 4 || at >= argc - 1 ? "ERR INPUTS and OUTPUTS need keys"
                                     : NULL;
}

/* --- the answer ----------------------------------------------------------- */

/* In the server's own thread, if the client did not leave. */
static int answer(Context *context, String **argv, int argc)
{
    (void)argv, (void)argc;
    struct job *job = RM_GetBlockedClientPrivateData(context);
    const char *error = job->error;
    /* All or none. */
    for (int i = 0; !error && i < job->outputs; i++)
        value_at(context, job->names[i], tensor_type, NULL, &error);
    if (error)
        return RM_ReplyWithError(context, error);
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

/* --- the commands --------------------------------------------------------- */

/* One piece of memory, with tensors and names from their keys. */
static struct job *job_new(Context *context, String **argv,
                           const struct span spans[2], struct object *object,
                           const char **error)
{
    int inputs = spans[0].count, outputs = spans[1].count;
    size_t pointers = inputs + 2ull * outputs;
    struct job *job = RM_Calloc(1, sizeof *job + pointers * sizeof(void *));
    job->in = (struct tensor **)(job + 1);
    job->out = job->in + inputs;
    job->names = (String **)(job->out + outputs);
    job->object = object;
    __atomic_add_fetch(&object->refs, 1, __ATOMIC_RELAXED);
    if (object->script)
        job->function = RM_HoldString(NULL, argv[2]);
    for (; job->outputs < outputs; job->outputs++)
        job->names[job->outputs] =
            RM_HoldString(NULL, argv[spans[1].at + job->outputs]);
    for (; job->inputs < inputs; job->inputs++) {
        struct tensor *tensor =
            value_at(context, argv[spans[0].at + job->inputs], tensor_type,
                     "ERR tensor key is empty or in a different shard",
                     error);
        if (!tensor) {
            discard(context, job);
            return NULL;
        }
        job->in[job->inputs] = tensor_hold(tensor);
    }
    return job;
}

static int execute(Context *context, String **argv, int argc, int script)
{
    struct span spans[2] = {{0, 0}, {0, 0}};
    const char *error = argc < 6 ? "ERR wrong number of arguments"
        : script ? parse_script_run(argv, argc, spans)
        : parse_model_execute(argv, argc, spans);
    if (RM_IsKeysPositionRequest(context)) {
        /* The server asks before it knows that there is one. */
        if (argc > 1)
            RM_KeyAtPos(context, 1);
        for (int s = 0; !error && s < 2; s++)
            for (int i = 0; i < spans[s].count; i++)
                RM_KeyAtPos(context, spans[s].at + i);
        return GOOD;
    }
    if (RM_GetContextFlags(context) &
        (IN_SCRIPT | IN_TRANSACTION | MAY_NOT_BLOCK))
        error = "ERR Cannot run RedisAI command within a transaction or a LUA "
                "script";
    struct object *object = error ? NULL : value_at(
        context, argv[1], script ? script_type : model_type,
        script ? "ERR script key is empty" : "ERR model key is empty",
        &error);
    struct job *job = object ? job_new(context, argv, spans, object, &error)
                             : NULL;
    if (!job)
        return RM_ReplyWithError(context, error);
    job->client = RM_BlockClient(context, answer, NULL, discard, 0);
    queue_add(object->queue, job);
    return GOOD;
}

int model_execute(Context *context, String **argv, int argc)
{
    return execute(context, argv, argc, 0);
}

int script_run(Context *context, String **argv, int argc)
{
    return execute(context, argv, argc, 1);
}
