/* observe.c - runs between a launcher and a rank (or in front of the launcher)
 * and reports what no exit code tells: the CPU time that other programs used
 * on the node, and the processes that the program left behind.
 *
 *     observe [--facts FOLDER SCRIPT SCRATCH LAUNCHER] -- PROGRAM ...
 *                                                      in front of a rank
 *     observe --launcher -- LAUNCHER ...               in front of a launcher
 *     observe --within -- PROGRAM ...                  in front of a rank that
 *                       such a program starts on a node that is looked at
 *     observe [--facts ...] [--sample SECONDS FILE] [--tied] --beside
 *                       beside such programs, until SIGUSR1: their observer on
 *                       the node. It writes the node's CPU use into
 *                       FILE.HOST.csv. --tied: until its parent dies, too
 *
 * It ends as the program does (same exit code, same signal), and passes
 * signals on to it. Orphans of the program become its children: those that
 * are left after LEFT_TIMEOUT are ended, each told on stderr in a line
 *
 *     plumbline-left HOST {"pid": ..., "name": ..., "uid": ...}
 *
 * In front of a rank one more line tells the node's CPU time (seconds):
 *
 *     plumbline-node HOST {"cpus": of the machine,
 *       "begin": [at, busy, interrupts, steal], "end": [...],
 *       "clock": [begin, end] by the time of day (seconds since 1970),
 *       "rc": how the program ended, as a shell tells it,
 *       "own": of this rank, "within": true with that option,
 *       "scanned": whether it has what follows,
 *       "launcher": of who started it, "kernel": of the kernel's threads,
 *       "seen": of all other processes, "busiest": [[name, uid, pid, s]...]}
 *
 * The last four come from a look at all processes, by the first rank of a
 * node. It also runs SCRIPT (facts.sh) once, when FOLDER has no file of the
 * node's name yet: its output, facts of the node, becomes that file.
 * Reads /proc, and needs no rights. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KTHREAD = 0x00200000, TOP = 5, NAME = 16 };
/* For orphans to end, then to end on SIGTERM, then on SIGKILL; for facts.sh.
 * Unit: seconds. */
static const double LEFT_TIMEOUT = 5, TERM_TIMEOUT = 1, KILL_TIMEOUT = 2,
                    FACTS_TIMEOUT = 20;

struct process {
    int pid, parent;
    unsigned flags;
    unsigned long long cpu, start;              /* ticks                  */
    char name[NAME];
};
struct scan { struct process *list; size_t count; };
struct reading { double at, clock, busy, irq, steal; int cpus; };

static char host[256];
static double tick;
static sigset_t handled_signals;

static double clock_of(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static double now(void)
{
    return clock_of(CLOCK_MONOTONIC);
}

/* A small file as a string; its length, or -1. */
static ssize_t slurp(const char *path, char *text, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t got = read(fd, text, room - 1);
    close(fd);
    text[got < 0 ? 0 : got] = 0;
    return got;
}

static struct reading read_machine(void)
{
    struct reading r = {.at = now(), .clock = clock_of(CLOCK_REALTIME)};
    unsigned long long user, nice, system, idle, wait, irq, soft, steal;
    char line[512];
    FILE *file = fopen("/proc/stat", "re");
    while (file && fgets(line, sizeof line, file)
           && !strncmp(line, "cpu", 3)) {
        if (isdigit((unsigned char)line[3]))
            r.cpus++;
        else if (sscanf(line + 3, "%llu %llu %llu %llu %llu %llu %llu %llu",
                        &user, &nice, &system, &idle, &wait, &irq, &soft,
                        &steal) == 8) {
            r.busy = (user + nice + system) * tick;
            r.irq = (irq + soft) * tick;
            r.steal = steal * tick;
        }
    }
    if (file)
        fclose(file);
    return r;
}

static int read_process(int pid, struct process *p)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (slurp(path, text, sizeof text) <= 0)
        return 0;
    /* The name may hold anything, parentheses too. */
    char *open = strchr(text, '('), *close = strrchr(text, ')');
    unsigned long long user, system;
    if (!open || !close || sscanf(
            close + 1, " %*c %d %*d %*d %*d %*d %u %*u %*u %*u %*u %llu %llu"
            " %*d %*d %*d %*d %*d %*d %llu", &p->parent, &p->flags, &user,
            &system, &p->start) != 5)
        return 0;
    *close = 0;
    size_t i = 0;
    for (open++; *open && i < NAME - 1; open++)
        p->name[i++] = *open >= ' ' && *open < 127 && !strchr("\"\\{}", *open)
                       ? *open : '?';
    p->name[i] = 0;
    p->pid = pid;
    p->cpu = user + system;
    return 1;
}

static int by_pid(const void *a, const void *b)
{
    return ((const struct process *)a)->pid - ((const struct process *)b)->pid;
}

static struct scan all_processes(void)
{
    struct scan s = {0};
    size_t room = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *d; proc && (d = readdir(proc));) {
        if (!isdigit((unsigned char)d->d_name[0]))
            continue;
        if (s.count == room) {
            struct process *more = realloc(
                s.list, (room = room ? room * 2 : 256) * sizeof *s.list);
            if (!more)
                break;
            s.list = more;
        }
        s.count += read_process(atoi(d->d_name), s.list + s.count);
    }
    if (proc)
        closedir(proc);
    if (s.count)
        qsort(s.list, s.count, sizeof *s.list, by_pid);
    return s;
}

static struct process *find(struct scan s, int pid)
{
    struct process key = {.pid = pid};
    return s.count ? bsearch(&key, s.list, s.count, sizeof key, by_pid)
                   : NULL;
}

/* Whether `pid` is, or comes from, `ancestor`. */
static int comes_from(struct scan s, int pid, int ancestor)
{
    struct process *p;
    /* Processes come and go while they are listed: no chain is endless. */
    for (int steps = 0; pid > 0 && steps < 1000; steps++, pid = p->parent) {
        if (pid == ancestor)
            return 1;
        if (!(p = find(s, pid)))
            break;
    }
    return 0;
}

/* What measure.sh started beside the launcher's own descendants has its
 * mark; the processes of other users cannot be read, and have not. */
static int is_marked(int pid)
{
    static char text[1 << 17];
    char path[64];
    const char *job = getenv("PLUMBLINE_JOB");
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    ssize_t size = job ? slurp(path, text, sizeof text) : -1;
    for (char *word = text; size > 0 && word < text + size;
         word += strlen(word) + 1)
        if (!strncmp(word, "PLUMBLINE_JOB=", 14) && !strcmp(word + 14, job))
            return 1;
    return 0;
}

/* Some servers write their title over their environment: the process that
 * started them has it. */
static int is_of_job(struct scan s, int pid)
{
    struct process *p;
    for (int steps = 0; pid > 1 && steps < 1000; steps++, pid = p->parent) {
        if (is_marked(pid))
            return 1;
        if (!(p = find(s, pid)))
            break;
    }
    return 0;
}

static int owner(int pid)
{
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/proc/%d", pid);
    return stat(path, &about) ? -1 : (int)about.st_uid;
}

struct text { char room[3000]; size_t used; };

__attribute__((format(printf, 2, 3)))
static void add(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(t->room + t->used, sizeof t->room - t->used, format,
                      args);
    va_end(args);
    if (n > 0 && t->used + n < sizeof t->room)
        t->used += n;
}

/* In one piece: other ranks write there too. */
static void tell(const struct text *t)
{
    if (write(STDERR_FILENO, t->room, t->used) < 0)
        return;
}

/* CPU time of each process between two scans. What the parent started reports itself,
 * unless this observer is only beside it. */
static void add_processes(struct text *t, struct scan before, int beside)
{
    struct scan after = all_processes();
    struct { struct process *p; double s; } top[TOP] = {{0}};
    double launcher = 0, kernel = 0, seen = 0;
    int me = getpid(), parent = getppid(),
        mine = parent > 1 && !beside ? parent : me;
    for (size_t i = 0; i < after.count; i++) {
        struct process *p = after.list + i, *old = find(before, p->pid);
        double s = (p->cpu - (old && old->start == p->start ? old->cpu : 0))
                   * tick;
        if (s <= 0)
            continue;
        if (p->flags & KTHREAD)
            kernel += s;
        else if (p->pid != me && comes_from(after, me, p->pid))
            launcher += s;
        else if (comes_from(after, p->pid, mine))
            continue;                           /* reports itself         */
        else if (is_of_job(after, p->pid))
            launcher += s;
        else {
            seen += s;
            for (int k = 0; k < TOP; k++)
                if (s > top[k].s) {
                    memmove(top + k + 1, top + k,
                            (TOP - 1 - k) * sizeof *top);
                    top[k].p = p, top[k].s = s;
                    break;
                }
        }
    }
    add(t, ", \"launcher\": %.2f, \"kernel\": %.2f, \"seen\": %.2f, "
        "\"busiest\": [", launcher, kernel, seen);
    for (int k = 0; k < TOP && top[k].p; k++)
        add(t, "%s[\"%s\", %d, %d, %.2f]", k ? ", " : "", top[k].p->name,
            owner(top[k].p->pid), top[k].p->pid, top[k].s);
    add(t, "]");
    free(after.list);
}

static double spent(int who)
{
    struct rusage u;
    getrusage(who, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec
           + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Whether this is the first rank of a node, by the variable of rank.sh; true
 * without it. */
static int is_first(void)
{
    const char *rank = getenv("LOCAL_RANK");
    return !rank || !strcmp(rank, "0");
}

/* Waits for a signal, at most so long; 0: none came. */
static int await(double seconds)
{
    if (seconds < 0)
        seconds = 0;
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (seconds - (time_t)seconds) * 1e9};
    int number = sigtimedwait(&handled_signals, NULL, &t);
    return number > 0 ? number : 0;
}

static int is_end(int number)
{
    return number == SIGTERM || number == SIGINT || number == SIGHUP
           || number == SIGQUIT;
}

/* Reaps ended children; 0: no child is left. Keeps the status of `pid`. */
static int reap(int pid, int *status)
{
    int one, how;
    while ((one = waitpid(-1, &how, WNOHANG)) > 0)
        if (one == pid)
            *status = how;
    return one == 0;
}

/* Waits for all children, until the time is over or a signal comes. */
static int any_left(double seconds, int *told)
{
    double until = now() + seconds;
    while (reap(0, NULL)) {
        if (now() >= until || *told)
            return 1;
        int number = await(until - now());
        if (is_end(number))
            *told = number;
    }
    return 0;
}

static void signal_left(struct scan s, int number)
{
    for (size_t i = 0; i < s.count; i++)
        if (s.list[i].pid != getpid()
            && comes_from(s, s.list[i].pid, getpid()))
            kill(s.list[i].pid, number);
}

/* Orphans of the program get LEFT_TIMEOUT to end, then they are killed. */
static void end_what_is_left(int *told)
{
    if (!any_left(LEFT_TIMEOUT, told))
        return;
    int ignored = 0;
    struct scan s = all_processes();
    for (size_t i = 0; i < s.count; i++)
        if (s.list[i].pid != getpid()
            && comes_from(s, s.list[i].pid, getpid())) {
            struct text t = {.used = 0};
            add(&t, "plumbline-left %s {\"pid\": %d, \"name\": \"%s\", "
                "\"uid\": %d}\n", host, s.list[i].pid, s.list[i].name,
                owner(s.list[i].pid));
            tell(&t);
        }
    signal_left(s, SIGTERM);
    free(s.list);
    if (!any_left(*told ? TERM_TIMEOUT / 4 : TERM_TIMEOUT, &ignored))
        return;
    /* More than once: they may fork meanwhile. */
    for (double until = now() + KILL_TIMEOUT; now() < until;) {
        s = all_processes();
        signal_left(s, SIGKILL);
        free(s.list);
        ignored = 0;
        if (!any_left(0.05, &ignored))
            return;
    }
}

/* A status of wait() as a shell tells it; 1: nobody knows. */
static int ended(int status)
{
    if (status == -1)
        return 1;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Writes the node's facts unless the file exists; a failure leaves no file. */
static void keep_facts(char **words)
{
    const char *folder = words[0];
    char path[4096], draft[4200];
    snprintf(path, sizeof path, "%s/%s", folder, host);
    snprintf(draft, sizeof draft, "%s/.%s.%d", folder, host, getpid());
    if (access(path, F_OK) == 0)
        return;
    int pid = fork();
    if (pid == 0) {
        int to = open(draft, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        int none = open("/dev/null", O_RDWR);
        if (to < 0 || none < 0 || dup2(none, 0) < 0 || dup2(to, 1) < 0
            || dup2(none, 2) < 0)
            _exit(1);
        sigprocmask(SIG_UNBLOCK, &handled_signals, NULL);
        setsid();
        execl("/bin/bash", "bash", words[1], words[2], words[3],
              (char *)NULL);
        _exit(127);
    }
    int status = -1;
    double until = now() + FACTS_TIMEOUT;
    while (pid > 0 && reap(pid, &status) && status == -1 && now() < until)
        if (is_end(await(until - now())))
            break;
    if (pid > 0 && status == -1)
        kill(-pid, SIGKILL);
    if (status || rename(draft, path))
        unlink(draft);
}

/* A row of the CPU use of the CPUs that this process may use: seconds since 1970,
 * then ticks since boot. System includes interrupts, see proc_stat(5). */
static void write_cpu_use(FILE *to)
{
    unsigned long long sum[4] = {0}, t[8];
    static const int column[8] = {0, 0, 1, 2, 2, 1, 1, 3};
    char line[512];
    cpu_set_t usable;
    FILE *file = fopen("/proc/stat", "re");
    int cpu;
    sched_getaffinity(0, sizeof usable, &usable);
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "cpu%d %llu %llu %llu %llu %llu %llu %llu %llu", &cpu, t,
                   t + 1, t + 2, t + 3, t + 4, t + 5, t + 6, t + 7) == 9
            && CPU_ISSET(cpu, &usable))
            for (int k = 0; k < 8; k++)
                sum[column[k]] += t[k];
    if (file)
        fclose(file);
    fprintf(to, "%.3f,%llu,%llu,%llu,%llu\n", clock_of(CLOCK_REALTIME), sum[0],
            sum[1], sum[2], sum[3]);
    fflush(to);
}

/* Until a signal ends it: the observer of a node beside the programs of its job. */
static void stay_beside(double interval, const char *name)
{
    char path[4096];
    FILE *to = NULL;
    if (interval > 0) {
        snprintf(path, sizeof path, "%s.%.*s.csv", name,
                 (int)strcspn(host, "."), host);
        if (!(to = fopen(path, "we")))
            fprintf(stderr, "%s: %s\n", path, strerror(errno));
        else
            fputs("at,user,system,idle,steal\n", to);
    }
    for (int number = 0; !is_end(number) && number != SIGUSR1;) {
        if (to)
            write_cpu_use(to);
        number = await(to ? interval : 3600);
    }
    if (to)
        fclose(to);
}

/* Notes the pid of a launcher for remove_session_folders.sh. */
static void note_launcher(int pid)
{
    const char *path = getenv("PLUMBLINE_LAUNCHERS");
    FILE *file = path ? fopen(path, "ae") : NULL;
    if (file) {
        fprintf(file, "%d\n", pid);
        fclose(file);
    }
}

int main(int argc, char **argv)
{
    char **facts = NULL;
    const char *samples = "";
    double interval = 0;
    int launcher = 0, within = 0, beside = 0, parent = getppid(), i = 1;
    for (; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--launcher"))
            launcher = 1;
        else if (!strcmp(argv[i], "--within"))
            within = 1;
        else if (!strcmp(argv[i], "--beside"))
            beside = 1;
        else if (!strcmp(argv[i], "--tied")) {
            prctl(PR_SET_PDEATHSIG, SIGTERM);
            if (getppid() != parent)
                return 143;
        } else if (!strcmp(argv[i], "--sample") && i + 2 < argc)
            interval = atof(argv[i + 1]), samples = argv[i + 2], i += 2;
        else if (!strcmp(argv[i], "--facts") && i + 4 < argc)
            facts = argv + i + 1, i += 4;
    if (++i >= argc && !beside) {
        fprintf(stderr, "usage: observe [--facts FOLDER SCRIPT SCRATCH "
                "LAUNCHER | --launcher | --within] -- PROGRAM ...\n");
        return 2;
    }
    if (slurp("/proc/sys/kernel/hostname", host, sizeof host) <= 0)
        gethostname(host, sizeof host - 1);
    host[strcspn(host, "\n")] = 0;
    tick = 1.0 / sysconf(_SC_CLK_TCK);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    int first = !launcher && !within && is_first();
    struct scan before = {0};
    if (first)
        before = all_processes();
    struct reading begin = read_machine();

    sigset_t usual;
    static const int signals[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT,
                                  SIGUSR1, SIGUSR2};
    sigemptyset(&handled_signals);
    for (size_t k = 0; k < sizeof signals / sizeof *signals; k++)
        sigaddset(&handled_signals, signals[k]);
    sigprocmask(SIG_BLOCK, &handled_signals, &usual);
    int me = getpid(), pid = beside ? 0 : fork(), status = -1, told = 0;
    if (beside) {
        stay_beside(interval, samples);
        status = 0;
    } else if (pid == 0) {
        sigprocmask(SIG_SETMASK, &usual, NULL);
        /* A signal to a rank is meant for its program. */
        if (!launcher && (prctl(PR_SET_PDEATHSIG, SIGKILL)
                          || getppid() != me))
            _exit(1);
        execvp(argv[i], argv + i);
        fprintf(stderr, "%s: %s\n", argv[i], strerror(errno));
        _exit(errno == ENOENT ? 127 : 126);
    }
    if (pid < 0) {
        fprintf(stderr, "observe: %s\n", strerror(errno));
        return 126;
    }
    if (launcher)
        note_launcher(pid);
    signal(SIGPIPE, SIG_IGN);
    while (!beside && reap(pid, &status) && status == -1) {
        int number = await(3600);
        if (is_end(number))
            told = number;
        /* A launcher counts its signals: the second makes it drop all. It
         * is in our process group, which is what people signal. */
        if (number && number != SIGCHLD && !launcher)
            kill(pid, number);
    }
    if (!beside)
        end_what_is_left(&told);
    if (!launcher) {
        struct text t = {.used = 0};
        struct reading end = read_machine();
        add(&t, "plumbline-node %s {\"cpus\": %d, \"begin\": [%.3f, %.2f, "
            "%.2f, %.2f], \"end\": [%.3f, %.2f, %.2f, %.2f], \"clock\": [%.3f, "
            "%.3f], \"rc\": %d, \"own\": %.3f, "
            "\"scanned\": %s%s", host, end.cpus, begin.at, begin.busy,
            begin.irq, begin.steal, end.at, end.busy, end.irq, end.steal,
            begin.clock, end.clock, ended(status),
            spent(RUSAGE_CHILDREN) + spent(RUSAGE_SELF),
            first ? "true" : "false", within ? ", \"within\": true" : "");
        if (first)
            add_processes(&t, before, beside);
        add(&t, "}\n");
        tell(&t);
        if (first && facts && !told)
            keep_facts(facts);
    }
    if (WIFSIGNALED(status)) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(WTERMSIG(status), SIG_DFL);
        sigprocmask(SIG_SETMASK, &usual, NULL);
        raise(WTERMSIG(status));
        return 128 + WTERMSIG(status);
    }
    return ended(status);
}
