/* sample: td_sample() on rows of logits, and the edits of tables. A row is one item of work; its
 * thread copies the logits, because td_sample() uses them up and the caller's stay as they are. */
#include "kernels/cpu/cpu.h"

#include <string.h>

#include "common/sampling.h"

_Static_assert(sizeof(td_id_range) == 8 && sizeof(td_token_count) == 8 &&
                   sizeof(td_token_bias) == 8 && sizeof(td_sample_row) == 72,
               "lists are pairs, rows are packed");

typedef struct job {
    const td_sample_args *a;
    float *logits;    /* [n_threads, V] */
    int32_t *scratch; /* [n_threads, V] */
} job;

size_t cpu_sample_ws(const td_dev *dev, int32_t V)
{
    return 2 * (size_t)dev->n_threads * (size_t)V * sizeof(float);
}

static void sample_row(void *ctx, int32_t i, int32_t thread)
{
    const job *j = ctx;
    const td_sample_args *a = j->a;
    const td_sample_row *r = &a->rows[i];
    const int32_t(*list)[2] = (const void *)a->lists;
    const float *logits = a->logits + (size_t)i * (size_t)a->V;
    float *work = j->logits + (size_t)thread * (size_t)a->V;
    td_sampling s = {.temperature = r->temperature,
                     .top_p = r->top_p,
                     .top_k = r->top_k,
                     .seed = r->seed,
                     .index = r->index,
                     .banned = (const void *)(list + r->banned),
                     .n_banned = r->n_banned,
                     .presence = r->presence,
                     .frequency = r->frequency,
                     .counts = (const void *)(list + r->counts),
                     .n_counts = r->n_counts,
                     .bias = (const void *)(list + r->bias),
                     .n_bias = r->n_bias};

    a->token[i] = -1;
    a->logprobs[i] = (td_logprobs){.n = -1};
    if (r->skip != 0)
        return;
    if (r->mask >= 0)
        s.mask = a->masks + (size_t)r->mask * (((size_t)a->V + 31) / 32);
    memcpy(work, logits, (size_t)a->V * sizeof *work);
    a->token[i] = td_sample(work, a->V, &s, j->scratch + (size_t)thread * (size_t)a->V);
    if (r->top_logprobs >= 0)
        td_logprobs_of(logits, a->V, a->token[i], r->top_logprobs, &a->logprobs[i]);
}

td_status cpu_sample(td_stream *s, const td_sample_args *a, td_error *err)
{
    td_dev *dev = s->dev;
    job j = {.a = a, .logits = a->ws};

    (void)err;
    j.scratch = (int32_t *)(j.logits + (size_t)dev->n_threads * (size_t)a->V);
    cpu_pool_run(dev->pool, a->n, (int64_t)a->n * a->V * 4, sample_row, &j);
    return TD_OK;
}

td_status cpu_edit(td_stream *s, const td_edit_args *a, td_error *err)
{
    (void)s;
    (void)err;
    for (int32_t i = 0; i < a->n; i++)
        a->table[a->edits[2 * i]] = a->edits[2 * i + 1];
    return TD_OK;
}
