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
 * node. It also runs SCRIPT (facts.sh) once per node. Reads /proc, and needs
 * no rights. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KTHREAD = 0x00200000, TOP = 5 };
/* For orphans to end, then to end on SIGTERM. Unit: seconds. */
static const double LEFT_TIMEOUT = 5, TERM_TIMEOUT = 1;

struct process {
    int pid, parent;
    unsigned flags;
    unsigned long long cpu, start;              /* ticks                  */
    char name[16];
};
struct scan { struct process *list; size_t count; };
struct reading { double at, clock, busy, irq, steal; int cpus; };

static char host[256];
static double tick;
static sigset_t handled_signals, usual_signals;

static double clock_of(clockid_t which)
{
    struct timespec t;
    clock_gettime(which, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* A file of /proc/PID as a string; its length, or -1. */
static ssize_t read_file_of(int pid, const char *name, char *text, size_t room)
{
    snprintf(text, room, "/proc/%d/%s", pid, name);
    int fd = open(text, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t size = read(fd, text, room - 1);
    close(fd);
    text[size < 0 ? 0 : size] = 0;
    return size;
}

/* CPU time of the machine. With `usable` also the ticks of these CPUs in user mode,
 * in the system (with interrupts, see proc_stat(5)), idle and stolen. */
static struct reading read_machine(const cpu_set_t *usable,
                                   unsigned long long sum[4])
{
    static const int column[8] = {0, 0, 1, 2, 2, 1, 1, 3};
    struct reading r = {.at = clock_of(CLOCK_MONOTONIC),
                        .clock = clock_of(CLOCK_REALTIME)};
    unsigned long long t[8];
    char line[512];
    FILE *file = fopen("/proc/stat", "re");
    while (file && fgets(line, sizeof line, file) && !strncmp(line, "cpu", 3)) {
        char *rest = strchr(line, ' ');
        if (!rest || sscanf(rest, "%llu %llu %llu %llu %llu %llu %llu %llu", t,
                            t + 1, t + 2, t + 3, t + 4, t + 5, t + 6, t + 7) != 8)
            continue;
        if (line[3] == ' ') {                   /* of all CPUs            */
            r.busy = (t[0] + t[1] + t[2]) * tick;
            r.irq = (t[5] + t[6]) * tick;
            r.steal = t[7] * tick;
            continue;
        }
        r.cpus++;
        for (int k = 0; usable && CPU_ISSET(atoi(line + 3), usable) && k < 8; k++)
            sum[column[k]] += t[k];
    }
    if (file)
        fclose(file);
    return r;
}

static int read_process(int pid, struct process *p)
{
    char text[1024];
    if (read_file_of(pid, "stat", text, sizeof text) <= 0)
        return 0;
    /* The name may hold anything, parentheses too. */
    char *name = strchr(text, '('), *end = strrchr(text, ')');
    unsigned long long user, system;
    if (!name || !end || sscanf(
            end + 1, " %*c %d %*d %*d %*d %*d %u %*u %*u %*u %*u %llu %llu"
            " %*d %*d %*d %*d %*d %*d %llu", &p->parent, &p->flags, &user,
            &system, &p->start) != 5)
        return 0;
    *end = 0;
    snprintf(p->name, sizeof p->name, "%s", name + 1);
    for (char *c = p->name; *c; c++)
        if (*c < ' ' || *c > '~' || strchr("\"\\{}", *c))
            *c = '?';
    p->pid = pid;
    p->cpu = user + system;
    return 1;
}

static int by_pid(const void *a, const void *b)
{
    return ((const struct process *)a)->pid - ((const struct process *)b)->pid;
}

/* All processes, sorted by pid. */
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

/* Whether a process has the mark of measure.sh; those of others cannot be read. */
static int is_marked(int pid)
{
    static char text[1 << 17];
    const char *job = getenv("PLUMBLINE_JOB");
    ssize_t size = job ? read_file_of(pid, "environ", text, sizeof text) : -1;
    for (char *word = text; size > 0 && word < text + size;
         word += strlen(word) + 1)
        if (!strncmp(word, "PLUMBLINE_JOB=", 14) && !strcmp(word + 14, job))
            return 1;
    return 0;
}

/* Whether a process is, or comes from, `ancestor`; or, if that is 0, from a marked
 * process. (Some servers write their title over their environment.) */
static int comes_from(struct scan s, int pid, int ancestor)
{
    struct process *p;
    /* Processes come and go while they are listed: no chain is endless. */
    for (int steps = 0; pid > !ancestor && steps < 1000; steps++, pid = p->parent) {
        if (ancestor ? pid == ancestor : is_marked(pid))
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

/* CPU time of each process between two scans. What the parent started reports itself,
 * unless this observer is only beside it. */
static void print_processes(FILE *to, struct scan before, int beside)
{
    struct scan after = all_processes();
    struct { struct process *p; double s; } top[TOP + 1] = {{0}};
    double launcher = 0, kernel = 0, seen = 0;
    int me = getpid(), parent = getppid(),
        mine = parent > 1 && !beside ? parent : me;
    for (struct process *p = after.list; p < after.list + after.count; p++) {
        struct process *old = find(before, p->pid);
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
        else if (comes_from(after, p->pid, 0))
            launcher += s;
        else {
            seen += s;
            int k = TOP;
            for (; k > 0 && s > top[k - 1].s; k--)
                top[k] = top[k - 1];
            top[k].p = p, top[k].s = s;
        }
    }
    fprintf(to, ", \"launcher\": %.2f, \"kernel\": %.2f, \"seen\": %.2f, "
            "\"busiest\": [", launcher, kernel, seen);
    for (int k = 0; k < TOP && top[k].p; k++)
        fprintf(to, "%s[\"%s\", %d, %d, %.2f]", k ? ", " : "", top[k].p->name,
                owner(top[k].p->pid), top[k].p->pid, top[k].s);
    fputs("]", to);
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
    struct timespec t = {.tv_sec = (time_t)seconds,
                         .tv_nsec = (seconds - (time_t)seconds) * 1e9};
    int number = seconds > 0 ? sigtimedwait(&handled_signals, NULL, &t) : 0;
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
    double until = clock_of(CLOCK_MONOTONIC) + seconds, now;
    while (reap(0, NULL)) {
        if ((now = clock_of(CLOCK_MONOTONIC)) >= until || *told)
            return 1;
        int number = await(until - now);
        if (is_end(number))
            *told = number;
    }
    return 0;
}

/* Sends a signal to all descendants. Prints a line about each, if is_told. */
static void signal_left(int number, int is_told)
{
    struct scan s = all_processes();
    for (struct process *p = s.list; p < s.list + s.count; p++) {
        if (p->pid == getpid() || !comes_from(s, p->pid, getpid()))
            continue;
        if (is_told)
            dprintf(STDERR_FILENO, "plumbline-left %s {\"pid\": %d, \"name\": "
                    "\"%s\", \"uid\": %d}\n", host, p->pid, p->name,
                    owner(p->pid));
        kill(p->pid, number);
    }
    free(s.list);
}

/* Orphans of the program get LEFT_TIMEOUT to end, then they are killed. */
static void end_what_is_left(int *told)
{
    if (!any_left(LEFT_TIMEOUT, told))
        return;
    int ignored = 0;
    signal_left(SIGTERM, 1);
    if (!any_left(*told ? TERM_TIMEOUT / 4 : TERM_TIMEOUT, &ignored))
        return;
    /* More than once: they may fork meanwhile. */
    for (int round = 0; round < 40; round++) {
        signal_left(SIGKILL, 0);
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

/* Lets facts.sh write the node's facts, unless the file exists. */
static void keep_facts(char **words)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", words[0], host);
    if (access(path, F_OK) == 0)
        return;
    int pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);       /* which timeout passes on */
        execlp("timeout", "timeout", "20", "bash", words[1], words[2], words[3],
               path, (char *)NULL);
        _exit(127);
    }
    waitpid(pid, NULL, 0);
}

/* Until a signal ends it: the observer of a node beside the programs of its job. A
 * row of samples: seconds since 1970, then ticks of the CPUs that it may use. */
static void stay_beside(double interval, const char *name)
{
    char path[4096];
    cpu_set_t usable;
    FILE *to = NULL;
    if (interval > 0) {
        snprintf(path, sizeof path, "%s.%.*s.csv", name,
                 (int)strcspn(host, "."), host);
        if (!(to = fopen(path, "we")))
            fprintf(stderr, "%s: %s\n", path, strerror(errno));
        else
            fputs("at,user,system,idle,steal\n", to);
    }
    sched_getaffinity(0, sizeof usable, &usable);
    for (int number = 0; !is_end(number) && number != SIGUSR1;) {
        unsigned long long sum[4] = {0};
        if (to) {
            double at = read_machine(&usable, sum).clock;
            fprintf(to, "%.3f,%llu,%llu,%llu,%llu\n", at, sum[0], sum[1], sum[2],
                    sum[3]);
            fflush(to);
        }
        number = await(to ? interval : 3600);
    }
    if (to)
        fclose(to);
}

/* Starts the program, and waits for its end and that of its orphans. */
static int run_program(char **words, int launcher, int *told)
{
    int me = getpid(), pid = fork(), status = -1;
    if (pid < 0) {
        fprintf(stderr, "observe: %s\n", strerror(errno));
        exit(126);
    }
    if (pid == 0) {
        sigprocmask(SIG_SETMASK, &usual_signals, NULL);
        /* A signal to a rank is meant for its program. */
        if (!launcher && (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != me))
            _exit(1);
        execvp(words[0], words);
        fprintf(stderr, "%s: %s\n", words[0], strerror(errno));
        _exit(errno == ENOENT ? 127 : 126);
    }
    /* Noted for remove_session_folders.sh. */
    const char *path = launcher ? getenv("PLUMBLINE_LAUNCHERS") : NULL;
    FILE *file = path ? fopen(path, "ae") : NULL;
    if (file) {
        fprintf(file, "%d\n", pid);
        fclose(file);
    }
    while (reap(pid, &status) && status == -1) {
        int number = await(3600);
        if (is_end(number))
            *told = number;
        /* A launcher counts its signals: the second makes it drop all. It
         * is in our process group, which is what people signal. */
        if (number && number != SIGCHLD && !launcher)
            kill(pid, number);
    }
    end_what_is_left(told);
    return status;
}

static void report(struct reading begin, int status, int within, int beside,
                   const struct scan *before)
{
    char text[3000] = "";
    struct reading end = read_machine(NULL, NULL);
    FILE *to = fmemopen(text, sizeof text, "w");
    if (!to)
        return;
    fprintf(to, "plumbline-node %s {\"cpus\": %d, \"begin\": [%.3f, %.2f, %.2f, "
            "%.2f], \"end\": [%.3f, %.2f, %.2f, %.2f], \"clock\": [%.3f, %.3f], "
            "\"rc\": %d, \"own\": %.3f, \"scanned\": %s%s", host, end.cpus,
            begin.at, begin.busy, begin.irq, begin.steal, end.at, end.busy,
            end.irq, end.steal, begin.clock, end.clock, ended(status),
            spent(RUSAGE_CHILDREN) + spent(RUSAGE_SELF), before ? "true" : "false",
            within ? ", \"within\": true" : "");
    if (before)
        print_processes(to, *before, beside);
    fputs("}\n", to);
    fclose(to);
    /* In one piece: other ranks write there too. */
    dprintf(STDERR_FILENO, "%s", text);
}

int main(int argc, char **argv)
{
    static const int signals[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT,
                                  SIGUSR1, SIGUSR2};
    char **facts = NULL;
    const char *samples = "";
    double interval = 0;
    int launcher = 0, within = 0, beside = 0, parent = getppid(), told = 0, i = 1;
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
    gethostname(host, sizeof host - 1);
    tick = 1.0 / sysconf(_SC_CLK_TCK);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    sigemptyset(&handled_signals);
    for (size_t k = 0; k < sizeof signals / sizeof *signals; k++)
        sigaddset(&handled_signals, signals[k]);
    sigprocmask(SIG_BLOCK, &handled_signals, &usual_signals);

    int first = !launcher && !within && is_first(), status = 0;
    struct scan before = {0};
    if (first)
        before = all_processes();
    struct reading begin = read_machine(NULL, NULL);
    if (beside)
        stay_beside(interval, samples);
    else
        status = run_program(argv + i, launcher, &told);
    signal(SIGPIPE, SIG_IGN);
    if (!launcher)
        report(begin, status, within, beside, first ? &before : NULL);
    sigprocmask(SIG_SETMASK, &usual_signals, NULL);
    if (first && facts && !told)
        keep_facts(facts);
    if (WIFSIGNALED(status)) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    return ended(status);
}
