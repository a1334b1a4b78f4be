/* spec_model: the tiny model of the model specification's check 12, whose logits are known in
 * float64: V = 11, D = 8, two layers, 4 / 2 heads of 4, 4 experts of which 2, I = 6, window 3. Its
 * weights are uniform numbers from a linear congruential generator, in f32 here, dense. */
#ifndef TANDEM_TESTS_GOLDEN_SPEC_MODEL_H
#define TANDEM_TESTS_GOLDEN_SPEC_MODEL_H

#include "common/weights.h"

typedef struct spec_model {
    td_model_config cfg;
    float *data[TD_W_COUNT][2]; /* by role and layer */
    uint32_t last_state;        /* of the generator, once all weights are drawn */
} spec_model;

void spec_model_init(spec_model *s);
void spec_model_fini(spec_model *s);
td_weight_source spec_model_source(spec_model *s);

#endif
