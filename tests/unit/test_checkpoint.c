#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/tiny_checkpoint.h"

static void open_ok(const tiny_model *m, td_model_config *cfg, td_checkpoint **out)
{
    td_error err = {0};

    if (td_model_config_read(m->dir, cfg, &err) != TD_OK ||
        td_checkpoint_open(m->dir, cfg, out, &err) != TD_OK)
        fail_msg("%s", err.text);
}

/* Every role of every layer equals what the folder was written from. */
static void same_weights(td_checkpoint *a, td_checkpoint *b, const td_model_config *cfg)
{
    for (int32_t l = 0; l < cfg->n_layers; l++) {
        for (int r = 0; r < TD_W_COUNT; r++) {
            td_tensor x, y;
            td_error err = {0};

            assert_int_equal(td_checkpoint_get(a, (td_weight)r, l, &x, &err), TD_OK);
            assert_int_equal(td_checkpoint_get(b, (td_weight)r, l, &y, &err), TD_OK);
            assert_int_equal(x.dtype, y.dtype);
            assert_int_equal(x.n_dims, y.n_dims);
            assert_memory_equal(x.dim, y.dim, sizeof x.dim);
            assert_int_equal(x.bytes, y.bytes);
            if (memcmp(x.data, y.data, x.bytes) != 0)
                fail_msg("%s of layer %d differs", td_weight_name((td_weight)r), l);
        }
    }
}

static void loads(bool original, int n_shards, size_t pad, bool reverse)
{
    tiny_model m;
    td_model_config cfg;
    td_checkpoint *c = NULL;

    tiny_make(&m, original, n_shards);
    m.pad = pad;
    for (size_t i = 0; reverse && i < m.n_tensors / 2; i++) {
        tiny_tensor t = m.tensor[i];

        m.tensor[i] = m.tensor[m.n_tensors - 1 - i];
        m.tensor[m.n_tensors - 1 - i] = t;
    }
    tiny_write(&m);
    open_ok(&m, &cfg, &c);
    same_weights(c, m.weights, &cfg);
    assert_int_equal(td_checkpoint_bytes(c), td_checkpoint_bytes(m.weights));
    td_checkpoint_close(c);
    tiny_free(&m);
}

static void test_checkpoint_open_hugging_face_single_file(void **state)
{
    (void)state;
    loads(false, 1, 0, false);
}

static void test_checkpoint_open_hugging_face_spread_over_files(void **state)
{
    (void)state;
    loads(false, 3, 0, false);
    loads(false, 3, 0, true);
    loads(false, 7, 3, false); /* odd addresses */
}

static void test_checkpoint_open_original_layout(void **state)
{
    (void)state;
    loads(true, 1, 0, false);
    loads(true, 3, 0, true);
    loads(true, 2, 5, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_open_hugging_face_single_file),
        cmocka_unit_test(test_checkpoint_open_hugging_face_spread_over_files),
        cmocka_unit_test(test_checkpoint_open_original_layout),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
