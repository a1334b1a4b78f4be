/* openai: the JSON of OpenAI's Chat Completions API, checked field by field into a generation.
 *
 * Every mistake is named by its field ("messages[2].content[0].type"), and what is understood but
 * not supported is refused by name rather than ignored. Unknown fields are ignored, as OpenAI's own
 * clients expect of other servers. An explicit null means absent. Thread-safe. */
#ifndef TANDEM_ROUTER_OPENAI_H
#define TANDEM_ROUTER_OPENAI_H

#include "common/status.h"
#include "router/generation.h"

enum {
    OPENAI_MAX_DEPTH = 64, /* nesting of the body, where nothing else is said */
    OPENAI_DEEPEST = 512,  /* the most that may be said: cJSON's parser recurses */
    /* Values in the body: a tree takes some 130 bytes for each, so that 8 MiB of "1,1,1" would take
     * half a gigabyte. Prompts of tokens are the longest lists, and a context has far fewer. */
    OPENAI_MAX_VALUES = 1 << 19,
    OPENAI_MAX_MEMBERS = 1024, /* of the body itself */
    OPENAI_MAX_MESSAGES = 4096,
    OPENAI_MAX_TOOLS = 512,
    OPENAI_MAX_STOP_BYTES = 4096,
};

typedef struct openai_defaults {
    const char *date; /* for the system message, "YYYY-MM-DD" or "" */
    bool allow_ignore_eos;
    int32_t vocab;                               /* ids of logit_bias are below it */
    uint32_t max_choices;                        /* the most that n may be; 0: 1 */
    uint32_t max_depth, max_messages, max_tools; /* 0: OPENAI_MAX_.. */
} openai_defaults;

/* Parse a /v1/chat/completions body. body[n] must be NUL (it is not read as part of the body). *g
 * is initialised here and to be freed by the caller whatever is returned. TD_INVALID with
 * err->param, TD_NOMEM. */
TD_MUST_CHECK td_status openai_parse_chat(const char *body, size_t n, const openai_defaults *d,
                                          generation *g, td_error *err);

#endif
