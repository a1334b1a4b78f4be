#include "router/generation.h"

#include <stdlib.h>

#include "router/guided.h"
#include "router/tokenizer.h"

void generation_init(generation *g)
{
    *g = (generation){.temperature = 1, .top_p = 1, .n = 1};
    chat_init(&g->chat);
}

void generation_free(generation *g)
{
    if (g == NULL)
        return;
    chat_free(&g->chat);
    td_tokens_free(&g->raw_tokens);
    guided_free(g->guide);
    g->guide = NULL;
    free(g->bias);
    g->bias = NULL;
    g->n_bias = 0;
}

td_status generation_check_model(td_slice wanted, const char *served, td_error *err)
{
    if (wanted.len == 0 || served[0] == '\0' || td_slice_eq(wanted, td_slice_of(served)))
        return TD_OK;
    td_fail_param(err, "model", "the model \"%.*s\" is not served here; \"%s\" is",
                  chat_shown(wanted), wanted.ptr, served);
    return err->code = TD_NOTFOUND;
}

td_status generation_guide(generation *g, td_error *err)
{
    if (g->raw || g->guide != NULL || !guided_wanted(&g->chat))
        return TD_OK;
    if (g->ignore_eos)
        return td_fail_param(err, "ignore_eos",
                             "ignore_eos cannot be together with tool_choice, strict tools or a "
                             "response format: those end where they end");
    return guided_create(&g->chat, &g->guide, err);
}

td_status generation_render(const generation *g, const harmony *h, td_tokens *out, td_error *err)
{
    if (!g->raw) {
        td_status st = g->guide != NULL ? guided_check(g->guide, err) : TD_OK;

        return st == TD_OK ? harmony_render(h, &g->chat, out, err) : st;
    }
    if (g->raw_tokens.len == 0)
        return tokenizer_encode(harmony_tokenizer(h), g->raw_text.ptr, g->raw_text.len, out, err);
    td_tokens_add(out, g->raw_tokens.ptr, g->raw_tokens.len);
    return out->oom ? td_fail(err, TD_NOMEM, "no memory for the prompt") : TD_OK;
}
