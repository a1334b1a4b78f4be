#include "router/generation.h"

#include <stdlib.h>

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

td_status generation_render(const generation *g, const harmony *h, td_tokens *out, td_error *err)
{
    if (!g->raw)
        return harmony_render(h, &g->chat, out, err);
    if (g->raw_tokens.len == 0)
        return tokenizer_encode(harmony_tokenizer(h), g->raw_text.ptr, g->raw_text.len, out, err);
    td_tokens_add(out, g->raw_tokens.ptr, g->raw_tokens.len);
    return out->oom ? td_fail(err, TD_NOMEM, "no memory for the prompt") : TD_OK;
}
