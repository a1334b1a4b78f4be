/* The queue for long pieces. Keys are (rank, position), the smallest first, at most one valid key a
 * position. A binary heap of a million keys costs some twenty cache misses a step, ten times what
 * ordinary text costs, so keys are kept apart by rank instead:
 *
 *   buckets   one list a rank, unordered, for ranks above the one being worked on
 *   active    the positions of the lowest bucket, sorted, worked through from the left
 *   urgent    a small heap for keys that come up at or below the active rank
 *
 * The next key is the smaller of the fronts of active and urgent; when both are empty the next
 * bucket becomes active. Since nothing below the active rank is ever put in a bucket, the active
 * rank only rises, and finding the next bucket is a walk over a bitmap. Merges mostly give higher
 * ranks, so urgent stays small. Keys of pairs that are gone are not searched for, but seen to be
 * stale when they come up: rank[] of their position has changed. A position never gets the same
 * rank twice, since its pair only grows.
 *
 * After a piece every bucket is empty again, so the next piece starts without clearing anything. */
#include "router/bpe.h"

#include <stdlib.h>
#include <string.h>

typedef struct bpe_entry {
    uint32_t pos;
    uint32_t next; /* index + 1 of the next one of the bucket or of the free list; 0: none */
} bpe_entry;

typedef struct bpe_queue {
    /* One element a byte of the piece, in one block. A token lives at its first byte. */
    size_t cap;
    uint32_t *id, *next, *prev;
    uint32_t *rank; /* of the merge with the next token, MERGE_NONE if there is none */
    uint32_t *active;
    bpe_entry *entries; /* 2 * cap: each merge takes one key out and puts two in */
    size_t n_active, i_active;
    uint32_t n_entries, free_entry;
    int64_t floor; /* rank of the active bucket; -1 before the first */

    uint32_t n_ranks;
    uint32_t *buckets;  /* index + 1 of the bucket's first entry */
    uint64_t *nonempty; /* a bit a rank */

    uint64_t *urgent; /* binary heap of rank << 32 | pos */
    size_t n_urgent, cap_urgent;
} bpe_queue;

static void queue_free(bpe_queue *q)
{
    if (q == NULL)
        return;
    free(q->id);
    free(q->buckets);
    free(q->nonempty);
    free(q->urgent);
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
        q->id = malloc(cap * (5 * sizeof(uint32_t) + 2 * sizeof(bpe_entry)));
        if (q->id == NULL)
            return td_fail(err, TD_NOMEM, "no memory to merge a piece of %zu bytes", n);
        q->cap = cap;
        q->next = q->id + cap;
        q->prev = q->next + cap;
        q->rank = q->prev + cap;
        q->active = q->rank + cap;
        q->entries = (bpe_entry *)(q->active + cap);
    }
    q->n_active = q->i_active = 0;
    q->n_entries = q->free_entry = 0;
    q->n_urgent = 0;
    q->floor = -1;
    return TD_OK;
}

static bool urgent_push(bpe_queue *q, uint64_t key)
{
    size_t i = q->n_urgent;

    if (i == q->cap_urgent) {
        size_t cap = q->cap_urgent ? 2 * q->cap_urgent : 64;
        uint64_t *p = realloc(q->urgent, cap * sizeof *p);

        if (p == NULL)
            return false;
        q->urgent = p;
        q->cap_urgent = cap;
    }
    for (; i > 0 && q->urgent[(i - 1) / 2] > key; i = (i - 1) / 2)
        q->urgent[i] = q->urgent[(i - 1) / 2];
    q->urgent[i] = key;
    q->n_urgent++;
    return true;
}

static void urgent_pop(bpe_queue *q)
{
    uint64_t key = q->urgent[--q->n_urgent];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < q->n_urgent) {
        if (child + 1 < q->n_urgent && q->urgent[child + 1] < q->urgent[child])
            child++;
        if (q->urgent[child] >= key)
            break;
        q->urgent[i] = q->urgent[child];
        i = child;
    }
    q->urgent[i] = key;
}

static bool queue_push(bpe_queue *q, uint32_t rank, uint32_t pos)
{
    uint32_t e = q->free_entry;

    if (rank == MERGE_NONE)
        return true;
    if ((int64_t)rank <= q->floor)
        return urgent_push(q, (uint64_t)rank << 32 | pos);
    if (e != 0) {
        q->free_entry = q->entries[e - 1].next;
    } else {
        e = ++q->n_entries;
        td_assert(e <= 2 * q->cap);
    }
    q->entries[e - 1] = (bpe_entry){pos, q->buckets[rank]};
    q->buckets[rank] = e;
    q->nonempty[rank / 64] |= (uint64_t)1 << rank % 64;
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
    size_t from = (size_t)(q->floor + 1), word = from / 64, n_words = (size_t)q->n_ranks / 64 + 1;
    uint64_t bits = word < n_words ? q->nonempty[word] >> from % 64 << from % 64 : 0;
    uint32_t rank, e, last = 0;

    while (bits == 0) {
        if (++word >= n_words)
            return false;
        bits = q->nonempty[word];
    }
    rank = (uint32_t)(64 * word) + (uint32_t)__builtin_ctzll(bits);
    q->nonempty[word] &= ~((uint64_t)1 << rank % 64);
    q->floor = rank;
    q->n_active = q->i_active = 0;
    for (e = q->buckets[rank]; e != 0; e = q->entries[e - 1].next) {
        if (q->rank[q->entries[e - 1].pos] == rank)
            q->active[q->n_active++] = q->entries[e - 1].pos;
        last = e;
    }
    q->entries[last - 1].next = q->free_entry;
    q->free_entry = q->buckets[rank];
    q->buckets[rank] = 0;
    sort_active(q);
    return true;
}

/* The next valid key's position. False when nothing is left to merge. */
static bool queue_pop(bpe_queue *q, uint32_t *pos)
{
    for (;;) {
        uint64_t key = UINT64_MAX;
        bool urgent = q->n_urgent > 0;

        if (q->i_active < q->n_active)
            key = (uint64_t)q->floor << 32 | q->active[q->i_active];
        else if (!urgent && !queue_advance(q))
            return false;
        else if (!urgent)
            continue;
        if (urgent && q->urgent[0] < key) {
            key = q->urgent[0];
            urgent_pop(q);
        } else {
            q->i_active++;
        }
        *pos = (uint32_t)key;
        if (q->rank[*pos] == key >> 32)
            return true;
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
        q->rank[i] = merges_find(m, q->id[i], q->id[i + 1]);
        room = queue_push(q, q->rank[i], (uint32_t)i) && room;
    }
    while (room && queue_pop(q, &pos)) {
        uint32_t gone = q->next[pos], after = q->next[gone];

        q->id[pos] = merges_result(m, q->rank[pos]);
        q->next[pos] = after;
        q->rank[gone] = MERGE_NONE;
        q->rank[pos] = MERGE_NONE;
        if (pos > 0) {
            uint32_t before = q->prev[pos];

            q->rank[before] = merges_find(m, q->id[before], q->id[pos]);
            room = queue_push(q, q->rank[before], before);
        }
        if (after < n) {
            q->prev[after] = pos;
            q->rank[pos] = merges_find(m, q->id[pos], q->id[after]);
            room = queue_push(q, q->rank[pos], pos) && room;
        }
    }
    if (!room) {
        bpe_scratch_fini(s); /* its buckets are not empty */
        return td_fail(err, TD_NOMEM, "no memory to merge a piece of %zu bytes", n);
    }
    for (size_t i = 0; i < n; i = q->next[i])
        td_tokens_push(out, (int32_t)q->id[i]);
    return TD_OK;
}

static void merge_short(const vocab *v, const merges *m, const unsigned char *piece, size_t n,
                        td_tokens *out)
{
    uint32_t id[BPE_SHORT], rank[BPE_SHORT]; /* rank[i]: of merging i and i + 1 */

    for (size_t i = 0; i < n; i++)
        id[i] = (uint32_t)v->byte_id[piece[i]];
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = merges_find(m, id[i], id[i + 1]);
    for (;;) {
        uint32_t best = MERGE_NONE;
        size_t at = 0;

        for (size_t i = 0; i + 1 < n; i++) {
            if (rank[i] < best) {
                best = rank[i];
                at = i;
            }
        }
        if (best == MERGE_NONE)
            break;
        id[at] = merges_result(m, best);
        n--;
        memmove(id + at + 1, id + at + 2, (n - at - 1) * sizeof *id);
        memmove(rank + at, rank + at + 1, (n - at - 1) * sizeof *rank);
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
