/* completion_logprobs: log-probabilities as the legacy Completions API has them: four lists of
 * equal length, of tokens, their values, their rivals, and where in the answer's text each begins.
 *
 * A token that is not a whole number of characters is shown as "bytes:\xe2\x80", as OpenAI does, so
 * that no two tokens look alike. Offsets count characters of the answer (its prompt is not in it);
 * a token that goes on a character begins where the character does. Zero-initialise to start; one
 * thread at a time. */
#ifndef TANDEM_ROUTER_COMPLETION_LOGPROBS_H
#define TANDEM_ROUTER_COMPLETION_LOGPROBS_H

#include "common/buf.h"
#include "router/request.h"
#include "router/tokenizer.h"

typedef struct completion_logprobs {
    td_buf tokens, values, top, offsets; /* insides of JSON arrays */
    size_t *waiting;                     /* bytes of text before tokens whose text is yet to come */
    size_t n_waiting, max_waiting;
    size_t bytes, chars; /* of text so far */
    bool oom;
} completion_logprobs;

void completion_logprobs_free(completion_logprobs *l);

/* Tokens, before the text that they are in. */
void completion_logprobs_push(completion_logprobs *l, const tokenizer *t,
                              const token_logprobs *list, size_t n);
/* The next text; n == 0 when the answer has ended. */
void completion_logprobs_text(completion_logprobs *l, td_slice text);

/* What has come since the last time, as a JSON object; "null" when that is nothing. */
void completion_logprobs_write(completion_logprobs *l, td_buf *out);

#endif
