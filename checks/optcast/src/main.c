/* main.c - starts a server or a client. */
#define _GNU_SOURCE
#include "optcast.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = 0;
    take_options(argc, argv);
    if (o.client)
        return run_client();
    trace_open(o.trace);
    return serve();
}
