/* config: a program's settings, all of them derived from one table.
 *
 *   typedef struct decode_config { uint32_t max_batch; char *model; ... } decode_config;
 *   static const td_option options[] = {
 *       {"max-batch", TD_OPT_U32, offsetof(decode_config, max_batch), "128", 1, 1024,
 *        "Requests in one decode step. More raises throughput and time per token.", NULL},
 *   };
 *
 * A value comes from, strongest first: the flag (--max-batch 64 or --max-batch=64), the environment
 * (TANDEM_MAX_BATCH), the JSON file named by --config or TANDEM_CONFIG ({"max-batch": 64}), the
 * table's default. A bad value names its source, itself and what is allowed. --help, --print-config
 * and --version come with every table. Call from main() before threads start; after that the struct
 * is const. Only those environment variables are looked at that the table names: a Kubernetes
 * Service called `tandem` would inject TANDEM_PORT, so pods set enableServiceLinks: false. */
#ifndef TANDEM_COMMON_CONFIG_H
#define TANDEM_COMMON_CONFIG_H

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"

/* How a value is written, and the type of the field that takes it. */
typedef enum td_opt_type {
    TD_OPT_U32,   /* 64                  uint32_t */
    TD_OPT_I64,   /* -64                 int64_t */
    TD_OPT_U64,   /* 64                  uint64_t */
    TD_OPT_F64,   /* 0.9                 double, finite */
    TD_OPT_BOOL,  /* true|false|1|0      bool; --x is --x=true, --no-x is --x=false */
    TD_OPT_STR,   /* any text            char *, owned by the struct */
    TD_OPT_ENUM,  /* a word of `words`   int32_t, or an enum of int's size: the word's index */
    TD_OPT_BYTES, /* 64MiB, 1.5GiB, 512  uint64_t; B KiB MiB GiB TiB; no unit: bytes */
    TD_OPT_DURATION_MS, /* 500ms, 5s, 2m, 1h   int64_t, milliseconds; only 0 needs no unit */
    TD_OPT_LIST         /* a,b,c               td_strlist, owned; empty text: empty list */
} td_opt_type;

typedef struct td_strlist {
    char **ptr;
    size_t len;
} td_strlist;

typedef struct td_option {
    const char *name; /* "max-batch": lower case, digits and single hyphens */
    td_opt_type type;
    size_t offset;            /* of the field in the program's struct */
    const char *def;          /* the default as a flag would spell it; NULL: must be given */
    double min, max;          /* numbers, bytes, ms; both 0: the type's whole range. TD_OPT_LIST:
                               * how many items */
    const char *help;         /* one or two sentences */
    const char *const *words; /* TD_OPT_ENUM: allowed words, NULL at the end; else NULL */
} td_option;

/* What the caller does after TD_OK. */
typedef enum td_config_action {
    TD_CONFIG_RUN,    /* *out is filled: go on */
    TD_CONFIG_EXIT_OK /* --help, --version or --print-config has printed to stdout: exit 0 */
} td_config_action;

/* Fill *out, which must be all zero, from argv, the environment, the file and the defaults.
 * purpose is one line for --help. On anything but TD_CONFIG_RUN *out holds no memory. TD_INVALID
 * (print err->text, exit 2) or TD_NOMEM. */
TD_MUST_CHECK td_status td_config_parse(const td_option *table, size_t n, const char *program,
                                        const char *purpose, int argc, char **argv, void *out,
                                        td_config_action *action, td_error *err);

/* Free the strings and lists of a filled (or zeroed) struct, and zero those fields. */
void td_config_free(const td_option *table, size_t n, void *out);

/* The reference page of a table, as a Markdown section; --help=markdown prints it. */
void td_config_markdown(const td_option *table, size_t n, const char *program, const char *purpose,
                        td_buf *b);

/* The two notations with units, for tools. false: *out is left alone. */
bool td_parse_bytes(const char *text, uint64_t *out);
bool td_parse_duration_ms(const char *text, int64_t *out);

#endif
