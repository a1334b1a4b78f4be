/* Any bytes as text to encode, and the same bytes as a tokenizer.json. FUZZ_TOKENIZER is the folder
 * of a vocabulary to encode with. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "router/bpe.h"
#include "router/merges.h"
#include "router/pretokenize.h"
#include "router/tokenizer.h"
#include "common/vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TEXT = 512 };

static tokenizer *shared(void)
{
    static tokenizer *t;
    td_error err = {0};

    if (t == NULL)
        td_assert(tokenizer_open(FUZZ_TOKENIZER, &t, &err) == TD_OK);
    return t;
}

static void check_pieces(const char *text, size_t n)
{
    for (size_t at = 0; at < n;) {
        size_t end = pretokenize_next(text, n, at);

        td_assert(end > at && end <= n);
        td_assert(end == n || ((unsigned char)text[end] & 0xc0) != 0x80);
        at = end;
    }
}

/* Text comes back as it was; bytes that are no text come back as text, which then stays. */
static void as_text(const char *text, size_t n)
{
    const tokenizer *t = shared();
    td_error err = {0};
    td_tokens ids = {0}, again = {0}, special = {0};
    td_buf back = {0};

    td_assert(tokenizer_encode(t, text, n, &ids, &err) == TD_OK);
    td_assert(tokenizer_decode(t, ids.ptr, ids.len, &back, &err) == TD_OK);
    td_assert(td_utf8_valid(back.ptr, back.len, NULL));
    if (td_utf8_valid(text, n, NULL)) {
        td_assert(back.len == n && (n == 0 || memcmp(back.ptr, text, n) == 0));
        check_pieces(text, n);
    }
    for (size_t i = 0; i < ids.len; i++)
        td_assert(!tokenizer_is_special(t, ids.ptr[i]));
    td_assert(tokenizer_encode(t, back.ptr, back.len, &again, &err) == TD_OK);
    td_assert(again.len == ids.len);
    td_assert(ids.len == 0 || memcmp(ids.ptr, again.ptr, ids.len * sizeof *ids.ptr) == 0);

    td_assert(tokenizer_encode_special(t, text, n, &special, &err) == TD_OK);
    td_buf_clear(&back);
    td_assert(tokenizer_decode(t, special.ptr, special.len, &back, &err) == TD_OK);
    td_assert(td_utf8_valid(back.ptr, back.len, NULL));
    td_tokens_free(&ids);
    td_tokens_free(&again);
    td_tokens_free(&special);
    td_buf_free(&back);
}

static void as_vocabulary(const char *text, size_t n)
{
    static const char word[] = "hello hello!";
    vocab v = {0};
    merges m = {0};
    bpe_scratch scratch = {0};
    td_tokens ids = {0};
    td_error err = {0};
    td_status st = vocab_load_json(&v, text, n, &err);

    if (st == TD_OK)
        st = merges_fill(&m, &v, &err);
    td_assert(st == TD_OK || (err.code == st && err.text[0] != '\0'));
    if (st == TD_OK) {
        size_t len = 0;

        td_assert(bpe_merge(&v, &m, &scratch, (const unsigned char *)word, sizeof word, &ids,
                            &err) == TD_OK);
        for (size_t i = 0; i < ids.len; i++) {
            td_assert(ids.ptr[i] >= 0 && ids.ptr[i] < v.n_ordinary);
            len += vocab_bytes(&v, ids.ptr[i]).len;
        }
        td_assert(len == sizeof word);
    }
    td_tokens_free(&ids);
    bpe_scratch_fini(&scratch);
    merges_fini(&m);
    vocab_fini(&v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *exact = malloc(size); /* so that reading past the end is seen */

    td_assert(exact != NULL || size == 0);
    if (size > 0)
        memcpy(exact, data, size);
    /* Merging compares a lot, and each comparison is watched here: long texts would be all there
     * is. Pieces past BPE_SHORT still occur. */
    if (size <= MAX_TEXT)
        as_text(exact, size);
    as_vocabulary(exact, size);
    free(exact);
    return 0;
}
