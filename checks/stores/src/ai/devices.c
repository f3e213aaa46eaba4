#define _GNU_SOURCE
#include "devices.h"
#include "torch.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { DEVICES = 64, NAME = 12 };

struct settings settings = {1, 1, 1, 511ll << 20, 0};

struct device {
    char name[NAME];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct job *first, **last;
    /* Of all jobs that are done. */
    unsigned long long jobs, runs, images, busy;
};

static struct device *devices[DEVICES];
static int device_count;
/* Of the list; a snapshot may be loaded while commands run. */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000ll + time.tv_nsec / 1000;
}

/* --- work ----------------------------------------------------------------- */

/* A model's jobs are one run: their images follow each other. */
static const char *run_model(struct job *jobs, struct room *room,
                             struct team *team)
{
    const struct network *network = jobs->object->network;
    long long shape[3], out[2];
    network_shape(network, shape, &out[1]);
    size_t in_bytes = shape[0] * shape[1] * shape[2] * sizeof(float);
    size_t count = 0, i = 0;
    const char *error = NULL;
    for (struct job *job = jobs; job; job = job->next) {
        count += job->images;
        out[0] = (long long)job->images;
        if (!(job->out[0] = tensor_zeros(FLOAT, out, 2, &error)))
            return error;
    }
    const char **images = malloc(count * sizeof *images);
    char **scores = malloc(count * sizeof *scores);
    if (images && scores)
        for (struct job *job = jobs; job; job = job->next)
            for (size_t j = 0; j < job->images; j++, i++) {
                images[i] = job->in[0]->data + j * in_bytes;
                scores[i] = job->out[0]->data + j * out[1] * sizeof(float);
            }
    if (!images || !scores ||
        !network_run(network, room, team, images, count, scores))
        error = "ERR not enough memory to run the network";
    free(images);
    free(scores);
    return error;
}

#ifdef WITH_TORCH
static const char *run_program(struct job *jobs, size_t count)
{
    struct call *calls = malloc(count * sizeof *calls), *call = calls;
    if (!calls)
        return "ERR not enough memory to run the program";
    for (struct job *job = jobs; job; job = job->next)
        *call++ = (struct call){job->in, job->out, job->inputs,
                                job->outputs};
    const char *error = torch_run(
        jobs->object->program, jobs->function
        ? RM_StringPtrLen(jobs->function, NULL) : "forward", calls,
        (int)count);
    free(calls);
    /* The text is this thread's; answers are the server's thread's. */
    for (struct job *job = jobs; error && job; job = job->next)
        job->error = strncpy(job->words, error, sizeof job->words - 1);
    return error;
}
#endif

/* These are off the queue; their clients are answered by the server's own
 * thread, which frees them as well. */
static void do_jobs(struct device *device, struct job *jobs,
                    struct room *room, struct team *team)
{
    long long begin = now();
    const char *error = NULL;
    size_t images = 0, count = 0;
    for (struct job *job = jobs; job; job = job->next)
        count++;
    if (!jobs->timed_out) {
        if (jobs->object->network)
            error = run_model(jobs, room, team);
#ifdef WITH_TORCH
        else if (jobs->object->program)
            error = run_program(jobs, count);
#endif
        else
            error = jobs->kernel->run(jobs->in, jobs->inputs, jobs->out);
    }
    long long spent = now() - begin;
    for (struct job *job = jobs; job; job = job->next) {
        if (!job->error)
            job->error = error;
        images += job->images;
        if (!job->timed_out)
            object_count(job->object, error ? 0 : spent, !!error,
                         error ? 0 : job->images);
    }
    pthread_mutex_lock(&device->lock);
    device->jobs += count;
    device->runs++;
    device->images += images;
    device->busy += spent;
    pthread_mutex_unlock(&device->lock);
    for (struct job *job = jobs, *next; job; job = next) {
        next = job->next;
        RM_UnblockClient(job->client, job);
    }
}

/* --- batches -------------------------------------------------------------- */

/* Can two jobs of a model be one run: their inputs differ in the number of
 * rows alone? A network's always can. */
static int fit_together(const struct job *a, const struct job *b)
{
    if (a->object != b->object || a->inputs != b->inputs ||
        a->outputs != b->outputs)
        return 0;
    for (int i = 0; a != b && i < a->inputs; i++) {
        const struct tensor *one = a->in[i], *other = b->in[i];
        if (one->type != other->type || !one->dims ||
            one->dims != other->dims ||
            one->shape[0] != a->in[0]->shape[0] ||
            other->shape[0] != b->in[0]->shape[0] ||
            memcmp(one->shape + 1, other->shape + 1,
                   (one->dims - 1) * sizeof *one->shape))
            return 0;
    }
    return 1;
}

/* Takes jobs that fit to the leader off the queue, from the leader on, until
 * they have as many images as the model takes at once. */
static struct job *take_batch(struct device *device, struct job **leader)
{
    struct job *jobs = *leader, **end = &jobs;
    struct job *first = jobs;
    long long images = 0;
    for (struct job **at = leader; *at;) {
        struct job *job = *at;
        if (!fit_together(first, job)) {
            at = &job->next;
            continue;
        }
        *at = job->next;
        images += job->images;
        *end = job;
        end = &job->next;
        if (images >= first->object->batch)
            break;
    }
    *end = NULL;
    device->last = &device->first;
    while (*device->last)
        device->last = &(*device->last)->next;
    return jobs;
}

/* Images of the model that wait, from the leader on. */
static long long waiting(const struct job *leader)
{
    long long images = 0;
    for (const struct job *job = leader; job; job = job->next)
        if (fit_together(leader, job))
            images += job->images;
    return images;
}

/* The next jobs to run together, or NULL, and when to look again (0: when
 * there is a new one). */
static struct job *pick(struct device *device, long long *again)
{
    static unsigned long long rounds;
    unsigned long long round =
        __atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
    long long time = now();
    *again = 0;
    for (struct job **at = &device->first; *at; at = &(*at)->next) {
        struct job *job = *at;
        struct object *object = job->object;
        if (job->deadline && time >= job->deadline)
            job->timed_out = 1;
        if (job->timed_out)
            ;
        /* Where the first job of a model must wait, all of them must. */
        else if (object->seen == round)
            goto waits;
        else if (object->min_batch && waiting(job) < object->min_batch) {
            object->seen = round;
            long long ready = job->queued + object->batch_timeout * 1000;
            if (!object->batch_timeout)
                goto waits;
            if (time < ready) {
                if (!*again || ready < *again)
                    *again = ready;
                goto waits;
            }
        }
        if (job->timed_out || !object->batch) {
            *at = job->next;
            if (!*at)
                device->last = at;
            job->next = NULL;
            return job;
        }
        return take_batch(device, at);
    waits:
        if (job->deadline && (!*again || job->deadline < *again))
            *again = job->deadline;
    }
    return NULL;
}

static void *work(void *argument)
{
    struct device *device = argument;
    struct team *team = team_start((int)settings.intra_op);
    struct room *room = room_new();
#ifdef WITH_TORCH
    torch_threads((int)settings.intra_op);
#endif
    if (!team || !room)
        abort();                        /* as the server does without memory */
    pthread_mutex_lock(&device->lock);
    for (;;) {
        long long again;
        struct job *jobs = pick(device, &again);
        if (jobs) {
            pthread_mutex_unlock(&device->lock);
            do_jobs(device, jobs, room, team);
            pthread_mutex_lock(&device->lock);
        } else if (again) {
            struct timespec until = {again / 1000000, again % 1000000 * 1000};
            pthread_cond_timedwait(&device->changed, &device->lock, &until);
        } else
            pthread_cond_wait(&device->changed, &device->lock);
    }
    return NULL;
}

void device_add(struct device *device, struct job *job)
{
    job->queued = now();
    if (job->deadline)
        job->deadline += job->queued;
    pthread_mutex_lock(&device->lock);
    *device->last = job;
    device->last = &job->next;
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->lock);
}

void devices_forget(const Blocked *client)
{
    pthread_mutex_lock(&list_lock);
    for (int i = 0; i < device_count; i++) {
        struct device *device = devices[i];
        pthread_mutex_lock(&device->lock);
        for (struct job *job = device->first; job; job = job->next)
            if (job->client == client) {
                job->timed_out = 1;
                pthread_cond_broadcast(&device->changed);
            }
        pthread_mutex_unlock(&device->lock);
    }
    pthread_mutex_unlock(&list_lock);
}

/* --- devices -------------------------------------------------------------- */

/* Capital letters; how many there are of the kind does not matter yet. */
static int well_named(const char *text, size_t size, char name[NAME])
{
    if (size >= 10 || size < 3 ||
        (strncasecmp(text, "CPU", 3) && strncasecmp(text, "GPU", 3)))
        return 0;
    memcpy(name, strncasecmp(text, "CPU", 3) ? "GPU" : "CPU", 3);
    if (size > 3 && (text[3] != ':' || size == 4))
        return 0;
    for (size_t i = 4; i < size; i++)
        if (text[i] < '0' || text[i] > '9')
            return 0;
    memcpy(name + 3, text + 3, size - 3);
    name[size] = 0;
    return 1;
}

static struct device *device_start(const char *name)
{
    struct device *device = calloc(1, sizeof *device);
    pthread_condattr_t monotonic;
    if (!device)
        return NULL;
    strcpy(device->name, name);
    device->last = &device->first;
    pthread_mutex_init(&device->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&device->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    for (int i = 0; i < settings.threads_per_queue; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, device)) {
            if (i)
                break;                  /* fewer do the same work */
            free(device);
            return NULL;
        }
        pthread_detach(thread);
    }
    return device;
}

struct device *device_named(const String *string, const char **error)
{
    char name[NAME];
    size_t size;
    const char *text = RM_StringPtrLen(string, &size);
    if (!well_named(text, size, name)) {
        *error = "ERR Invalid DEVICE";
        return NULL;
    }
    if (*name == 'G' && atoll(size > 3 ? name + 4 : "0") >= settings.gpus) {
        *error = "ERR no such GPU: this module computes on CPUs alone; load "
                 "it with EMULATE_GPUS n for GPU:0 to GPU:n-1 on CPU threads";
        return NULL;
    }
    struct device *found = NULL;
    pthread_mutex_lock(&list_lock);
    for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i]->name, name))
            found = devices[i];
    if (!found && device_count < DEVICES && (found = device_start(name)))
        devices[device_count++] = found;
    pthread_mutex_unlock(&list_lock);
    if (!found)
        *error = "ERR Could not initialize queue on requested device";
    return found;
}

const char *device_name(const struct device *device)
{
    return device->name;
}

void devices_info(Info *info)
{
    pthread_mutex_lock(&list_lock);
    for (int i = 0; i < device_count; i++) {
        struct device *device = devices[i];
        char name[NAME], field[48];
        strcpy(name, device->name);
        if (name[3])
            name[3] = '_';
        pthread_mutex_lock(&device->lock);
        struct { const char *what; unsigned long long value; } figures[] = {
            {"jobs", device->jobs}, {"runs", device->runs},
            {"images", device->images}, {"busy_us", device->busy}};
        pthread_mutex_unlock(&device->lock);
        for (size_t j = 0; j < sizeof figures / sizeof *figures; j++) {
            snprintf(field, sizeof field, "queue_%s_%s", name,
                     figures[j].what);
            RM_InfoAddFieldULongLong(info, field, figures[j].value);
        }
    }
    pthread_mutex_unlock(&list_lock);
}
