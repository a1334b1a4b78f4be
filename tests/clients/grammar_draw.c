/* grammar_draw: texts drawn from the masks of schemas, for a validator of others to judge.
 *
 *   grammar_draw COUNT [TOKENIZER] < schemas      one schema a line
 *   grammar_draw --random FIRST N                 writes random schemas instead, one a line
 *
 * For each schema a line "schema <error, or nothing>", then up to COUNT lines "text <hexadecimal>".
 * Every token is drawn with equal chance among those in the mask, over a small vocabulary or the
 * one of TOKENIZER; a text that has not ended after some hundred tokens is given up. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/grammar.h"
#include "router/tokenizer.h"
#include "tests/unit/grammar_random.h"

enum { MAX_LINE = 1 << 20, MAX_TOKENS = 600, MAX_LARGE = 200, TRIES = 20, TRIES_LARGE = 3 };

static const char *const words[] = {
    "{\"",  "\":",  "\": ",     "\",",  "\", \"",   "\"}",  "},",    "}}",   "[\"",
    "\"]",  "true", "tr",       "null", "\n  ",     "\n",   ", ",    ": ",   "ab",
    "abc",  "12",   "-1",       "1.5",  ".5",       "e1",   "\\u00", "e9",   "\\ud83d",
    "\\n",  "a\"",  "\xc3\xa9", "\xc3", "\xe4\xbd", "a\"}", "2026-", "-01-", "T00:",
    ":00Z", "@a.b", "/",        "\"}]", "]}",       "],"};

enum { N_WORDS = sizeof words / sizeof *words, N_SMALL = 256 + N_WORDS };

typedef struct vocabulary {
    const uint8_t **piece;
    uint32_t *length;
    int n;
    td_token_set *set;
    uint32_t *mask;
    int32_t *allowed;
} vocabulary;

static uint64_t random_state = 88172645463325252u;

static uint32_t below(uint32_t n)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 20) % n;
}

static bool fill(vocabulary *v, const tokenizer *tok)
{
    static uint8_t bytes[256];

    v->n = tok != NULL ? tokenizer_vocab(tok) : N_SMALL;
    v->piece = calloc((size_t)v->n, sizeof *v->piece);
    v->length = calloc((size_t)v->n, sizeof *v->length);
    v->allowed = calloc((size_t)v->n, sizeof *v->allowed);
    if (v->piece == NULL || v->length == NULL || v->allowed == NULL)
        return false;
    for (int i = 0; i < v->n; i++) {
        td_slice piece = {0};

        if (tok == NULL && i < 256) {
            bytes[i] = (uint8_t)i;
            piece = (td_slice){(const char *)&bytes[i], 1};
        } else if (tok == NULL) {
            piece = td_slice_of(words[i - 256]);
        } else if (tokenizer_is_special(tok, i) || !tokenizer_bytes(tok, i, &piece)) {
            continue;
        }
        v->piece[i] = (const uint8_t *)piece.ptr;
        v->length[i] = (uint32_t)piece.len;
    }
    if (td_token_set_create(v->piece, v->length, v->n, &v->set, NULL) != TD_OK)
        return false;
    v->mask = calloc(td_token_set_words(v->set), sizeof *v->mask);
    return v->mask != NULL;
}

/* False: given up. A breach of the masks' promise ends the program. */
static bool draw(const vocabulary *v, td_matcher *m, td_buf *text)
{
    td_matcher_reset(m);
    td_buf_clear(text);
    for (int step = 0; step < (v->n > N_SMALL ? MAX_LARGE : MAX_TOKENS); step++) {
        uint32_t n = 0;
        int32_t id;

        if (td_matcher_may_end(m) && below(3) == 0)
            return true;
        td_assert(td_matcher_mask(m, v->mask));
        for (int i = 0; i < v->n; i++) {
            if (v->mask[i / 32] >> i % 32 & 1)
                v->allowed[n++] = i;
        }
        td_assert(n > 0 || td_matcher_may_end(m));
        if (n == 0)
            return true;
        id = v->allowed[below(n)];
        td_assert(td_matcher_accept(m, v->piece[id], v->length[id]));
        td_buf_add(text, v->piece[id], v->length[id]);
    }
    return false;
}

static void schema_line(const vocabulary *v, const char *schema, size_t n, int count)
{
    td_grammar *g = NULL;
    td_matcher *m = NULL;
    td_error err = {0};
    td_buf text = {0};
    int left = count * (v->n > N_SMALL ? TRIES_LARGE : TRIES);

    if (td_grammar_from_schema(schema, n, &g, &err) != TD_OK ||
        td_matcher_create(g, v->set, &m, &err) != TD_OK) {
        printf("schema %s\n", err.text);
        td_grammar_free(g);
        return;
    }
    printf("schema \n");
    while (count > 0 && left-- > 0) {
        if (!draw(v, m, &text))
            continue;
        printf("text ");
        for (size_t i = 0; i < text.len; i++)
            printf("%02x", (unsigned char)text.ptr[i]);
        printf("\n");
        count--;
    }
    td_buf_free(&text);
    td_matcher_free(m);
    td_grammar_free(g);
}

static int random_schemas(uint64_t first, int n)
{
    for (int i = 0; i < n; i++) {
        random_schema *s = random_schema_create(first + (uint64_t)i);
        td_buf b = {0};

        random_schema_write(s, &b);
        printf("%s\n", b.ptr);
        td_buf_free(&b);
        random_schema_free(s);
    }
    return 0;
}

int main(int argc, char **argv)
{
    static char line[MAX_LINE];
    vocabulary v = {0};
    tokenizer *tok = NULL;
    td_error err = {0};

    if (argc == 4 && strcmp(argv[1], "--random") == 0)
        return random_schemas(strtoull(argv[2], NULL, 10), atoi(argv[3]));
    if (argc < 2) {
        fprintf(stderr, "usage: grammar_draw COUNT [TOKENIZER] < schemas\n");
        return 2;
    }
    if ((argc > 2 && tokenizer_open(argv[2], &tok, &err) != TD_OK) || !fill(&v, tok)) {
        fprintf(stderr, "grammar_draw: %s\n", err.text);
        return 1;
    }
    while (fgets(line, sizeof line, stdin) != NULL)
        schema_line(&v, line, strcspn(line, "\n"), atoi(argv[1]));
    td_token_set_free(v.set);
    tokenizer_close(tok);
    free(v.piece);
    free(v.length);
    free(v.mask);
    free(v.allowed);
    return 0;
}
