/* The steps of a layer on ops_rank's memory: see ops_rank.h. */
#include "bench/ops_rank.h"

#include "common/kv_layout.h"

static td_kv_view kv_view(td_elt elt)
{
    int64_t side = (int64_t)rank.n_pages * TD_KV_PAGE * rank.c.head_dim;

    side *= elt == TD_ELT_E4M3 ? 2 : 1;
    return (td_kv_view){rank.kv, 2 * side, side, elt};
}

/* Pages for step i of a graph, each sequence's after the other's: other ones in each step as long
 * as there are some. */
static const int32_t *pages(int32_t sequences, int32_t each, int i)
{
    int32_t need = sequences * each, sets = rank.n_pages / need;

    return rank.perm + (sets > 0 ? i % sets : 0) * need;
}

td_status run_embed(const row *r, int i, td_error *err)
{
    return rank.ops->embed(rank.s,
                           &(td_embed_args){.T = r->T,
                                            .D = rank.c.hidden,
                                            .tokens = rank.tokens + i % SETS * MOST,
                                            .table = &rank.embed,
                                            .out = rank.out},
                           err);
}

td_status run_attn_in(const row *r, int i, td_error *err)
{
    return rank.ops->attn_in(rank.s,
                             &(td_attn_in_args){.T = r->T,
                                                .D = rank.c.hidden,
                                                .H = rank.shard.n_q,
                                                .K = rank.shard.n_kv,
                                                .d = rank.c.head_dim,
                                                .eps = rank.c.eps,
                                                .x = rank.x,
                                                .norm = &rank.norm,
                                                .qkv = &rank.qkv.m[i % rank.qkv.n],
                                                .bias = &rank.qkv_bias,
                                                .cos = rank.rope,
                                                .sin = rank.rope,
                                                .pos = rank.count,
                                                .slot = rank.slot,
                                                .kv = kv_view(r->elt),
                                                .q = rank.q,
                                                .ws = rank.ws},
                             err);
}

td_status run_attn_prefill(const row *r, int i, td_error *err)
{
    int32_t wrap = r->keys / TD_KV_PAGE;

    if (r->window > 0)
        wrap = (int32_t)td_kv_ring_pages(r->window, r->T);
    return rank.ops->attn_prefill(rank.s,
                                  &(td_attn_prefill_args){.T = r->T,
                                                          .H = rank.shard.n_q,
                                                          .K = rank.shard.n_kv,
                                                          .d = rank.c.head_dim,
                                                          .pos0 = r->keys - r->T,
                                                          .window = r->window,
                                                          .wrap = wrap,
                                                          .scale = 0.125f,
                                                          .q = rank.q,
                                                          .kv = kv_view(r->elt),
                                                          .table = pages(1, wrap, i),
                                                          .sinks = &rank.sinks,
                                                          .out = rank.out,
                                                          .ws = rank.ws},
                                  err);
}

td_status run_attn_decode(const row *r, int i, td_error *err)
{
    int32_t wrap = r->keys / TD_KV_PAGE;

    if (r->window > 0)
        wrap = (int32_t)td_kv_ring_pages(r->window, 1);
    return rank.ops->attn_decode(rank.s,
                                 &(td_attn_decode_args){.T = r->T,
                                                        .H = rank.shard.n_q,
                                                        .K = rank.shard.n_kv,
                                                        .d = rank.c.head_dim,
                                                        .window = r->window,
                                                        .wrap = wrap,
                                                        .table_stride = wrap,
                                                        .scale = 0.125f,
                                                        .q = rank.q,
                                                        .kv = kv_view(r->elt),
                                                        .len = rank.len,
                                                        .table = pages(r->T, wrap, i),
                                                        .sinks = &rank.sinks,
                                                        .out = rank.out,
                                                        .ws = rank.ws},
                                 err);
}

td_status run_attn_out(const row *r, int i, td_error *err)
{
    return rank.ops->attn_out(rank.s,
                              &(td_attn_out_args){.T = r->T,
                                                  .D = rank.c.hidden,
                                                  .Hd = rank.shard.n_q * rank.c.head_dim,
                                                  .o = rank.q,
                                                  .w = &rank.o.m[i % rank.o.n],
                                                  .bias = &rank.o_bias,
                                                  .out = rank.out,
                                                  .ws = rank.ws},
                              err);
}

td_status run_add(const row *r, int i, td_error *err)
{
    (void)i;
    return rank.ops->add(rank.s,
                         &(td_add_args){.n = (size_t)r->T * (size_t)rank.c.hidden,
                                        .n_parts = 1,
                                        .clear = r->keys < 0,
                                        .part = (const void *const[]){rank.act},
                                        .x = rank.x},
                         err);
}

td_status run_router(const row *r, int i, td_error *err)
{
    return rank.ops->router(rank.s,
                            &(td_router_args){.T = r->T,
                                              .D = rank.c.hidden,
                                              .M = rank.c.n_experts,
                                              .k = rank.c.top_k,
                                              .eps = rank.c.eps,
                                              .x = rank.x,
                                              .norm = &rank.norm,
                                              .w = &rank.router.m[i % rank.router.n],
                                              .bias = &rank.router_bias,
                                              .t = rank.out,
                                              .idx = rank.idx,
                                              .prob = rank.prob,
                                              .ws = rank.ws},
                            err);
}

td_status run_experts(const row *r, int i, td_error *err)
{
    return rank.ops->experts(rank.s,
                             &(td_experts_args){.T = r->T,
                                                .D = rank.c.hidden,
                                                .I = rank.shard.n_inner,
                                                .E = rank.shard.n_experts,
                                                .k = rank.c.top_k,
                                                .expert_first = rank.shard.expert_first,
                                                .limit = rank.c.swiglu_limit,
                                                .t = rank.act,
                                                .idx = rank.set[i % SETS],
                                                .prob = rank.set_prob,
                                                .gate_up = &rank.gate_up[r->format],
                                                .gate_up_bias = &rank.gate_up_bias,
                                                .down = &rank.down[r->format],
                                                .down_bias = &rank.down_bias,
                                                .out = rank.out,
                                                .ws = rank.ws},
                             err);
}

td_status run_head(const row *r, int i, td_error *err)
{
    (void)i;
    return rank.ops->head(rank.s,
                          &(td_head_args){.n = r->T,
                                          .D = rank.c.hidden,
                                          .V = rank.shard.n_vocab,
                                          .eps = rank.c.eps,
                                          .x = rank.x,
                                          .rows = rank.count,
                                          .norm = &rank.norm,
                                          .w = &rank.unembed,
                                          .out = rank.logits,
                                          .ws = rank.ws},
                          err);
}

td_status run_sample(const row *r, int i, td_error *err)
{
    (void)i;
    return rank.ops->sample(rank.s,
                            &(td_sample_args){.n = r->T,
                                              .V = rank.c.vocab,
                                              .logits = rank.logits,
                                              .rows = rank.sample_rows + r->keys * SMALL,
                                              .token = rank.token,
                                              .logprobs = rank.logprobs,
                                              .ws = rank.ws},
                            err);
}
