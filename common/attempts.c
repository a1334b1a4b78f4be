#include "common/attempts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool td_sampling_penalizes(const Tandem__Sampling *s)
{
    return s != NULL && (s->presence != 0 || s->frequency != 0);
}

/* What came with 1.1. */
static td_status check_edits(const Tandem__Sampling *s, td_error *err)
{
    if (!(fabsf(s->presence) <= 2) || !(fabsf(s->frequency) <= 2))
        return td_fail(err, TD_INVALID, "penalties %g and %g: -2 to 2 is possible",
                       (double)s->presence, (double)s->frequency);
    if (s->n_bias_ids > TD_MAX_BIAS || s->n_bias_ids != s->n_bias_values)
        return td_fail(err, TD_INVALID, "a bias for %zu tokens with %zu values; at most %d",
                       s->n_bias_ids, s->n_bias_values, TD_MAX_BIAS);
    for (size_t i = 0; i < s->n_bias_ids; i++)
        if (s->bias_ids[i] < 0 || !isfinite(s->bias_values[i]))
            return td_fail(err, TD_INVALID, "bias %g for token %d", (double)s->bias_values[i],
                           s->bias_ids[i]);
    if (s->top_logprobs < 0 || s->top_logprobs > TD_TOP_LOGPROBS)
        return td_fail(err, TD_INVALID, "%d top log-probabilities; at most %d", s->top_logprobs,
                       TD_TOP_LOGPROBS);
    return TD_OK;
}

td_status td_generation_read(td_generation *out, const Tandem__Sampling *s, const int32_t *stops,
                             size_t n_stops, const int32_t *answer, size_t n_answer, size_t more,
                             td_error *err)
{
    td_token_bias *bias = NULL;
    td_token_count *counts = NULL;
    size_t max_counts = td_sampling_penalizes(s) ? n_answer + more : 0;
    td_status st;

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
    st = check_edits(s, err);
    if (st != TD_OK)
        return st;
    if (s->n_bias_ids > 0)
        bias = malloc(s->n_bias_ids * sizeof *bias);
    if (max_counts > 0)
        counts = malloc(max_counts * sizeof *counts);
    if ((s->n_bias_ids > 0 && bias == NULL) || (max_counts > 0 && counts == NULL)) {
        free(bias);
        free(counts);
        return td_fail(err, TD_NOMEM, "no memory for %zu biases and %zu counts", s->n_bias_ids,
                       max_counts);
    }
    for (size_t i = 0; i < s->n_bias_ids; i++)
        bias[i] = (td_token_bias){s->bias_ids[i], s->bias_values[i]};
    out->bias = bias;
    out->counts = counts;
    out->max_counts = max_counts;
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
                                  .n_banned = (int32_t)s->n_banned,
                                  .presence = s->presence,
                                  .frequency = s->frequency,
                                  .counts = counts,
                                  .bias = bias,
                                  .n_bias = (int32_t)s->n_bias_ids,
                                  .logprobs = s->logprobs,
                                  .top_logprobs = s->logprobs ? s->top_logprobs : 0};
    for (size_t i = 0; i < n_answer; i++)
        td_generation_count(out, answer[i]);
    return TD_OK;
}

void td_generation_free(td_generation *g)
{
    free(g->bias);
    free(g->counts);
    td_guide_free(g->guide);
    g->guide = NULL;
    g->bias = NULL;
    g->counts = NULL;
    g->sampling.n_bias = g->sampling.n_counts = 0;
}

td_status td_generation_open_guide(td_guides *guides, const Tandem__Guide *m, const int32_t *answer,
                                   size_t n, td_guide **out, td_error *err)
{
    td_status st;

    *out = NULL;
    if (m == NULL)
        return TD_OK;
    if (guides == NULL)
        return td_fail(err, TD_INVALID, "this worker has no tokenizer.json to guide an answer by");
    st = td_guide_create(guides, m, answer, n, out, err);
    if (st == TD_OK)
        td_guide_mask(*out);
    return st;
}

td_status td_generation_guide(td_generation *g, int32_t token, td_error *err)
{
    return g->guide != NULL ? td_guide_accept(g->guide, token, err) : TD_OK;
}

td_status td_generation_mask(td_generation *g, td_error *err)
{
    if (g->guide == NULL)
        return TD_OK;
    g->sampling.mask = td_guide_mask(g->guide);
    if (g->sampling.mask != NULL)
        return TD_OK;
    if (td_guide_out_of_memory(g->guide))
        return td_fail(err, TD_NOMEM, "no memory for a mask of tokens");
    return td_fail(err, TD_DEADEND, "no token can follow in what the answer is held to");
}

void td_generation_count(td_generation *g, int32_t token)
{
    size_t n = (size_t)g->sampling.n_counts, lo = 0, hi = n;

    if (g->counts == NULL)
        return;
    while (lo < hi) { /* the first that is not before token */
        size_t mid = lo + (hi - lo) / 2;

        if (g->counts[mid].token < token)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < n && g->counts[lo].token == token) {
        g->counts[lo].count++;
        return;
    }
    td_assert(n < g->max_counts);
    memmove(g->counts + lo + 1, g->counts + lo, (n - lo) * sizeof *g->counts);
    g->counts[lo] = (td_token_count){token, 1};
    g->sampling.n_counts++;
}

void td_logprobs_wire(const td_logprobs *l, Tandem__TokenLogprobs *out)
{
    tandem__token_logprobs__init(out);
    out->chosen = l->chosen;
    out->n_ids = out->n_values = l->n > 0 ? (size_t)l->n : 0;
    out->ids = (int32_t *)(uintptr_t)l->id;
    out->values = (float *)(uintptr_t)l->logprob;
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
