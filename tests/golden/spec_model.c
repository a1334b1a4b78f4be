/* spec_model: see spec_model.h. */
#include "tests/golden/spec_model.h"

#include <stdlib.h>

static double draw(uint32_t *z)
{
    *z = 1664525u * *z + 1013904223u;
    return (double)(*z >> 8) / 16777216.0 * 2 - 1;
}

static float *fill(uint32_t *z, size_t n, double base, double factor)
{
    float *p = malloc(n * sizeof *p);

    for (size_t i = 0; i < n; i++)
        p[i] = (float)(base + factor * draw(z));
    return p;
}

void spec_model_init(spec_model *s)
{
    uint32_t z = 0;

    *s = (spec_model){.cfg = {.n_layers = 2,
                              .hidden = 8,
                              .n_q_heads = 4,
                              .n_kv_heads = 2,
                              .head_dim = 4,
                              .n_experts = 4,
                              .top_k = 2,
                              .inter = 6,
                              .vocab = 11,
                              .window = 3,
                              .windowed = {true, false},
                              .max_positions = 131072,
                              .eps = 1e-5f,
                              .swiglu_limit = 7.0f,
                              .rope_theta = 150000,
                              .yarn_factor = 32,
                              .yarn_beta_fast = 32,
                              .yarn_beta_slow = 1,
                              .yarn_original_positions = 4096}};
    s->data[TD_W_EMBED][0] = fill(&z, 88, 0, 1);
    for (int l = 0; l < 2; l++) {
        s->data[TD_W_ATTN_NORM][l] = fill(&z, 8, 1, 0.1);
        s->data[TD_W_Q][l] = fill(&z, 16 * 8, 0, 0.5); /* q, k and v rows are one draw, in order */
        s->data[TD_W_K][l] = fill(&z, 8 * 8, 0, 0.5);
        s->data[TD_W_V][l] = fill(&z, 8 * 8, 0, 0.5);
        s->data[TD_W_Q_BIAS][l] = fill(&z, 16, 0, 0.2);
        s->data[TD_W_K_BIAS][l] = fill(&z, 8, 0, 0.2);
        s->data[TD_W_V_BIAS][l] = fill(&z, 8, 0, 0.2);
        s->data[TD_W_SINKS][l] = fill(&z, 4, 0, 1);
        s->data[TD_W_O][l] = fill(&z, 8 * 16, 0, 0.5);
        s->data[TD_W_O_BIAS][l] = fill(&z, 8, 0, 0.2);
        s->data[TD_W_MLP_NORM][l] = fill(&z, 8, 1, 0.1);
        s->data[TD_W_ROUTER][l] = fill(&z, 4 * 8, 0, 1);
        s->data[TD_W_ROUTER_BIAS][l] = fill(&z, 4, 0, 0.2);
        s->data[TD_W_GATE_UP_BLOCKS][l] = fill(&z, 4 * 12 * 8, 0, 4);
        s->data[TD_W_GATE_UP_BIAS][l] = fill(&z, 4 * 12, 0, 0.2);
        s->data[TD_W_DOWN_BLOCKS][l] = fill(&z, 4 * 8 * 6, 0, 0.5);
        s->data[TD_W_DOWN_BIAS][l] = fill(&z, 4 * 8, 0, 0.2);
    }
    s->data[TD_W_FINAL_NORM][0] = fill(&z, 8, 1, 0.1);
    s->data[TD_W_UNEMBED][0] = fill(&z, 88, 0, 1);
    s->last_state = z;
}

void spec_model_fini(spec_model *s)
{
    for (int r = 0; r < TD_W_COUNT; r++)
        for (int l = 0; l < 2; l++)
            free(s->data[r][l]);
}

static td_status get(void *user, td_weight role, int32_t layer, td_tensor *out, td_error *err)
{
    const spec_model *s = user;

    *out = (td_tensor){.data = s->data[role][layer], .dtype = TD_F32};
    return out->data != NULL ? TD_OK : td_fail(err, TD_NOTFOUND, "%s", td_weight_name(role));
}

td_weight_source spec_model_source(spec_model *s)
{
    return (td_weight_source){s, get, NULL};
}
