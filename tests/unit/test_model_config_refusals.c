/* Mistakes in config.json and beside it: the message names the file, the key, and what was found.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/published_config.h"
#include "tests/unit/tiny_checkpoint.h"

typedef struct refusal {
    const char *from, *to;
    const char *key, *found; /* must be in the message */
} refusal;

static void refused_each(const char *base, const refusal *r, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char *text = strdup(base);
        td_model_config c;
        td_error err = {0};
        td_status st;

        memset(&c, 0x5a, sizeof c);
        tiny_replace(&text, r[i].from, r[i].to);
        st = parse_config(text, NULL, &c, &err);
        if (st != TD_INVALID)
            fail_msg("%s -> %s: accepted (%s)", r[i].from, r[i].to, td_status_name(st));
        if (strstr(err.text, "m/config.json") == NULL || strstr(err.text, r[i].key) == NULL ||
            strstr(err.text, r[i].found) == NULL)
            fail_msg("%s -> %s: no \"%s\" or \"%s\" in: %s", r[i].from, r[i].to, r[i].key,
                     r[i].found, err.text);
        assert_int_equal(c.n_layers, 0x5a5a5a5a); /* out is set on success only */
        free(text);
    }
}

static void test_model_config_refuses_by_key(void **state)
{
    static const refusal cases[] = {
        {"\"model_type\": \"gpt_oss\"", "\"model_type\": \"llama\"", "model_type", "\"llama\""},
        {"\"model_type\": \"gpt_oss\", ", "", "model_type", "found nothing"},
        {"\"num_hidden_layers\": 24", "\"num_hidden_layers\": 0", "num_hidden_layers", "found 0"},
        {"\"num_hidden_layers\": 24", "\"num_hidden_layers\": 129", "num_hidden_layers", "129"},
        {"\"num_hidden_layers\": 24", "\"num_hidden_layers\": -24", "num_hidden_layers", "-24"},
        {"\"num_hidden_layers\": 24", "\"num_hidden_layers\": 24.5", "num_hidden_layers", "24.5"},
        {"\"num_hidden_layers\": 24", "\"num_hidden_layers\": \"24\"", "num_hidden_layers",
         "\"24\""},
        {"\"num_hidden_layers\": 24", "\"num_hidden_layers\": 1e999", "num_hidden_layers", "inf"},
        {"\"num_hidden_layers\": 24", "\"num_hidden_layers\": 4294967320", "num_hidden_layers",
         "4294967320"},
        {"\"num_hidden_layers\": 24", "\"num_hidden_layers\": [24]", "num_hidden_layers", "[24]"},
        {"\"num_hidden_layers\": 24", "\"num_hidden_layers\": null", "num_hidden_layers",
         "nothing"},
        {"\"num_hidden_layers\": 24", "\"Num_hidden_layers\": 24", "num_hidden_layers", "nothing"},
        {"\"num_hidden_layers\": 24", "\"num_hidden_layers\": 24, \"num_hidden_layers\": 36",
         "num_hidden_layers", "twice"},
        {"\"num_hidden_layers\": 24", "\"num_hidden_layers\": 23", "layer_types",
         "num_hidden_layers = 23"},
        {"\"layer_types\": [", "\"layer_types\": [\"full_attention\", ", "layer_types",
         "num_hidden_layers = 24"},
        {"\"layer_types\": [\"sliding_attention\"", "\"layer_types\": [\"linear_attention\"",
         "layer_types", "linear_attention"},
        {"\"layer_types\": [\"sliding_attention\"", "\"layer_types\": [1", "layer_types",
         "found 1"},
        {"\"layer_types\": [", "\"layer_types\": 7, \"x\": [", "layer_types", "found 7"},
        {"\"hidden_size\": 2880", "\"hidden_size\": 2881", "hidden_size", "multiple of 32"},
        {"\"hidden_size\": 2880", "\"hidden_size\": 1e9", "hidden_size", "1000000000"},
        {"\"intermediate_size\": 2880", "\"intermediate_size\": 2896", "intermediate_size",
         "multiple of 32"},
        {"\"head_dim\": 64", "\"head_dim\": 63", "head_dim", "even"},
        {"\"head_dim\": 64, ", "", "head_dim", "nothing"},
        {"\"num_key_value_heads\": 8", "\"num_key_value_heads\": 7", "num_attention_heads",
         "multiple of num_key_value_heads = 7, found 64"},
        {"\"num_key_value_heads\": 8", "\"num_key_value_heads\": 128", "num_attention_heads",
         "128"},
        {"\"num_local_experts\": 32", "\"num_local_experts\": 3", "num_experts_per_tok",
         "1 to 3, found 4"},
        {"\"num_local_experts\": 32", "\"num_local_experts\": 1025", "num_local_experts", "1025"},
        {"\"experts_per_token\": 4", "\"experts_per_token\": 2", "experts_per_token", "found 2"},
        {"\"vocab_size\": 201088", "\"vocab_size\": 0", "vocab_size", "found 0"},
        {"\"vocab_size\": 201088", "\"vocab_size\": 1e15", "vocab_size", "1000000000000000"},
        {"\"vocab_size\": 201088", "\"vocab_size\": 200002", "eos_token_id", "200002"},
        {"\"sliding_window\": 128", "\"sliding_window\": 0", "sliding_window", "found 0"},
        {"\"sliding_window\": 128", "\"sliding_window\": null", "sliding_window", "nothing"},
        {"\"max_position_embeddings\": 131072", "\"max_position_embeddings\": 1e12",
         "max_position_embeddings", "1000000000000"},
        {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 0", "rms_norm_eps", "found 0"},
        {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": -1e-5", "rms_norm_eps", "found -1"},
        {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1e-50", "rms_norm_eps", "1e-"},
        {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": 1", "rms_norm_eps", "found 1"},
        {"\"swiglu_limit\": 7.0", "\"swiglu_limit\": -7.0", "swiglu_limit", "-7"},
        {"\"swiglu_limit\": 7.0", "\"swiglu_limit\": 1e400", "swiglu_limit", "inf"},
        {"\"swiglu_limit\": 7.0", "\"swiglu_limit\": true", "swiglu_limit", "true"},
        {"\"rope_theta\": 150000", "\"rope_theta\": 1", "rope_theta", "found 1"},
        {"\"rope_theta\": 150000", "\"rope_theta\": 1e300", "rope_theta", "1e+300"},
        {"\"rope_theta\": 150000, ", "", "rope_theta", "nothing"},
        {"\"rope_scaling\"", "\"rope_sealing\"", "rope_scaling", "nothing"},
        {"\"rope_scaling\": {", "\"rope_scaling\": 3, \"x\": {", "rope_scaling", "found 3"},
        {"\"rope_type\": \"yarn\"", "\"rope_type\": \"linear\"", "rope_type", "\"linear\""},
        {"\"rope_type\": \"yarn\", ", "", "rope_type", "nothing"},
        {"\"factor\": 32.0", "\"factor\": 0.5", "factor", "0.5"},
        {"\"factor\": 32.0", "\"factor\": 1e9", "factor", "1000000000"},
        {"\"beta_fast\": 32.0", "\"beta_fast\": 1.0", "beta_fast", "over beta_slow = 1, found 1"},
        {"\"beta_slow\": 1.0", "\"beta_slow\": 0", "beta_slow", "found 0"},
        {"\"truncate\": false", "\"truncate\": 0", "truncate", "found 0"},
        {"\"truncate\": false", "\"truncate\": false, \"attention_factor\": 1.0",
         "attention_factor", "found 1"},
        {"\"truncate\": false", "\"truncate\": false, \"mscale\": 1.0", "mscale", "found 1"},
        {"\"original_max_position_embeddings\": 4096", "\"original_max_position_embeddings\": 0",
         "original_max_position_embeddings", "found 0"},
        {"\"rope_theta\": 150000",
         "\"rope_theta\": 10000, \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 32, "
         "\"truncate\": false, \"rope_theta\": 150000}",
         "rope_theta", "10000"},
        {"\"rope_theta\": 150000",
         "\"rope_theta\": 150000, \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 16, "
         "\"truncate\": false}",
         "rope_scaling", "same as rope_parameters"},
        {"\"rope_theta\": 150000",
         "\"rope_theta\": 150000, \"rope_parameters\": {\"full_attention\": {}}", "rope_type",
         "nothing"},
        {"\"eos_token_id\": 200002, ", "", "eos_token_id", "generation_config.json"},
        {"\"eos_token_id\": 200002", "\"eos_token_id\": 201088", "eos_token_id", "201088"},
        {"\"eos_token_id\": 200002", "\"eos_token_id\": -1", "eos_token_id", "-1"},
        {"\"eos_token_id\": 200002", "\"eos_token_id\": [1, \"2\"]", "eos_token_id", "\"2\""},
        {"\"eos_token_id\": 200002", "\"eos_token_id\": [1, 2, 3, 4, 5, 6, 7, 8, 9]",
         "eos_token_id", "at most 8"},
        {"\"quant_method\": \"mxfp4\"", "\"quant_method\": \"gptq\"", "quant_method", "\"gptq\""},
        {"\"quantization_config\": {", "\"quantization_config\": \"mxfp4\", \"x\": {",
         "quantization_config", "\"mxfp4\""},
        {"\"attention_bias\": true", "\"attention_bias\": false", "attention_bias", "false"},
        {"\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "hidden_act", "gelu"},
        {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true", "tie_word_embeddings",
         "true"},
        {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0", "tie_word_embeddings",
         "found 0"},
    };
    char *text = published_config(24, 32);

    (void)state;
    refused_each(text, cases, sizeof cases / sizeof cases[0]);
    free(text);
}

static void test_model_config_original_layout_refuses_by_key(void **state)
{
    static const refusal cases[] = {
        {"\"num_experts\": 128", "\"num_experts\": 0", "num_experts", "found 0"},
        {"\"experts_per_token\": 4, ", "", "experts_per_token", "nothing"},
        {"\"rope_scaling_factor\": 32.0", "\"rope_scaling_factor\": 9999", "rope_scaling_factor",
         "9999"},
        {"\"rope_ntk_beta\": 32", "\"rope_ntk_beta\": 0.5", "beta_fast", "0.5"},
        {"\"rope_ntk_alpha\": 1, ", "", "rope_ntk_alpha", "nothing"},
        {"\"initial_context_length\": 4096, ", "", "initial_context_length", "nothing"},
        {"\"num_hidden_layers\": 36, ", "", "num_hidden_layers", "nothing"},
    };

    (void)state;
    refused_each(original_120b, cases, sizeof cases / sizeof cases[0]);
}

static void test_model_config_refuses_text_that_is_not_one_object(void **state)
{
    static const char *const texts[] = {"",    " ",       "{",        "[]",           "3",
                                        "{}x", "{\"a\"}", "\"text\"", "{\"a\": nul}", "\xff{}"};
    td_model_config c;
    td_error err = {0};

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (parse_config(texts[i], NULL, &c, &err) != TD_INVALID ||
            strstr(err.text, "m/config.json") == NULL)
            fail_msg("%s: %s", texts[i], err.text);
    }
    assert_int_equal(td_model_config_parse("{\0}", 3, NULL, 0, "m", &c, &err), TD_INVALID);
}

static void test_model_config_names_the_generation_file_at_fault(void **state)
{
    static const char *const gens[] = {"", "[]", "{\"eos_token_id\": \"x\"}",
                                       "{\"eos_token_id\": [300000]}",
                                       "{\"eos_token_id\": 1, \"eos_token_id\": 2}"};
    td_model_config c;
    td_error err = {0};

    (void)state;
    for (size_t i = 0; i < sizeof gens / sizeof gens[0]; i++) {
        char *text = published_config(24, 32);

        if (parse_config(text, gens[i], &c, &err) != TD_INVALID ||
            strstr(err.text, "m/generation_config.json") == NULL)
            fail_msg("%s: %s", gens[i], err.text);
        memcpy(strstr(text, ": 200002"), ": -10002", 8); /* not of use, and no less wrong */
        if (parse_config(text, "{\"eos_token_id\": 1}", &c, &err) != TD_INVALID ||
            strstr(err.text, "m/config.json") == NULL)
            fail_msg("%s", err.text);
        free(text);
    }
}

/* The whole text cut at every byte: never accepted, never read past. */
static void test_model_config_refuses_every_cut(void **state)
{
    const size_t n = strlen(original_120b);
    td_model_config c;
    td_error err = {0};

    (void)state;
    for (size_t i = 0; i < n; i++) {
        char *text = strndup(original_120b, i); /* exact size, so that reading on is seen */

        assert_int_equal(td_model_config_parse(text, i, NULL, 0, "m", &c, &err), TD_INVALID);
        free(text);
    }
}

static void test_model_config_read_folders(void **state)
{
    char dir[] = "/tmp/td-mc-XXXXXX", path[64], long_name[5000];
    td_model_config c;
    td_error err = {0};
    FILE *f;

    (void)state;
    assert_int_equal(td_model_config_read("/no/such/folder", &c, &err), TD_NOTFOUND);
    assert_non_null(strstr(err.text, "/no/such/folder/config.json"));
    assert_non_null(strstr(err.text, "expected the folder of a gpt-oss model"));
    assert_int_equal(td_model_config_read("CMakeLists.txt", &c, &err), TD_NOTFOUND);
    memset(long_name, 'a', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    assert_int_equal(td_model_config_read(long_name, &c, &err), TD_INVALID);
    assert_non_null(mkdtemp(dir));
    assert_int_equal(td_model_config_read(dir, &c, &err), TD_NOTFOUND);
    snprintf(path, sizeof path, "%s/config.json", dir);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 1 << 21, SEEK_SET), 0); /* sparse: a size, no data */
    fputc('x', f);
    fclose(f);
    assert_int_equal(td_model_config_read(dir, &c, &err), TD_TOOLARGE);
    assert_non_null(strstr(err.text, "2097153 bytes"));
    assert_int_equal(remove(path), 0);
    assert_int_equal(remove(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model_config_refuses_by_key),
        cmocka_unit_test(test_model_config_original_layout_refuses_by_key),
        cmocka_unit_test(test_model_config_refuses_text_that_is_not_one_object),
        cmocka_unit_test(test_model_config_names_the_generation_file_at_fault),
        cmocka_unit_test(test_model_config_refuses_every_cut),
        cmocka_unit_test(test_model_config_read_folders),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
