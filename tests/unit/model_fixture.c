/* model_fixture: see model_fixture.h. */
#include "tests/unit/model_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

const td_model_config fixture_config = {
    .n_layers = 4,
    .hidden = 128,
    .n_q_heads = 16,
    .n_kv_heads = 8,
    .head_dim = 32,
    .n_experts = 8,
    .top_k = 4,
    .inter = 256,
    .vocab = 515,
    .window = 128,
    .windowed = {true, false, true, false},
    .max_positions = 8192,
    .eps = 1e-5f,
    .swiglu_limit = 7.0f,
    .rope_theta = 150000,
    .yarn_factor = 32,
    .yarn_beta_fast = 32,
    .yarn_beta_slow = 1,
    .yarn_original_positions = 256,
};

void check_ok(td_status st, const td_error *err)
{
    if (st != TD_OK)
        fail_msg("%s: %s", td_status_name(st), err->text);
}

fixture fixture_open(int32_t tp, int32_t ep, td_kv_dtype kv, int32_t chunk, uint32_t rings)
{
    return fixture_open_threads(tp, ep, kv, chunk, rings, tp == 1 ? 2 : tp);
}

fixture fixture_open_threads(int32_t tp, int32_t ep, td_kv_dtype kv, int32_t chunk, uint32_t rings,
                             int32_t threads)
{
    fixture f = {.vocab = fixture_config.vocab};
    td_model_options opt = {.backend = "cpu",
                            .tp = tp,
                            .ep = ep,
                            .threads = threads,
                            .kv_dtype = kv,
                            .kv_pages = 4 * FIXTURE_PAGES,
                            .kv_rings = rings,
                            .ring_pages = td_kv_ring_pages(fixture_config.window, chunk),
                            .max_tokens = chunk > 64 ? chunk : 64};
    td_checkpoint *c = NULL;
    td_error err = {0};

    check_ok(td_checkpoint_random(&fixture_config, 11, &c, &err), &err);
    check_ok(td_model_open(c, &fixture_config, &opt, &f.m, &err), &err);
    td_checkpoint_close(c);
    for (uint32_t s = 0; s < 4; s++) /* 7 and 320 have no common divisor: all pages differ */
        for (uint32_t i = 0; i < FIXTURE_PAGES; i++)
            f.pages[s][i] = (s * FIXTURE_PAGES + i) * 7 % (4 * FIXTURE_PAGES);
    return f;
}

void fixture_close(fixture *f)
{
    td_model_close(f->m);
    f->m = NULL;
}

int32_t fixture_token(int32_t i)
{
    return (int32_t)((uint32_t)i * 2654435761u >> 7) % fixture_config.vocab;
}

static td_seq seq_of(const fixture *f, int s, int32_t pos)
{
    return (td_seq){
        .pages = f->pages[s], .n_pages = FIXTURE_PAGES, .ring = (uint32_t)s, .pos = pos};
}

int32_t fixture_prefill(fixture *f, int s, int32_t from, int32_t to, int32_t chunk, float *logits)
{
    td_sampling greedy = {0};
    int32_t tokens[4200], token = -1;
    td_error err = {0};

    assert_true(to <= 4200);
    for (int32_t i = from; i < to; i++)
        tokens[i] = fixture_token(i);
    for (int32_t at = from, n; at < to; at += n) {
        n = to - at < chunk ? to - at : chunk;
        td_prefill_step p = {.tokens = tokens + at,
                             .n = n,
                             .seq = seq_of(f, s, at),
                             .sampling = at + n == to ? &greedy : NULL};

        if (logits != NULL)
            p.logits = logits + (size_t)(at - from) * (size_t)f->vocab;
        check_ok(td_model_prefill(f->m, &p, &err), &err);
        token = p.token;
    }
    return token;
}

int32_t fixture_decode(fixture *f, int s, int32_t pos, int32_t token, float *logits)
{
    td_sampling greedy = {0};
    td_seq seq = seq_of(f, s, pos);
    int32_t out = -1;
    td_error err = {0};
    td_decode_step d = {
        .n = 1, .seqs = &seq, .tokens = &token, .sampling = &greedy, .logits = logits, .out = &out};

    check_ok(td_model_decode(f->m, &d, &err), &err);
    return out;
}

/* Where position p of kv head `head` (of the whole model) lies in a model's memory. */
static char *address(const fixture *f, int s, int32_t layer, int32_t head, int32_t side, int32_t p)
{
    const td_kv_geometry *g = td_model_kv(f->m);
    uint32_t page = (uint32_t)p / TD_PAGE_TOKENS, row = (uint32_t)p % TD_PAGE_TOKENS;

    page =
        g->windowed[layer] ? (uint32_t)s * g->ring_pages + page % g->ring_pages : f->pages[s][page];
    return (char *)td_model_kv_base(f->m, head / g->heads_local) +
           td_kv_offset(g, layer, head % g->heads_local, side, page, row);
}

void fixture_transfer(const fixture *from, int s, fixture *to, int t, int32_t n)
{
    const td_kv_geometry *g = td_model_kv(from->m);

    for (int32_t layer = 0; layer < g->n_layers; layer++)
        for (int32_t head = 0; head < g->n_kv_heads; head++)
            for (int32_t side = 0; side < 2; side++)
                for (int32_t p = g->windowed[layer] ? td_kv_window_first(n, g->window) : 0; p < n;
                     p++)
                    memcpy(address(to, t, layer, head, side, p),
                           address(from, s, layer, head, side, p),
                           (size_t)g->head_dim * (size_t)g->elt_bytes);
}
