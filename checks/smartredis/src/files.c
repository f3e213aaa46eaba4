/* files.c - datasets and lists without a database, as the original has them
 * for comparison: a dataset is a file of its tensors, one behind the other; a
 * list is a folder that has copies of them. The folder must be one that all
 * nodes see. */
#define _GNU_SOURCE
#include "tensor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROOM = 4096 };
static char own[ROOM];                /* this rank's dataset              */

static _Noreturn void broken(const char *path)
{
    fail("%s: %s", path, strerror(errno));
}

static void open_folder(void)
{
    if (mkdir(arg.files, 0700) && errno != EEXIST)
        broken(arg.files);
}

static void forget(void)
{
    unlink(own);
}

static void put_dataset(const char *name, const float *data, size_t n,
                        int count)
{
    const char *from = (const char *)data;
    size_t left = n * (size_t)count * sizeof *data;

    if (!*own)
        atexit(forget);
    key_of(own, sizeof own, "%s/%s.dat", arg.files, name);
    int file = open(own, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0)
        broken(own);
    while (left) {
        ssize_t put = write(file, from, left);
        if (put < 0)
            broken(own);
        from += put, left -= (size_t)put;
    }
    if (close(file))
        broken(own);
}

/* It has its name when it is whole: who reads the list sees no half of it. */
static void append_to_list(const char *list, const char *dataset)
{
    char path[ROOM], draft[ROOM];
    ssize_t copied;

    key_of(path, sizeof path, "%s/%s", arg.files, list);
    if (mkdir(path, 0700) && errno != EEXIST)
        broken(path);
    key_of(draft, sizeof draft, "%s/%s/.%s", arg.files, list, dataset);
    key_of(path, sizeof path, "%s/%s/%s.dat", arg.files, list, dataset);
    int from = open(own, O_RDONLY | O_CLOEXEC);
    if (from < 0)
        broken(own);
    int to = open(draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (to < 0)
        broken(draft);
    while ((copied = sendfile(to, from, NULL, 1 << 30)) > 0)
        ;
    if (copied < 0 || close(to) || rename(draft, path))
        broken(draft);
    close(from);
}

static int visible(const struct dirent *one)
{
    return *one->d_name != '.';
}

static long list_length(const char *list)
{
    char path[ROOM];
    long found = 0;

    key_of(path, sizeof path, "%s/%s", arg.files, list);
    DIR *folder = opendir(path);
    if (!folder && errno != ENOENT)
        broken(path);
    for (struct dirent *one; folder && (one = readdir(folder));)
        found += visible(one);
    if (folder)
        closedir(folder);
    return found;
}

/* What one thread reads: every `step`-th file from `first` on. */
struct share {
    struct dirent **names;
    const char *list;
    char *data;
    size_t first, step, datasets, size;
};

static void *read_share(void *argument)
{
    struct share *s = argument;
    char path[ROOM];

    for (size_t d = s->first; d < s->datasets; d += s->step) {
        char *to = s->data + d * s->size;
        size_t left = s->size;
        struct stat has;
        key_of(path, sizeof path, "%s/%s/%s", arg.files, s->list,
               s->names[d]->d_name);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0 || fstat(file, &has))
            broken(path);
        if ((size_t)has.st_size != s->size)
            fail("%s has %lld bytes instead of %zu", path,
                 (long long)has.st_size, s->size);
        while (left) {
            ssize_t got = read(file, to, left);
            if (got < 0)
                broken(path);
            if (!got)
                fail("%s ends %zu bytes too early", path, left);
            to += got, left -= (size_t)got;
        }
        close(file);
    }
    return NULL;
}

static void get_list(const char *list, float *data, long *who,
                     size_t datasets, size_t n, int count, int threads)
{
    struct share *shares = calloc((size_t)threads, sizeof *shares);
    struct dirent **names;
    char path[ROOM];

    key_of(path, sizeof path, "%s/%s", arg.files, list);
    int found = scandir(path, &names, visible, alphasort);
    if (found < 0)
        broken(path);
    if ((size_t)found != datasets)
        fail("%s has %d datasets instead of %zu", path, found, datasets);
    if (!shares)
        fail("cannot allocate %d threads", threads);
    for (size_t d = 0; d < datasets; d++)
        who[d] = producer_of(names[d]->d_name);
    for (int i = 0; i < threads; i++)
        shares[i] = (struct share){
            .names = names, .list = list, .data = (char *)data,
            .first = (size_t)i, .step = (size_t)threads,
            .datasets = datasets,
            .size = n * (size_t)count * sizeof *data};
    in_threads(threads, read_share, shares, sizeof *shares);
    for (size_t d = 0; d < datasets; d++)
        free(names[d]);
    free(names);
    free(shares);
}

static void delete_list(const char *list)
{
    char path[ROOM], file[ROOM];

    key_of(path, sizeof path, "%s/%s", arg.files, list);
    DIR *folder = opendir(path);
    if (!folder)
        broken(path);
    for (struct dirent *one; (one = readdir(folder));) {
        key_of(file, sizeof file, "%s/%s/%s", arg.files, list, one->d_name);
        if (visible(one) && unlink(file))
            broken(file);
    }
    closedir(folder);
    if (rmdir(path))
        broken(path);
}

const struct client files = {
    .name = "files", .open = open_folder,
    .put_dataset = put_dataset, .append_to_list = append_to_list,
    .list_length = list_length, .get_list = get_list,
    .delete_list = delete_list,
};
