/* The inside of guides: guide_vocab.c (tokens), guide_plan.c (what a request allows), guide_ahead.c
 * (its masks, ahead of time), guide.c (a place in an answer). */
#ifndef TANDEM_COMMON_GUIDE_IMPL_H
#define TANDEM_COMMON_GUIDE_IMPL_H

#include <pthread.h>
#include <stdbool.h>

#include "common/grammar.h"
#include "common/guide.h"
#include "common/vocab.h"

/* Headers are strings of these: bytes, and the control tokens. */
typedef uint16_t guide_symbol;

enum {
    GUIDE_START = 256,
    GUIDE_CHANNEL,
    GUIDE_CONSTRAIN,
    GUIDE_MESSAGE,
    GUIDE_END,
    GUIDE_CALL,
    GUIDE_RETURN,
    GUIDE_SYMBOLS
};

/* What a header leads to; not negative: a call of the function with that number. */
enum { GUIDE_TO_ANALYSIS = -1, GUIDE_TO_PREAMBLE = -2, GUIDE_TO_FINAL = -3 };

typedef struct guide_header {
    const guide_symbol *symbols;
    uint32_t n;
    int32_t to;
} guide_header;

/* Headers in the order of their symbols; none is the beginning of another. */
typedef struct guide_headers {
    guide_header *list;
    uint32_t n;
} guide_headers;

/* What one kind of request allows; immutable, shared by its guides. */
typedef struct guide_plan {
    guide_symbol *symbols; /* of all headers */
    guide_headers all;
    guide_headers after_analysis; /* without another analysis */
    bool begun, json;
    td_grammar *final;  /* NULL: any object where json, else free */
    td_grammar *object; /* any JSON object: functions without a schema */
    td_grammar **schemas;
    int32_t n_functions; /* entries of schemas; NULL: object */

    uint8_t *key; /* the request's message, packed */
    size_t n_key;
    uint64_t hash;
    size_t n_states; /* of its grammars */
    uint64_t used;   /* when, for the cache */
    int refs;        /* td_guides.lock */
} guide_plan;

enum {
    GUIDE_CACHE = 64,
    GUIDE_CACHE_KEY_BYTES = 256 << 10,
    GUIDE_CACHE_STATES = 2 * TD_GUIDE_MAX_STATES,
    /* Of all masks: requests that nobody is busy with make room from here on, so that those who
     * are need not go without. */
    GUIDE_CACHE_MASK_BYTES = TD_GRAMMAR_MASK_BYTES / 2,
};

struct td_guides {
    vocab v;
    int32_t n_ids;  /* rows of the model */
    size_t n_words; /* of a mask */
    int32_t control[GUIDE_SYMBOLS - GUIDE_START];
    td_token_set *set;
    uint32_t *text_end, *text_return; /* masks of free text */

    pthread_mutex_t lock;
    guide_plan *cache[GUIDE_CACHE];
    size_t n_cached, n_states; /* plans in the cache, and states of their grammars */
    uint64_t clock;
    size_t most_mask_bytes;    /* GUIDE_CACHE_MASK_BYTES, but in tests */
    struct guide_ahead *ahead; /* guide_ahead.c; NULL: masks are made as they are met */
};

static inline void guide_allow(uint32_t *mask, int32_t token)
{
    mask[token / 32] |= UINT32_C(1) << token % 32;
}

/* A plan with one reference, from the cache or made now. */
TD_MUST_CHECK td_status guide_plan_get(td_guides *g, const Tandem__Guide *m, guide_plan **out,
                                       td_error *err);
void guide_plan_put(td_guides *g, guide_plan *p);
void guide_plan_free(guide_plan *p);

/* Under the lock: the masks of this plan are worth making ahead. */
void guide_ahead_add(td_guides *g, guide_plan *p);
void guide_ahead_end(td_guides *g);

#endif
