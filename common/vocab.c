/* Layout and lookup of a vocabulary. The table from bytes to id is the hot part of encoding: most
 * words are tokens, so one probe ends them. Slots of 16 bytes hold the bytes of tokens up to 8
 * bytes long, which is the majority in use, so that a hit touches one cache line. The table's
 * content is fixed, so nobody can craft text that makes its chains longer. */
#include "common/vocab.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static inline uint64_t piece_key(const unsigned char *p, size_t n)
{
    uint32_t low, high;

    if (n > 8)
        return XXH3_64bits(p, n);
    if (n >= 4) { /* two loads that overlap: together with n they tell all bytes */
        memcpy(&low, p, 4);
        memcpy(&high, p + n - 4, 4);
        return (uint64_t)high << 32 | low;
    }
    return (uint64_t)p[n - 1] << 16 | (uint64_t)p[n >> 1] << 8 | p[0];
}

static inline size_t slot_of(uint64_t key, size_t n, unsigned bits)
{
    key = (key ^ key >> 32) + n;
    return (size_t)(key * 0x9e3779b97f4a7c15u >> (64 - bits)); /* 2^64 / golden ratio */
}

int32_t vocab_find(const vocab *v, const void *bytes, size_t n)
{
    size_t mask = ((size_t)1 << v->slot_bits) - 1, i;
    uint64_t key;

    if (n == 0 || n > v->max_ordinary)
        return -1;
    key = piece_key(bytes, n);
    i = slot_of(key, n, v->slot_bits + 2);
    if ((v->maybe[i / 64] >> i % 64 & 1) == 0)
        return -1;
    for (i >>= 2; v->slots[i].len != 0; i = (i + 1) & mask) {
        const vocab_slot *s = &v->slots[i];

        if (s->key == key && s->len == n &&
            (n <= 8 || memcmp(v->bytes + v->start[s->id], bytes, n) == 0))
            return (int32_t)s->id;
    }
    return -1;
}

static int compare_names(td_slice a, td_slice b)
{
    int c = memcmp(a.ptr, b.ptr, a.len < b.len ? a.len : b.len);

    return c != 0 ? c : (a.len > b.len) - (a.len < b.len);
}

static int compare_specials(const void *a, const void *b)
{
    return compare_names(((const vocab_special *)a)->name, ((const vocab_special *)b)->name);
}

const vocab_special *vocab_find_special(const vocab *v, const char *name, size_t n)
{
    vocab_special key = {{name, n}, 0};

    if (n == 0 || n > v->max_special)
        return NULL;
    return bsearch(&key, v->specials, v->n_specials, sizeof key, compare_specials);
}

td_status vocab_list_add(vocab_list *l, const char *bytes, size_t n, uint64_t id, td_error *err)
{
    if (id >= VOCAB_MAX_IDS)
        return td_fail(err, TD_INVALID, "token id %llu is over the limit of %d",
                       (unsigned long long)id, VOCAB_MAX_IDS - 1);
    if (n == 0 || n > VOCAB_MAX_PIECE)
        return td_fail(err, TD_INVALID, "token %llu has %zu bytes; 1 to %d are allowed",
                       (unsigned long long)id, n, VOCAB_MAX_PIECE);
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 1024;
        vocab_entry *p = realloc(l->entries, cap * sizeof *p);

        if (p == NULL)
            return td_fail(err, TD_NOMEM, "no memory for %zu tokens", cap);
        l->entries = p;
        l->cap = cap;
    }
    l->entries[l->n++] = (vocab_entry){(uint32_t)id, (uint32_t)l->bytes.len, (uint32_t)n};
    td_buf_add(&l->bytes, bytes, n);
    if (l->bytes.oom)
        return td_fail(err, TD_NOMEM, "no memory for the bytes of %zu tokens", l->n);
    return TD_OK;
}

void vocab_list_fini(vocab_list *l)
{
    td_buf_free(&l->bytes);
    free(l->entries);
    *l = (vocab_list){0};
}

/* by_id[id] = 1 + the index of its entry; dense, as ordinary tokens must be. */
static td_status index_ordinary(const vocab_list *l, uint32_t *by_id, td_error *err)
{
    for (size_t i = 0; i < l->n; i++) {
        uint32_t id = l->entries[i].id;

        if (id >= l->n)
            return td_fail(err, TD_INVALID,
                           "token id %u among %zu tokens: ids must be 0 to %zu without gaps", id,
                           l->n, l->n - 1);
        if (by_id[id] != 0)
            return td_fail(err, TD_INVALID, "token id %u is given twice", id);
        by_id[id] = (uint32_t)i + 1;
    }
    return TD_OK;
}

static td_status index_specials(const vocab_list *l, size_t n_ordinary, uint32_t *by_id,
                                td_error *err)
{
    for (size_t i = 0; i < l->n; i++) {
        uint32_t id = l->entries[i].id;

        if (id < n_ordinary)
            return td_fail(err, TD_INVALID,
                           "special token %.*s has id %u, which is an ordinary token",
                           (int)l->entries[i].len, l->bytes.ptr + l->entries[i].offset, id);
        if (by_id[id] == 0)
            by_id[id] = (uint32_t)i + 1;
    }
    return TD_OK;
}

static td_status fill_slots(vocab *v, td_error *err)
{
    size_t mask;

    while ((size_t)1 << v->slot_bits < 2 * (size_t)v->n_ordinary + 2)
        v->slot_bits++;
    mask = ((size_t)1 << v->slot_bits) - 1;
    v->slots = calloc(mask + 1, sizeof *v->slots);
    v->maybe = calloc((mask + 1) / 16 + 1, sizeof *v->maybe);
    if (v->slots == NULL || v->maybe == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a table of %zu slots", mask + 1);
    for (int32_t id = 0; id < v->n_ordinary; id++) {
        td_slice piece = vocab_bytes(v, id);
        uint64_t key;
        size_t i;
        int32_t other = vocab_find(v, piece.ptr, piece.len);

        if (other >= 0)
            return td_fail(err, TD_INVALID, "tokens %d and %d have the same bytes", other, id);
        key = piece_key((const unsigned char *)piece.ptr, piece.len);
        for (i = slot_of(key, piece.len, v->slot_bits); v->slots[i].len != 0; i = (i + 1) & mask)
            ;
        v->slots[i] = (vocab_slot){key, (uint32_t)piece.len, (uint32_t)id};
        i = slot_of(key, piece.len, v->slot_bits + 2);
        v->maybe[i / 64] |= (uint64_t)1 << i % 64;
    }
    for (int c = 0; c < 256; c++) {
        unsigned char byte = (unsigned char)c;

        v->byte_id[c] = vocab_find(v, &byte, 1);
        if (v->byte_id[c] < 0)
            return td_fail(err, TD_INVALID, "no token for the single byte 0x%02x", c);
    }
    return TD_OK;
}

/* Names beyond the first of an id have no room in the layout; they go behind its end. */
static td_status fill_specials(vocab *v, const vocab_list *special, const uint32_t *by_id,
                               char *spare, td_error *err)
{
    v->specials = calloc(special->n + 1, sizeof *v->specials);
    if (v->specials == NULL)
        return td_fail(err, TD_NOMEM, "no memory for %zu special tokens", special->n);
    for (size_t i = 0; i < special->n; i++) {
        const vocab_entry *e = &special->entries[i];
        vocab_special *s = &v->specials[v->n_specials++];

        s->id = (int32_t)e->id;
        s->name = vocab_bytes(v, s->id);
        if (by_id[e->id] != i + 1) {
            memcpy(spare, special->bytes.ptr + e->offset, e->len);
            s->name = (td_slice){spare, e->len};
            spare += e->len;
        }
        v->special_starts[(unsigned char)s->name.ptr[0]] = true;
        if (e->len > v->max_special)
            v->max_special = e->len;
    }
    qsort(v->specials, v->n_specials, sizeof *v->specials, compare_specials);
    for (size_t i = 1; i < v->n_specials; i++) {
        td_slice name = v->specials[i].name;

        if (compare_names(v->specials[i - 1].name, name) == 0)
            return td_fail(err, TD_INVALID, "special token %.*s is given twice", (int)name.len,
                           name.ptr);
    }
    return TD_OK;
}

static td_status lay_out(vocab *v, const vocab_list *ordinary, const vocab_list *special,
                         const uint32_t *by_id, td_error *err)
{
    size_t at = 0;
    td_status st;

    v->start = malloc(((size_t)v->n_ids + 1) * sizeof *v->start);
    v->bytes = malloc(ordinary->bytes.len + special->bytes.len + 1);
    if (v->start == NULL || v->bytes == NULL)
        return td_fail(err, TD_NOMEM, "no memory for %d tokens", v->n_ids);
    for (int32_t id = 0; id < v->n_ids; id++) {
        const vocab_list *l = id < v->n_ordinary ? ordinary : special;

        v->start[id] = (uint32_t)at;
        if (by_id[id] != 0) {
            const vocab_entry *e = &l->entries[by_id[id] - 1];

            memcpy(v->bytes + at, l->bytes.ptr + e->offset, e->len);
            at += e->len;
            if (e->len > v->max_piece)
                v->max_piece = e->len;
            if (id < v->n_ordinary && e->len > v->max_ordinary)
                v->max_ordinary = e->len;
        }
    }
    v->start[v->n_ids] = (uint32_t)at;
    st = fill_slots(v, err);
    return st != TD_OK ? st : fill_specials(v, special, by_id, v->bytes + at, err);
}

td_status vocab_build(vocab *v, const vocab_list *ordinary, const vocab_list *special,
                      td_error *err)
{
    td_status st;
    uint32_t *by_id;

    if (ordinary->n == 0)
        return td_fail(err, TD_INVALID, "the vocabulary is empty");
    v->n_ordinary = (int32_t)ordinary->n;
    v->n_ids = v->n_ordinary;
    for (size_t i = 0; i < special->n; i++)
        if ((int32_t)special->entries[i].id >= v->n_ids)
            v->n_ids = (int32_t)special->entries[i].id + 1;
    by_id = calloc((size_t)v->n_ids, sizeof *by_id);
    if (by_id == NULL)
        return td_fail(err, TD_NOMEM, "no memory for %d ids", v->n_ids);
    st = index_ordinary(ordinary, by_id, err);
    if (st == TD_OK)
        st = index_specials(special, ordinary->n, by_id, err);
    if (st == TD_OK)
        st = lay_out(v, ordinary, special, by_id, err);
    free(by_id);
    return st;
}

void vocab_fini(vocab *v)
{
    free(v->bytes);
    free(v->start);
    free(v->slots);
    free(v->maybe);
    free(v->specials);
    free(v->merges);
    *v = (vocab){0};
}
