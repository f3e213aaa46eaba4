/* others.c - CPU time of other programs on a node; observe.c describes the line. It
 * reads /proc, and needs no rights. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PF_KTHREAD = 0x00200000 };

struct process {
    int pid, parent;
    unsigned flags;                             /* of the kernel: PF_...   */
    unsigned long long cpu, start;              /* ticks                  */
    double others;                              /* 0: of the job          */
    char name[16];
};
struct scan { struct process *list; size_t count, room; };

/* A file of /proc/PID as a string; its length, or -1. */
static ssize_t read_file_of(int pid, const char *name, char *text, size_t room)
{
    snprintf(text, room, "/proc/%d/%s", pid, name);
    int fd = open(text, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, room - 1);
    close(fd);
    text[size < 0 ? 0 : size] = 0;
    return size;
}

static int read_process(int pid, struct process *p)
{
    char text[1024], *name, *end;
    unsigned long long user, system;
    /* The name may hold anything, parentheses too. */
    if (read_file_of(pid, "stat", text, sizeof text) <= 0
        || !(name = strchr(text, '(')) || !(end = strrchr(text, ')')) || sscanf(
            end + 1, " %*c %d %*d %*d %*d %*d %u %*u %*u %*u %*u %llu %llu %*d %*d"
            " %*d %*d %*d %*d %llu", &p->parent, &p->flags, &user, &system,
            &p->start) != 5)
        return 0;
    *end = 0;
    snprintf(p->name, sizeof p->name, "%s", name + 1);
    for (char *c = p->name; *c; c++)
        if (*c < ' ' || *c > '~' || strchr("\"\\{}", *c))
            *c = '?';
    p->pid = pid, p->cpu = user + system, p->others = 0;
    return 1;
}

/* All processes; the kernel lists them by pid. */
static struct scan all_processes(void)
{
    struct scan s = {0};
    DIR *proc = opendir("/proc");
    for (struct dirent *d; proc && (d = readdir(proc));) {
        if (s.count == s.room)
            s.list = realloc(s.list, (s.room = s.room * 2 + 512) * sizeof *s.list);
        if (!s.list)
            exit(1);
        if (isdigit((unsigned char)*d->d_name))
            s.count += read_process(atoi(d->d_name), s.list + s.count);
    }
    closedir(proc);
    return s;
}

static int by_pid(const void *a, const void *b)
{
    return ((const struct process *)a)->pid - ((const struct process *)b)->pid;
}

static struct process *find(struct scan s, int pid)
{
    return bsearch(&(struct process){.pid = pid}, s.list, s.count, sizeof *s.list,
                   by_pid);
}

/* Whether a process has the mark of measure.sh; those of others cannot be read. */
static int is_marked(int pid)
{
    static char text[1 << 17], mark[64];
    const char *job = getenv("PLUMBLINE_JOB");
    ssize_t size = job ? read_file_of(pid, "environ", text, sizeof text) : -1;
    snprintf(mark, sizeof mark, "PLUMBLINE_JOB=%s", job ? job : "");
    return size > 0 && memmem(text, size, mark, strlen(mark) + 1);
}

/* Whether a process is, or comes from, `ancestor`; or, if that is 0, from a marked
 * process. (Some servers write their title over their environment.) */
static int comes_from(struct scan s, int pid, int ancestor)
{
    struct process *p = find(s, pid);
    /* Processes come and go while they are listed: no chain is endless. */
    for (int steps = 0; p && steps < 1000; steps++, p = find(s, p->parent))
        if (ancestor ? p->pid == ancestor : is_marked(p->pid))
            return 1;
    return 0;
}

/* The line at the end of standard input. */
int report_others(void)
{
    struct scan before = all_processes(), after;
    double running = 0, kernel = 0, seen = 0, tick = 1.0 / sysconf(_SC_CLK_TCK);
    char host[256] = "", path[32], text[1000];
    for (char end; read(STDIN_FILENO, &end, 1) > 0;)
        ;
    after = all_processes();
    for (struct process *p = after.list; p < after.list + after.count; p++) {
        struct process *old = find(before, p->pid);
        double s = (p->cpu - (old && old->start == p->start ? old->cpu : 0)) * tick;
        if (s <= 0 || comes_from(after, p->pid, getppid()))
            continue;
        if (p->flags & PF_KTHREAD)
            kernel += s;
        else if (comes_from(after, getpid(), p->pid) || comes_from(after, p->pid, 0))
            running += s;
        else
            seen += p->others = s;
    }
    gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "plumbline-others %s {\"cpus\": %ld, "
                     "\"running\": %.2f, \"kernel\": %.2f, \"seen\": %.2f, "
                     "\"busiest\": [", host, sysconf(_SC_NPROCESSORS_ONLN), running,
                     kernel, seen);
    for (int k = 0; k < 5 && after.count; k++) {
        struct stat about = {.st_uid = -1};
        struct process *top = after.list;
        for (struct process *p = after.list; p < after.list + after.count; p++)
            if (p->others > top->others)
                top = p;
        if (!top->others)
            break;
        snprintf(path, sizeof path, "/proc/%d", top->pid);
        stat(path, &about);
        n += snprintf(text + n, sizeof text - n, "%s[\"%s\", %d, %d, %.2f]",
                      k ? ", " : "", top->name, (int)about.st_uid, top->pid,
                      top->others);
        top->others = 0;
    }
    /* In one piece: ranks write there, too. */
    dprintf(STDERR_FILENO, "%s]}\n", text);
    return 0;
}
