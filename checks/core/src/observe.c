/* observe.c - CPU time of other programs on a node. Reads /proc, and needs no rights.
 *
 *     observe                     until its standard input ends, then one line:
 *
 *         plumbline-others HOST {"cpus": of the machine, "running": of processes of
 *             the job that still run (launcher, servers), "kernel": of its threads,
 *             "seen": of all others, "busiest": [[name, uid, pid, seconds]...]}
 *
 *     observe --forward PROGRAM...
 *                                 runs it in a process group, and sends this group
 *                                 SIGTERM for SIGTERM, SIGINT, SIGHUP, SIGQUIT and
 *                                 SIGUSR1, of which the program gets SIGUSR1 itself,
 *                                 too; SIGTERM again every second, because a shell
 *                                 that starts a program takes what comes meanwhile
 *     observe --tied SIGNAL PARENT PROGRAM...
 *                                 becomes the program, which gets SIGNAL when the
 *                                 process PARENT dies (0: its parent)
 *     observe --wait [SECONDS FILE]
 *                                 prints `ready` and waits for SIGTERM. FILE.HOST.csv
 *                                 gets a row every SECONDS: seconds since 1970, then
 *                                 ticks of the CPUs that it may use: in user mode, in
 *                                 the system (with interrupts), idle, stolen
 *                                 (/proc/stat, proc(5))
 *     observe --tick MS           a line on standard output every MS milliseconds, if
 *                                 the line before it has been read
 *
 * Unit: seconds. Processes below the parent (rank.sh), which reports them, are in no
 * sum. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
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

static int by_time(const void *a, const void *b)
{
    double more = ((const struct process *)b)->others
                  - ((const struct process *)a)->others;
    return more > 0 ? 1 : -(more < 0);
}

static struct process *find(struct scan s, int pid)
{
    return bsearch(&(struct process){.pid = pid}, s.list, s.count, sizeof *s.list,
                   by_pid);
}

/* Whether a process has the mark of measure.sh; those of others cannot be read. */
static int is_marked(int pid)
{
    static char text[1 << 17], mark[64] = "PLUMBLINE_JOB=";
    const char *job = getenv("PLUMBLINE_JOB");
    ssize_t size = job ? read_file_of(pid, "environ", text, sizeof text) : -1;
    snprintf(mark + 14, sizeof mark - 14, "%s", job ? job : "");
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

static void print_others(struct scan before, struct scan after)
{
    double running = 0, kernel = 0, seen = 0, tick = 1.0 / sysconf(_SC_CLK_TCK);
    char host[256] = "", text[1000];
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
    qsort(after.list, after.count, sizeof *after.list, by_time);
    gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "plumbline-others %s {\"cpus\": %ld, "
                     "\"running\": %.2f, \"kernel\": %.2f, \"seen\": %.2f, "
                     "\"busiest\": [", host, sysconf(_SC_NPROCESSORS_ONLN), running,
                     kernel, seen);
    for (int k = 0; k < 5 && (size_t)k < after.count && after.list[k].others; k++) {
        struct process *p = after.list + k;
        struct stat about = {.st_uid = -1};
        char path[32];
        snprintf(path, sizeof path, "/proc/%d", p->pid);
        stat(path, &about);
        n += snprintf(text + n, sizeof text - n, "%s[\"%s\", %d, %d, %.2f]",
                      k ? ", " : "", p->name, (int)about.st_uid, p->pid, p->others);
    }
    /* In one piece: ranks write there, too. */
    dprintf(STDERR_FILENO, "%s]}\n", text);
}

static pid_t child;

static void forward(int number)
{
    if (number == SIGUSR1)
        kill(child, SIGUSR1);
    kill(-child, SIGTERM);
    alarm(1);
}

static int run_in_group(char **command)
{
    static const int signals[] = {SIGTERM, SIGUSR1, SIGINT, SIGHUP, SIGQUIT};
    struct sigaction action = {.sa_handler = forward}, old;
    sigset_t held, before;
    int status;
    sigemptyset(&held);
    for (int k = 0; k < 5; k++)
        sigaddset(&held, signals[k]);
    /* Held back until the program runs: before, they would be lost. */
    sigprocmask(SIG_BLOCK, &held, &before);
    if (!(child = fork())) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGTERM, SIG_DFL), signal(SIGUSR1, SIG_DFL);
        sigprocmask(SIG_SETMASK, &before, NULL);
        execvp(command[0], command);
        perror(command[0]);
        _exit(127);
    }
    setpgid(child, child);
    /* What is ignored (nohup, ^C in the background of a shell) stays so, but for the
     * signals that end a job. */
    for (int k = 0; k < 5; k++)
        if (!sigaction(signals[k], NULL, &old) && (k < 2 || old.sa_handler != SIG_IGN))
            sigaction(signals[k], &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    while (waitpid(child, &status, 0) < 0)
        ;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* A row of the CPUs that this process may use. */
static void print_row(FILE *file)
{
    unsigned long long sums[4] = {0}, v[8];
    char line[512];
    struct timespec now;
    cpu_set_t usable;
    int cpu;
    FILE *stat = fopen("/proc/stat", "r");
    sched_getaffinity(0, sizeof usable, &usable);
    clock_gettime(CLOCK_REALTIME, &now);
    while (stat && fgets(line, sizeof line, stat))
        if (sscanf(line, "cpu%d %llu %llu %llu %llu %llu %llu %llu %llu", &cpu, v, v + 1,
                   v + 2, v + 3, v + 4, v + 5, v + 6, v + 7) == 9
            && cpu < CPU_SETSIZE && CPU_ISSET(cpu, &usable)) {
            sums[0] += v[0] + v[1], sums[1] += v[2] + v[5] + v[6];
            sums[2] += v[3] + v[4], sums[3] += v[7];
        }
    if (stat)
        fclose(stat);
    fprintf(file, "%lld.%06ld,%llu,%llu,%llu,%llu\n", (long long)now.tv_sec,
            now.tv_nsec / 1000, sums[0], sums[1], sums[2], sums[3]);
    fflush(file);
}

static int wait_for_sigterm(double seconds, const char *name)
{
    struct timespec interval = {seconds, (seconds - (long)seconds) * 1e9};
    char host[256] = "", path[4096];
    FILE *file = NULL;
    sigset_t end;
    sigemptyset(&end);
    sigaddset(&end, SIGTERM);
    sigprocmask(SIG_BLOCK, &end, NULL);
    /* Some launchers signal all processes of a rank. */
    signal(SIGUSR1, SIG_IGN);
    if (name) {
        gethostname(host, sizeof host - 1);
        host[strcspn(host, ".")] = 0;
        snprintf(path, sizeof path, "%s.%s.csv", name, host);
        if (!(file = fopen(path, "w"))) {
            perror(path);
            return 1;
        }
        fprintf(file, "at,user,system,idle,steal\n");
    }
    dprintf(STDOUT_FILENO, "ready\n");
    do
        if (file)
            print_row(file);
    while (sigtimedwait(&end, NULL, file ? &interval : NULL) < 0);
    return file && fclose(file);
}

static int print_ticks(int ms)
{
    for (int unread; !usleep(ms * 1000);)
        if (ioctl(STDOUT_FILENO, FIONREAD, &unread)
            || (!unread && write(STDOUT_FILENO, "\n", 1) < 0))
            break;
    return 1;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--wait"))
        return argc > 3 ? wait_for_sigterm(atof(argv[2]), argv[3])
                        : wait_for_sigterm(0, NULL);
    if (argc > 2 && !strcmp(argv[1], "--tick"))
        return print_ticks(atoi(argv[2]));
    if (argc > 2 && !strcmp(argv[1], "--forward"))
        return run_in_group(argv + 2);
    if (argc > 4 && !strcmp(argv[1], "--tied")) {
        int parent = atoi(argv[3]) ? atoi(argv[3]) : getppid();
        if (prctl(PR_SET_PDEATHSIG, atoi(argv[2])) || getppid() != parent)
            return 143;
        execvp(argv[4], argv + 4);
        perror(argv[4]);
        return 127;
    }
    struct scan before = all_processes();
    for (char end; read(STDIN_FILENO, &end, 1) > 0;)
        ;
    print_others(before, all_processes());
    return 0;
}
