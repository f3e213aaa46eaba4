/* Threads that share the work on one operation. */
#define _GNU_SOURCE
#include "network.h"
#include <pthread.h>
#include <stdlib.h>

struct team {
    pthread_mutex_t lock;
    pthread_cond_t begin, end;
    int threads, working;
    unsigned long round;
    task *run;
    void *of;
    int next, count;
};

struct helper {
    struct team *team;
    int number;
};

static void take_tasks(struct team *team, int number)
{
    int index;
    while ((index = __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED))
           < team->count)
        team->run(team->of, index, number);
}

static void *help(void *argument)
{
    struct helper me = *(struct helper *)argument;
    struct team *team = me.team;
    free(argument);
    pthread_mutex_lock(&team->lock);
    for (unsigned long done = 0;;) {
        while (team->round == done)
            pthread_cond_wait(&team->begin, &team->lock);
        done = team->round;
        pthread_mutex_unlock(&team->lock);
        take_tasks(team, me.number);
        pthread_mutex_lock(&team->lock);
        if (!--team->working)
            pthread_cond_signal(&team->end);
    }
    return NULL;
}

struct team *team_start(int threads)
{
    struct team *team = calloc(1, sizeof *team);
    if (!team)
        return NULL;
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->begin, NULL);
    pthread_cond_init(&team->end, NULL);
    team->threads = 1;
    while (team->threads < threads) {
        struct helper *helper = malloc(sizeof *helper);
        pthread_t thread;
        if (!helper)
            break;
        *helper = (struct helper){team, team->threads};
        if (pthread_create(&thread, NULL, help, helper)) {
            free(helper);
            break;
        }
        pthread_detach(thread);
        team->threads++;
    }
    return team;
}

int team_threads(const struct team *team)
{
    return team->threads;
}

void team_run(struct team *team, task *run, void *of, int count)
{
    team->run = run;
    team->of = of;
    team->count = count;
    team->next = 0;
    if (team->threads > 1 && count > 1) {
        pthread_mutex_lock(&team->lock);
        team->working = team->threads - 1;
        team->round++;
        pthread_cond_broadcast(&team->begin);
        pthread_mutex_unlock(&team->lock);
        take_tasks(team, 0);
        pthread_mutex_lock(&team->lock);
        while (team->working)
            pthread_cond_wait(&team->end, &team->lock);
        pthread_mutex_unlock(&team->lock);
    } else
        take_tasks(team, 0);
}
