/* bpe: merges the bytes of one piece into tokens.
 *
 * The rule: of all neighbouring tokens that may merge, the pair of the lowest rank does, the
 * leftmost one among equals, until none may. A piece can be a whole request body; the cost is
 * linear in its length, and nothing recurses. */
#ifndef TANDEM_ROUTER_BPE_H
#define TANDEM_ROUTER_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"
#include "common/vocab.h"
#include "router/merges.h"

/* Working memory for long pieces, kept from one to the next; one thread's. Zero to start empty. */
typedef struct bpe_scratch {
    uint64_t *bits;
    size_t n_words;
} bpe_scratch;

void bpe_scratch_fini(bpe_scratch *s);

/* Append the tokens of piece[0..n) to out, n from 1 to INT32_MAX. TD_NOMEM; out may then have
 * grown. That a piece may be a token as a whole is not looked at here. */
TD_MUST_CHECK td_status bpe_merge(const vocab *v, const merges *m, bpe_scratch *s,
                                  const unsigned char *piece, size_t n, td_tokens *out,
                                  td_error *err);

#endif
