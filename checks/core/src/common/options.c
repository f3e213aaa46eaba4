/* options.c - see options.h. */
#include "options.h"
#include "program.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *before(const struct settings *s, const struct setting *row)
{
    return *row->name == '-' ? "" : s->before;
}

char *copy_of(const char *text)
{
    char *copy = strdup(text);

    if (!copy)
        fail("no memory");
    return copy;
}

const struct setting *find_setting(const struct settings *s,
                                   const char *name, size_t size)
{
    for (const struct setting *row = s->rows; row < s->rows + s->count; row++)
        if (row->type != TITLE && strlen(row->name) == size
            && memcmp(row->name, name, size) == 0)
            return row;
    return NULL;
}

bool is_given(const struct settings *s, const char *name)
{
    return s->given[find_setting(s, name, strlen(name)) - s->rows];
}

/* --- values -------------------------------------------------------------- */
size_t bytes_from(const char *text, char **end)
{
    static const char units[] = "KMG", small[] = "kmg";
    unsigned long long value;

    errno = 0;
    value = strtoull(text, end, 10);
    if (*end == text || errno || *text == '-')
        return 0;
    for (int i = 0; units[i]; i++)
        if (**end == units[i] || **end == small[i]) {
            int shift = 10 * (i + 1);
            (*end)++;
            return value > SIZE_MAX >> shift ? 0 : value << shift;
        }
    return value;
}

static double number(const struct settings *s, const struct setting *row,
                     const char *text)
{
    char *end;
    double value = row->type == SIZE ? (double)bytes_from(text, &end)
                                     : strtod(text, &end);

    if (end == text || *end || !isfinite(value) || value < row->low
        || value > row->high || (row->type != REAL && value != floor(value)))
        usage("%s%s %s: expected %s from %.15g to %.15g", before(s, row),
              row->name, text, row->type == REAL ? "a number" :
              row->type == SIZE ? "a size in bytes (K, M, G: powers of 1024)"
              : "a whole number", row->low, row->high);
    return value;
}

static unsigned choice(const struct settings *s, const struct setting *row,
                       const char *text)
{
    unsigned i = 0;

    while (row->choices[i] && strcmp(row->choices[i], text))
        i++;
    if (!row->choices[i])
        usage("%s%s %s: unknown; see --help", before(s, row), row->name,
              text);
    return i;
}

void set_value(const struct settings *s, const struct setting *row,
               const char *text)
{
    switch (row->type) {
    case WORD:
        *(const char **)row->target = text;
        break;
    case CALL:
        row->call(text);
        break;
    case COUNT:
        *(unsigned *)row->target = (unsigned)number(s, row, text);
        break;
    case LONG:
    case SIZE:
        *(uint64_t *)row->target = (uint64_t)number(s, row, text);
        break;
    case REAL:
        *(double *)row->target = number(s, row, text);
        break;
    case CHOICE:
        *(unsigned *)row->target = choice(s, row, text);
        break;
    default:
        break;
    }
}

/* --- the command line ---------------------------------------------------- */
void read_arguments(const struct settings *s, int argc, char **argv)
{
    for (int a = 1; a < argc; a++) {
        const char *name = argv[a];
        if (!strncmp(name, "--", 2))
            name += 2;
        else if (*name != '-')
            usage("unknown option %s: see --help", argv[a]);
        size_t size = strcspn(name, "=");
        const struct setting *row = find_setting(s, name, size);
        if (!row)
            usage("unknown option %s: see --help", argv[a]);
        const char *value = name[size] ? name + size + 1 : NULL;
        bool *given = &s->given[row - s->rows];
        if (*given && row->type != CALL)
            usage("%s%s is given twice", before(s, row), row->name);
        *given = true;
        if (row->type == FLAG) {
            if (value)
                usage("%s%s takes no value", before(s, row), row->name);
            if (row->target)
                *(bool *)row->target = true;
        } else if (value || (value = argv[++a])) {
            set_value(s, row, value);
        } else {
            usage("%s%s needs a value: see --help", before(s, row),
                  row->name);
        }
    }
}

/* --- help ---------------------------------------------------------------- */
enum { COLUMN = 25, WIDTH = 78 };

static void print_setting(const struct settings *s, const struct setting *row)
{
    char left[80];
    const char *between = !row->value && !row->choices ? ""
                          : *row->name == '-' ? " " : s->between;
    int n = snprintf(left, sizeof left, "%s%s%s%s", before(s, row), row->name,
                     between, row->value ? row->value : "");

    for (int i = 0; row->choices && row->choices[i]; i++)
        n += snprintf(left + n, sizeof left - (size_t)n, "%s%s",
                      i ? "|" : "", row->choices[i]);
    printf("  %-*s", COLUMN - 2, left);
    if (n > COLUMN - 3)
        printf("\n%-*s", COLUMN, "");
    int column = COLUMN;
    for (const char *word = row->help; *word;) {
        int size = (int)strcspn(word, " ");
        if (column + size > WIDTH)
            column = printf("\n%-*s", COLUMN, "") - 1;
        column += printf("%.*s%s", size, word, word[size] ? " " : "");
        word += size + (word[size] == ' ');
    }
    putchar('\n');
}

void print_settings(const struct settings *s)
{
    for (const struct setting *row = s->rows; row < s->rows + s->count; row++)
        if (row->type == TITLE)
            printf("\n%s:\n", row->name);
        else
            print_setting(s, row);
}
