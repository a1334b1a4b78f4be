/* generation: what a client asked for, whatever door it came through. Filled and checked field by
 * field by openai.c; read-only from then on. Owns its chat and its copies of text. */
#ifndef TANDEM_ROUTER_GENERATION_H
#define TANDEM_ROUTER_GENERATION_H

#include <stdbool.h>
#include <stdint.h>

#include "common/sampling.h"
#include "router/chat.h"
#include "router/harmony_render.h"

enum { GENERATION_MAX_STOPS = 4, GENERATION_MAX_BIAS = 1024, GENERATION_MAX_CHOICES = 64 };

typedef struct generation {
    chat chat; /* empty when raw */
    /* Tokens in, text out, without Harmony on either side: raw_tokens, or raw_text to encode when
     * there are none. */
    bool raw;
    td_tokens raw_tokens;
    td_slice raw_text; /* memory of the chat */
    td_slice model;    /* as the client named it; memory of the chat */
    float temperature; /* 0 .. 2; default 1 */
    float top_p;       /* (0, 1]; default 1 */
    int32_t top_k;     /* 0: off */
    bool has_seed;
    uint64_t seed;       /* when !has_seed the request draws one */
    uint32_t max_tokens; /* 0: as many as the context has room for */
    td_slice stop[GENERATION_MAX_STOPS];
    size_t n_stop;
    bool ignore_eos; /* load tests: go on past the stop tokens, to max_tokens */

    float presence, frequency; /* penalties, -2 .. 2, on the tokens of the answer so far */
    td_token_bias *bias;       /* [n_bias] no token twice */
    size_t n_bias;
    bool logprobs;        /* of the content's tokens */
    int32_t top_logprobs; /* 0 .. TD_TOP_LOGPROBS */

    uint32_t n; /* answers to this one question, 1 .. GENERATION_MAX_CHOICES; default 1 */

    struct guided *guide; /* what the answer is held to, once generation_guide() has made it */

    bool hide_reasoning; /* it is made and counted, and not sent */
    bool stream;         /* how the answer goes out; of no interest to the request itself */
    bool include_usage;
} generation;

void generation_init(generation *g);
void generation_free(generation *g); /* NULL is fine */

/* Whether a client that names a model (empty: it does not) means the one that is served ("": not
 * known yet, any will do). TD_NOTFOUND. */
TD_MUST_CHECK td_status generation_check_model(td_slice wanted, const char *served, td_error *err);

/* Make g->guide of the chat's tools, tool_choice and format, or leave it NULL where the answer is
 * free. TD_INVALID: fields that cannot be together with it. TD_NOMEM. */
TD_MUST_CHECK td_status generation_guide(generation *g, td_error *err);

/* Append the prompt to *out; on failure *out is as it was. Thread-safe. As harmony_render(); also
 * TD_INVALID for a schema of the guide that cannot be enforced. */
TD_MUST_CHECK td_status generation_render(const generation *g, const harmony *h, td_tokens *out,
                                          td_error *err);

#endif
