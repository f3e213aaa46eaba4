/* Built-in convolution networks with weights that anyone can compute. */
#ifndef NETWORK_H
#define NETWORK_H
#include <stddef.h>

/* Threads that work on one thing together; the caller is one of them. */
struct team;
struct team *team_start(int threads);
typedef void task(void *of, int index, int thread);
/* Runs task(of, 0), ..., task(of, count - 1), in any order. */
void team_run(struct team *team, task *run, void *of, int count);
int team_threads(const struct team *team);

struct network;

/* A network by name, or NULL; `names` is for messages. */
const struct network *network_named(const char *name, size_t size);
extern const char network_names[];
/* The one after it, NULL after the last; the first one after NULL. */
const struct network *network_next(const struct network *network);
const char *network_name(const struct network *network);
/* Channels, height and width of an input; classes of an output. */
void network_shape(const struct network *network, long long shape[3],
                   long long *classes);
/* Floating-point operations for one image: two for each multiplication with
 * a weight that a convolution does, padding included. */
unsigned long long network_flops(const struct network *network);

/* Memory for activations, kept from call to call. */
struct room;
struct room *room_new(void);

/* `count` images, float [count][channels][height][width], one after the
 * other in memory; their scores [count][classes] to `out`.
 * 0: not enough memory. */
int network_run(const struct network *network, struct room *room,
                struct team *team, const char *const *images,
                size_t count, char *const *scores);

#endif
