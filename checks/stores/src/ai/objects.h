/* Models and scripts as keys hold them. */
#ifndef OBJECTS_H
#define OBJECTS_H
#include "api.h"
#include "network.h"

struct device;
struct program;

/* Never changed once it is in a key, counters apart; a user holds a
 * reference. */
struct object {
    int refs, script;
    struct device *device;
    char *tag;
    size_t tag_size;
    /* A model's blob or a script's source: the server's string, or NULL and
     * memory of our own. */
    String *held;
    char *text;
    size_t size;
    /* Of a model: images in a run (0: no batches), fewest images, how long
     * to wait for them (ms; 0: as long as it takes), what it computes (NULL:
     * nothing that this module can). */
    long long batch, min_batch, batch_timeout;
    const struct network *network;
    /* What libtorch made of it, or NULL. */
    struct program *program;
    /* Of a script: does it name kernels? */
    int marked;
    unsigned long long calls, errors, samples, duration;
    /* The round in which a queue found that its jobs must wait. */
    unsigned long long seen;
};

extern Type *model_type, *script_type;
int objects_register(Context *context);

/* Argument vectors of AI.MODELSTORE and AI.SCRIPTSET. */
struct object *model_parse(String **argv, int argc, const char **error);
struct object *script_parse(String **argv, int argc, const char **error);
/* Does the script define the function? */
int script_defines(const struct object *script, const char *name,
                   size_t size);
struct object *object_hold(struct object *object);
void object_drop(struct object *object);

static inline void object_count(struct object *object, long long duration,
                                int error, unsigned long long samples)
{
    __atomic_add_fetch(&object->calls, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&object->errors, error, __ATOMIC_RELAXED);
    __atomic_add_fetch(&object->samples, samples, __ATOMIC_RELAXED);
    __atomic_add_fetch(&object->duration, duration, __ATOMIC_RELAXED);
}

#endif
