/* grammar: which byte strings a part of an answer may be, and which tokens may come next in one.
 *
 * A grammar is made from a JSON Schema (README, "Schemas", lists the keywords), from plain strings,
 * or from other grammars. A matcher is a place in it: bytes are accepted one token at a time, and a
 * mask says for every token of a vocabulary whether its bytes may follow. Masks are exact: a token
 * is in the mask if and only if td_matcher_accept() would take its bytes, and what was accepted can
 * always be carried to a whole string (by single bytes, so a vocabulary should have them all).
 *
 * JSON is written compactly or with bounded white space: after { [ , : and before } ] there may be
 * one space, or a line break and up to 32 spaces. Properties come in the order of the schema.
 *
 * Grammars and token sets are immutable and may be shared between threads; what they remember about
 * masks is locked inside. A matcher belongs to one thread. Both must outlive the matchers made from
 * them, and a token set the grammars that were used with it. */
#ifndef TANDEM_COMMON_GRAMMAR_H
#define TANDEM_COMMON_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"

typedef struct td_grammar td_grammar;
typedef struct td_token_set td_token_set; /* a vocabulary as a trie of bytes; one a process */
typedef struct td_matcher td_matcher;

enum { TD_GRAMMAR_MAX_SCHEMA = 1 << 20 }; /* bytes of a schema's text */

/* Values of a JSON Schema: schema[0..length) is the text of a JSON object, at most
 * TD_GRAMMAR_MAX_SCHEMA bytes. *out is set on success only and is the caller's, to
 * td_grammar_free(). TD_INVALID: not JSON, a keyword that is not supported, a schema that no value
 * matches or that needs too many states; the text names the keyword and where it stands
 * ("#/properties/a: 'not' is not supported"). TD_NOMEM. */
TD_MUST_CHECK td_status td_grammar_from_schema(const char *schema, size_t length, td_grammar **out,
                                               td_error *err);

/* Any JSON object (response_format json_object, arguments of a tool that is not strict). *out as
 * above. TD_NOMEM, as all that follow where nothing else is said. */
TD_MUST_CHECK td_status td_grammar_any_object(td_grammar **out, td_error *err);

/* Any JSON value. */
TD_MUST_CHECK td_status td_grammar_any_value(td_grammar **out, td_error *err);

/* One of n >= 1 byte strings; none may be empty. They are copied. */
TD_MUST_CHECK td_status td_grammar_from_strings(const td_slice *strings, size_t n, td_grammar **out,
                                                td_error *err);

/* NULL is fine. No matcher may still use it. */
void td_grammar_free(td_grammar *g);

/* Compute masks of states ahead, so that no token has to wait for them, for at most budget_us; the
 * rest are computed when they are met. From any thread; meant for one that no token waits for. */
void td_grammar_prepare(const td_grammar *g, const td_token_set *tokens, int64_t budget_us);

/* Bytes of the masks that are remembered, of all grammars and token sets of the process; and how
 * many that may be: past it masks are made for one use. Any thread. */
enum { TD_GRAMMAR_MASK_BYTES = 512 << 20 };
size_t td_grammar_mask_bytes(void);
void td_grammar_limit_masks(size_t bytes);

/* How many states the grammar has; for logs and bounds on what a cache of grammars holds. */
size_t td_grammar_states(const td_grammar *g);

/* pieces[i], lengths[i]: the bytes of token i, copied. Length 0: no matcher ever allows that token
 * (special ids, holes). Lengths up to 4,096. TD_INVALID, TD_NOMEM. Some 0.3 s for 200,000 tokens.
 */
TD_MUST_CHECK td_status td_token_set_create(const uint8_t *const *pieces, const uint32_t *lengths,
                                            int n, td_token_set **out, td_error *err);
void td_token_set_free(td_token_set *tokens); /* NULL is fine */

/* The words of a mask, (n + 31) / 32 for the n that it was made with. */
size_t td_token_set_words(const td_token_set *tokens);

/* At the start of g. tokens may be NULL when no mask will be asked for. TD_NOMEM. */
TD_MUST_CHECK td_status td_matcher_create(const td_grammar *g, const td_token_set *tokens,
                                          td_matcher **out, td_error *err);
void td_matcher_free(td_matcher *m);  /* NULL is fine */
void td_matcher_reset(td_matcher *m); /* back to the start */

/* Go on by n bytes. False: they cannot follow (or there is no memory); nothing has changed. */
TD_MUST_CHECK bool td_matcher_accept(td_matcher *m, const uint8_t *bytes, size_t n);

/* Whether td_matcher_accept() would return true. */
bool td_matcher_can_accept(td_matcher *m, const uint8_t *bytes, size_t n);

/* What was accepted so far is a whole string of the grammar. More may follow; the mask says. */
bool td_matcher_may_end(const td_matcher *m);

/* Set bit i % 32 of mask[i / 32] for every token i that may come next and clear all others,
 * td_token_set_words() words. All clear with td_matcher_may_end(): only the end may follow. False:
 * no memory, and the mask is all clear. */
bool td_matcher_mask(td_matcher *m, uint32_t *mask);

#endif
