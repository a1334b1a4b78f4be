/* tokenize_body: what /tokenize and /detokenize answer to a body, without HTTP and without a
 * router, so that it can run on any thread. The names are vLLM's.
 *
 * A "prompt" is ordinary text: what spells a special token is text. "messages" are read and
 * rendered exactly as /v1/chat/completions would. Unknown fields are ignored, as there.
 * Thread-safe. */
#ifndef TANDEM_ROUTER_TOKENIZE_BODY_H
#define TANDEM_ROUTER_TOKENIZE_BODY_H

#include "common/buf.h"
#include "common/status.h"
#include "router/harmony_render.h"
#include "router/openai.h"

/* What the loop knows and the thread that does the work does not. */
typedef struct tokenize_facts {
    openai_defaults defaults;
    const char *model;     /* the one that is served; "": not known yet, any is taken */
    int32_t max_model_len; /* 0: not known yet, shown as null */
} tokenize_facts;

/* body[n] must be NUL. Append the answer's JSON to *out; its oom is looked at. TD_INVALID with
 * err->param, TD_NOTFOUND (another model), TD_NOMEM; *out is then of no use. */
TD_MUST_CHECK td_status tokenize_text(const char *body, size_t n, const tokenize_facts *f,
                                      const harmony *h, td_buf *out, td_error *err);

/* {"tokens": [...]} -> {"prompt": text}. Special tokens come out by their names; bytes that are no
 * character as U+FFFD. */
TD_MUST_CHECK td_status tokenize_back(const char *body, size_t n, const tokenize_facts *f,
                                      const harmony *h, td_buf *out, td_error *err);

#endif
