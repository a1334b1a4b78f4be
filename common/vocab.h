/* vocab: what a tokenizer's file says, checked and laid out: the bytes of every id, the special
 * tokens, and which merges there are. The loaders fill one; then it does not change, and any thread
 * may read it.
 *
 * Ordinary tokens have the ids 0 .. n_ordinary - 1, without gaps; special tokens lie above, maybe
 * with gaps. Every single byte is an ordinary token, so any text can be encoded. */
#ifndef TANDEM_COMMON_VOCAB_H
#define TANDEM_COMMON_VOCAB_H

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"

enum {
    VOCAB_MAX_IDS = 1 << 22,    /* an id above is a broken file, not a vocabulary */
    VOCAB_MAX_PIECE = 1 << 12,  /* bytes of one token */
    VOCAB_MAX_FILE = 256 << 20, /* bytes; gpt-oss ships 27 MB */
};

typedef struct vocab_special {
    td_slice name; /* in the vocabulary's memory */
    int32_t id;
} vocab_special;

/* Tokens left and right, side by side, may become one; its bytes are theirs together. */
typedef struct vocab_merge {
    uint32_t left, right;
} vocab_merge;

typedef struct vocab_slot {
    uint64_t key; /* up to 8 bytes: the bytes themselves, packed; longer: their hash */
    uint32_t len; /* 0: free */
    uint32_t id;
} vocab_slot;

typedef struct vocab {
    /* The bytes of id are bytes[start[id] .. start[id + 1]); none for an id in a gap. */
    char *bytes;
    uint32_t *start;
    int32_t n_ids, n_ordinary;
    size_t max_ordinary, max_piece; /* bytes of the longest one */
    int32_t byte_id[256];

    vocab_slot *slots; /* ordinary tokens by their bytes, linear probing */
    unsigned slot_bits;
    uint64_t *maybe; /* four bits a slot, set where a token hashes to: most words that are none end
                      * here, in a table that stays in the cache */

    vocab_special *specials; /* sorted by name */
    size_t n_specials, max_special;
    bool special_starts[256]; /* whether a name starts with this byte */

    /* The merges in their order of precedence; NULL: any two tokens whose bytes together are a
     * token may merge, the lowest id first. */
    vocab_merge *merges;
    size_t n_merges;
    bool whole_piece_first; /* a piece that is a token is that token, whatever merging would give */
} vocab;

/* How text is cut into pieces before merging, as tokenizer.json and tiktoken spell it: the one
 * pattern that is understood. */
extern const char VOCAB_PATTERN[];

/* tokenizer.json as Hugging Face writes it. text[0..n) is the file and is not needed afterwards.
 * TD_INVALID says what it lacks, and where; TD_NOMEM. *v is to vocab_fini() either way. */
TD_MUST_CHECK td_status vocab_load_json(vocab *v, const char *text, size_t n, td_error *err);

/* A half-filled or zeroed one is fine. */
void vocab_fini(vocab *v);

/* Id of the ordinary token with exactly these bytes, or -1. */
int32_t vocab_find(const vocab *v, const void *bytes, size_t n);

/* The special token with this name, or NULL. */
const vocab_special *vocab_find_special(const vocab *v, const char *name, size_t n);

static inline td_slice vocab_bytes(const vocab *v, int32_t id)
{
    return (td_slice){v->bytes + v->start[id], v->start[id + 1] - v->start[id]};
}

/* For the loaders: tokens in any order, with their bytes in one buffer. */
typedef struct vocab_entry {
    uint32_t id, offset, len;
} vocab_entry;

/* Zero-initialise; vocab_list_fini() it. */
typedef struct vocab_list {
    td_buf bytes;
    vocab_entry *entries;
    size_t n, cap;
} vocab_list;

/* bytes are copied. TD_INVALID: an id or length past the limits above. TD_NOMEM. */
TD_MUST_CHECK td_status vocab_list_add(vocab_list *l, const char *bytes, size_t n, uint64_t id,
                                       td_error *err);
void vocab_list_fini(vocab_list *l);

/* Lay out both lists in v: checks that ids are dense and unique, that no two tokens share their
 * bytes and that all 256 bytes are there. A special id may have several names: the first one is its
 * piece. */
TD_MUST_CHECK td_status vocab_build(vocab *v, const vocab_list *ordinary, const vocab_list *special,
                                    td_error *err);

#endif
