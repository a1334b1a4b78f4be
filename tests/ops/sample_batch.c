#include "tests/ops/sample_batch.h"

#include <math.h>
#include <string.h>

static double uniform(harness *h)
{
    return random_bits(h) / 4294967296.0;
}

static int32_t below(harness *h, int32_t n)
{
    return (int32_t)(uniform(h) * n);
}

void fill_logits(harness *h, float *l, int32_t V, kind k)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 1.0f, -1e30f, 3.0f};
    int32_t few = 1 + below(h, 7);

    for (int32_t i = 0; i < V; i++) {
        double x = 4 * (uniform(h) + uniform(h) + uniform(h) - 1.5);

        switch (k) {
        case TIES: x = floor(x); break;
        case EQUAL: x = 2.5; break;
        case PEAKED: x = i == V / 3 ? 25 : x - 5; break;
        case BAND: x = 1 + (double)(random_bits(h) % 4096) * 0x1p-23; break;
        case ODD: x = (double)odd[1 + (uint32_t)below(h, few)]; break;
        case NORMAL:
        case KINDS: break;
        }
        l[i] = (float)x;
    }
    if (k == ODD && few == 7) /* the rarer one */
        l[below(h, V)] = l[below(h, V)] = INFINITY;
}

/* `n` distinct ids, some of them not in the vocabulary. */
static void distinct(harness *h, int32_t V, int32_t n, int32_t *id)
{
    int32_t step = 1 + below(h, V / LIST + 1), at = below(h, V + 2) - 1;

    for (int32_t i = 0; i < n; i++, at += step)
        id[i] = at;
}

static td_sampling random_sampling(harness *h, batch *b, int32_t i)
{
    static const float temperatures[] = {0, 1e-5f, 0.01f, 0.3f, 0.7f, 1, 1.5f, 2};
    static const float top_ps[] = {1, 1, 0.99f, 0.9f, 0.5f, 0.05f, 1e-9f};
    const int32_t top_ks[] = {0, 0, 1, 2, 40, 300, 1000, b->V};
    size_t words = ((size_t)b->V + 31) / 32;
    int32_t id[LIST], n;
    td_sampling s = {.temperature = temperatures[below(h, N_OF(temperatures))],
                     .top_p = top_ps[below(h, N_OF(top_ps))],
                     .top_k = top_ks[below(h, N_OF(top_ks))],
                     .seed = (uint64_t)random_bits(h) << 32 | random_bits(h),
                     .index = random_bits(h) % 100000};

    if (below(h, 4) == 0) {
        n = s.n_counts = 1 + below(h, LIST);
        distinct(h, b->V, n, id);
        for (int32_t j = 0; j < n; j++)
            b->counts[i][j] = (td_token_count){id[j], 1 + below(h, 5)};
        s.presence = (float)(4 * uniform(h) - 2);
        s.frequency = (float)(4 * uniform(h) - 2);
    }
    if (below(h, 4) == 0) {
        n = s.n_bias = 1 + below(h, LIST);
        distinct(h, b->V, n, id);
        for (int32_t j = 0; j < n; j++)
            b->bias[i][j] = (td_token_bias){id[j], (float)(40 * uniform(h) - 20)};
    }
    if (below(h, 2) == 0) {
        n = s.n_banned = 1 + below(h, 4);
        for (int32_t j = 0; j < n; j++) {
            int32_t first = below(h, b->V + 5) - 2;

            b->banned[i][j] = (td_id_range){first, j == 3 ? INT32_MAX : first + below(h, 4)};
        }
    }
    if (below(h, 4) == 0) {
        uint32_t *mask = b->masks + (size_t)i * words;
        uint32_t keep = below(h, 8) == 0 ? 0 : ~0u; /* now and then nothing is allowed */

        for (size_t w = 0; w < words; w++)
            mask[w] = random_bits(h) & random_bits(h) & keep;
        s.mask = mask;
    }
    s.banned = b->banned[i];
    s.counts = b->counts[i];
    s.bias = b->bias[i];
    if (below(h, 3) == 0) {
        s.logprobs = true;
        s.top_logprobs = below(h, TD_TOP_LOGPROBS + 1);
    }
    return s;
}

batch *make_batch(harness *h, int32_t n, int32_t V)
{
    batch *b = (batch *)(void *)host_floats(h, sizeof *b / 4 + 1);

    b->n = n;
    b->V = V;
    b->logits = host_floats(h, (size_t)n * (size_t)V);
    b->masks = (uint32_t *)(void *)host_floats(h, ROWS * (((size_t)V + 31) / 32));
    for (int32_t i = 0; i < n; i++) {
        fill_logits(h, b->logits + (size_t)i * (size_t)V, V, (kind)((uint32_t)below(h, KINDS)));
        b->s[i] = random_sampling(h, b, i);
    }
    return b;
}

static int32_t put_list(int32_t *lists, int32_t *used, const void *pairs, int32_t n)
{
    int32_t at = *used;

    if (n > 0)
        memcpy(lists + 2 * at, pairs, (size_t)n * 8);
    *used += n;
    return at;
}

void run_batch(harness *h, batch *b, int32_t first, int32_t n)
{
    static int32_t lists[2 * 3 * ROWS * LIST];
    td_sample_row rows[ROWS];
    int32_t used = 0;
    size_t words = ((size_t)b->V + 31) / 32;
    td_dims dims = {.T = 1, .D = 1, .H = 1, .K = 1, .d = 2, .M = 1, .k = 1, .sample_V = b->V};
    td_error err = {0};

    for (int32_t i = 0; i < n; i++) {
        const td_sampling *s = &b->s[first + i];

        rows[i] = (td_sample_row){.seed = s->seed,
                                  .index = s->index,
                                  .temperature = s->temperature,
                                  .top_p = s->top_p,
                                  .top_k = s->top_k,
                                  .presence = s->presence,
                                  .frequency = s->frequency,
                                  .n_counts = s->n_counts,
                                  .n_bias = s->n_bias,
                                  .n_banned = s->n_banned,
                                  .mask = s->mask != NULL ? first + i : -1,
                                  .top_logprobs = s->logprobs ? s->top_logprobs : -1};
        rows[i].bias = put_list(lists, &used, s->bias, s->n_bias);
        rows[i].counts = put_list(lists, &used, s->counts, s->n_counts);
        rows[i].banned = put_list(lists, &used, s->banned, s->n_banned);
    }
    td_sample_args a = {
        .n = n,
        .V = b->V,
        .logits = dev_f32(h, b->logits + (size_t)first * (size_t)b->V, (size_t)n * (size_t)b->V),
        .rows = dev_bytes(h, rows, (size_t)n * sizeof *rows),
        .lists = dev_bytes(h, lists, sizeof lists),
        .masks = dev_bytes(h, b->masks, ROWS * words * 4),
        .token = dev_poison(h, (size_t)n * 4),
        .logprobs = dev_poison(h, (size_t)n * sizeof(td_logprobs)),
        .ws = dev_ws(h, &dims)};
    check_ok(h->ops->sample(h->s, &a, &err), &err);
    read_i32(h, a.token, (size_t)n, b->token + first);
    read_i32(h, a.logprobs, (size_t)n * sizeof(td_logprobs) / 4,
             (int32_t *)(void *)(b->logprobs + first));
}
