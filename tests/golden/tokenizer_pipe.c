/* A tokenizer at the end of a pipe, for tokenizer_oracle.py: takes requests from stdin, one after
 * the other, and answers each on stdout. Numbers are 32 bits, little endian.
 *
 *   'e' n bytes   tokenizer_encode          -> count ids
 *   's' n bytes   tokenizer_encode_special  -> count ids
 *   'd' n ids     tokenizer_decode          -> n bytes; -1 alone when it fails
 *   'p' n bytes   pretokenize_next          -> count ends; the bytes must be valid UTF-8 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "router/pretokenize.h"
#include "router/tokenizer.h"

static void put(const void *bytes, size_t size, size_t n)
{
    uint32_t count = bytes != NULL || n == 0 ? (uint32_t)n : UINT32_MAX;

    fwrite(&count, sizeof count, 1, stdout);
    if (bytes != NULL)
        fwrite(bytes, size, n, stdout);
    fflush(stdout);
}

static void pieces(const char *text, size_t n, td_tokens *out)
{
    for (size_t at = 0; at < n;) {
        at = pretokenize_next(text, n, at);
        td_tokens_push(out, (int32_t)at);
    }
}

static bool answer(const tokenizer *t, int kind, char *bytes, size_t n, td_error *err)
{
    td_tokens ids = {0};
    td_buf text = {0};
    td_status st = TD_OK;

    if (kind == 'd') {
        st = tokenizer_decode(t, (const int32_t *)(void *)bytes, n / 4, &text, err);
        put(st == TD_OK ? text.ptr : NULL, 1, st == TD_OK ? text.len : 1);
        st = TD_OK; /* the asker was told */
    } else {
        if (kind == 'e')
            st = tokenizer_encode(t, bytes, n, &ids, err);
        else if (kind == 's')
            st = tokenizer_encode_special(t, bytes, n, &ids, err);
        else
            pieces(bytes, n, &ids);
        put(ids.ptr, sizeof *ids.ptr, ids.len);
    }
    td_tokens_free(&ids);
    td_buf_free(&text);
    return st == TD_OK;
}

int main(int argc, char **argv)
{
    tokenizer *t = NULL;
    td_error err = {0};
    bool good = true;
    int kind;

    if (argc != 2) {
        fprintf(stderr, "usage: %s tokenizer.json | o200k_base.tiktoken\n", argv[0]);
        return 2;
    }
    if (tokenizer_open(argv[1], &t, &err) != TD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    while (good && (kind = getchar()) != EOF) {
        uint32_t n;
        char *bytes;

        if (fread(&n, sizeof n, 1, stdin) != 1)
            break;
        if (kind == 'd')
            n *= 4;
        bytes = malloc((size_t)n + 1);
        good = bytes != NULL && fread(bytes, 1, n, stdin) == n && answer(t, kind, bytes, n, &err);
        free(bytes);
    }
    if (!good)
        fprintf(stderr, "%s\n", err.text[0] ? err.text : "a request was cut short");
    tokenizer_close(t);
    return good ? 0 : 1;
}
