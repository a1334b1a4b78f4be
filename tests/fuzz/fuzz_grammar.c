/* Any bytes as a schema: a refusal with its reason, or a grammar whose masks say what its matcher
 * accepts and never lead where nothing may follow. The schema ends at the first NUL; the bytes
 * behind it choose tokens. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const words[] = {
    "{\"",  "\":",  "\": ", "\",",  "\"}",    "},",       "]]",    "[[",     "true",
    "null", "\n  ", ", ",   "ab",   "12",     "-1",       ".5",    "e1",     "\\u0",
    "\\n",  "a\"",  "\"}]", "\xc3", "\xa9\"", "\xf0\x9f", "2026-", "k\":\"", "\"a\": [1"};

enum { N_WORDS = sizeof words / sizeof *words, N = 256 + N_WORDS, STEPS = 24 };

static uint8_t bytes[256];
static const uint8_t *piece[N];
static uint32_t length[N];
static td_token_set *set;

static void make_set(void)
{
    for (int i = 0; i < 256; i++) {
        bytes[i] = (uint8_t)i;
        piece[i] = &bytes[i];
        length[i] = 1;
    }
    for (int i = 0; i < N_WORDS; i++) {
        piece[256 + i] = (const uint8_t *)words[i];
        length[256 + i] = (uint32_t)strlen(words[i]);
    }
    td_assert(td_token_set_create(piece, length, N, &set, NULL) == TD_OK);
}

static void walk(td_matcher *m, const uint8_t *choices, size_t n)
{
    uint32_t mask[(N + 31) / 32];

    for (size_t step = 0; step < STEPS && step < n; step++) {
        int allowed[N], n_allowed = 0, id;

        td_assert(td_matcher_mask(m, mask));
        for (int i = 0; i < N; i++) {
            bool in = (mask[i / 32] >> i % 32 & 1) != 0;

            td_assert(in == td_matcher_can_accept(m, piece[i], length[i]));
            if (in)
                allowed[n_allowed++] = i;
        }
        td_assert(n_allowed > 0 || td_matcher_may_end(m));
        if (n_allowed == 0)
            return;
        id = allowed[choices[step] * n_allowed / 256];
        td_assert(td_matcher_accept(m, piece[id], length[id]));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    td_grammar *g = NULL;
    td_matcher *m = NULL;
    td_error err = {0};
    const uint8_t *end = memchr(data, '\0', size);
    size_t n = end != NULL ? (size_t)(end - data) : size;

    if (set == NULL)
        make_set();
    if (td_grammar_from_schema((const char *)data, n, &g, &err) != TD_OK) {
        td_assert(err.code == TD_INVALID && err.text[0] != '\0' && g == NULL);
        return 0;
    }
    if (td_matcher_create(g, set, &m, &err) == TD_OK)
        walk(m, data + n, size - n);
    td_matcher_free(m);
    td_grammar_free(g);
    return 0;
}
