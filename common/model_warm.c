/* model_warm: what a backend gets ready at first use, before requests and ranks wait for it.
 *
 * A library's kernel is loaded when it is first launched: of a first prompt of 1,000 tokens that
 * was 1.3 s. Loading may also wait until the device is idle, and in a step the device may be
 * waiting for another rank, whose thread waits for the loader. Which kernels those are depends on
 * the shape: attention's products of large steps are chosen anew for every TD_SMALL_STEP rows, so
 * each such size is run once, each rank by itself. */
#include "common/model_impl.h"

static td_status warm_rank(void *ctx, int32_t rank, td_error *err)
{
    td_model *m = ctx;
    model_rank *r = &m->rank[rank];
    size_t slots = (m->in.len - m->in.slot_full) * sizeof(int32_t); /* of both kinds of layers */
    td_status st = m->ops->dev_bind(r->dev, err);

    if (st == TD_OK)
        st = m->ops->copy_in(r->stream, (int32_t *)r->inputs.ptr + m->in.slot_full,
                             (int32_t *)m->inputs.ptr + m->in.slot_full, slots, err);
    for (int32_t rows = TD_SMALL_STEP; st == TD_OK && rows < m->opt.max_tokens;) {
        rows = m->opt.max_tokens - rows > TD_SMALL_STEP ? rows + TD_SMALL_STEP : m->opt.max_tokens;
        st = model_attn_in(m, rank, 0, rows, err);
        if (st == TD_OK)
            st = model_attn_out(m, rank, 0, rows, err);
    }
    if (st == TD_OK)
        st = m->ops->sync(r->stream, err);
    return st == TD_OK ? st : td_wrap(err, "getting rank %d ready", rank);
}

td_status model_warm_ranks(td_model *m, td_error *err)
{
    int32_t *in = m->inputs.ptr;

    if (m->ops->comm_open == NULL) /* steps are not enqueued: nothing is loaded late or waits */
        return TD_OK;
    for (size_t i = m->in.slot_full; i < m->in.len; i++)
        in[i] = -1; /* nothing is stored */
    return td_ranks_run(m->ranks, warm_rank, m, err);
}
