#include "router/openai_fields.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "router/openai_json.h"

static bool is_word(const cJSON *v, const char *word)
{
    return cJSON_IsString(v) && strcmp(v->valuestring, word) == 0;
}

static bool fits(const cJSON *v, openai_only only)
{
    switch (only) {
    case ONLY_FALSE: return cJSON_IsFalse(v);
    case ONLY_TRUE: return cJSON_IsTrue(v);
    case ONLY_ZERO: return cJSON_IsNumber(v) && v->valuedouble == 0;
    case ONLY_ONE: return cJSON_IsNumber(v) && v->valuedouble == 1;
    case ONLY_EMPTY:
        return is_word(v, "") || ((cJSON_IsArray(v) || cJSON_IsObject(v)) && v->child == NULL);
    case ONLY_TEXT:
        return cJSON_IsArray(v) && cJSON_GetArraySize(v) == 1 && is_word(v->child, "text");
    case ONLY_PLAIN: return is_word(v, "auto") || is_word(v, "default");
    case ONLY_DISABLED: return is_word(v, "disabled");
    case ONLY_LEVEL: return is_word(v, "low") || is_word(v, "medium") || is_word(v, "high");
    case ANY_BOOL: return cJSON_IsBool(v);
    case ANY_STRING: return cJSON_IsString(v);
    case ANY_OBJECT: return cJSON_IsObject(v);
    case ONLY_NOTHING: break;
    }
    return false;
}

static const char *wanted(openai_only only)
{
    return only == ANY_BOOL     ? "true or false"
           : only == ANY_STRING ? "a string"
           : only == ANY_OBJECT ? "an object"
           : only == ONLY_LEVEL ? "low, medium or high"
                                : NULL;
}

td_status openai_check_rules(const cJSON *object, const char *where, const openai_rule *rules,
                             size_t n, td_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const openai_rule *r = &rules[i];
        const cJSON *v = openai_field(object, r->name);
        char path[128];

        if (v == NULL || fits(v, r->only))
            continue;
        snprintf(path, sizeof path, "%s%s%s", where, where[0] ? "." : "", r->name);
        if (wanted(r->only) == NULL)
            return td_fail_param(err, path, "%s is not supported: %s", path, r->why);
        if (r->only == ONLY_LEVEL && cJSON_IsString(v))
            return td_fail_param(err, path, "%s must be %s, not \"%.*s\"", path, wanted(r->only),
                                 chat_shown(td_slice_of(v->valuestring)), v->valuestring);
        return td_fail_param(err, path, "%s must be %s, not %s", path, wanted(r->only),
                             openai_type_name(v));
    }
    return TD_OK;
}

/* Sampling fields and others of servers that speak the same APIs. */
static td_status check_foreign(const cJSON *root, td_error *err)
{
    static const char guided[] =
        "use response_format of /v1/chat/completions, or text.format of /v1/responses";
    static const char count[] = "it is max_tokens, max_completion_tokens or max_output_tokens here";
    static const char sampling[] = "use temperature, top_p and top_k";
    static const char ids[] = "log-probabilities have tokens as text and as bytes";
    static const openai_rule rules[] = {
        {"prompt_logprobs", ONLY_NOTHING, "log-probabilities are those of the answer"},
        {"return_tokens_as_token_ids", ONLY_FALSE, ids},
        {"return_token_ids", ONLY_FALSE, ids},
        {"return_hidden_states", ONLY_FALSE, "answers are text"},
        {"min_p", ONLY_ZERO, "use top_p or top_k"},
        {"top_a", ONLY_ZERO, sampling},
        {"typical_p", ONLY_ONE, sampling},
        {"tfs_z", ONLY_ONE, sampling},
        {"mirostat", ONLY_ZERO, sampling},
        {"dynatemp_range", ONLY_ZERO, sampling},
        {"max_new_tokens", ONLY_NOTHING, count},
        {"n_predict", ONLY_NOTHING, count},
        {"repetition_penalty", ONLY_ONE, "use frequency_penalty and presence_penalty"},
        {"length_penalty", ONLY_ONE, "answers are sampled, not searched for"},
        {"use_beam_search", ONLY_FALSE, "answers are sampled, not searched for"},
        {"stop_token_ids", ONLY_EMPTY, "use stop"},
        {"stop_regex", ONLY_EMPTY, "use stop"},
        {"no_stop_trim", ONLY_FALSE, "an answer ends before its stop string"},
        {"include_stop_str_in_output", ONLY_FALSE, "an answer ends before its stop string"},
        {"bad_words", ONLY_EMPTY, "use logit_bias"},
        {"allowed_token_ids", ONLY_EMPTY, "use logit_bias"},
        {"logits_processors", ONLY_EMPTY, "use logit_bias"},
        {"custom_logit_processor", ONLY_NOTHING, "use logit_bias"},
        {"skip_special_tokens", ONLY_TRUE, "special tokens are not shown"},
        {"add_special_tokens", ANY_BOOL,
         NULL}, /* the vocabulary has none that prompts begin with */
        {"truncate_prompt_tokens", ONLY_NOTHING, "a prompt that is too long is refused, not cut"},
        {"priority", ONLY_ZERO, "requests are served in the order in which they come"},
        {"lora_path", ONLY_NOTHING, "there are no adapters"},
        {"kv_transfer_params", ONLY_NOTHING, "the router places requests"},
        {"bootstrap_host", ONLY_NOTHING, "the router places requests"},
        {"guided_json", ONLY_NOTHING, guided},
        {"guided_regex", ONLY_NOTHING, guided},
        {"guided_choice", ONLY_NOTHING, guided},
        {"guided_grammar", ONLY_NOTHING, guided},
        {"guided_whitespace_pattern", ONLY_NOTHING, guided},
        {"guided_decoding_backend", ONLY_NOTHING, guided},
        {"structured_outputs", ONLY_NOTHING, guided},
        {"json_schema", ONLY_NOTHING, guided},
        {"grammar", ONLY_NOTHING, guided},
        {"regex", ONLY_NOTHING, guided},
        {"ebnf", ONLY_NOTHING, guided},
    };

    return openai_check_rules(root, "", rules, sizeof rules / sizeof *rules, err);
}

td_status openai_check_common(const cJSON *root, td_error *err)
{
    static const char elsewhere[] = "it is a field of /v1/responses";
    static const openai_rule rules[] = {
        {"user", ANY_STRING, NULL},
        {"safety_identifier", ANY_STRING, NULL},
        {"prompt_cache_key", ANY_STRING, NULL},
        {"prompt_cache_retention", ANY_STRING, NULL},
        {"prompt_cache_options", ANY_OBJECT, NULL},
        {"metadata", ANY_OBJECT, NULL},
        {"store", ANY_BOOL, NULL}, /* nothing is kept, whatever it is */
        {"service_tier", ONLY_PLAIN, "there is one tier, which auto and default stand for"},
        {"best_of", ONLY_ONE, "answers that are made are given too; use n"},
        {"echo", ONLY_FALSE, "the prompt is not repeated in the answer"},
        {"suffix", ONLY_EMPTY, "text goes on at its end only"},
        {"moderation", ONLY_NOTHING, "nothing is moderated here"},
        {"max_output_tokens", ONLY_NOTHING, "it is max_tokens or max_completion_tokens here"},
        {"instructions", ONLY_NOTHING, elsewhere},
        {"previous_response_id", ONLY_NOTHING, elsewhere},
        {"conversation", ONLY_NOTHING, elsewhere},
        {"text", ONLY_NOTHING, elsewhere},
        {"include", ONLY_EMPTY, elsewhere},
        {"background", ONLY_FALSE, elsewhere},
        {"truncation", ONLY_DISABLED, "a prompt that is too long is refused, not cut"},
    };
    td_status st = openai_check_rules(root, "", rules, sizeof rules / sizeof *rules, err);

    return st == TD_OK ? check_foreign(root, err) : st;
}

td_status openai_check_chat(const cJSON *root, td_error *err)
{
    static const openai_rule rules[] = {
        {"functions", ONLY_NOTHING, "it is the old form: use tools"},
        {"function_call", ONLY_NOTHING, "it is the old form: use tool_choice"},
        {"audio", ONLY_NOTHING, "the model reads and writes text"},
        {"modalities", ONLY_TEXT, "the model reads and writes text"},
        {"web_search_options", ONLY_NOTHING, "nothing is searched for here: give a tool that does"},
        {"verbosity", ONLY_LEVEL, NULL},         /* the model has no such setting */
        {"prediction", ANY_OBJECT, NULL},        /* it would only make an answer quicker */
        {"parallel_tool_calls", ANY_BOOL, NULL}, /* an answer of this model ends with its call */
        {"prompt", ONLY_NOTHING, "this endpoint takes messages; /v1/completions takes a prompt"},
        {"input", ONLY_NOTHING, "this endpoint takes messages; /v1/responses takes input"},
        {"chat_template", ONLY_NOTHING, "conversations are rendered as Harmony"},
        {"chat_template_kwargs", ONLY_EMPTY, "use reasoning_effort and tools"},
        {"separate_reasoning", ONLY_TRUE, "reasoning is never a part of content"},
        {"stream_reasoning", ONLY_TRUE, "a stream has all as it comes"},
        {"reasoning", ONLY_NOTHING, "it is reasoning_effort here"},
        {"thinking", ONLY_NOTHING, "it is reasoning_effort here"},
        {"enable_thinking", ONLY_TRUE, "the model always thinks: reasoning_effort says how much"},
        {"documents", ONLY_NOTHING, "put them into messages"},
    };

    return openai_check_rules(root, "", rules, sizeof rules / sizeof *rules, err);
}

td_status openai_check_responses(const cJSON *root, td_error *err)
{
    static const char items[] = "send the items, or previous_response_id";
    static const char old[] = "it is the old form: use tools and tool_choice";
    static const char effort[] = "it is reasoning.effort here";
    static const openai_rule rules[] = {
        {"background", ONLY_FALSE, "an answer lives as long as its connection"},
        {"truncation", ONLY_DISABLED, "a conversation that is too long is refused, not cut"},
        {"conversation", ONLY_NOTHING, items},
        {"context_management", ONLY_NOTHING, "conversations are not compacted"},
        {"prompt", ONLY_NOTHING, "there are no stored prompts"},
        {"moderation", ONLY_NOTHING, "nothing is moderated here"},
        {"n", ONLY_NOTHING, "one answer a request"},
        {"best_of", ONLY_ONE, "one answer a request"},
        {"messages", ONLY_NOTHING,
         "this endpoint takes input; /v1/chat/completions takes messages"},
        {"max_tokens", ONLY_NOTHING, "it is max_output_tokens here"},
        {"max_completion_tokens", ONLY_NOTHING, "it is max_output_tokens here"},
        {"response_format", ONLY_NOTHING, "it is text.format here"},
        {"verbosity", ONLY_NOTHING, "it is text.verbosity here"},
        {"reasoning_effort", ONLY_NOTHING, effort},
        {"thinking", ONLY_NOTHING, effort},
        {"enable_thinking", ONLY_TRUE, effort},
        {"include_reasoning", ONLY_TRUE, "reasoning is an item of the output, to be passed over"},
        {"logprobs", ONLY_NOTHING, "it is include: [\"message.output_text.logprobs\"] here"},
        {"functions", ONLY_NOTHING, old},
        {"function_call", ONLY_NOTHING, old},
        {"web_search_options", ONLY_NOTHING, "nothing is searched for here"},
        {"audio", ONLY_NOTHING, "the model reads and writes text"},
        {"modalities", ONLY_TEXT, "the model reads and writes text"},
        {"suffix", ONLY_EMPTY, "text goes on at its end only"},
        {"echo", ONLY_FALSE, "the prompt is not repeated in the answer"},
        {"continue_final_message", ONLY_FALSE, "each response is a new message"},
        {"add_generation_prompt", ONLY_TRUE, "each response is a new message"},
        {"chat_template", ONLY_NOTHING, "conversations are rendered as Harmony"},
        {"chat_template_kwargs", ONLY_EMPTY, "use reasoning.effort and tools"},
        {"documents", ONLY_NOTHING, "put them into input"},
        {"prompt_cache_retention", ANY_STRING, NULL},
        {"prompt_cache_options", ANY_OBJECT, NULL},
    };
    td_status st = openai_check_rules(root, "", rules, sizeof rules / sizeof *rules, err);

    return st == TD_OK ? check_foreign(root, err) : st;
}

td_status openai_check_completion(const cJSON *root, td_error *err)
{
    static const char of_chat[] = "a prompt is raw text; /v1/chat/completions has it";
    static const openai_rule rules[] = {
        {"messages", ONLY_NOTHING,
         "this endpoint takes a prompt; /v1/chat/completions takes messages"},
        {"input", ONLY_NOTHING, "this endpoint takes a prompt; /v1/responses takes input"},
        {"prompt_embeds", ONLY_NOTHING, "the prompt is text or token ids"},
        {"response_format", ONLY_NOTHING, "the answer is raw text"},
        {"top_logprobs", ONLY_ZERO, "logprobs is a number here"},
        {"tools", ONLY_EMPTY, of_chat},
        {"tool_choice", ONLY_NOTHING, of_chat},
        {"functions", ONLY_EMPTY, of_chat},
        {"function_call", ONLY_NOTHING, of_chat},
        {"reasoning", ONLY_NOTHING, of_chat},
        {"reasoning_effort", ONLY_NOTHING, of_chat},
        {"thinking", ONLY_NOTHING, of_chat},
        {"enable_thinking", ONLY_NOTHING, of_chat},
        {"include_reasoning", ONLY_TRUE, of_chat},
        {"chat_template", ONLY_NOTHING, of_chat},
        {"chat_template_kwargs", ONLY_EMPTY, of_chat},
        {"continue_final_message", ONLY_FALSE, of_chat},
        {"web_search_options", ONLY_NOTHING, of_chat},
        {"audio", ONLY_NOTHING, "the model reads and writes text"},
        {"modalities", ONLY_TEXT, "the model reads and writes text"},
    };
    td_status st = openai_check_rules(root, "", rules, sizeof rules / sizeof *rules, err);

    return st == TD_OK ? openai_check_common(root, err) : st;
}
