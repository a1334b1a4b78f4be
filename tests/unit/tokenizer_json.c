#include "tokenizer_json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/vocab.h"

const char *toy_piece(const toy_vocab *v, int id, char one[2])
{
    if (id >= TOY_BYTES)
        return v->piece[id - TOY_BYTES];
    one[0] = (char)id;
    one[1] = '\0';
    return one;
}

void toy_hello(toy_vocab *v)
{
    static const char *const pieces[] = {"he", "ll", "hell", "o!", "hello"};
    static const int merges[][2] = {{'h', 'e'}, {'l', 'l'}, {256, 257}, {'o', '!'}, {258, 'o'}};

    *v = (toy_vocab){.n = 5, .n_merges = 5};
    for (int i = 0; i < 5; i++) {
        strcpy(v->piece[i], pieces[i]);
        memcpy(v->merge[i], merges[i], sizeof merges[i]);
    }
}

static int find(const toy_vocab *v, const char *s, size_t n)
{
    if (n == 1)
        return (unsigned char)s[0];
    for (int i = 0; i < v->n; i++)
        if (strlen(v->piece[i]) == n && memcmp(v->piece[i], s, n) == 0)
            return TOY_BYTES + i;
    return -1;
}

static uint32_t next_random(uint32_t *state, uint32_t n)
{
    *state = *state * 1664525 + 1013904223;
    return (*state >> 8) % n;
}

static void add_every_split(toy_vocab *v)
{
    v->n_merges = 0;
    for (int i = 0; i < v->n; i++) {
        size_t n = strlen(v->piece[i]);

        for (size_t at = 1; at < n; at++) {
            int left = find(v, v->piece[i], at), right = find(v, v->piece[i] + at, n - at);

            if (left >= 0 && right >= 0) {
                assert_true(v->n_merges < TOY_MERGES);
                v->merge[v->n_merges][0] = left;
                v->merge[v->n_merges++][1] = right;
            }
        }
    }
}

static void shuffle(void *items, int n, size_t size, uint32_t *seed)
{
    char *base = items, swap[32];

    assert_true(size <= sizeof swap);
    for (int i = n - 1; i > 0; i--) {
        size_t k = next_random(seed, (uint32_t)i + 1) * size, at = (size_t)i * size;

        memcpy(swap, base + at, size);
        memcpy(base + at, base + k, size);
        memcpy(base + k, swap, size);
    }
}

/* Whether the merges so far leave these two side by side, as those of a pair that training takes.
 */
static bool are_left(const toy_vocab *v, const int side[2], const char *joined)
{
    int ids[2 * TOY_PIECE], n = (int)strlen(joined);

    for (int i = 0; i < n; i++)
        ids[i] = (unsigned char)joined[i];
    for (int m = 0; m < v->n_merges; m++) {
        char one[2], other[2], whole[2 * TOY_PIECE];

        snprintf(whole, sizeof whole, "%s%s", toy_piece(v, v->merge[m][0], one),
                 toy_piece(v, v->merge[m][1], other));
        for (int i = 0; i + 1 < n; i++) {
            if (ids[i] != v->merge[m][0] || ids[i + 1] != v->merge[m][1])
                continue;
            ids[i] = find(v, whole, strlen(whole));
            memmove(&ids[i + 1], &ids[i + 2], (size_t)(n - i - 2) * sizeof *ids);
            n--;
        }
    }
    return n == 2 && ids[0] == side[0] && ids[1] == side[1];
}

void toy_random(toy_vocab *v, uint32_t seed, toy_ids ids, toy_list list)
{
    int place[TOY_MAX];                    /* the token made i-th has id 256 + place[i] */
    int letters = 2 + (int)(seed / 3 % 3); /* over two, nearly all short strings are tokens */
    char one[2], other[2];

    *v = (toy_vocab){.n = 60};
    for (int i = 0; i < v->n; i++)
        place[i] = ids == TOY_INVERTED ? v->n - 1 - i : i;
    if (ids == TOY_SHUFFLED)
        shuffle(place, v->n, sizeof *place, &seed);
    for (int made = 0; made < v->n;) {
        int side[2];
        char joined[2 * TOY_PIECE];

        for (int s = 0; s < 2; s++) {
            int pick = (int)next_random(&seed, (uint32_t)(letters + made));

            side[s] = pick < letters ? 'a' + pick : TOY_BYTES + place[pick - letters];
        }
        snprintf(joined, sizeof joined, "%s%s", toy_piece(v, side[0], one),
                 toy_piece(v, side[1], other));
        if (strlen(joined) >= 12 || find(v, joined, strlen(joined)) >= 0 ||
            (ids == TOY_MADE && !are_left(v, side, joined)))
            continue;
        strcpy(v->piece[place[made]], joined);
        memcpy(v->merge[v->n_merges++], side, sizeof side);
        made++;
    }
    if (list != TOY_ONE_EACH)
        add_every_split(v);
    if (list == TOY_ALL_UNORDERED)
        shuffle(v->merge, v->n_merges, sizeof *v->merge, &seed);
}

static void add_byte(td_buf *out, int byte)
{
    static const char plain[] = "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`"
                                "abcdefghijklmnopqrstuvwxyz{|}~";
    int rest = 0, cp = byte;

    for (int b = 0; b <= byte; b++) {
        bool printable = (b > 0 && b < 128 && strchr(plain, b) != NULL) || (b >= 0xa1 && b != 0xad);

        if (b == byte && !printable)
            cp = 0x100 + rest;
        rest += !printable;
    }
    if (cp < 0x80) {
        char c = (char)cp;

        td_buf_json(out, &c, 1);
    } else {
        td_buf_fmt(out, "\\u%04x", cp);
    }
}

static void add_pair(td_buf *out, const toy_vocab *v, const int pair[2])
{
    for (int s = 0; s < 2; s++) {
        if (s == 1)
            td_buf_str(out, v->merges_as_strings ? " " : "\",\"");
        if (pair[s] < TOY_BYTES)
            add_byte(out, pair[s]);
        else
            td_buf_str(out, v->piece[pair[s] - TOY_BYTES]);
    }
}

void toy_write(const toy_vocab *v, td_buf *out)
{
    td_buf_str(out, "{\"version\":\"1.0\",\"added_tokens\":[");
    td_buf_fmt(out, "{\"id\":%d,\"content\":\"<|start|>\",\"special\":true},", TOY_BYTES + v->n);
    td_buf_fmt(out, "{\"id\":%d,\"content\":\"<|end|>\",\"special\":true}],", TOY_BYTES + v->n + 2);
    td_buf_str(out,
               "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
               "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"");
    td_buf_json(out, VOCAB_PATTERN, strlen(VOCAB_PATTERN));
    td_buf_str(out, "\"},\"behavior\":\"Isolated\",\"invert\":false},"
                    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,"
                    "\"use_regex\":false}]},\"model\":{\"type\":\"BPE\",\"dropout\":null,");
    td_buf_fmt(out, "\"byte_fallback\":false,\"ignore_merges\":%s,\"vocab\":{",
               v->ignore_merges ? "true" : "false");
    for (int id = 0; id < TOY_BYTES + v->n; id++) {
        td_buf_str(out, id ? ",\"" : "\"");
        if (id < TOY_BYTES)
            add_byte(out, id);
        else
            td_buf_str(out, v->piece[id - TOY_BYTES]);
        td_buf_fmt(out, "\":%d", id);
    }
    td_buf_str(out, "},\"merges\":[");
    for (int i = 0; i < v->n_merges; i++) {
        td_buf_str(out, i ? "," : "");
        td_buf_str(out, v->merges_as_strings ? "\"" : "[\"");
        add_pair(out, v, v->merge[i]);
        td_buf_str(out, v->merges_as_strings ? "\"" : "\"]");
    }
    td_buf_str(out, "]}}");
    assert_false(out->oom);
}

void toy_file(const td_buf *text, char path[64])
{
    int fd;

    strcpy(path, "/tmp/tandem-tokenizer-XXXXXX");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text->ptr, text->len), (ssize_t)text->len);
    close(fd);
}
