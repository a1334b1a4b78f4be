/* o200k_base.tiktoken: a line a token, "<base64 of its bytes> <rank>". The file is public and never
 * changes, so it is checked by hash; the special tokens of o200k_harmony, which gpt-oss uses with
 * it, are in no file and stand here. */
#include "router/vocab_o200k.h"

#include <stdio.h>
#include <string.h>

#include "router/sha256.h"

enum {
    N_ORDINARY = 199998,
    N_IDS = 201088, /* rows of the model's embedding */
    MAX_LINE = 256,
};

static const char O200K_SHA256[] =
    "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d";

static const struct {
    int id;
    const char *name;
} named[] = {
    {199998, "<|startoftext|>"}, {199999, "<|endoftext|>"}, {200002, "<|return|>"},
    {200003, "<|constrain|>"},   {200005, "<|channel|>"},   {200006, "<|start|>"},
    {200007, "<|end|>"},         {200008, "<|message|>"},   {200012, "<|call|>"},
};

static int base64_value(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c != '\0' ? strchr(digits, c) : NULL;

    return at != NULL ? (int)(at - digits) : -1;
}

/* Standard alphabet, padded. out has room for 3 bytes to 4 characters. */
static bool base64_decode(const char *text, size_t n, unsigned char *out, size_t *n_out)
{
    size_t k = 0, pad = 0;

    if (n == 0 || n % 4 != 0)
        return false;
    while (pad < 2 && text[n - 1 - pad] == '=')
        pad++;
    for (size_t i = 0; i < n; i += 4) {
        uint32_t bits = 0;

        for (size_t j = i; j < i + 4; j++) {
            int value = j < n - pad ? base64_value(text[j]) : 0;

            if (value < 0)
                return false;
            bits = bits << 6 | (uint32_t)value;
        }
        out[k++] = (unsigned char)(bits >> 16);
        out[k++] = (unsigned char)(bits >> 8);
        out[k++] = (unsigned char)bits;
    }
    *n_out = k - pad;
    return true;
}

static td_status read_line(const char *line, size_t n, size_t number, vocab_list *out,
                           td_error *err)
{
    const char *space = memchr(line, ' ', n);
    unsigned char bytes[MAX_LINE];
    size_t n_bytes;
    uint64_t rank = 0;

    if (space == NULL || space == line + n - 1 || n > MAX_LINE ||
        !base64_decode(line, (size_t)(space - line), bytes, &n_bytes))
        return td_fail(err, TD_INVALID, "line %zu is not a base64 token and a rank", number);
    for (const char *p = space + 1; p < line + n; p++) {
        if (*p < '0' || *p > '9' || rank > UINT32_MAX)
            return td_fail(err, TD_INVALID, "line %zu does not end with a rank", number);
        rank = rank * 10 + (uint64_t)(*p - '0');
    }
    return vocab_list_add(out, (const char *)bytes, n_bytes, rank, err);
}

static td_status add_specials(vocab_list *out, td_error *err)
{
    td_status st = TD_OK;
    size_t k = 0;

    for (int id = N_ORDINARY; st == TD_OK && id < N_IDS; id++) {
        char name[32];

        snprintf(name, sizeof name, "<|reserved_%d|>", id);
        if (k < sizeof named / sizeof *named && named[k].id == id)
            snprintf(name, sizeof name, "%s", named[k++].name);
        st = vocab_list_add(out, name, strlen(name), (uint64_t)id, err);
    }
    /* A second name that the encoding inherits from o200k_base. */
    if (st == TD_OK)
        st = vocab_list_add(out, "<|endofprompt|>", 15, 200018, err);
    return st;
}

td_status vocab_load_o200k(vocab *v, const char *text, size_t n, td_error *err)
{
    vocab_list ordinary = {0}, special = {0};
    char sum[SHA256_HEX];
    const char *end = text + n;
    size_t number = 0;
    td_status st = TD_OK;

    sha256_hex(text, n, sum);
    if (strcmp(sum, O200K_SHA256) != 0)
        return td_fail(err, TD_INVALID,
                       "not the o200k_base.tiktoken that gpt-oss uses: SHA-256 is %s, expected %s",
                       sum, O200K_SHA256);
    while (st == TD_OK && text < end) {
        const char *lf = memchr(text, '\n', (size_t)(end - text));
        const char *stop = lf != NULL ? lf : end;

        number++;
        if (stop > text)
            st = read_line(text, (size_t)(stop - text), number, &ordinary, err);
        text = stop + 1;
    }
    if (st == TD_OK && ordinary.n != N_ORDINARY)
        st = td_fail(err, TD_INVALID, "%zu tokens, expected %d", ordinary.n, N_ORDINARY);
    if (st == TD_OK)
        st = add_specials(&special, err);
    if (st == TD_OK)
        st = vocab_build(v, &ordinary, &special, err);
    vocab_list_fini(&ordinary);
    vocab_list_fini(&special);
    return st;
}
