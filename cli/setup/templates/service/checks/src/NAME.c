/* NAME.c - a server that sends back what it gets, and a client that waits
 * for each answer and compares it.
 * Usage: NAME serve ADDRESS PORT | NAME ask ADDRESS PORT SECONDS */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int failed(const char *what)
{
    perror(what);
    return 1;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static int serve(int door)                 /* one client at a time         */
{
    char word[8];
    for (;;) {
        int peer = accept(door, NULL, NULL);
        if (peer < 0)
            return failed("NAME: accept");
        for (ssize_t n; (n = read(peer, word, sizeof word)) > 0;)
            if (write(peer, word, n) != n)
                break;
        close(peer);
    }
}

static int ask(int server, double seconds)
{
    long number = 0, answer;
    double begin = now();
    do {
        number++;
        if (write(server, &number, sizeof number) != sizeof number)
            return failed("NAME: write");
        if (recv(server, &answer, sizeof answer, MSG_WAITALL)
                != sizeof answer)
            return failed("NAME: the server has gone");
        if (answer != number)
            return fprintf(stderr, "NAME: another answer came\n"), 1;
    } while (now() - begin < seconds);
    printf("# NAME 1.0\nanswers %.1f 1/s\n", number / (now() - begin));
    return 0;
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    int on = 1, end = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (argc < 4 || inet_pton(AF_INET, argv[2], &at.sin_addr) != 1)
        return fprintf(stderr, "usage: NAME serve ADDRESS PORT | "
                       "NAME ask ADDRESS PORT SECONDS\n"), 2;
    at.sin_port = htons(atoi(argv[3]));
    setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (strcmp(argv[1], "serve") == 0) {
        setsockopt(end, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(end, (void *)&at, sizeof at) || listen(end, 16))
            return failed("NAME: bind");
        return serve(end);
    }
    if (connect(end, (void *)&at, sizeof at))
        return failed("NAME: connect");
    return ask(end, argc > 4 ? atof(argv[4]) : 2);
}
