/* The control tokens of one vocabulary, and which ids may be sampled. */
#include "router/harmony_render.h"

#include <stdlib.h>

#include "router/tokenizer.h"

struct harmony {
    const tokenizer *tok;
    harmony_options options;
    harmony_ids ids;
};

td_status harmony_open(const tokenizer *tok, const harmony_options *options, harmony **out,
                       td_error *err)
{
    harmony *h = calloc(1, sizeof *h);

    if (h == NULL)
        return td_fail(err, TD_NOMEM, "harmony: no memory for its ids");
    const struct {
        const char *name;
        int32_t *id;
    } wanted[] = {
        {"<|start|>", &h->ids.start},
        {"<|message|>", &h->ids.message},
        {"<|end|>", &h->ids.end},
        {"<|channel|>", &h->ids.channel},
        {"<|constrain|>", &h->ids.constrain},
        {"<|call|>", &h->ids.call},
        {"<|return|>", &h->ids.ret},
    };
    h->tok = tok;
    if (options != NULL)
        h->options = *options;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].id = tokenizer_special(tok, wanted[i].name);
        if (*wanted[i].id < 0) {
            free(h);
            return td_fail(err, TD_INVALID,
                           "the vocabulary has no special token %s: this is not the tokenizer of "
                           "a gpt-oss model",
                           wanted[i].name);
        }
    }
    h->ids.endoftext = tokenizer_special(tok, "<|endoftext|>");
    *out = h;
    return TD_OK;
}

void harmony_close(harmony *h)
{
    free(h);
}

const harmony_ids *harmony_ids_of(const harmony *h)
{
    return &h->ids;
}

const tokenizer *harmony_tokenizer(const harmony *h)
{
    return h->tok;
}

const harmony_options *harmony_options_of(const harmony *h)
{
    return &h->options;
}

size_t harmony_stop_ids(const harmony *h, int32_t out[HARMONY_MAX_STOPS])
{
    size_t n = 0;

    out[n++] = h->ids.ret;
    out[n++] = h->ids.call;
    if (h->ids.endoftext >= 0)
        out[n++] = h->ids.endoftext;
    return n;
}

void harmony_banned_ids(const harmony *h, td_tokens *out)
{
    const harmony_ids *k = &h->ids;
    int32_t vocab = tokenizer_vocab(h->tok);

    for (int32_t id = 0; id < vocab; id++) {
        td_slice bytes;
        bool known = id == k->start || id == k->message || id == k->end || id == k->channel ||
                     id == k->constrain || id == k->call || id == k->ret || id == k->endoftext;

        if (!known && (tokenizer_is_special(h->tok, id) || !tokenizer_bytes(h->tok, id, &bytes)))
            td_tokens_push(out, id);
    }
}
