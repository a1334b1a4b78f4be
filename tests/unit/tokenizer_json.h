/* tokenizer_json: makes small tokenizer.json texts for tests. Ids 0 to 255 are the bytes; the
 * tokens after them are printable ASCII; the special tokens "<|start|>" and "<|end|>" come last,
 * with one id between them left out. */
#ifndef TANDEM_TESTS_TOKENIZER_JSON_H
#define TANDEM_TESTS_TOKENIZER_JSON_H

#include "common/buf.h"

enum {
    TOY_BYTES = 256,
    TOY_MAX = 64, /* tokens beyond the bytes */
    TOY_MERGES = 512,
    TOY_PIECE = 16,
};

typedef struct toy_vocab {
    char piece[TOY_MAX][TOY_PIECE]; /* of id 256 + i */
    int n;
    int merge[TOY_MERGES][2]; /* ids of left and right, in order of precedence */
    int n_merges;
    bool ignore_merges;
    bool merges_as_strings;
} toy_vocab;

/* "hel", "lo" and so on: five tokens, a merge each, in the order of ids. */
void toy_hello(toy_vocab *v);

typedef enum toy_ids {
    TOY_MADE,     /* as tokens are made, of what merging leaves side by side: as training gives */
    TOY_SHUFFLED, /* in random order */
    TOY_INVERTED, /* wholes before their parts */
} toy_ids;

typedef enum toy_list {
    TOY_ONE_EACH,      /* one merge for each token, in the order in which they are made */
    TOY_ALL,           /* all merges that the tokens allow, in the order of ids */
    TOY_ALL_UNORDERED, /* all, in random order */
} toy_list;

/* A random vocabulary over the first two to four letters. */
void toy_random(toy_vocab *v, uint32_t seed, toy_ids ids, toy_list list);

/* The piece of an id as a string; for the byte NUL "". */
const char *toy_piece(const toy_vocab *v, int id, char one[2]);

void toy_write(const toy_vocab *v, td_buf *out);

/* Write text to a new file in the temporary directory; path is filled in. The caller unlinks it. */
void toy_file(const td_buf *text, char path[64]);

#endif
