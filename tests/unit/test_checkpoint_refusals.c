/* Folders that must not load: each case damages one thing, and the message must name the file, the
 * tensor where there is one, and what to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/checkpoint_index.h"
#include "tests/unit/tiny_checkpoint.h"

#define AGAIN "copy it again"
#define INDEX "model.safetensors.index.json"
#define SHARD_0 "model-00000-of-00002.safetensors"
#define SHARD_1 "model-00001-of-00002.safetensors"
#define SHARD_2 "model-00002-of-00002.safetensors"

static td_status open_dir(const tiny_model *m, td_error *err)
{
    td_checkpoint *c = NULL;
    td_status st = td_checkpoint_open(m->dir, &m->cfg, &c, err);

    if (st == TD_OK)
        td_checkpoint_close(c);
    else
        assert_null(c);
    return st;
}

static void expect(const tiny_model *m, td_status status, const char *const *expected)
{
    td_error err = {0};
    td_status st = open_dir(m, &err);

    if (st != status)
        fail_msg("%s, not %s: %s", td_status_name(st), td_status_name(status), err.text);
    for (; *expected != NULL; expected++)
        if (strstr(err.text, *expected) == NULL)
            fail_msg("no \"%s\" in: %s", *expected, err.text);
}

#define EXPECT(m, status, ...) expect(m, status, (const char *const[]){m->dir, __VA_ARGS__, NULL})

/* Each test gets an intact Hugging Face folder of three files, on disk. */
static int set_up(void **state)
{
    tiny_model *m = malloc(sizeof *m);

    assert_non_null(m);
    tiny_make(m, false, 3);
    tiny_write(m);
    *state = m;
    return 0;
}

static int tear_down(void **state)
{
    tiny_free(*state);
    free(*state);
    return 0;
}

static void remove_file(const tiny_model *m, const char *file)
{
    char path[512];

    tiny_path(m, file, path, sizeof path);
    assert_int_equal(unlink(path), 0);
}

static void test_checkpoint_intact_folder_loads(void **state)
{
    td_error err = {0};

    if (open_dir(*state, &err) != TD_OK)
        fail_msg("%s", err.text);
}

static void test_checkpoint_missing_shard_is_named_before_others_are_opened(void **state)
{
    tiny_model *m = *state;

    tiny_put(m, SHARD_0, "x", 1); /* would be refused, were it looked at */
    remove_file(m, SHARD_1);
    EXPECT(m, TD_NOTFOUND, SHARD_1, INDEX, "1 of 3 files missing", AGAIN);
    remove_file(m, SHARD_2);
    EXPECT(m, TD_NOTFOUND, SHARD_1, "2 of 3 files missing", AGAIN);
}

static void test_checkpoint_reported_index_names_its_missing_shard(void **state)
{
    tiny_model *m = *state;
    FILE *f = fopen("tests/data/checkpoint/missing_shard.index.json", "rb");
    char text[1024];
    size_t n;

    assert_non_null(f);
    n = fread(text, 1, sizeof text, f);
    fclose(f);
    tiny_put(m, INDEX, text, n);
    tiny_put(m, "model-00001-of-00002.safetensors", "", 0);
    remove_file(m, SHARD_2);
    EXPECT(m, TD_NOTFOUND, "model-00002-of-00002.safetensors", "the copy looks incomplete", AGAIN);
}

static void test_checkpoint_dangling_link_is_a_missing_shard(void **state)
{
    tiny_model *m = *state;
    char path[512];

    remove_file(m, SHARD_1);
    tiny_path(m, SHARD_1, path, sizeof path);
    assert_int_equal(symlink("../blobs/0123", path), 0); /* as a hub cache has them */
    EXPECT(m, TD_NOTFOUND, SHARD_1, AGAIN);
}

static void test_checkpoint_links_to_shards_are_followed(void **state)
{
    tiny_model *m = *state;
    char from[512], to[512];
    td_error err = {0};

    tiny_path(m, SHARD_1, from, sizeof from);
    tiny_path(m, "blob", to, sizeof to);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(symlink("blob", from), 0);
    if (open_dir(m, &err) != TD_OK)
        fail_msg("%s", err.text);
}

static void test_checkpoint_folder_that_is_none(void **state)
{
    tiny_model *m = *state, other = *m;

    snprintf(other.dir, sizeof other.dir, "/no/such/folder");
    EXPECT((&other), TD_NOTFOUND, "No such file");
    snprintf(other.dir, sizeof other.dir, "CMakeLists.txt");
    EXPECT((&other), TD_INVALID, "is a file, expected a folder");
    snprintf(other.dir, sizeof other.dir, "%.40s/config.json/x", m->dir);
    EXPECT((&other), TD_NOTFOUND, "Not a directory");
    snprintf(other.dir, sizeof other.dir, "tests");
    EXPECT((&other), TD_NOTFOUND, "neither " INDEX " nor model.safetensors", AGAIN);
}

static void test_checkpoint_lost_index_is_named(void **state)
{
    tiny_model *m = *state;

    remove_file(m, INDEX);
    EXPECT(m, TD_NOTFOUND, "has safetensors files but no " INDEX, AGAIN);
}

static void test_checkpoint_shard_that_is_a_folder(void **state)
{
    tiny_model *m = *state;
    char path[512];

    remove_file(m, SHARD_1);
    tiny_path(m, SHARD_1, path, sizeof path);
    assert_int_equal(mkdir(path, 0700), 0);
    EXPECT(m, TD_IO, SHARD_1, "is a folder");
}

static void test_checkpoint_unreadable_shard(void **state)
{
    tiny_model *m = *state;
    char path[512];

    tiny_path(m, SHARD_1, path, sizeof path);
    if (geteuid() == 0) { /* root reads everything: use what even root cannot open */
        assert_int_equal(unlink(path), 0);
        assert_int_equal(symlink(SHARD_1, path), 0);
        EXPECT(m, TD_IO, SHARD_1, "cannot open", "symbolic links");
    } else {
        assert_int_equal(chmod(path, 0), 0);
        EXPECT(m, TD_IO, SHARD_1, "cannot open", "Permission denied");
    }
}

static void test_checkpoint_fifo_is_refused_not_waited_for(void **state)
{
    tiny_model *m = *state;
    char path[512];

    remove_file(m, SHARD_1);
    tiny_path(m, SHARD_1, path, sizeof path);
    assert_int_equal(mkfifo(path, 0600), 0);
    EXPECT(m, TD_IO, SHARD_1, "expected a regular file");
}

static void test_checkpoint_every_shard_cut_or_grown(void **state)
{
    static const char *const shards[] = {SHARD_0, SHARD_1, SHARD_2};
    tiny_model *m = *state;

    for (size_t i = 0; i < 3; i++) {
        size_t n;
        char *bytes = tiny_get(m, shards[i], &n);
        const size_t cuts[] = {0, 3, 7, 8, 9, 500, n / 2, n - 12, n - 1};

        for (size_t k = 0; k < sizeof cuts / sizeof cuts[0]; k++) {
            tiny_put(m, shards[i], bytes, cuts[k]);
            EXPECT(m, TD_INVALID, shards[i], "the copy looks incomplete", AGAIN);
        }
        tiny_put(m, shards[i], bytes, n + 1); /* the NUL that tiny_get() adds */
        EXPECT(m, TD_INVALID, shards[i], "expected", "found", AGAIN);
        tiny_put(m, shards[i], bytes, n);
        free(bytes);
    }
    test_checkpoint_intact_folder_loads(state);
}

static void test_checkpoint_wrong_header_length(void **state)
{
    static const uint64_t lengths[] = {UINT64_MAX - 2, UINT64_MAX, UINT64_C(1) << 40, 0};
    tiny_model *m = *state;
    size_t n;
    char *bytes = tiny_get(m, SHARD_1, &n);

    for (size_t i = 0; i < 4; i++) {
        for (int b = 0; b < 8; b++)
            bytes[b] = (char)(lengths[i] >> (8 * b));
        tiny_put(m, SHARD_1, bytes, n);
        EXPECT(m, TD_INVALID, SHARD_1, "header length");
    }
    free(bytes);
}

static void test_checkpoint_every_tensor_missing(void **state)
{
    tiny_model *m = *state;
    const size_t n = m->n_tensors;

    for (size_t i = 0; i < n; i++) {
        char name[128];
        tiny_tensor saved;

        memcpy(name, m->tensor[0].name, sizeof name);
        saved = m->tensor[0];
        memmove(m->tensor, m->tensor + 1, (n - 1) * sizeof *m->tensor);
        m->n_tensors = n - 1;
        tiny_write(m); /* files and index agree that it is not there */
        EXPECT(m, TD_INVALID, INDEX, name, AGAIN);
        m->tensor[n - 1] = saved;
        m->n_tensors = n;
    }
}

static void test_checkpoint_every_tensor_of_another_type_or_shape(void **state)
{
    tiny_model *m = *state;

    for (size_t i = 0; i < m->n_tensors; i++) {
        tiny_tensor *t = &m->tensor[i];
        const tiny_tensor good = *t;
        char file[64];

        tiny_file_name(m, t->shard, file, sizeof file);
        t->dtype = strcmp(good.dtype, "U8") == 0 ? "I8" : "F16"; /* as many bytes */
        tiny_write(m);
        EXPECT(m, TD_INVALID, file, t->name, "expected", t->dtype, good.dtype);
        *t = good;
        if (t->n_dims > 1 && t->dim[0] != t->dim[1]) {
            t->dim[0] = good.dim[1];
            t->dim[1] = good.dim[0];
            tiny_write(m);
            EXPECT(m, TD_INVALID, file, t->name, "expected", "found");
        }
        *t = good;
        if (t->n_dims < 4) { /* one more dimension, of 1 */
            t->dim[t->n_dims++] = 1;
            tiny_write(m);
            EXPECT(m, TD_INVALID, file, t->name, "expected", ", 1]", "found");
        }
        *t = good;
        if (t->n_dims > 1) { /* one dimension less: what is left agrees */
            t->n_dims--;
            t->bytes /= (size_t)good.dim[t->n_dims];
            tiny_write(m);
            EXPECT(m, TD_INVALID, file, t->name, "expected", "found");
        }
        *t = good;
        t->dim[0] = 0;
        t->bytes = 0;
        tiny_write(m);
        EXPECT(m, TD_INVALID, file, t->name, "[0");
        *t = good;
    }
}

static void test_checkpoint_type_named_as_found(void **state)
{
    tiny_model *m = *state;
    const int64_t dim[] = {4, 64};

    tiny_remove(m, "model.layers.1.mlp.router.weight");
    tiny_add(m, "model.layers.1.mlp.router.weight", "F32", 2, dim, 1024);
    tiny_write(m);
    EXPECT(m, TD_INVALID, SHARD_0, "model.layers.1.mlp.router.weight", "expected BF16 [4, 64]",
           "found F32 [4, 64]");
}

static void test_checkpoint_every_config_number_against_the_tensors(void **state)
{
    tiny_model *m = *state;
    const td_model_config good = m->cfg;

#define DISAGREES(change, tensor) \
    do { \
        m->cfg = good; \
        change; \
        EXPECT(m, TD_INVALID, tensor, ".safetensors"); \
    } while (0)
    DISAGREES(m->cfg.hidden = 96, "model.embed_tokens.weight");
    DISAGREES(m->cfg.vocab = 98, "model.embed_tokens.weight");
    DISAGREES(m->cfg.n_q_heads = 8, "self_attn.q_proj.weight");
    DISAGREES(m->cfg.n_kv_heads = 4, "self_attn.k_proj.weight");
    DISAGREES(m->cfg.head_dim = 32, "self_attn.q_proj.weight");
    /* 8 heads of 8 have the same projections as 4 of 16: only the sinks tell. */
    DISAGREES((m->cfg.n_q_heads = 8, m->cfg.n_kv_heads = 4, m->cfg.head_dim = 8),
              "self_attn.sinks");
    DISAGREES(m->cfg.n_experts = 8, "mlp.router.weight");
    DISAGREES(m->cfg.inter = 64, "gate_up_proj_blocks");
    DISAGREES(m->cfg.n_layers = 4, "model.layers.3.");
    DISAGREES(m->cfg.n_layers = 2, "num_hidden_layers 2");
    DISAGREES(m->cfg.n_layers = 1, "num_hidden_layers 1");
#undef DISAGREES
    m->cfg = good;
}

static void test_checkpoint_bad_config_struct_is_refused(void **state)
{
    tiny_model *m = *state;
    td_checkpoint *c = NULL;
    td_model_config bad = m->cfg;
    td_error err = {0};

    bad.n_layers = TD_MAX_LAYERS + 1;
    assert_int_equal(td_checkpoint_open(m->dir, &bad, &c, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "num_hidden_layers"));
    assert_int_equal(td_checkpoint_random(&bad, 1, &c, &err), TD_INVALID);
    assert_null(c);
}

static void test_checkpoint_index_places_a_tensor_in_the_wrong_file(void **state)
{
    tiny_model *m = *state;
    char from[256], to[256];
    tiny_tensor *t = tiny_find(m, "model.norm.weight");
    char file[64], other[64];

    tiny_file_name(m, t->shard, file, sizeof file);
    tiny_file_name(m, (t->shard + 1) % 3, other, sizeof other);
    snprintf(from, sizeof from, "\"model.norm.weight\": \"%s\"", file);
    snprintf(to, sizeof to, "\"model.norm.weight\": \"%s\"", other);
    tiny_edit_text(m, INDEX, from, to);
    EXPECT(m, TD_INVALID, other, "model.norm.weight", INDEX, AGAIN);
}

static void test_checkpoint_index_names_an_unneeded_tensor_that_is_nowhere(void **state)
{
    tiny_model *m = *state;

    tiny_edit_text(m, INDEX, "\"weight_map\": {",
                   "\"weight_map\": {\"extra.bias\": \"" SHARD_1 "\",");
    EXPECT(m, TD_INVALID, SHARD_1, "extra.bias", AGAIN);
}

static void test_checkpoint_index_lacks_a_tensor_that_a_file_has(void **state)
{
    tiny_model *m = *state;

    tiny_edit_text(m, INDEX, "\"model.norm.weight\"", "\"model.norm.weigth\"");
    EXPECT(m, TD_INVALID, "model.norm.weigth"); /* the file does not have that */
    tiny_write(m);
    tiny_edit_text(m, INDEX, "\n\"lm_head.weight\": \"" SHARD_2 "\",", "");
    EXPECT(m, TD_INVALID, INDEX, "lm_head.weight", AGAIN);
}

static void test_checkpoint_index_paths_stay_in_the_folder(void **state)
{
    static const char *const names[] = {
        "../" SHARD_0, "/etc/passwd", "sub/" SHARD_0, "..", ".", "", "./" SHARD_0, "a/../b",
    };
    tiny_model *m = *state;
    size_t n;
    char *index = tiny_get(m, INDEX, &n);

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *text = strdup(index), to[256];

        snprintf(to, sizeof to, "\"model.embed_tokens.weight\": \"%s\"", names[i]);
        tiny_replace(&text, "\"model.embed_tokens.weight\": \"" SHARD_0 "\"", to);
        tiny_put(m, INDEX, text, strlen(text));
        EXPECT(m, TD_INVALID, INDEX, "model.embed_tokens.weight", "in this folder", names[i]);
        free(text);
    }
    free(index);
}

static void test_checkpoint_index_that_is_no_index(void **state)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"", "not JSON"},
        {"[]", "expected a JSON object"},
        {"{}", "weight_map"},
        {"{\"weight_map\": []}", "weight_map"},
        {"{\"weight_map\": {}}", "weight_map is empty"},
        {"{\"weight_map\": {\"a\": 5}}", "found 5"},
        {"{\"weight_map\": {\"a\": null}}", "found null"},
        {"{\"weight_map\": {\"a\": \"f\", \"a\": \"g\"}}", "a appears twice"},
        {"{\"weight_map\": {\"a\": \"f\"}, \"weight_map\": {}}", "weight_map appears twice"},
        {"{\"weight_map\": {\"a\": \"f\"}} }", "not JSON"},
        {"{\"weight_map\": {\"a\": \"f\\u0000\"}}", "\\u0000"},
        {"{\"weight_map\": {\"a\": [[[[[[[[[1]]]]]]]]]}}", "nested deeper"},
    };
    tiny_model *m = *state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tiny_put(m, INDEX, cases[i].text, strlen(cases[i].text));
        EXPECT(m, TD_INVALID, INDEX, cases[i].expected);
    }
}

static void test_checkpoint_index_cut_at_every_byte(void **state)
{
    static const char text[] = "{\"metadata\": {\"total_size\": 3}, \"weight_map\": {\"a\": \"f\", "
                               "\"b\": \"g\"}}";
    td_error err = {0};

    (void)state;
    for (size_t n = 0; n + 1 < sizeof text; n++) {
        td_index index = {0};
        char *cut = strndup(text, n);

        assert_int_equal(td_index_parse(cut, n, "index", &index, &err), TD_INVALID);
        td_index_free(&index);
        free(cut);
    }
}

static void test_checkpoint_damaged_headers_in_a_folder(void **state)
{
    static const struct {
        const char *from, *to, *expected;
    } cases[] = {
        {"{\"__metadata__\"", "{{\"__metadata__\"", "not JSON"},
        {"\"model.norm.weight\": {\"dtype\": \"BF16\", \"shape\": [64]",
         "\"model.norm.weight\": {\"dtype\": \"BF16\", \"shape\": [65]", "model.norm.weight"},
        {"\"model.norm.weight\": {\"dtype\": \"BF16\"", "\"model.norm.weight\": {\"dtype\": \"X\"",
         "model.norm.weight"},
        {"\"model.norm.weight\"", "\"model.layers.0.input_layernorm.bias\"", "model.norm.weight"},
    };
    tiny_model *m = *state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tiny_write(m);
        tiny_edit_header(m, SHARD_1, cases[i].from, cases[i].to);
        EXPECT(m, TD_INVALID, SHARD_1, cases[i].expected);
    }
}

static void test_checkpoint_extra_tensors_are_accepted(void **state)
{
    tiny_model *m = *state;
    const int64_t dim[] = {3}, none[] = {0, 7};
    td_error err = {0};

    tiny_add(m, "model.rotary.inv_freq", "F32", 1, dim, 12);
    tiny_add(m, "model.layers.0.self_attn.k_scale", "F32", 1, dim, 12);
    tiny_add(m, "empty", "I64", 2, none, 0);
    tiny_add(m, "model.layers.x.y", "U8", 1, dim, 3)->shard = 2;
    tiny_add(m, "model.layers.99999999999999999999", "U8", 1, dim, 3)->shard = 2;
    tiny_write(m);
    if (open_dir(m, &err) != TD_OK)
        fail_msg("%s", err.text);
}

static void test_checkpoint_layers_past_the_config_are_refused(void **state)
{
    tiny_model *m = *state;
    const int64_t dim[] = {64};

    tiny_add(m, "model.layers.3.input_layernorm.weight", "BF16", 1, dim, 128);
    tiny_write(m);
    EXPECT(m, TD_INVALID, SHARD_0, "model.layers.3.input_layernorm.weight", "num_hidden_layers 3",
           "layers 0 to 2");
}

static void test_checkpoint_layout_of_config_and_tensors_differ(void **state)
{
    tiny_model *m = *state;

    m->cfg.original_layout = true;
    EXPECT(m, TD_INVALID, "embedding.weight", "original layout");
    m->cfg.original_layout = false;
}

static void test_checkpoint_dequantised_copy_is_explained(void **state)
{
    tiny_model *m = *state;
    const int64_t dim[] = {4, 64, 64};

    for (int l = 0; l < 3; l++) {
        char name[128];

        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj_blocks", l);
        tiny_remove(m, name);
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", l);
        tiny_add(m, name, "BF16", 3, dim, 4 * 64 * 64 * 2);
    }
    tiny_write(m);
    EXPECT(m, TD_INVALID, "gate_up_proj_blocks", "dequantised", "expected the MXFP4 checkpoint");
}

static void test_checkpoint_original_layout_refusals(void **state)
{
    tiny_model om, *m = &om;
    int64_t rows;

    (void)state;
    tiny_make(m, true, 1);
    rows = tiny_find(m, "block.1.attn.qkv.weight")->dim[0];
    assert_int_equal(rows, 128);
    tiny_find(m, "block.1.attn.qkv.weight")->dim[0] = 64;
    tiny_find(m, "block.1.attn.qkv.weight")->bytes /= 2;
    tiny_write(m);
    EXPECT(m, TD_INVALID, "model.safetensors", "block.1.attn.qkv.weight", "expected BF16 [128, 64]",
           "found BF16 [64, 64]");
    tiny_find(m, "block.1.attn.qkv.weight")->dim[0] = 128;
    tiny_find(m, "block.1.attn.qkv.weight")->bytes *= 2;
    tiny_remove(m, "block.2.mlp.mlp2_weight.scales");
    tiny_write(m);
    EXPECT(m, TD_INVALID, "model.safetensors", "block.2.mlp.mlp2_weight.scales", AGAIN);
    tiny_free(m);
}

static void test_checkpoint_long_folder_names_keep_the_reason(void **state)
{
    tiny_model *m = *state;
    char dir[4200];
    td_checkpoint *c = NULL;
    td_error err = {0};

    memset(dir, '/', sizeof dir);
    snprintf(dir + 3900, 100, "%s", m->dir); /* "////.../tmp/td-tiny": the same folder */
    remove_file(m, SHARD_1);
    assert_int_equal(td_checkpoint_open(dir, &m->cfg, &c, &err), TD_NOTFOUND);
    assert_non_null(strstr(err.text, SHARD_1));
    assert_non_null(strstr(err.text, AGAIN));
    memset(dir, 'a', sizeof dir - 1);
    dir[sizeof dir - 1] = '\0';
    assert_int_equal(td_checkpoint_open(dir, &m->cfg, &c, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "4096"));
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_checkpoint_intact_folder_loads),
        CASE(test_checkpoint_missing_shard_is_named_before_others_are_opened),
        CASE(test_checkpoint_reported_index_names_its_missing_shard),
        CASE(test_checkpoint_dangling_link_is_a_missing_shard),
        CASE(test_checkpoint_links_to_shards_are_followed),
        CASE(test_checkpoint_folder_that_is_none),
        CASE(test_checkpoint_lost_index_is_named),
        CASE(test_checkpoint_shard_that_is_a_folder),
        CASE(test_checkpoint_unreadable_shard),
        CASE(test_checkpoint_fifo_is_refused_not_waited_for),
        CASE(test_checkpoint_every_shard_cut_or_grown),
        CASE(test_checkpoint_wrong_header_length),
        CASE(test_checkpoint_every_tensor_missing),
        CASE(test_checkpoint_every_tensor_of_another_type_or_shape),
        CASE(test_checkpoint_type_named_as_found),
        CASE(test_checkpoint_every_config_number_against_the_tensors),
        CASE(test_checkpoint_bad_config_struct_is_refused),
        CASE(test_checkpoint_index_places_a_tensor_in_the_wrong_file),
        CASE(test_checkpoint_index_names_an_unneeded_tensor_that_is_nowhere),
        CASE(test_checkpoint_index_lacks_a_tensor_that_a_file_has),
        CASE(test_checkpoint_index_paths_stay_in_the_folder),
        CASE(test_checkpoint_index_that_is_no_index),
        CASE(test_checkpoint_index_cut_at_every_byte),
        CASE(test_checkpoint_damaged_headers_in_a_folder),
        CASE(test_checkpoint_extra_tensors_are_accepted),
        CASE(test_checkpoint_layers_past_the_config_are_refused),
        CASE(test_checkpoint_layout_of_config_and_tensors_differ),
        CASE(test_checkpoint_dequantised_copy_is_explained),
        CASE(test_checkpoint_original_layout_refusals),
        CASE(test_checkpoint_long_folder_names_keep_the_reason),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
