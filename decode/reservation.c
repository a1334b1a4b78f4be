#include "decode/reservation.h"

#include <stdlib.h>
#include <string.h>

typedef struct attempt_key {
    uint64_t request, attempt;
} attempt_key;

struct reservations {
    reservations_options opt;
    reservation *all; /* uthash by (request, attempt) */
    uint32_t next_epoch;
    reservations_counts counts;
    td_recent recent; /* attempts that are over */
};

td_status reservations_create(const reservations_options *opt, reservations **out, td_error *err)
{
    reservations *t = calloc(1, sizeof *t);

    if (t == NULL)
        return td_fail(err, TD_NOMEM, "reservations: no memory");
    t->opt = *opt;
    t->next_epoch = 1;
    *out = t;
    return TD_OK;
}

static uint32_t *count_of(reservations *t, reservation_state s)
{
    return s == RESERVATION_OPEN      ? &t->counts.open
           : s == RESERVATION_RUNNING ? &t->counts.running
                                      : &t->counts.quarantined;
}

static void set_state(reservations *t, reservation *r, reservation_state to)
{
    --*count_of(t, r->state);
    ++*count_of(t, to);
    r->state = to;
}

static void give_back(reservations *t, reservation *r)
{
    --*count_of(t, r->state);
    if (r->state == RESERVATION_QUARANTINE)
        t->counts.quarantined_pages -= r->n_pages;
    HASH_DEL(t->all, r);
    td_kv_pool_give(t->opt.pool, r->ext, r->n_ext, r->ring);
    td_generation_free(&r->generation);
    free(r->pages);
    free(r);
}

void reservations_free(reservations *t)
{
    reservation *r, *next;

    if (t == NULL)
        return;
    HASH_ITER(hh, t->all, r, next)
    give_back(t, r);
    free(t);
}

reservation *reservation_find(reservations *t, uint64_t request, uint32_t attempt)
{
    attempt_key key = {request, attempt};
    reservation *r;

    HASH_FIND(hh, t->all, &key, sizeof key, r);
    return r;
}

void reservation_refuse(reservations *t, uint64_t request, uint32_t attempt)
{
    td_recent_add(&t->recent, request, attempt);
}

/* Everything that can be wrong with a Reserve, before anything is taken. */
static td_status check(const reservations *t, const Tandem__Reserve *m, td_error *err)
{
    uint64_t positions = (uint64_t)m->prompt_tokens + m->max_tokens;
    uint32_t pages = td_kv_pages_for(positions);

    if (m->request == 0 || m->prompt_tokens == 0 || m->max_tokens == 0 || m->lease_ms == 0)
        return td_fail(err, TD_INVALID,
                       "reserve: request, prompt_tokens, max_tokens and lease_ms must not be 0");
    if (positions > (uint64_t)t->opt.max_positions)
        return td_fail(err, TD_INVALID, "reserve: %llu positions, the model has %d",
                       (unsigned long long)positions, t->opt.max_positions);
    if (pages > td_kv_pool_pages_total(t->opt.pool))
        return td_fail(err, TD_INVALID, "reserve: %u pages for %llu positions, the pool has %u",
                       pages, (unsigned long long)positions, td_kv_pool_pages_total(t->opt.pool));
    if (m->n_answer != (m->guide != NULL || td_sampling_penalizes(m->sampling) ? m->index : 0))
        return td_fail(err, TD_INVALID,
                       "reserve: %zu tokens of an answer of which %u are there; with penalties or "
                       "a guide all of them, otherwise none",
                       m->n_answer, m->index);
    for (size_t i = 0; i < m->n_answer; i++)
        if (m->answer[i] < 0 || m->answer[i] >= t->opt.vocab)
            return td_fail(err, TD_INVALID,
                           "reserve: token %d of the answer, the vocabulary has %d", m->answer[i],
                           t->opt.vocab);
    return TD_OK;
}

static void fill(reservations *t, reservation *r, const Tandem__Reserve *m, int32_t link,
                 td_usec now)
{
    int64_t lease_ms =
        (int64_t)m->lease_ms < t->opt.lease_max_ms ? (int64_t)m->lease_ms : t->opt.lease_max_ms;
    r->request = m->request;
    r->attempt = m->attempt;
    r->epoch = t->next_epoch++;
    if (t->next_epoch == 0) /* 0 is nobody's */
        t->next_epoch = 1;
    r->link = link;
    r->state = RESERVATION_OPEN;
    r->prompt_tokens = m->prompt_tokens;
    r->max_tokens = m->max_tokens;
    r->base_index = m->index;
    r->opened_at = now;
    r->lease_end = now + lease_ms * TD_USEC_PER_MSEC;
    r->fence = r->lease_end + t->opt.grace_ms * TD_USEC_PER_MSEC;
    td_kv_arrival_init(&r->arrival, r->request, (uint32_t)r->attempt, r->epoch,
                       td_kv_transfer_bytes(t->opt.geometry, (int32_t)m->prompt_tokens));
}

td_status reservation_open(reservations *t, const Tandem__Reserve *m, int32_t link, td_usec now,
                           reservation **out, td_error *err)
{
    reservation *r = reservation_find(t, m->request, m->attempt);
    uint32_t n_pages;
    td_status st;

    if (r != NULL && r->state != RESERVATION_QUARANTINE && r->link == link) {
        *out = r;
        return TD_OK;
    }
    if (r != NULL || td_recent_has(&t->recent, m->request, m->attempt))
        return td_fail(err, TD_CANCELED, "reserve: attempt %u of request %llx is over", m->attempt,
                       (unsigned long long)m->request);
    st = check(t, m, err);
    if (st != TD_OK)
        return st;

    n_pages = td_kv_pages_for((uint64_t)m->prompt_tokens + m->max_tokens);
    r = calloc(1, sizeof *r);
    if (r != NULL)
        r->pages = malloc(n_pages * sizeof *r->pages);
    if (r == NULL || r->pages == NULL) {
        free(r);
        return td_fail(err, TD_NOMEM, "reserve: no memory for a table of %u pages", n_pages);
    }
    st = td_generation_read(&r->generation, m->sampling, m->stop_ids, m->n_stop_ids, m->answer,
                            m->n_answer, m->max_tokens, err);
    if (st == TD_OK)
        st = td_kv_pool_take(t->opt.pool, n_pages, r->ext, RESERVATION_MAX_EXTENTS, &r->n_ext,
                             &r->ring, err);
    if (st != TD_OK) {
        td_generation_free(&r->generation);
        free(r->pages);
        free(r);
        return st;
    }
    for (size_t e = 0; e < r->n_ext; e++)
        for (uint32_t p = 0; p < r->ext[e].count; p++)
            r->pages[r->n_pages++] = r->ext[e].first + p;
    td_assert(r->n_pages == n_pages);
    fill(t, r, m, link, now);
    HASH_ADD(hh, t->all, request, sizeof(attempt_key), r);
    t->counts.open++;
    *out = r;
    return TD_OK;
}

reservation_news reservation_notice(reservations *t, const td_kv_notice *n, td_usec now,
                                    reservation **out, td_error *err)
{
    reservation *r = reservation_find(t, n->request, n->attempt);
    td_kv_arrival_state s;

    *out = r;
    if (r == NULL || r->state == RESERVATION_RUNNING)
        return RESERVATION_NOTHING;
    if (td_kv_arrival_add(&r->arrival, n, err) != TD_OK)
        return RESERVATION_NOTHING;
    s = td_kv_arrival_state_of(&r->arrival);
    if (r->state == RESERVATION_OPEN && s == TD_KV_ARRIVAL_COMPLETE &&
        (r->arrival.first_token < 0 || r->arrival.first_token >= t->opt.vocab)) {
        td_fail(err, TD_INTERNAL, "the first token is %d, the vocabulary has %d",
                r->arrival.first_token, t->opt.vocab);
        return RESERVATION_LOST;
    }
    if (r->state == RESERVATION_QUARANTINE) {
        if (s != TD_KV_ARRIVAL_PENDING) { /* the last source has reported: nothing can land now */
            give_back(t, r);
            *out = NULL;
        }
        return RESERVATION_NOTHING;
    }
    if (s == TD_KV_ARRIVAL_COMPLETE) {
        set_state(t, r, RESERVATION_RUNNING);
        r->landed_at = now;
        return RESERVATION_LANDED;
    }
    if (s == TD_KV_ARRIVAL_FAILED || r->arrival.status != TD_OK) {
        td_kv_arrival_why(&r->arrival, err);
        return RESERVATION_LOST;
    }
    return RESERVATION_NOTHING;
}

void reservation_close(reservations *t, reservation *r, bool source_may_write)
{
    bool quiet = r->state == RESERVATION_RUNNING || !source_may_write ||
                 td_kv_arrival_state_of(&r->arrival) != TD_KV_ARRIVAL_PENDING;

    td_assert(!r->in_batch);
    if (r->state == RESERVATION_QUARANTINE)
        return;
    reservation_refuse(t, r->request, (uint32_t)r->attempt);
    if (quiet) {
        give_back(t, r);
        return;
    }
    set_state(t, r, RESERVATION_QUARANTINE);
    t->counts.quarantined_pages += r->n_pages;
}

void reservations_reap(reservations *t, td_usec now, void (*settle)(void *), void *arg)
{
    reservation *r, *next;

    HASH_ITER(hh, t->all, r, next)
    {
        if (r->state != RESERVATION_QUARANTINE || now < r->fence)
            continue;
        if (settle != NULL)
            settle(arg);
        settle = NULL;
        give_back(t, r);
    }
}

reservation *reservations_expired(reservations *t, td_usec now)
{
    reservation *r, *next;

    HASH_ITER(hh, t->all, r, next)
    if (r->state == RESERVATION_OPEN && now >= r->lease_end)
        return r;
    return NULL;
}

td_usec reservations_next_deadline(const reservations *t)
{
    const reservation *r, *next;
    td_usec at = TD_USEC_NEVER;

    HASH_ITER(hh, t->all, r, next)
    {
        td_usec mine = r->state == RESERVATION_OPEN         ? r->lease_end
                       : r->state == RESERVATION_QUARANTINE ? r->fence
                                                            : TD_USEC_NEVER;
        at = mine < at ? mine : at;
    }
    return at;
}

reservation *reservations_of_link(reservations *t, int32_t link)
{
    reservation *r, *next;

    HASH_ITER(hh, t->all, r, next)
    if (r->state != RESERVATION_QUARANTINE && (link < 0 || r->link == link))
        return r;
    return NULL;
}

reservations_counts reservations_count(const reservations *t)
{
    return t->counts;
}

void reservations_check(const reservations *t)
{
    uint32_t pages = 0, rings = 0, quarantined = 0;
    const reservation *r, *next;

    HASH_ITER(hh, t->all, r, next)
    {
        pages += r->n_pages;
        rings++;
        if (r->state == RESERVATION_QUARANTINE)
            quarantined += r->n_pages;
    }
    td_kv_pool_check(t->opt.pool);
    td_assert(pages + td_kv_pool_pages_free(t->opt.pool) == td_kv_pool_pages_total(t->opt.pool));
    td_assert(rings + td_kv_pool_rings_free(t->opt.pool) == td_kv_pool_rings_total(t->opt.pool));
    td_assert(quarantined == t->counts.quarantined_pages);
    td_assert(rings == t->counts.open + t->counts.running + t->counts.quarantined);
}
