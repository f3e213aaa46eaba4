/* AI.MODELEXECUTE and AI.SCRIPTRUN: queues of requests, one per device, and
 * the threads that run them. */
#include "module.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { DEVICES = 64 };

static struct queue {
    pthread_mutex_t lock;
    pthread_cond_t added;
    struct job *first;
    int threads;
} queues[DEVICES] = {[0 ... DEVICES - 1] = {
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0}};

/* --- what a thread runs --------------------------------------------------- */

static long long rows(const struct job *job)
{
    return job->in->dims ? job->in->shape[0] : 1;
}

/* Whether two requests can be one run: their inputs differ in the number of
 * rows alone. */
static int fit_together(const struct job *a, const struct job *b)
{
    const struct tensor *one = a->in, *other = b->in;
    return a->object == b->object && one->type == other->type && one->dims &&
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
    return first;
}

static void *work(void *argument)
{
    struct queue *queue = argument;
    programs_begin_thread();
    for (;;) {
        pthread_mutex_lock(&queue->lock);
        while (!queue->first)
            pthread_cond_wait(&queue->added, &queue->lock);
        struct job *jobs = take_jobs(queue), *next;
        pthread_mutex_unlock(&queue->lock);
        const char *error = program_run(jobs->object->program, jobs);
        for (struct job *job = jobs; job; job = next) {
            next = job->next;
            /* The text is this thread's; answers are the server's thread's. */
            if (error)
                strncpy(job->error, error, sizeof job->error - 1);
            RM_UnblockClient(job->client, job);
        }
    }
    return NULL;
}

static void queue_add(struct queue *queue, struct job *job)
{
    pthread_mutex_lock(&queue->lock);
    struct job **end = &queue->first;
    while (*end)
        end = &(*end)->next;
    *end = job;
    pthread_cond_signal(&queue->added);
    pthread_mutex_unlock(&queue->lock);
}

struct queue *queue_named(const String *name, const char **error)
{
    unsigned number = 0;
    int end = 0;
    size_t size;
    const char *text = RM_StringPtrLen(name, &size);
    if (!is_word(name, "CPU") &&
        (sscanf(text, "CPU:%3u%n", &number, &end) != 1 ||
         (size_t)end != size)) {
        *error = "ERR Invalid DEVICE: this stand-in has CPU and CPU:n";
        return NULL;
    }
    struct queue *queue = number < DEVICES ? &queues[number] : NULL;
    pthread_t thread;
    while (queue && queue->threads < settings.threads_per_queue &&
           !pthread_create(&thread, NULL, work, queue)) {
        pthread_detach(thread);
        queue->threads++;
    }
    if (queue && queue->threads)        /* fewer do the same work */
        return queue;
    *error = "ERR Could not initialize queue on requested device";
    return NULL;
}

/* --- requests ------------------------------------------------------------- */

/* In the server's own thread, if the client did not leave. */
static int answer(Context *context, String **argv, int argc)
{
    (void)argv, (void)argc;
    struct job *job = RM_GetBlockedClientPrivateData(context);
    if (*job->error)
        return RM_ReplyWithError(context, job->error);
    return put(context, job->name, hold(job->out));
}

/* In the server's own thread, whether it was answered or not. */
static void discard(Context *context, void *data)
{
    (void)context;
    struct job *job = data;
    drop(job->in);
    drop(job->out);
    drop(job->object);
    RM_FreeString(NULL, job->name);
    RM_Free(job);
}

/* Runs the object of the key argv[1] in its queue.
 *
 * function: of a script, or NULL; out: the argument that names the output */
static int execute(Context *context, String **argv, String *function, int out)
{
    const char *error = NULL;
    struct object *object = value_at(
        context, argv[1], function ? script_type : model_type,
        function ? "ERR script key is empty" : "ERR model key is empty", &error);
    struct tensor *tensor = error ? NULL : value_at(
        context, argv[4], tensor_type,
        "ERR tensor key is empty or in a different shard", &error);
    if (error)
        return RM_ReplyWithError(context, error);
    struct job *job = RM_Calloc(1, sizeof *job);
    job->object = hold(object);
    job->in = hold(tensor);
    job->name = RM_HoldString(NULL, argv[out]);
    if (function) {
        /* The server does not promise that a 0 ends it. */
        size_t size;
        const char *text = RM_StringPtrLen(function, &size);
        snprintf(job->function, sizeof job->function, "%.*s", (int)size, text);
    }
    /* Not within a transaction or a script: the server refuses that itself. */
    job->client = RM_BlockClient(context, answer, NULL, discard, 0);
    queue_add(object->queue, job);
    return GOOD;
}

/* AI.MODELEXECUTE key INPUTS 1 in OUTPUTS 1 out [TIMEOUT ms]; no request ends
 * earlier: clients send the same 60 000 s with each. */
int model_execute(Context *context, String **argv, int argc)
{
    if ((argc != 8 && argc != 10) || !is_word(argv[2], "INPUTS") ||
        !is_word(argv[3], "1") || !is_word(argv[5], "OUTPUTS") ||
        !is_word(argv[6], "1") || (argc == 10 && !is_word(argv[8], "TIMEOUT")))
        return RM_ReplyWithError(context, "ERR this stand-in takes key INPUTS "
                                 "1 key OUTPUTS 1 key [TIMEOUT ms]");
    return execute(context, argv, NULL, 7);
}

/* AI.SCRIPTRUN key function INPUTS in OUTPUTS out */
int script_run(Context *context, String **argv, int argc)
{
    if (argc != 7 || !is_word(argv[3], "INPUTS") ||
        !is_word(argv[5], "OUTPUTS"))
        return RM_ReplyWithError(context, "ERR this stand-in takes key "
                                 "function INPUTS key OUTPUTS key");
    return execute(context, argv, argv[2], 6);
}
