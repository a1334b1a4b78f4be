/* openai_fixture: parses Chat Completions bodies as a router with a vocabulary of 1,000 ids would.
 */
#ifndef TANDEM_TESTS_UNIT_OPENAI_FIXTURE_H
#define TANDEM_TESTS_UNIT_OPENAI_FIXTURE_H

#include "common/buf.h"
#include "router/openai.h"

/* Members of a body, to be joined to others. */
#define FORMAT(spec) "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":" spec "}"
#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

/* openai_parse_chat() of n bytes; *g is the caller's, to generation_free() where it is TD_OK. */
td_status parse_n(const char *body, size_t n, bool ignore_eos, generation *g, td_error *err);
td_status parse(const char *body, generation *g, td_error *err); /* with ignore_eos allowed */

/* `members` beside one user message; must be fine. */
void parse_with(const char *members, generation *g);

/* A body of n bytes is refused: `param` is what is at fault, and the text has `says` in it. */
void check_bad(const char *body, size_t n, const char *param, const char *says);

/* `text` so many times over, at the end of b. */
void fill(td_buf *b, const char *text, size_t times);

void assert_text(td_slice s, const char *text);

#endif
