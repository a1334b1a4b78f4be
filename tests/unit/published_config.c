#include "tests/unit/published_config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"

char *published_config(int n_layers, int n_experts)
{
    td_buf b = {0};

    td_buf_fmt(&b,
               "{\"architectures\": [\"GptOssForCausalLM\"], \"attention_bias\": true, "
               "\"attention_dropout\": 0.0, \"eos_token_id\": 200002, \"experts_per_token\": 4, "
               "\"head_dim\": 64, \"hidden_act\": \"silu\", \"hidden_size\": 2880, "
               "\"initial_context_length\": 4096, \"initializer_range\": 0.02, "
               "\"intermediate_size\": 2880, \"layer_types\": [");
    for (int l = 0; l < n_layers; l++)
        td_buf_fmt(&b, "%s\"%s_attention\"", l > 0 ? ", " : "", l % 2 == 0 ? "sliding" : "full");
    td_buf_fmt(&b,
               "], \"max_position_embeddings\": 131072, \"model_type\": \"gpt_oss\", "
               "\"num_attention_heads\": 64, \"num_experts_per_tok\": 4, "
               "\"num_hidden_layers\": %d, \"num_key_value_heads\": 8, \"num_local_experts\": %d, "
               "\"output_router_logits\": false, \"pad_token_id\": 199999, "
               "\"quantization_config\": {\"modules_to_not_convert\": [\"model.layers.*.self_attn\""
               ", \"model.layers.*.mlp.router\", \"model.embed_tokens\", \"lm_head\"], "
               "\"quant_method\": \"mxfp4\"}, \"rms_norm_eps\": 1e-05, \"rope_scaling\": "
               "{\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"factor\": 32.0, "
               "\"original_max_position_embeddings\": 4096, \"rope_type\": \"yarn\", "
               "\"truncate\": false}, \"rope_theta\": 150000, \"router_aux_loss_coef\": 0.9, "
               "\"sliding_window\": 128, \"swiglu_limit\": 7.0, \"tie_word_embeddings\": false, "
               "\"transformers_version\": \"4.55.0.dev0\", \"use_cache\": true, "
               "\"vocab_size\": 201088}",
               n_layers, n_experts);
    assert_false(b.oom);
    return b.ptr;
}

const char published_generation[] =
    "{\"bos_token_id\": 199998, \"do_sample\": true, \"eos_token_id\": [200002, 199999, 200012], "
    "\"pad_token_id\": 199999, \"transformers_version\": \"4.55.0.dev0\"}";

const char original_120b[] =
    "{\"num_hidden_layers\": 36, \"num_experts\": 128, \"experts_per_token\": 4, \"vocab_size\": "
    "201088, \"hidden_size\": 2880, \"intermediate_size\": 2880, \"swiglu_limit\": 7.0, "
    "\"head_dim\": 64, \"num_attention_heads\": 64, \"num_key_value_heads\": 8, "
    "\"sliding_window\": 128, \"initial_context_length\": 4096, \"rope_theta\": 150000, "
    "\"rope_scaling_factor\": 32.0, \"rope_ntk_alpha\": 1, \"rope_ntk_beta\": 32}";

td_status parse_config(const char *text, const char *gen, td_model_config *c, td_error *err)
{
    return td_model_config_parse(text, strlen(text), gen, gen == NULL ? 0 : strlen(gen), "m", c,
                                 err);
}
