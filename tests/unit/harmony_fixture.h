/* What the tests of the Harmony format, its fuzz target and its golden driver share: vocabularies,
 * conversations from JSON, and a sink that writes down what it is sent. */
#ifndef TANDEM_TESTS_HARMONY_FIXTURE_H
#define TANDEM_TESTS_HARMONY_FIXTURE_H

#include <cjson/cJSON.h>

#include "router/chat.h"
#include "router/harmony_parse.h"
#include "router/harmony_render.h"
#include "router/tokenizer.h"

#ifndef HARMONY_DATA /* set by what does not run from the root of the source */
#define HARMONY_DATA "tests/data/harmony/"
#endif

/* The small vocabulary of tests/data/harmony, opened once; aborts when it cannot be. */
const harmony *fixture_harmony(void);

/* The model's own vocabulary, from the file that TANDEM_O200K names; NULL when that is not set. */
const harmony *fixture_o200k(void);

/* Another harmony over the same tokenizer, to be closed. */
harmony *fixture_with(const harmony *h, const harmony_options *options);

int fixture_tear_down(void **state); /* cmocka's group teardown: closes both */

/* The whole file, NUL-terminated, to be freed; aborts when it cannot be read. */
char *fixture_read(const char *path, size_t *n);

/* Parse a document and keep the spelling of its numbers. NULL when it is not JSON. */
cJSON *fixture_json(const char *text, size_t n);

/* An OpenAI request body as a chat: the fields that the renderer reads, without validation. The
 * trees of schemas are copied. Further fields for tests: "date", "identity", "cutoff", "channels",
 * "builtin_tools" (an array of "browser" and "python"), "continue_final". */
void fixture_chat(chat *c, const cJSON *body);

/* Tokens of a text in which control tokens are spelled out. */
td_tokens fixture_tokens(const harmony *h, const char *text);

/* The same text with a token for each byte, which the small vocabulary has as its first 256:
 * whatever the cuts, an answer must stay the same. */
td_tokens fixture_bytes(const harmony *h, const td_tokens *ids);

/* The other way, to be freed with td_buf_free(). */
td_buf fixture_text(const harmony *h, const td_tokens *ids);

typedef struct record_call {
    td_buf name, arguments;
    bool ended, complete;
} record_call;

/* What a parser sent. */
typedef struct record {
    td_buf reasoning, content;
    record_call calls[64];
    size_t n_calls;
    td_buf events;    /* "R:text" "C:text" "B0:name" "A0:text" "E:R1", a line each */
    bool half_text;   /* an event held a half character, or nothing */
    bool out_of_turn; /* an event for a call that is not open */
    const char *finish_reason;
    harmony_stats stats;
} record;

extern const harmony_sink record_sink; /* user is a record */
void record_fini(record *r);

/* Push ids until the parser says it is over, then finish. */
void record_run(record *r, const harmony *h, const chat *c, const int32_t *ids, size_t n,
                harmony_end end);

#endif
