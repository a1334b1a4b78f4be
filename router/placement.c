#include "router/placement.h"

#include <string.h>

#include "common/kv_layout.h"

uint32_t placement_pages(const placement_need *need)
{
    return td_kv_pages_for((uint64_t)need->prompt_tokens + need->max_tokens);
}

static bool is_named(const worker_view *w, const char *id)
{
    return id != NULL && id[0] != '\0' && strcmp(w->id, id) == 0;
}

static bool usable(const worker_view *w, worker_role role)
{
    return w->role == role && w->state == WORKER_READY && w->greeted;
}

static bool fits(const worker_view *w, worker_role role, const placement_need *need)
{
    return usable(w, role) && (w->guides || !need->guides);
}

/* Why no worker of a role fits. */
static td_status none_fits(const worker_view *view, size_t n, worker_role role, td_error *err)
{
    const char *name = role == WORKER_DECODE ? "decode" : "prefill";

    for (size_t i = 0; i < n; i++)
        if (usable(&view[i], role))
            return td_fail(err, TD_UNAVAILABLE,
                           "no %s worker that is ready can hold an answer to a schema or a "
                           "tool_choice: it must speak protocol 1.3 and have a tokenizer.json",
                           name);
    return td_fail(err, TD_UNAVAILABLE, "no %s worker is ready", name);
}

static uint32_t minus(uint32_t a, uint32_t b)
{
    return a > b ? a - b : 0;
}

static bool decode_has_room(const worker_view *w, uint32_t pages)
{
    return minus(w->pages_free, w->sent_pages) >= pages &&
           minus(w->rings_free, w->sent_requests) > 0;
}

/* Compare shares a/b with c/d without dividing. */
static int share_cmp(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t left = a * (d ? d : 1), right = c * (b ? b : 1);

    return left < right ? -1 : left > right;
}

/* Between equals: the one whose last work is longer ago, so that light load is spread as well. */
static bool rested_longer(const worker_view *a, const worker_view *b)
{
    return a->last_sent != b->last_sent ? a->last_sent < b->last_sent : strcmp(a->id, b->id) < 0;
}

static bool decode_better(const worker_view *a, const worker_view *b, uint32_t pages)
{
    uint64_t busy_a = (uint64_t)a->running + a->reserved + a->sent_requests;
    uint64_t busy_b = (uint64_t)b->running + b->reserved + b->sent_requests;
    int c = share_cmp(busy_a, a->max_batch, busy_b, b->max_batch);

    if (c == 0)
        c = share_cmp(a->pages_total - minus(a->pages_free, a->sent_pages + pages), a->pages_total,
                      b->pages_total - minus(b->pages_free, b->sent_pages + pages), b->pages_total);
    return c < 0 || (c == 0 && rested_longer(a, b));
}

static bool prefill_better(const worker_view *a, const worker_view *b)
{
    uint64_t qa = a->queued_tokens + a->sent_tokens, qb = b->queued_tokens + b->sent_tokens;

    return qa < qb || (qa == qb && rested_longer(a, b));
}

/* The best decode worker with room; avoid_decode is looked at only if nothing else is there.
 * *largest is the biggest pool among usable workers, 0 if there is none. */
static const worker_view *choose_decode(const worker_view *view, size_t n,
                                        const placement_need *need, uint32_t *largest)
{
    uint32_t pages = placement_pages(need);
    const worker_view *best = NULL, *fallback = NULL;

    *largest = 0;
    for (size_t i = 0; i < n; i++) {
        const worker_view *w = &view[i];

        if (!fits(w, WORKER_DECODE, need))
            continue;
        if (w->pages_total > *largest)
            *largest = w->pages_total;
        if (!decode_has_room(w, pages))
            continue;
        if (is_named(w, need->avoid_decode))
            fallback = w;
        else if (best == NULL || decode_better(w, best, pages))
            best = w;
    }
    return best != NULL ? best : fallback;
}

static const worker_view *choose_prefill(const worker_view *view, size_t n,
                                         const placement_need *need, uint32_t *longest)
{
    uint32_t tokens = need->prompt_tokens;
    const worker_view *best = NULL, *fallback = NULL;

    *longest = 0;
    for (size_t i = 0; i < n; i++) {
        const worker_view *w = &view[i];

        if (!fits(w, WORKER_PREFILL, need))
            continue;
        if (w->max_prompt_tokens > *longest)
            *longest = w->max_prompt_tokens;
        if (w->max_prompt_tokens < tokens)
            continue;
        if (is_named(w, need->avoid_prefill))
            fallback = w;
        else if (best == NULL || prefill_better(w, best))
            best = w;
    }
    return best != NULL ? best : fallback;
}

size_t placement_capacity(const worker_view *view, size_t n)
{
    size_t decode = 0, prefill = 0;

    for (size_t i = 0; i < n; i++) {
        const worker_view *w = &view[i];
        size_t room = usable(w, WORKER_DECODE) ? (size_t)w->pages_total * TD_PAGE_TOKENS : 0;

        decode = room > decode ? room : decode;
        if (usable(w, WORKER_PREFILL) && w->max_prompt_tokens > prefill)
            prefill = w->max_prompt_tokens;
    }
    return decode < prefill ? decode : prefill;
}

td_status placement_choose(const worker_view *view, size_t n, const placement_need *need,
                           placement *out, td_error *err)
{
    uint32_t pages = placement_pages(need), largest, longest;
    const worker_view *d = choose_decode(view, n, need, &largest);
    const worker_view *p = choose_prefill(view, n, need, &longest);

    if (largest == 0)
        return none_fits(view, n, WORKER_DECODE, err);
    if (longest == 0)
        return none_fits(view, n, WORKER_PREFILL, err);
    if (pages > largest)
        return td_fail(
            err, TD_INVALID,
            "prompt of %u tokens and %u more need %u KV pages; the largest decode worker "
            "has %u (%u tokens)",
            need->prompt_tokens, need->max_tokens, pages, largest,
            largest * (uint32_t)TD_PAGE_TOKENS);
    if (need->prompt_tokens > longest)
        return td_fail(err, TD_INVALID, "prompt of %u tokens; the largest prefill worker takes %u",
                       need->prompt_tokens, longest);
    if (d == NULL)
        return td_fail(err, TD_BUSY, "no decode worker has %u free KV pages and a free place now",
                       pages);
    td_assert(p != NULL);
    if (need->max_backlog > 0 && p->queued_tokens + p->sent_tokens > need->max_backlog)
        return td_fail(err, TD_BUSY, "every prefill worker has more than %llu tokens waiting",
                       (unsigned long long)need->max_backlog);
    *out = (placement){.decode = d, .prefill = p};
    return TD_OK;
}
