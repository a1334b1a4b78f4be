/* Encoding is three layers: valid UTF-8 (a copy is made only for text that is not), pieces
 * (pretokenize), tokens of a piece (one lookup for a piece that is a token, else bpe). Words that
 * are no token come again in a text: what they gave is in the output already, where `seen` finds
 * it, which lives for one call and so needs no lock.
 *
 * Merging a token's own bytes does not always give that token. Where the vocabulary does not say
 * that whole pieces come first, the lookup is used for tokens for which it does: those with a
 * rank. */
#include "router/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/json_file.h"
#include "router/bpe.h"
#include "router/merges.h"
#include "router/pretokenize.h"
#include "router/vocab_o200k.h"

enum {
    SEEN_BITS = 10,
    SEEN_TEXT = 2048, /* bytes; shorter texts are encoded without */
    SEEN_PIECE = 64,  /* bytes; longer ones hardly come again */
};

/* A piece of the text in hand, and where in the output its tokens are. */
typedef struct seen {
    const char *piece; /* n bytes; n 0: none */
    size_t first;
    uint32_t n, n_tokens;
} seen;

/* Of one call. */
typedef struct work {
    bpe_scratch bpe;
    seen *seen; /* the last piece of each hash; NULL: not kept */
} work;

struct tokenizer {
    vocab v;
    merges m;
};

static td_status find_file(const char *path, td_buf *file, td_error *err)
{
    struct stat info;

    td_buf_str(file, path);
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        td_buf_str(file, "/tokenizer.json");
    return file->oom ? td_fail(err, TD_NOMEM, "no memory for a path") : TD_OK;
}

static bool ends_with(const td_buf *b, const char *suffix)
{
    size_t n = strlen(suffix);

    return b->len >= n && memcmp(b->ptr + b->len - n, suffix, n) == 0;
}

static td_status load(tokenizer *t, const td_buf *file, td_error *err)
{
    td_buf text = {0};
    td_status st = td_file_read(file->ptr, VOCAB_MAX_FILE, &text, err);

    if (st != TD_OK) {
        td_buf_free(&text);
        return st;
    }
    if (ends_with(file, ".tiktoken"))
        st = vocab_load_o200k(&t->v, text.ptr, text.len, err);
    else
        st = vocab_load_json(&t->v, text.ptr, text.len, err);
    td_buf_free(&text); /* before the tables are built: it is the largest thing here */
    if (st == TD_OK)
        st = merges_fill(&t->m, &t->v, err);
    free(t->v.merges);
    t->v.merges = NULL;
    return st == TD_OK ? TD_OK : td_wrap(err, "%s", td_path_tail(file->ptr));
}

td_status tokenizer_open(const char *path, tokenizer **out, td_error *err)
{
    tokenizer *t = calloc(1, sizeof *t);
    td_buf file = {0};
    td_status st;

    if (t == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a tokenizer");
    st = find_file(path, &file, err);
    if (st == TD_OK)
        st = load(t, &file, err);
    td_buf_free(&file);
    if (st == TD_OK)
        *out = t;
    else
        tokenizer_close(t);
    return st;
}

void tokenizer_close(tokenizer *t)
{
    if (t == NULL)
        return;
    vocab_fini(&t->v);
    merges_fini(&t->m);
    free(t);
}

/* As td_utf8_valid(), but fast over ASCII, of which most text is. */
static bool is_valid(const unsigned char *s, size_t n)
{
    size_t i = 0;

    while (i < n) {
        uint64_t eight;
        int len;

        if (n - i >= sizeof eight) {
            memcpy(&eight, s + i, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                i += sizeof eight;
                continue;
            }
        }
        if (s[i] < 0x80) {
            i++;
            continue;
        }
        len = td_utf8_next(s + i, n - i);
        if (len <= 0)
            return false;
        i += (size_t)len;
    }
    return true;
}

/* A copy with each maximal invalid part replaced, as the Unicode standard has it in chapter 3.9. */
static void make_valid(const unsigned char *s, size_t n, td_buf *out)
{
    size_t i = 0;

    while (i < n) {
        int len = td_utf8_next(s + i, n - i);
        size_t bad = 1;

        if (len > 0) {
            td_buf_add(out, s + i, (size_t)len);
            i += (size_t)len;
            continue;
        }
        while (bad < n - i && td_utf8_next(s + i, bad + 1) == -2)
            bad++;
        td_buf_add(out, "\xef\xbf\xbd", 3);
        i += bad;
    }
}

static inline bool is_direct(const tokenizer *t, int32_t id)
{
    return t->m.whole_piece_first || t->m.tokens[id].rank != MERGE_NONE;
}

static inline seen *seen_slot(const work *w, const char *piece, size_t n)
{
    uint64_t head = 0, tail = 0;

    if (n >= sizeof head) {
        memcpy(&head, piece, sizeof head);
        memcpy(&tail, piece + n - sizeof tail, sizeof tail);
    } else {
        memcpy(&head, piece, n);
    }
    head = (head ^ (tail << 21 | tail >> 43)) + n;
    return &w->seen[head * 0x9e3779b97f4a7c15u >> (64 - SEEN_BITS)]; /* 2^64 / golden ratio */
}

/* The tokens of a piece that is none itself. */
static td_status encode_piece(const tokenizer *t, work *w, const char *piece, size_t n,
                              td_tokens *out, td_error *err)
{
    seen *s = w->seen != NULL && n <= SEEN_PIECE ? seen_slot(w, piece, n) : NULL;
    size_t first = out->len;
    td_status st;

    if (s != NULL && s->n == n && memcmp(s->piece, piece, n) == 0) {
        for (size_t i = 0; i < s->n_tokens; i++)
            td_tokens_push(out, out->ptr[s->first + i]);
        return TD_OK;
    }
    st = bpe_merge(&t->v, &t->m, &w->bpe, (const unsigned char *)piece, n, out, err);
    if (st == TD_OK && s != NULL)
        *s = (seen){piece, first, (uint32_t)n, (uint32_t)(out->len - first)};
    return st;
}

static td_status encode_valid(const tokenizer *t, work *w, const char *text, size_t n,
                              td_tokens *out, td_error *err)
{
    size_t at = 0;

    while (at < n) {
        size_t end = pretokenize_next(text, n, at);
        int32_t id = vocab_find(&t->v, text + at, end - at);

        if (id >= 0 && is_direct(t, id)) {
            if (out->len < out->cap)
                out->ptr[out->len++] = id;
            else
                td_tokens_push(out, id);
        } else {
            td_status st = encode_piece(t, w, text + at, end - at, out, err);

            if (st != TD_OK)
                return st;
        }
        at = end;
    }
    if (out->oom)
        return td_fail(err, TD_NOMEM, "no memory for the tokens of %zu bytes", n);
    return TD_OK;
}

/* The next special name at or after from, the longest where several start; n when there is none. */
static size_t next_special(const tokenizer *t, const char *text, size_t n, size_t from,
                           const vocab_special **found)
{
    for (; from < n; from++) {
        size_t longest = n - from < t->v.max_special ? n - from : t->v.max_special;

        if (!t->v.special_starts[(unsigned char)text[from]])
            continue;
        for (size_t len = longest; len > 0; len--) {
            *found = vocab_find_special(&t->v, text + from, len);
            if (*found != NULL)
                return from;
        }
    }
    *found = NULL;
    return n;
}

static td_status encode_with_names(const tokenizer *t, work *w, const char *text, size_t n,
                                   td_tokens *out, td_error *err)
{
    td_status st = TD_OK;
    size_t at = 0;

    while (st == TD_OK && at < n) {
        const vocab_special *special;
        size_t end = next_special(t, text, n, at, &special);

        st = encode_valid(t, w, text + at, end - at, out, err);
        at = end;
        if (st == TD_OK && special != NULL) {
            td_tokens_push(out, special->id);
            at += special->name.len;
        }
    }
    if (st == TD_OK && out->oom)
        st = td_fail(err, TD_NOMEM, "no memory for the tokens of %zu bytes", n);
    return st;
}

typedef td_status encode_fn(const tokenizer *t, work *w, const char *text, size_t n, td_tokens *out,
                            td_error *err);

static td_status encode(const tokenizer *t, encode_fn *how, const char *text, size_t n,
                        td_tokens *out, td_error *err)
{
    work w = {0};
    td_buf copy = {0};
    size_t before = out->len;
    bool oom_before = out->oom;
    td_status st;

    if (n > INT32_MAX / 3) /* each bad byte may become three */
        return td_fail(err, TD_TOOLARGE, "%zu bytes of text, at most %d can be encoded at once", n,
                       INT32_MAX / 3);
    if (!is_valid((const unsigned char *)text, n)) {
        make_valid((const unsigned char *)text, n, &copy);
        if (copy.oom) {
            td_buf_free(&copy);
            return td_fail(err, TD_NOMEM, "no memory for a copy of %zu bytes of text", n);
        }
        text = copy.ptr;
        n = copy.len;
    }
    if (n >= SEEN_TEXT)
        w.seen = calloc((size_t)1 << SEEN_BITS, sizeof *w.seen); /* no memory: not kept */
    st = how(t, &w, text, n, out, err);
    if (st != TD_OK) {
        out->len = before;
        out->oom = oom_before;
    }
    bpe_scratch_fini(&w.bpe);
    free(w.seen);
    td_buf_free(&copy);
    return st;
}

td_status tokenizer_encode(const tokenizer *t, const char *text, size_t n, td_tokens *out,
                           td_error *err)
{
    return encode(t, encode_valid, text, n, out, err);
}

td_status tokenizer_encode_special(const tokenizer *t, const char *text, size_t n, td_tokens *out,
                                   td_error *err)
{
    return encode(t, encode_with_names, text, n, out, err);
}

int32_t tokenizer_special(const tokenizer *t, const char *name)
{
    const vocab_special *s = vocab_find_special(&t->v, name, strlen(name));

    return s != NULL ? s->id : -1;
}

bool tokenizer_is_special(const tokenizer *t, int32_t id)
{
    return id >= t->v.n_ordinary && id < t->v.n_ids && vocab_bytes(&t->v, id).len > 0;
}

bool tokenizer_bytes(const tokenizer *t, int32_t id, td_slice *out)
{
    *out = (td_slice){0};
    if (id < 0 || id >= t->v.n_ids)
        return false;
    *out = vocab_bytes(&t->v, id);
    return out->len > 0;
}

int32_t tokenizer_vocab(const tokenizer *t)
{
    return t->v.n_ids;
}

size_t tokenizer_max_piece(const tokenizer *t)
{
    return t->v.max_piece;
}

td_status tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n, td_buf *out,
                           td_error *err)
{
    size_t before = out->len;
    bool oom_before = out->oom;
    td_status st = TD_OK;

    for (size_t i = 0; i < n; i++) {
        td_slice piece;

        if (!tokenizer_bytes(t, ids[i], &piece)) {
            st = td_fail(err, TD_INVALID, "token %zu of %zu is %d, which has no text: ids go to %d",
                         i, n, ids[i], t->v.n_ids - 1);
            break;
        }
        td_buf_add(out, piece.ptr, piece.len);
    }
    if (st == TD_OK && out->oom)
        st = td_fail(err, TD_NOMEM, "no memory for the text of %zu tokens", n);
    if (st != TD_OK) {
        out->len = before;
        out->oom = oom_before;
        if (out->ptr != NULL)
            out->ptr[before] = '\0';
    }
    return st;
}
