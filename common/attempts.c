#include "common/attempts.h"

#include <math.h>

td_status td_generation_read(td_generation *out, const Tandem__Sampling *s, const int32_t *stops,
                             size_t n_stops, td_error *err)
{
    if (s == NULL || !isfinite(s->temperature) || s->temperature < 0 || !(s->top_p > 0) ||
        !(s->top_p <= 1) || s->top_k < 0)
        return td_fail(err, TD_INVALID, "sampling parameters are missing or out of range");
    if (n_stops > TD_MAX_STOPS || s->n_banned > TD_MAX_BANNED)
        return td_fail(err, TD_INVALID, "%zu stop ids (at most %d), %zu banned ranges (at most %d)",
                       n_stops, TD_MAX_STOPS, s->n_banned, TD_MAX_BANNED);
    for (size_t i = 0; i < s->n_banned; i++)
        if (s->banned[i]->first < 0 || s->banned[i]->last < s->banned[i]->first)
            return td_fail(err, TD_INVALID, "banned range %d..%d", s->banned[i]->first,
                           s->banned[i]->last);
    for (size_t i = 0; i < s->n_banned; i++)
        out->banned[i] = (td_id_range){s->banned[i]->first, s->banned[i]->last};
    for (size_t i = 0; i < n_stops; i++)
        out->stops[i] = stops[i];
    out->n_stops = (int32_t)n_stops;
    out->sampling = (td_sampling){.temperature = s->temperature,
                                  .top_p = s->top_p,
                                  .top_k = s->top_k,
                                  .seed = s->seed,
                                  .banned = out->banned,
                                  .n_banned = (int32_t)s->n_banned};
    return TD_OK;
}

bool td_generation_stops(const td_generation *g, int32_t token)
{
    for (int32_t i = 0; i < g->n_stops; i++)
        if (g->stops[i] == token)
            return true;
    return false;
}

void td_recent_add(td_recent *r, uint64_t request, uint64_t attempt)
{
    r->list[r->at++ % TD_RECENT_ATTEMPTS] = (struct td_attempt){request, attempt};
}

bool td_recent_has(const td_recent *r, uint64_t request, uint64_t attempt)
{
    for (size_t i = 0; i < TD_RECENT_ATTEMPTS; i++)
        if (r->list[i].request == request && r->list[i].attempt == attempt)
            return true;
    return false;
}
