/* openai_fields: fields of a body that change nothing here. Some are taken, because what they ask
 * for is what happens anyway or is of no matter to an answer; others are refused by name, unless
 * their value asks for nothing, because a client that sends them would be misled. Fields that
 * nobody knows are ignored, as OpenAI's own clients expect of other servers. Thread-safe. */
#ifndef TANDEM_ROUTER_OPENAI_FIELDS_H
#define TANDEM_ROUTER_OPENAI_FIELDS_H

#include <stddef.h>

#include <cjson/cJSON.h>

#include "common/status.h"

/* Which values of a field are taken, null and absent aside. */
typedef enum openai_only {
    ONLY_NOTHING,
    ONLY_FALSE,
    ONLY_TRUE,
    ONLY_ZERO,
    ONLY_ONE,
    ONLY_EMPTY,    /* a string, an array or an object */
    ONLY_TEXT,     /* ["text"] */
    ONLY_PLAIN,    /* "auto" or "default" */
    ONLY_DISABLED, /* "disabled" */
    ONLY_LEVEL,    /* "low", "medium" or "high" */
    ANY_BOOL,
    ANY_STRING,
    ANY_OBJECT,
} openai_only;

typedef struct openai_rule {
    const char *name;
    openai_only only;
    const char *why; /* what is said of other values, after "NAME is not supported: " */
} openai_rule;

/* TD_INVALID with the first field that breaks its rule. where: the object's own path, "" for the
 * body. */
TD_MUST_CHECK td_status openai_check_rules(const cJSON *object, const char *where,
                                           const openai_rule *rules, size_t n, td_error *err);

/* What /v1/chat/completions and /v1/completions have in common: fields of OpenAI's that have no
 * effect, or belong to /v1/responses, and sampling fields of other servers. */
TD_MUST_CHECK td_status openai_check_common(const cJSON *root, td_error *err);

/* What only /v1/chat/completions may have. */
TD_MUST_CHECK td_status openai_check_chat(const cJSON *root, td_error *err);

/* What only /v1/responses may have. */
TD_MUST_CHECK td_status openai_check_responses(const cJSON *root, td_error *err);

/* What only /v1/completions may have. */
TD_MUST_CHECK td_status openai_check_completion(const cJSON *root, td_error *err);

#endif
