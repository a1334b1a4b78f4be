/* grammar_impl: what the files grammar*.c share.
 *
 * A grammar is a set of rules; a rule is a finite automaton over bytes whose states may also call a
 * rule. A place in it (gr_config) is a state, two counters and a stack of frames to return to.
 * Several places are alive at once only where the schema is ambiguous (anyOf), or at the end of
 * something optional, so sets are small.
 *
 * The counters belong to a rule's activation: `need` is how many more items (characters of a
 * string) there must be, `room` how many there may be. So a bound costs no states.
 *
 *   schema text --grammar_schema--> rules as NFAs (gr_nfa) --grammar_build--> states (td_grammar)
 *   td_grammar --grammar_run--> sets of places --grammar_mask--> masks over a td_token_set */
#ifndef TANDEM_COMMON_GRAMMAR_IMPL_H
#define TANDEM_COMMON_GRAMMAR_IMPL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/grammar.h"
#include "common/status.h"

#define GR_ANY UINT32_MAX /* room without bound */

enum {
    GR_COUNT = 1, /* takes one of room, and of need if there is any */
    GR_CLOSE = 2, /* only when need is 0 */
    GR_MORE = 4,  /* only when room is not 0 */
    GR_FLAGS = 8, /* number of combinations */

    GR_MAX_STATES = 50000,    /* of a grammar */
    GR_MAX_NFA = 400000,      /* states and edges of one rule's NFA */
    GR_MAX_SUBSETS = 2 << 20, /* members of all subsets while one rule is made deterministic */
    GR_MAX_CALLS = 100,       /* of one state: alternatives that are rules of their own */
    GR_MAX_CONFIGS = 500,     /* of a set; the rest of a wildly ambiguous schema is dropped */
    GR_MAX_PIECE = 4096,      /* bytes of a token */
    GR_MAX_INDENT = 32,       /* spaces after a line break */

    GR_END = -1, /* the state past the outermost rule */
};

/* --- A finished grammar. */

typedef struct gr_edge {
    int32_t to;
    uint8_t lo, hi, flags;
} gr_edge;

typedef struct gr_call {
    int32_t start; /* first state of the callee; its rule's number until gr_build_finish() */
    int32_t to;    /* where it returns to */
    uint32_t need, room;
    uint8_t flags; /* for the caller's counters: 0 or GR_COUNT */
    bool tail;     /* `to` can only return, so no frame is kept */
} gr_call;

typedef struct gr_state {
    uint32_t edge, call; /* index of the first */
    uint16_t n_edges, n_calls;
    int32_t table; /* of 256 bytes: 1 + which edge a byte takes; -1: look through the edges */
    bool final;    /* the rule may end here */
} gr_state;

typedef struct gr_cache gr_cache; /* grammar_cache.c */

struct td_grammar {
    gr_state *states;
    gr_edge *edges;
    gr_call *calls;
    uint8_t *tables;
    size_t n_states, n_edges, n_calls, n_tables;
    size_t n_prelude;             /* states below are the same in every grammar */
    int32_t string_lo, string_hi; /* those of GR_RULE_STRING: lo .. hi - 1 */
    gr_call root;
    gr_cache *cache; /* of masks of the states that are this grammar's own */
};

/* --- Making one. */

typedef struct gr_nfa_edge {
    int32_t to, next; /* next: of the same state; -1: last */
    enum { GR_EPS, GR_BYTES, GR_CALL } kind;
    uint8_t lo, hi, flags;
    int32_t rule;
    uint32_t need, room;
} gr_nfa_edge;

/* One rule while it is put together. Failure to grow is sticky, like td_buf's. */
typedef struct gr_nfa {
    int32_t *head; /* first edge of each state */
    gr_nfa_edge *edges;
    size_t n, cap, n_edges, cap_edges;
    bool oom, large;
} gr_nfa;

typedef struct gr_rule {
    int32_t start;       /* -1: not made yet */
    uint32_t need, room; /* counters at its start, unless the call has its own */
    bool call_counts;    /* the call has its own */
} gr_rule;

typedef struct gr_build {
    gr_state *states;
    gr_edge *edges;
    gr_call *calls;
    gr_rule *rules;
    size_t n_states, n_edges, n_calls, n_rules;
    size_t n_prelude; /* states of the prelude, the first ones */
    size_t cap_states, cap_edges, cap_calls, cap_rules;
    gr_nfa nfa; /* of the rule in hand */
} gr_build;

/* Rules that every grammar has, made first, so that their states have the same numbers everywhere
 * and masks for them are remembered once a token set. */
enum {
    GR_RULE_GAP,     /* optional white space; called with room = GR_MAX_INDENT */
    GR_RULE_STRING,  /* "..." of need..room characters */
    GR_RULE_INTEGER, /* up to 18 digits */
    GR_RULE_NUMBER,
    GR_RULE_VALUE,
    GR_RULE_OBJECT,
    GR_RULE_ARRAY,
    GR_N_PRELUDE
};

int32_t gr_nfa_state(gr_nfa *a);
void gr_nfa_eps(gr_nfa *a, int32_t from, int32_t to);
void gr_nfa_bytes(gr_nfa *a, int32_t from, uint8_t lo, uint8_t hi, uint8_t flags, int32_t to);
void gr_nfa_call(gr_nfa *a, int32_t from, int32_t rule, uint32_t need, uint32_t room, uint8_t flags,
                 int32_t to);
void gr_nfa_text(gr_nfa *a, int32_t from, const char *text, size_t n, int32_t to);
void gr_nfa_gap(gr_nfa *a, int32_t from, int32_t to);
void gr_nfa_clear(gr_nfa *a);

/* Code points lo..hi as td_buf_json() writes them in a JSON string. flags go with the first byte.
 */
void gr_nfa_chars(gr_nfa *a, int32_t from, uint32_t lo, uint32_t hi, uint8_t flags, int32_t to);

/* text as td_buf_json() writes it. */
void gr_nfa_quoted(gr_nfa *a, int32_t from, const char *text, size_t n, int32_t to);

/* A rule to be made later; -1: no memory. */
int32_t gr_build_rule(gr_build *b);

/* Make b->nfa deterministic from start to end, at most max_states, as the automaton of rule, and
 * clear it. TD_INVALID: too large (text without a path); TD_NOMEM. */
td_status gr_build_close(gr_build *b, int32_t rule, int32_t start, int32_t end, size_t max_states,
                         td_error *err);

/* The rules of every grammar: b is empty before. */
td_status gr_build_prelude(gr_build *b, td_error *err);

/* Link calls, drop what cannot reach an end and make the grammar that starts with rule root. On
 * TD_INVALID, *dead is a rule that matches nothing, the last that was made (text without a path).
 */
td_status gr_build_finish(gr_build *b, int32_t root, int32_t *dead, td_grammar **out,
                          td_error *err);
void gr_build_free(gr_build *b);

/* --- Patterns and numbers. */

/* A regular expression (ECMA-262's syntax, the subset of README) over the inside of a JSON string,
 * found anywhere in it unless anchored. TD_INVALID: the text says what is not supported. */
td_status gr_regex_nfa(gr_nfa *a, int32_t from, const char *pattern, uint8_t flags, int32_t to,
                       td_error *err);

/* The pattern of a format, anchored; NULL: not supported. */
const char *gr_format_pattern(const char *format);

/* Decimal numbers between two bounds. */
typedef struct gr_range {
    bool has_lo, has_hi, lo_out, hi_out; /* *_out: the bound itself is outside */
    double lo, hi;
    bool integer;
    uint32_t multiple; /* of 10 to the power of -scale; 0: any number */
    int scale;
} gr_range;

/* The multiple that a schema asks for: at most 1,000 of 9 digits' fractions. False: another. */
bool gr_number_multiple(double v, gr_range *r);

td_status gr_number_nfa(gr_nfa *a, int32_t from, const gr_range *range, int32_t to, td_error *err);

/* --- Running one. */

typedef struct gr_frame {
    int32_t ret;         /* state of the caller to go on from */
    uint32_t need, room; /* its counters */
    uint32_t parent;     /* frame below; 0: the bottom, which is no frame */
    uint32_t chain;      /* next of the same hash */
} gr_frame;

typedef struct gr_config {
    int32_t state; /* one with edges, or GR_END */
    uint32_t need, room;
    uint32_t stack; /* a frame; 0: the bottom */
} gr_config;

/* Sets of places, one after the other in `at`, and their frames, each of them once. Both only grow
 * at the end and are cut back there. */
typedef struct gr_run {
    const td_grammar *g;
    gr_config *at;
    size_t n, cap;
    gr_frame *frames;
    uint32_t n_frames, cap_frames;
    uint32_t *buckets;
    uint32_t n_buckets; /* a power of two */
    bool oom;
} gr_run;

bool gr_run_init(gr_run *r, const td_grammar *g); /* false: no memory */
void gr_run_fini(gr_run *r);
void gr_run_cut_frames(gr_run *r, uint32_t n);

/* Each appends a set at r->n and returns the number of its members; 0 is a dead end. */
size_t gr_run_start(gr_run *r);
size_t gr_run_step(gr_run *r, size_t first, size_t n, uint8_t byte);
size_t gr_run_pop(gr_run *r, uint32_t stack); /* what follows when the rule in hand ends */

/* Keep the set at..at+n alone, and the frames that it needs. */
void gr_run_compact(gr_run *r, size_t first, size_t n);

/* --- Vocabularies. */

typedef struct gr_node {
    uint32_t next;  /* past the last node below this one */
    uint32_t token; /* index into ids of the first token at or below it */
    uint16_t depth; /* bytes up to and with this one */
    uint8_t byte;
    uint8_t reach; /* depth of the deepest node at or below it; 255: that or more */
} gr_node;

/* In preorder, which is the order of bytes. The tokens that end at node i are
 * ids[nodes[i].token .. nodes[i + 1].token); there is one node past the last. */
typedef struct gr_trie {
    gr_node *nodes;
    uint32_t n_nodes;
    int32_t *ids;
    uint32_t n_ids;
    uint32_t max_depth;
} gr_trie;

typedef struct gr_piece {
    const uint8_t *bytes;
    uint32_t length;
    int32_t id;
} gr_piece;

/* Sorts pieces. False: no memory. */
bool gr_trie_build(gr_trie *t, gr_piece *pieces, size_t n);
void gr_trie_fini(gr_trie *t);

/* Lengths for which states may be known to be alike (grammar_alike.c). */
enum { GR_DEPTHS = 5 };
extern const uint16_t gr_depths[GR_DEPTHS];

struct td_token_set {
    gr_trie trie;
    int n;
    size_t words;
    uint64_t serial;            /* no two sets of a process have the same */
    uint32_t *brief[GR_DEPTHS]; /* masks of the tokens of at most gr_depths[j] bytes */
    gr_cache *cache;            /* of masks of the prelude's states */
};

/* One that keeps at most so many bytes. NULL: no memory. */
gr_cache *gr_cache_create(size_t bytes);
void gr_cache_free(gr_cache *c);

#endif
