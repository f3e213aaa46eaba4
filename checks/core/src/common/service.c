/* service.c - see service.h. */
#include "service.h"
#include "options.h"
#include "program.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool add_server(struct service *s, const char *where)
{
    if (!s->servers
        && !(s->servers = calloc(MAX_SERVERS, sizeof *s->servers)))
        fail("no memory for %d servers", MAX_SERVERS);
    if (s->count == MAX_SERVERS)
        usage("at most %d servers", MAX_SERVERS);
    return resolve(&s->servers[s->count++], where, s->family);
}

/* HOST PORT or unix:PATH */
static bool add_line(struct service *s, const char *text)
{
    char host[256], port[32], where[300];
    int end = 0;

    if (sscanf(text, "%255s %31s%n", host, port, &end) == 2 && !text[end]) {
        snprintf(where, sizeof where, "%s:%s", host, port);
        return add_server(s, where);
    }
    return !strncmp(text, "unix:", 5) && add_server(s, text);
}

static bool read_line(struct service *s, const char *word, const char *rest)
{
    const struct { const char *name; bool *flag; } flags[] = {
        {"cluster", &s->cluster}, {"gate", &s->gate}};
    const struct { const char *name, **text; } texts[] = {
        {"user", &s->user}, {"password", &s->password}};

    if (!strcmp(word, "server"))
        return add_line(s, rest);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (!strcmp(word, flags[i].name) && !*rest)
            return *flags[i].flag = true;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!strcmp(word, texts[i].name) && *rest) {
            *texts[i].text = copy_of(rest);
            return true;
        }
    return false;
}

void read_service(struct service *s, FILE *file, const char *name)
{
    char line[2048];

    for (int n = 1; fgets(line, sizeof line, file); n++) {
        line[strcspn(line, "\r\n")] = '\0';
        if (!line[0] || line[0] == '#')
            continue;
        char *rest = line + strcspn(line, " ");
        if (*rest)
            *rest++ = '\0';
        /* It may be the password, so it is not shown. */
        if (!read_line(s, line, rest))
            usage("%s:%d: not a line of a service file: see --help", name, n);
    }
}

void open_service(struct service *s, const char *path)
{
    FILE *file = fopen(path, "r");

    if (!file)
        usage("--service %s: %s", path, strerror(errno));
    read_service(s, file, path);
    fclose(file);
}

void pass_gate(void)
{
    char go[3];
    size_t have = 0;

    fputs("ready\n", stderr);
    while (have < sizeof go) {
        ssize_t more = read(STDIN_FILENO, go + have, sizeof go - have);
        if (more <= 0)
            fail("standard input was closed before the start");
        have += (size_t)more;
    }
    if (memcmp(go, "go\n", sizeof go))
        fail("the word for the start is not 'go'");
}
