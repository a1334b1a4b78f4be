#include "router/openai_fields.h"

#include <stdbool.h>
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
    case ONLY_EMPTY: return is_word(v, "") || (cJSON_IsArray(v) && v->child == NULL);
    case ONLY_TEXT:
        return cJSON_IsArray(v) && cJSON_GetArraySize(v) == 1 && is_word(v->child, "text");
    case ONLY_PLAIN: return is_word(v, "auto") || is_word(v, "default");
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
                                : NULL;
}

td_status openai_check_rules(const cJSON *root, const openai_rule *rules, size_t n, td_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const openai_rule *r = &rules[i];
        const cJSON *v = openai_field(root, r->name);

        if (v == NULL || fits(v, r->only))
            continue;
        if (wanted(r->only) != NULL)
            return td_fail_param(err, r->name, "%s must be %s, not %s", r->name, wanted(r->only),
                                 openai_type_name(v));
        return td_fail_param(err, r->name, "%s is not supported: %s", r->name, r->why);
    }
    return TD_OK;
}

td_status openai_check_common(const cJSON *root, td_error *err)
{
    static const char guided[] = "use response_format of /v1/chat/completions";
    static const openai_rule rules[] = {
        {"user", ANY_STRING, NULL},
        {"safety_identifier", ANY_STRING, NULL},
        {"prompt_cache_key", ANY_STRING, NULL},
        {"metadata", ANY_OBJECT, NULL},
        {"store", ANY_BOOL, NULL}, /* nothing is kept, whatever it is */
        {"service_tier", ONLY_PLAIN, "there is one tier, which auto and default stand for"},
        {"best_of", ONLY_ONE, "answers that are made are given too; use n"},
        {"echo", ONLY_FALSE, "the prompt is not repeated in the answer"},
        {"prompt_logprobs", ONLY_NOTHING, "log-probabilities are those of the answer"},
        {"min_p", ONLY_ZERO, "use top_p or top_k"},
        {"min_tokens", ONLY_ZERO, "an answer ends where the model ends it"},
        {"repetition_penalty", ONLY_ONE, "use frequency_penalty and presence_penalty"},
        {"length_penalty", ONLY_ONE, "answers are sampled, not searched for"},
        {"use_beam_search", ONLY_FALSE, "answers are sampled, not searched for"},
        {"stop_token_ids", ONLY_EMPTY, "use stop"},
        {"bad_words", ONLY_EMPTY, "use logit_bias"},
        {"allowed_token_ids", ONLY_EMPTY, "use logit_bias"},
        {"include_stop_str_in_output", ONLY_FALSE, "an answer ends before its stop string"},
        {"skip_special_tokens", ONLY_TRUE, "special tokens are not shown"},
        {"truncate_prompt_tokens", ONLY_NOTHING, "a prompt that is too long is refused, not cut"},
        {"guided_json", ONLY_NOTHING, guided},
        {"guided_regex", ONLY_NOTHING, guided},
        {"guided_choice", ONLY_NOTHING, guided},
        {"guided_grammar", ONLY_NOTHING, guided},
        {"structured_outputs", ONLY_NOTHING, guided},
    };

    return openai_check_rules(root, rules, sizeof rules / sizeof *rules, err);
}

td_status openai_check_chat(const cJSON *root, td_error *err)
{
    static const openai_rule rules[] = {
        {"functions", ONLY_NOTHING, "it is the old form: use tools"},
        {"function_call", ONLY_NOTHING, "it is the old form: use tool_choice"},
        {"audio", ONLY_NOTHING, "the model reads and writes text"},
        {"modalities", ONLY_TEXT, "the model reads and writes text"},
        {"web_search_options", ONLY_NOTHING, "nothing is searched for here: give a tool that does"},
        {"verbosity", ANY_STRING, NULL},         /* the model has no such setting */
        {"prediction", ANY_OBJECT, NULL},        /* it would only make an answer quicker */
        {"parallel_tool_calls", ANY_BOOL, NULL}, /* an answer of this model ends with its call */
        {"prompt", ONLY_NOTHING, "this endpoint takes messages; /v1/completions takes a prompt"},
        {"input", ONLY_NOTHING, "this endpoint takes messages; /v1/responses takes input"},
        {"chat_template", ONLY_NOTHING, "conversations are rendered as Harmony"},
        {"chat_template_kwargs", ONLY_NOTHING, "use reasoning_effort and tools"},
        {"documents", ONLY_NOTHING, "put them into messages"},
    };

    return openai_check_rules(root, rules, sizeof rules / sizeof *rules, err);
}
