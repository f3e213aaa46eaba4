/* observe.c - starts programs of a job, and watches its nodes.
 *
 *     observe                     until its standard input ends, then one line:
 *
 *         plumbline-others HOST {"cpus": of the machine, "running": of processes of
 *             the job that still run (launcher, servers), "kernel": of its threads,
 *             "seen": of all others, "busiest": [[name, uid, pid, seconds]...]}
 *
 *                                 CPU time in seconds; processes below its parent
 *                                 (rank.sh), which reports them, are in no sum
 *     observe --forward PROGRAM...
 *                                 runs it in a process group, and sends this group
 *                                 SIGTERM for SIGTERM, SIGINT, SIGHUP, SIGQUIT and
 *                                 SIGUSR1, of which the program gets SIGUSR1 itself,
 *                                 too; SIGTERM again every second, because a shell
 *                                 that starts a program takes what comes meanwhile;
 *                                 SIGKILL if its own parent dies (since Linux 5.3)
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
 *                                 the line before it has been read */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434      /* headers of a kernel before 5.3 */
#endif

int report_others(void);        /* others.c */

static pid_t child;

static void forward(int number)
{
    if (number == SIGUSR1)
        kill(child, SIGUSR1);
    kill(-child, SIGTERM);
    alarm(1);
}

static void wake_up(int number)
{
    (void)number;
}

static int run_in_group(char **command)
{
    static const int signals[] = {SIGTERM, SIGUSR1, SIGINT, SIGHUP, SIGQUIT};
    struct sigaction action = {.sa_handler = forward}, old;
    struct sigaction ended = {.sa_handler = wake_up};
    sigset_t held, before, waiting;
    int status;
    /* The process, where --tied has the thread that started this one: threads of
     * slurmstepd end earlier. */
    struct pollfd parent = {syscall(SYS_pidfd_open, getppid(), 0), POLLIN, 0};
    sigemptyset(&held);
    for (int k = 0; k < 5; k++)
        sigaddset(&held, signals[k]);
    sigaddset(&held, SIGCHLD), sigaddset(&held, SIGALRM);
    /* Held back until the program runs: before, they would be lost. */
    sigprocmask(SIG_BLOCK, &held, &before);
    sigaction(SIGCHLD, &ended, NULL);
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
    waiting = before;
    sigdelset(&waiting, SIGCHLD);
    while (!waitpid(child, &status, WNOHANG))
        if (ppoll(&parent, 1, NULL, &waiting) > 0) {
            kill(-child, SIGKILL);
            parent.fd = -1;
        }
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
    return report_others();
}
