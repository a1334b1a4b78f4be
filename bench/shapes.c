/* shapes: see shapes.h. */
#include "bench/shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const bench_rates bench_paper = {4.3e12, 1000e12, 2000e12, 1000e12};
const bench_rates bench_reached = {4.3e12, 800e12, 1220e12, 460e12};

/* What the two published files say and the benches need; layers and experts are filled in. */
static const char published[] =
    "{\"model_type\": \"gpt_oss\", \"num_hidden_layers\": %d, \"num_local_experts\": %d,"
    " \"architectures\": [\"GptOssForCausalLM\"], \"attention_bias\": true, \"head_dim\": 64,"
    " \"hidden_act\": \"silu\", \"hidden_size\": 2880, \"intermediate_size\": 2880,"
    " \"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"num_experts_per_tok\": 4,"
    " \"experts_per_token\": 4, \"sliding_window\": 128, \"swiglu_limit\": 7.0,"
    " \"vocab_size\": 201088, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-05,"
    " \"rope_theta\": 150000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 32.0,"
    " \"beta_fast\": 32.0, \"beta_slow\": 1.0, \"original_max_position_embeddings\": 4096,"
    " \"truncate\": false}, \"tie_word_embeddings\": false, \"eos_token_id\": 200002,"
    " \"pad_token_id\": 199999, \"quantization_config\": {\"quant_method\": \"mxfp4\"},"
    " \"layer_types\": [%s]}";

td_status bench_config(const char *name, td_model_config *out, td_error *err)
{
    bool small = strcmp(name, "20b") == 0;
    int layers = small ? 24 : 36;
    char types[36 * 24] = "", text[4096];
    int at = 0, len;

    if (!small && strcmp(name, "120b") != 0)
        return td_model_config_read(name, out, err);
    for (int i = 0; i < layers; i++)
        at += snprintf(types + at, sizeof types - (size_t)at, "%s\"%s_attention\"", i ? "," : "",
                       i % 2 ? "full" : "sliding");
    len = snprintf(text, sizeof text, published, layers, small ? 32 : 128, types);
    return td_model_config_parse(text, (size_t)len, NULL, 0, name, out, err);
}

double bench_expert_bytes(const td_model_config *c, td_expert_format experts)
{
    double weights = 3.0 * c->inter * c->hidden, biases = 2.0 * (2 * c->inter + c->hidden);

    return weights * (experts == TD_EXPERTS_FP8 ? 1 + 4.0 / (128 * 128) : 17.0 / 32) + biases;
}

double bench_touched(int32_t T, int32_t k, int32_t n)
{
    double none = 1;

    for (int32_t i = 0; i < T; i++)
        none *= 1 - (double)k / n;
    return n * (1 - none);
}

static double attention_params(const td_model_config *c)
{
    double q = (double)c->n_q_heads * c->head_dim, kv = (double)c->n_kv_heads * c->head_dim;

    return (2 * q + 2 * kv) * c->hidden;
}

static double router_params(const td_model_config *c)
{
    return (double)c->n_experts * c->hidden;
}

static double table_bytes(const td_model_config *c)
{
    return 2.0 * c->vocab * c->hidden;
}

double bench_weight_bytes(const td_model_config *c, const bench_split *s)
{
    double layer = 2 * attention_params(c) / s->tp + 2 * router_params(c) +
                   c->n_experts * bench_expert_bytes(c, s->experts) / s->tp;

    return c->n_layers * layer + 2 * table_bytes(c) / s->tp;
}

/* The most experts that any of `groups` equal groups has to read for T tokens: the mean over trials
 * with even choices, from a generator of its own so that it is the same in every run. */
static double most_touched(int32_t T, int32_t k, int32_t n, int32_t groups)
{
    enum { TRIALS = 200, MOST = 1024 };
    uint32_t x = 1;
    double sum = 0;

    if (groups <= 1 || n > MOST)
        return bench_touched(T, k, n) / (groups > 1 ? groups : 1);
    for (int trial = 0; trial < TRIALS; trial++) {
        bool hit[MOST] = {false};
        int32_t most = 0;

        for (int32_t t = 0; t < T; t++) {
            int32_t chosen[16] = {0};

            for (int32_t j = 0; j < k && j < 16;) {
                bool again = false;

                x = x * 1664525 + 1013904223;
                chosen[j] = (int32_t)((uint64_t)x * (uint32_t)n >> 32);
                for (int32_t i = 0; i < j; i++)
                    again |= chosen[i] == chosen[j];
                if (!again)
                    hit[chosen[j++]] = true;
            }
        }
        for (int32_t g = 0; g < groups; g++) {
            int32_t here = 0;

            for (int32_t e = g * (n / groups); e < (g + 1) * (n / groups); e++)
                here += hit[e];
            most = here > most ? here : most;
        }
        sum += most;
    }
    return sum / TRIALS;
}

static double kv_bytes(const td_model_config *c, const bench_split *s, double positions)
{
    return 2.0 * c->n_kv_heads / s->tp * c->head_dim * s->kv_bytes * positions;
}

double bench_decode_floor(const td_model_config *c, const bench_split *s, int32_t batch,
                          int32_t context)
{
    double experts = most_touched(batch, c->top_k, c->n_experts, s->ep) / (s->tp / s->ep);
    double bytes = table_bytes(c) / s->tp;

    for (int32_t l = 0; l < c->n_layers; l++) {
        int32_t seen = c->windowed[l] && context > c->window ? c->window : context;

        bytes += 2 * attention_params(c) / s->tp + 2 * router_params(c) +
                 experts * bench_expert_bytes(c, s->experts) + kv_bytes(c, s, (double)batch * seen);
    }
    return bytes / bench_paper.hbm;
}

double bench_visible(int32_t first, int32_t n, int32_t window)
{
    double end = (double)first + n, full = (end * (end + 1) - (double)first * (first + 1)) / 2;

    if (window <= 0 || end <= window)
        return full;
    if (first >= window)
        return (double)n * window;
    return bench_visible(first, window - first, 0) + (end - window) * window;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

double bench_prefill_floor(const td_model_config *c, const bench_split *s, int32_t n,
                           const bench_rates *r)
{
    double attn = attention_params(c) / s->tp, heads = 4.0 * c->n_q_heads * c->head_dim / s->tp;
    double experts = bench_touched(n, c->top_k, c->n_experts) / s->tp, seconds;
    double matrix = s->experts == TD_EXPERTS_FP8 ? r->fp8 : r->bf16;

    seconds = table_bytes(c) / s->tp / r->hbm; /* one row of logits */
    for (int32_t l = 0; l < c->n_layers; l++) {
        seconds += larger(2.0 * n * c->top_k * 3 * c->inter * c->hidden / s->tp / matrix,
                          experts * bench_expert_bytes(c, s->experts) / r->hbm);
        seconds += larger(2.0 * n * (attn + router_params(c)) / r->bf16, 2 * attn / r->hbm);
        seconds += heads * bench_visible(0, n, c->windowed[l] ? c->window : 0) / r->attention;
    }
    return seconds;
}

double bench_usd_per_million(double usd, int32_t devices, double tokens_per_second)
{
    return usd * devices / 3600 / tokens_per_second * 1e6;
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double bench_median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, rising);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

int bench_parse_list(const char *text, int32_t *out, int cap)
{
    int n = 0;

    while (*text != '\0') {
        char *end;
        long v = strtol(text, &end, 10);

        if (end == text || n == cap || v < 1 || v > 1 << 20)
            return -1;
        if (*end == 'k') {
            v *= 1024;
            end++;
        }
        if (*end != '\0' && *end != ',')
            return -1;
        out[n++] = (int32_t)v;
        text = *end == ',' ? end + 1 : end;
    }
    return n;
}
