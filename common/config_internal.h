/* What config.c, config_value.c and config_help.c share; nobody else includes it. */
#ifndef TANDEM_COMMON_CONFIG_INTERNAL_H
#define TANDEM_COMMON_CONFIG_INTERNAL_H

#include "common/config.h"

typedef enum cfg_source { CFG_UNSET, CFG_DEFAULT, CFG_FILE, CFG_ENV, CFG_FLAG } cfg_source;

/* The text in force for one option, whichever source it came from. */
typedef struct cfg_text {
    char *text; /* owned */
    cfg_source source;
} cfg_text;

/* Put text into the option's field of *out. On TD_INVALID the field is untouched and err->text says
 * what was wrong with the value and what is allowed, without saying where it came from. */
TD_MUST_CHECK td_status cfg_value_set(const td_option *o, const char *text, void *out,
                                      td_error *err);
void cfg_value_free(const td_option *o, void *out);

/* Append "a whole number from 1 to 1024", for messages and help. */
void cfg_value_describe(const td_option *o, td_buf *b);
/* "N", "SIZE", "a|b" ... for the usage line. */
void cfg_value_usage(const td_option *o, td_buf *b);

/* The option that was probably meant by a name that is none, or NULL when none is near. */
const char *cfg_nearest(const td_option *table, size_t n, const char *name, size_t len);

/* TD_INVALID: a variable that was meant for this program, and would be passed over without a word.
 * Those of the other programs, of which one file of variables may have all, are never that near. */
TD_MUST_CHECK td_status cfg_check_environment(const td_option *table, size_t n, td_error *err);

/* Append "TANDEM_MAX_BATCH". */
void cfg_env_name(const char *option, td_buf *b);

void cfg_help(const td_option *table, size_t n, const char *program, const char *purpose,
              td_buf *b);
/* file: the config file that was read, NULL if none. */
void cfg_print(const td_option *table, size_t n, const cfg_text *texts, const char *file,
               td_buf *b);

#endif
