/* Names that are nearly those of options. */
#include "common/config_internal.h"

#include <ctype.h>
#include <stdint.h>
#include <string.h>

enum { MOST_SLIPS = 2 }; /* letters that a variable's name may be off and still be meant */

extern char **environ;

/* Edits (insert, delete, replace) between a and b; names are short, long ones count as far. */
static size_t edit_distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t row[64];

    if (nb >= sizeof row / sizeof *row)
        return SIZE_MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[nb];
}

const char *cfg_nearest(const td_option *table, size_t n, const char *name, size_t len)
{
    static const char *const fixed[] = {"config", "print-config", "help", "version"};
    const char *best = NULL;
    size_t least = len / 3 + 2; /* farther than this is a guess, not a slip */

    for (size_t i = 0; i < n + 4; i++) {
        const char *option = i < n ? table[i].name : fixed[i - n];
        size_t d = edit_distance(name, len, option, strlen(option));

        if (d > 0 && d < least) { /* 0: an option, but not here */
            least = d;
            best = option;
        }
    }
    return best;
}

/* The variable of this option or of the config file that the name, behind TANDEM_, is a slip of;
 * NULL: it is one of them, or nothing that comes near. */
static const char *slip_of(const td_option *table, size_t n, const char *name, size_t len)
{
    const char *found = NULL;
    char spelled[64];

    if (len < 5 || len >= sizeof spelled) /* of short names too many are near */
        return NULL;
    for (size_t i = 0; i < len; i++)
        spelled[i] = name[i] == '_' ? '-' : (char)tolower((unsigned char)name[i]);
    for (size_t i = 0; i <= n; i++) {
        const char *option = i < n ? table[i].name : "config";
        size_t d = edit_distance(spelled, len, option, strlen(option));
        td_buf env = {0};
        bool same;

        if (d > MOST_SLIPS)
            continue;
        cfg_env_name(option, &env);
        same = !env.oom && strlen(env.ptr + 7) == len && memcmp(env.ptr + 7, name, len) == 0;
        td_buf_free(&env);
        if (same)
            return NULL;
        found = option;
    }
    return found;
}

td_status cfg_check_environment(const td_option *table, size_t n, td_error *err)
{
    for (char **e = environ; *e != NULL; e++) {
        size_t len = strcspn(*e, "=");
        const char *meant =
            strncmp(*e, "TANDEM_", 7) == 0 ? slip_of(table, n, *e + 7, len - 7) : NULL;
        td_buf env = {0};

        if (meant == NULL)
            continue;
        cfg_env_name(meant, &env);
        td_fail(err, TD_INVALID, "environment %.*s: no such option; did you mean %s?", (int)len, *e,
                env.ptr ? env.ptr : meant);
        td_buf_free(&env);
        return TD_INVALID;
    }
    return TD_OK;
}
