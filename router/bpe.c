/* The queue for long pieces. Keys are (rank, position), the smallest first, at most one valid key a
 * position. A binary heap of a million keys costs some twenty cache misses a step, ten times what
 * ordinary text costs, so keys are kept in buckets, a list for each rank. The lowest bucket is made
 * active: its positions are sorted and worked through from the left.
 *
 * A merge makes two new pairs, one on each side. Most have higher ranks and go to their buckets.
 * One with a lower rank than the active bucket comes next, before any other pair there is, since
 * all others are at the active rank or above: it is merged at once, and so on from there. None has
 * the active rank itself, for it contains what that rank gives. So the active rank only rises, and
 * finding the next bucket is a walk over a bitmap.
 *
 * Keys of pairs that are gone are not searched for, but seen to be stale when they come up: rank[]
 * of their position has changed. A position never gets the same rank twice, since its pair only
 * grows. After a piece every bucket is empty again, so the next piece starts without clearing
 * anything. */
#include "router/bpe.h"

#include <stdlib.h>
#include <string.h>

/* One cache line of a bucket. Single entries in a list would cost a miss each. */
typedef struct bpe_chunk {
    uint32_t next; /* index + 1 of the next chunk of the bucket or of the free list; 0: none */
    uint32_t n;
    uint32_t pos[14];
} bpe_chunk;

typedef struct bpe_queue {
    /* One element a byte of the piece, in one block. A token lives at its first byte. */
    size_t cap;
    uint32_t *id, *next, *prev;
    uint32_t *rank; /* of the merge with the next token, MERGE_NONE if there is none */
    uint32_t *active;
    size_t n_active, i_active;
    uint32_t above; /* 1 + the rank of the active bucket; 0 before the first */

    uint32_t n_ranks;
    uint32_t *buckets;  /* a rank: index + 1 of the chunk that was begun last */
    uint64_t *nonempty; /* a bit a rank */
    bpe_chunk *chunks;
    uint32_t n_chunks, cap_chunks, free_chunk;
} bpe_queue;

static void queue_free(bpe_queue *q)
{
    if (q == NULL)
        return;
    free(q->id);
    free(q->buckets);
    free(q->nonempty);
    free(q->chunks);
    free(q);
}

void bpe_scratch_fini(bpe_scratch *s)
{
    queue_free(s->queue);
    s->queue = NULL;
}

static td_status queue_open(bpe_scratch *s, uint32_t n_ranks, size_t n, td_error *err)
{
    bpe_queue *q = s->queue;
    size_t cap = 1024;

    if (q == NULL) {
        q = s->queue = calloc(1, sizeof *q);
        if (q == NULL)
            return td_fail(err, TD_NOMEM, "no memory to merge a piece");
        q->n_ranks = n_ranks;
        /* calloc of this size gives untouched pages: only those of ranks that occur cost. */
        q->buckets = calloc((size_t)n_ranks + 1, sizeof *q->buckets);
        q->nonempty = calloc((size_t)n_ranks / 64 + 1, sizeof *q->nonempty);
        if (q->buckets == NULL || q->nonempty == NULL)
            return td_fail(err, TD_NOMEM, "no memory for %u ranks", n_ranks);
    }
    td_assert(q->n_ranks == n_ranks);
    if (n > q->cap) {
        while (cap < n)
            cap += cap / 2;
        free(q->id);
        q->cap = 0;
        q->id = malloc(cap * 5 * sizeof *q->id);
        if (q->id == NULL)
            return td_fail(err, TD_NOMEM, "no memory to merge a piece of %zu bytes", n);
        q->next = q->id + cap;
        q->prev = q->next + cap;
        q->rank = q->prev + cap;
        q->active = q->rank + cap;
        q->cap = cap;
    }
    q->n_active = q->i_active = 0;
    q->n_chunks = q->free_chunk = 0;
    q->above = 0;
    return TD_OK;
}

/* Index + 1 of an empty chunk, 0 when there is no memory. */
static uint32_t take_chunk(bpe_queue *q)
{
    uint32_t c = q->free_chunk;

    if (c != 0) {
        q->free_chunk = q->chunks[c - 1].next;
        return c;
    }
    if (q->n_chunks == q->cap_chunks) {
        uint32_t cap = q->cap_chunks ? 2 * q->cap_chunks : 256;
        bpe_chunk *p = realloc(q->chunks, cap * sizeof *p);

        if (p == NULL)
            return 0;
        q->chunks = p;
        q->cap_chunks = cap;
    }
    return ++q->n_chunks;
}

static bool queue_push(bpe_queue *q, uint32_t rank, uint32_t pos)
{
    uint32_t c;

    if (rank == MERGE_NONE)
        return true;
    td_assert(rank >= q->above);
    c = q->buckets[rank];
    if (c == 0 || q->chunks[c - 1].n == sizeof q->chunks->pos / sizeof *q->chunks->pos) {
        uint32_t full = c;

        c = take_chunk(q);
        if (c == 0)
            return false;
        q->chunks[c - 1].next = full;
        q->chunks[c - 1].n = 0;
        q->buckets[rank] = c;
        q->nonempty[rank / 64] |= (uint64_t)1 << rank % 64;
    }
    q->chunks[c - 1].pos[q->chunks[c - 1].n++] = pos;
    return true;
}

static int compare_positions(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

static void sort_active(bpe_queue *q)
{
    uint32_t *a = q->active;
    size_t n = q->n_active, down = 1, up = 1;

    for (size_t i = 1; i < n; i++) {
        down += a[i] < a[i - 1];
        up += a[i] > a[i - 1];
    }
    if (n == 0 || up == n)
        return;
    if (down == n) {
        for (size_t i = 0; i < n / 2; i++) {
            uint32_t swap = a[i];

            a[i] = a[n - 1 - i];
            a[n - 1 - i] = swap;
        }
        return;
    }
    qsort(a, n, sizeof *a, compare_positions);
}

/* Make the lowest bucket active. False when all are empty. */
static bool queue_advance(bpe_queue *q)
{
    size_t word = q->above / 64, n_words = (size_t)q->n_ranks / 64 + 1;
    uint64_t bits = q->nonempty[word];
    uint32_t rank, c, next;

    while (bits == 0) {
        if (++word >= n_words)
            return false;
        bits = q->nonempty[word];
    }
    rank = (uint32_t)(64 * word) + (uint32_t)__builtin_ctzll(bits);
    q->nonempty[word] &= ~((uint64_t)1 << rank % 64);
    q->above = rank + 1;
    q->n_active = q->i_active = 0;
    for (c = q->buckets[rank]; c != 0; c = next) {
        bpe_chunk *chunk = &q->chunks[c - 1];

        for (uint32_t i = chunk->n; i-- > 0;)
            if (q->rank[chunk->pos[i]] == rank)
                q->active[q->n_active++] = chunk->pos[i];
        next = chunk->next;
        chunk->next = q->free_chunk;
        q->free_chunk = c;
    }
    q->buckets[rank] = 0;
    sort_active(q);
    return true;
}

/* The position of the next valid key. False when nothing is left to merge. */
static bool queue_pop(bpe_queue *q, uint32_t *pos)
{
    for (;;) {
        while (q->i_active < q->n_active) {
            *pos = q->active[q->i_active++];
            if (q->rank[*pos] == q->above - 1)
                return true;
        }
        if (!queue_advance(q))
            return false;
    }
}

/* The tokens at pos and behind it become one. */
static void join(bpe_queue *q, const merges *m, uint32_t pos, size_t n)
{
    uint32_t gone = q->next[pos], after = q->next[gone];

    q->id[pos] = merges_result(m, q->rank[pos]);
    q->next[pos] = after;
    q->rank[gone] = MERGE_NONE;
    if (after < n)
        q->prev[after] = pos;
}

/* Merge at pos, and what must follow at once. False when there is no memory. */
static bool merge_at(bpe_queue *q, const merges *m, uint32_t pos, size_t n)
{
    for (;;) {
        uint32_t before, after, left = MERGE_NONE, right = MERGE_NONE;

        join(q, m, pos, n);
        before = q->prev[pos];
        after = q->next[pos];
        if (after < n)
            right = merges_find(m, q->id[pos], q->id[after]);
        q->rank[pos] = right;
        if (pos > 0) {
            left = merges_find(m, q->id[before], q->id[pos]);
            q->rank[before] = left;
        }
        if (left >= q->above && right >= q->above)
            return queue_push(q, left, before) && queue_push(q, right, pos);
        if (left <= right)
            pos = before;
    }
}

static td_status merge_long(const vocab *v, const merges *m, bpe_scratch *s,
                            const unsigned char *piece, size_t n, td_tokens *out, td_error *err)
{
    td_status st = queue_open(s, m->n_ranks, n, err);
    bpe_queue *q = s->queue;
    bool room = true;
    uint32_t pos;

    if (st != TD_OK)
        return st;
    for (size_t i = 0; i < n; i++) {
        q->id[i] = (uint32_t)v->byte_id[piece[i]];
        q->next[i] = (uint32_t)i + 1;
        q->prev[i] = (uint32_t)i - 1; /* of the first: never read */
    }
    q->rank[n - 1] = MERGE_NONE;
    for (size_t i = n - 1; i-- > 0;) { /* backwards: then the lists come out in order */
        q->rank[i] = m->of_bytes[(size_t)piece[i] << 8 | piece[i + 1]];
        room = queue_push(q, q->rank[i], (uint32_t)i) && room;
    }
    while (room && queue_pop(q, &pos))
        room = merge_at(q, m, pos, n);
    if (!room) {
        bpe_scratch_fini(s); /* its buckets are not empty */
        return td_fail(err, TD_NOMEM, "no memory to merge a piece of %zu bytes", n);
    }
    for (size_t i = 0; i < n; i = q->next[i])
        td_tokens_push(out, (int32_t)q->id[i]);
    return TD_OK;
}

static inline uint64_t lower(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The lowest rank and, of equals, the leftmost: rank * 256 + position. Four at a time and without
 * branches, which would be guessed wrong at each new minimum. rank[n .. n + 3] is MERGE_NONE. */
static inline uint64_t lowest(const uint32_t *rank, size_t n)
{
    uint64_t a = UINT64_MAX, b = UINT64_MAX, c = UINT64_MAX, d = UINT64_MAX;

    for (size_t i = 0; i < n; i += 4) {
        a = lower(a, (uint64_t)rank[i] << 8 | i);
        b = lower(b, (uint64_t)rank[i + 1] << 8 | (i + 1));
        c = lower(c, (uint64_t)rank[i + 2] << 8 | (i + 2));
        d = lower(d, (uint64_t)rank[i + 3] << 8 | (i + 3));
    }
    return lower(lower(a, b), lower(c, d));
}

static void merge_short(const vocab *v, const merges *m, const unsigned char *piece, size_t n,
                        td_tokens *out)
{
    uint32_t id[BPE_SHORT], rank[BPE_SHORT + 4]; /* rank[i]: of merging i and i + 1 */

    for (size_t i = 0; i < n; i++)
        id[i] = (uint32_t)v->byte_id[piece[i]];
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = m->of_bytes[(size_t)piece[i] << 8 | piece[i + 1]];
    for (size_t i = n - 1; i < n + 4; i++)
        rank[i] = MERGE_NONE;
    for (;;) {
        uint64_t best = lowest(rank, n - 1);
        size_t at = best & 255;

        if (best >> 8 >= MERGE_NONE)
            break;
        id[at] = merges_result(m, (uint32_t)(best >> 8));
        n--;
        for (size_t i = at + 1; i < n; i++) {
            id[i] = id[i + 1];
            rank[i - 1] = rank[i];
        }
        rank[n - 1] = MERGE_NONE;
        if (at > 0)
            rank[at - 1] = merges_find(m, id[at - 1], id[at]);
        if (at + 1 < n)
            rank[at] = merges_find(m, id[at], id[at + 1]);
    }
    for (size_t i = 0; i < n; i++)
        td_tokens_push(out, (int32_t)id[i]);
}

td_status bpe_merge(const vocab *v, const merges *m, bpe_scratch *s, const unsigned char *piece,
                    size_t n, td_tokens *out, td_error *err)
{
    td_status st = TD_OK;

    td_assert(n > 0 && n <= INT32_MAX);
    if (n <= BPE_SHORT)
        merge_short(v, m, piece, n, out);
    else
        st = merge_long(v, m, s, piece, n, out, err);
    if (st == TD_OK && out->oom)
        st = td_fail(err, TD_NOMEM, "no memory for %zu tokens", out->len);
    return st;
}
