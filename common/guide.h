/* guide: what an answer may be, token by token.
 *
 * Harmony's headers are held to the few that the request allows (which channels, whose functions),
 * and what follows them is free text or JSON of a grammar (common/grammar.h). A guide is a place in
 * one answer. It says which tokens may come next, as the mask that sampling takes, and is moved on
 * by the token that came. Where it stands follows from the answer's tokens alone, so an answer that
 * goes on elsewhere is held to the same.
 *
 *   answer    = message* end
 *   message   = [<|start|>assistant, but not in the first] header <|message|> content
 *   analysis  : free text, <|end|>; never twice in a row, so that an answer gets on
 *   commentary to nobody: free text, <|end|>
 *   final     : free text or JSON, <|return|>
 *   a call    : JSON, <|call|>
 *
 * Reasoning is free: any tokens that are text. Ids that are not in the vocabulary and control
 * tokens are never in a mask, but for the one that ends the message. */
#ifndef TANDEM_COMMON_GUIDE_H
#define TANDEM_COMMON_GUIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/clock.h"
#include "common/status.h"
#include "proto/tandem.pb-c.h"

/* The vocabulary's bytes, and the grammars of requests that came lately. Outlives its guides; any
 * thread. */
typedef struct td_guides td_guides;

/* One place in one answer; one thread at a time. */
typedef struct td_guide td_guide;

enum {
    TD_GUIDE_MAX_FUNCTIONS = 512,
    TD_GUIDE_MAX_NAME = 256,      /* bytes of a function's name */
    TD_GUIDE_MAX_BYTES = 4 << 20, /* of all schemas together: a message has other things to say */
    TD_GUIDE_MAX_STATES = 400 * 1000, /* of all grammars together, which bounds their memory */
};

/* folder has the checkpoint's tokenizer.json; vocab: rows of the model, the bits of a mask.
 * TD_NOTFOUND: no such file. TD_IO: it cannot be read. TD_INVALID: it is not one, or lacks a
 * control token of Harmony. TD_NOMEM. */
TD_MUST_CHECK td_status td_guides_open(const char *folder, int32_t vocab, td_guides **out,
                                       td_error *err);
void td_guides_close(td_guides *g); /* NULL is fine */

/* From now on a thread makes the masks of new kinds of requests while their prompts are read. Once,
 * before other threads have g. For who writes whole answers; one token is not worth it. TD_NOMEM.
 */
TD_MUST_CHECK td_status td_guides_work_ahead(td_guides *g, td_error *err);

/* A guide at the end of answer[0..n). Compiles what is not in the cache: milliseconds for a large
 * schema, so not on a thread that others wait for. TD_INVALID: a schema that is not supported (the
 * text says what and where), more than the bounds above, a guide that lets no answer end, an answer
 * that it does not allow. TD_NOMEM. */
TD_MUST_CHECK td_status td_guide_create(td_guides *guides, const Tandem__Guide *m,
                                        const int32_t *answer, size_t n, td_guide **out,
                                        td_error *err);
void td_guide_free(td_guide *g); /* NULL is fine */

/* The next token is this one. TD_INVALID: it was not in the mask. TD_NOMEM. On failure the guide is
 * of no more use. */
TD_MUST_CHECK td_status td_guide_accept(td_guide *g, int32_t token, td_error *err);

/* A bit for every token that may come next: bit i % 32 of word i / 32. Holds until the next accept,
 * which is when the next call computes it again. NULL: none may, a dead end (or the answer is
 * over); so a mask is never empty. */
const uint32_t *td_guide_mask(td_guide *g);

/* After a td_guide_mask() of NULL: memory was missing, so that it is no dead end. */
bool td_guide_out_of_memory(const td_guide *g);

/* What the last mask that was computed has cost. */
td_usec td_guide_mask_us(const td_guide *g);

#endif
