/* What grammar_matcher.c and grammar_mask.c share: the fields of a matcher. */
#ifndef TANDEM_COMMON_GRAMMAR_MATCHER_H
#define TANDEM_COMMON_GRAMMAR_MATCHER_H

#include "common/grammar_impl.h"

enum { GR_MEMOS = 4 };

/* Whole masks of the last sets of places. A place inside a string is the same after each token. */
typedef struct gr_memo {
    struct gr_memo_mask {
        gr_config *key;
        size_t n, cap;
        uint32_t *mask;
    } of[GR_MEMOS];
    size_t next; /* the oldest */
} gr_memo;

struct td_matcher {
    const td_grammar *g;
    const td_token_set *tokens;
    gr_run run; /* at[0..n) is where the matcher stands */
    size_t n;
    uint32_t compact_at; /* frames at which the unused ones are dropped */
    gr_memo memo;
};

void gr_memo_clear(gr_memo *m);
void gr_memo_fini(gr_memo *m);

#endif
