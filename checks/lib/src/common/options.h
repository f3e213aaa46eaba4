/*
 * options.h - a command line from one table of all options, with help and
 * bounds.
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

enum setting_type {
    TITLE,              /* of the options that follow; only in the help    */
    FLAG,               /* bool; target NULL: see is_given()               */
    WORD,               /* const char *                                    */
    CALL,               /* `call` gets each value; may be repeated         */
    COUNT, LONG, REAL,  /* unsigned (or an int >= 0), uint64_t, double     */
    SIZE,               /* uint64_t in bytes; K, M and G are powers of 1024 */
    CHOICE              /* unsigned: the index of a word in `choices`      */
};
struct setting {
    const char *name;   /* without dashes; a short one as it is: "-n"      */
    const char *value, *help;
    enum setting_type type;
    void *target;
    double low, high;
    const char *const *choices;
    void (*call)(const char *text);
};
struct settings {
    const struct setting *rows;
    int count;
    bool *given;                     /* one per row                       */
    const char *before, *between;    /* "--" and " ": how a name is shown */
};

const struct setting *find_setting(const struct settings *s,
                                   const char *name, size_t size);
bool is_given(const struct settings *s, const char *name);
/* Both end with usage() if the words are wrong. */
void set_value(const struct settings *s, const struct setting *row,
               const char *text);
/* `--name value`, `--name=value`, and short ones as they are. */
void read_arguments(const struct settings *s, int argc, char **argv);
void print_settings(const struct settings *s);
/* Bytes, with K, M or G; 0: not a size. *end is behind it. */
size_t bytes_from(const char *text, char **end);
/* A copy that lasts as long as the program. */
char *copy_of(const char *text);

#endif
