/* shard: see shard.h. */
#include "common/shard.h"

/* Part i of n when `total` things are dealt out as evenly as possible, the first ones one more. */
static void deal(int32_t total, int32_t n, int32_t i, int32_t *first, int32_t *count)
{
    int32_t base = total / n, extra = total % n;

    *first = i * base + (i < extra ? i : extra);
    *count = base + (i < extra ? 1 : 0);
}

td_status td_shard_of(const td_model_config *c, int32_t tp, int32_t ep, int32_t rank, td_shard *out,
                      td_error *err)
{
    int32_t in_group, blocks, first, count;
    td_shard s = {.rank = rank, .tp = tp, .ep = ep};

    if (tp < 1 || c->n_kv_heads % tp != 0 || c->n_q_heads % tp != 0)
        return td_fail_param(err, "tp",
                             "tp %d does not divide the model's %d kv heads and %d query heads", tp,
                             c->n_kv_heads, c->n_q_heads);
    if (ep < 1 || tp % ep != 0)
        return td_fail_param(err, "ep", "ep %d does not divide tp %d", ep, tp);
    if (c->n_experts % ep != 0)
        return td_fail_param(err, "ep", "ep %d does not divide the model's %d experts", ep,
                             c->n_experts);
    if (c->vocab < tp)
        return td_fail_param(err, "tp", "tp %d exceeds the vocabulary of %d", tp, c->vocab);
    in_group = tp / ep;
    blocks = (c->inter + TD_MXFP4_BLOCK - 1) / TD_MXFP4_BLOCK;
    if (in_group > blocks)
        return td_fail_param(err, "ep",
                             "tp %d with ep %d splits an expert over %d ranks, but its inner width "
                             "%d is only %d blocks of %d: raise ep",
                             tp, ep, in_group, c->inter, blocks, TD_MXFP4_BLOCK);
    if (rank < 0 || rank >= tp)
        return td_fail(err, TD_INVALID, "rank %d of %d", rank, tp);
    s.n_q = c->n_q_heads / tp;
    s.q_first = rank * s.n_q;
    s.n_kv = c->n_kv_heads / tp;
    s.kv_first = rank * s.n_kv;
    s.n_experts = c->n_experts / ep;
    s.expert_first = rank / in_group * s.n_experts;
    deal(blocks, in_group, rank % in_group, &first, &count);
    s.inner_first = first * TD_MXFP4_BLOCK;
    s.n_inner = count * TD_MXFP4_BLOCK;
    if (s.inner_first + s.n_inner > c->inter) /* a last block that is not whole */
        s.n_inner = c->inter - s.inner_first;
    deal(c->vocab, tp, rank, &s.vocab_first, &s.n_vocab);
    s.adds_out_bias = rank == 0;
    s.adds_down_bias = rank % in_group == 0;
    *out = s;
    return TD_OK;
}
