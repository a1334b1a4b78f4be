#include <pthread.h>
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

/* The whole checkpoint's identity after a change to the folder that still loads. */
static uint64_t hash_of(tiny_model *m)
{
    td_model_config cfg;
    td_checkpoint *c = NULL;
    uint64_t h;

    tiny_write(m);
    open_ok(m, &cfg, &c);
    h = td_checkpoint_hash(c);
    td_checkpoint_close(c);
    return h;
}

static void test_checkpoint_hash_tells_models_apart(void **state)
{
    const int64_t dim[] = {3};
    tiny_model m, copy;
    tiny_tensor *t;
    uint64_t h;

    (void)state;
    tiny_make(&m, false, 2);
    tiny_make(&copy, false, 2);
    h = hash_of(&m);
    assert_int_equal(hash_of(&m), h);
    assert_int_equal(hash_of(&copy), h); /* another folder, the same files */
    /* A fine-tune changes values, not shapes. */
    t = tiny_find(&m, "model.layers.1.self_attn.v_proj.weight");
    for (size_t i = 0; i < t->bytes; i += 2)
        t->data[i] ^= 1;
    assert_int_not_equal(hash_of(&m), h);
    for (size_t i = 0; i < t->bytes; i += 2)
        t->data[i] ^= 1;
    assert_int_equal(hash_of(&m), h);
    tiny_add(&m, "extra", "U8", 1, dim, 3);
    assert_int_not_equal(hash_of(&m), h);
    tiny_free(&m);
    tiny_free(&copy);
}

static void test_checkpoint_released_tensors_read_again(void **state)
{
    tiny_model m;
    td_model_config cfg;
    td_checkpoint *c = NULL;

    (void)state;
    tiny_make(&m, false, 1);
    tiny_write(&m);
    open_ok(&m, &cfg, &c);
    for (int round = 0; round < 2; round++) {
        same_weights(c, m.weights, &cfg);
        for (int32_t l = 0; l < cfg.n_layers; l++)
            for (int r = 0; r < TD_W_COUNT; r++)
                td_checkpoint_release(c, (td_weight)r, l);
    }
    same_weights(c, m.weights, &cfg);
    td_checkpoint_close(c);
    tiny_free(&m);
}

typedef struct reader {
    const tiny_model *m;
    td_checkpoint *c;
    int differ;
} reader;

/* Everything read and released, while others do the same: a release drops pages, never data. */
static void *read_and_release(void *arg)
{
    reader *a = arg;

    for (int r = 0; r < TD_W_COUNT; r++) {
        td_tensor x = {0}, y = {0};

        if (td_checkpoint_get(a->c, (td_weight)r, 1, &x, NULL) != TD_OK ||
            td_checkpoint_get(a->m->weights, (td_weight)r, 1, &y, NULL) != TD_OK ||
            memcmp(x.data, y.data, x.bytes) != 0)
            a->differ++;
        td_checkpoint_release(a->c, (td_weight)r, 1);
    }
    return NULL;
}

static void test_checkpoint_is_shared_by_threads(void **state)
{
    enum { N = 4 };
    tiny_model m;
    td_model_config cfg;
    td_checkpoint *c = NULL;
    pthread_t thread[N];
    reader r[N];

    (void)state;
    tiny_make(&m, false, 3);
    tiny_write(&m);
    open_ok(&m, &cfg, &c);
    for (int i = 0; i < N; i++) {
        r[i] = (reader){&m, c, 0};
        assert_int_equal(pthread_create(&thread[i], NULL, read_and_release, &r[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_join(thread[i], NULL), 0);
        assert_int_equal(r[i].differ, 0);
    }
    td_checkpoint_close(c);
    tiny_free(&m);
}

/* A tensor over the size where read-ahead is asked for, whose pages can really be dropped. */
static void test_checkpoint_large_tensor_is_hinted_and_dropped(void **state)
{
    const int64_t vocab = 20011;
    tiny_model m;
    td_model_config cfg;
    td_checkpoint *c = NULL;
    tiny_tensor *t;
    td_tensor view;

    (void)state;
    tiny_make(&m, false, 1);
    tiny_replace(&m.config, "\"vocab_size\": 97", "\"vocab_size\": 20011");
    for (int i = 0; i < 2; i++) {
        t = tiny_find(&m, i == 0 ? "model.embed_tokens.weight" : "lm_head.weight");
        t->dim[0] = vocab;
        t->bytes = (size_t)vocab * 128;
        free(t->data);
        t->data = malloc(t->bytes);
        assert_non_null(t->data);
        for (size_t k = 0; k < t->bytes; k++)
            t->data[k] = (unsigned char)(k * 31 + k / 997);
    }
    m.pad = 3;
    tiny_write(&m);
    open_ok(&m, &cfg, &c);
    t = tiny_find(&m, "lm_head.weight");
    for (int round = 0; round < 3; round++) {
        assert_int_equal(td_checkpoint_get(c, TD_W_UNEMBED, 0, &view, NULL), TD_OK);
        assert_int_equal(view.bytes, t->bytes);
        assert_memory_equal(view.data, t->data, t->bytes);
        td_checkpoint_release(c, TD_W_UNEMBED, 0);
    }
    td_checkpoint_close(c);
    tiny_free(&m);
}

static void test_checkpoint_role_names(void **state)
{
    (void)state;
    assert_string_equal(td_weight_name(TD_W_GATE_UP_BLOCKS), "gate_up_blocks");
    assert_string_equal(td_weight_name(TD_W_EMBED), "embed");
    assert_string_equal(td_weight_name(TD_W_DOWN_BIAS), "down_bias");
    assert_string_equal(td_weight_name(TD_W_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_checkpoint_open_hugging_face_single_file),
        cmocka_unit_test(test_checkpoint_open_hugging_face_spread_over_files),
        cmocka_unit_test(test_checkpoint_open_original_layout),
        cmocka_unit_test(test_checkpoint_hash_tells_models_apart),
        cmocka_unit_test(test_checkpoint_released_tensors_read_again),
        cmocka_unit_test(test_checkpoint_is_shared_by_threads),
        cmocka_unit_test(test_checkpoint_large_tensor_is_hinted_and_dropped),
        cmocka_unit_test(test_checkpoint_role_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
