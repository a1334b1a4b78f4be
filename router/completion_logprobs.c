#include "router/completion_logprobs.h"

#include <stdlib.h>

#include "router/chat_answer.h"

void completion_logprobs_free(completion_logprobs *l)
{
    td_buf_free(&l->tokens);
    td_buf_free(&l->values);
    td_buf_free(&l->top);
    td_buf_free(&l->offsets);
    free(l->waiting);
    *l = (completion_logprobs){0};
}

static void comma(td_buf *b)
{
    if (b->len > 0)
        td_buf_byte(b, ',');
}

static void add_token(td_buf *b, const tokenizer *t, int32_t id)
{
    td_slice bytes = {"", 0};
    size_t bad;

    tokenizer_bytes(t, id, &bytes); /* none for an id that is only in the model */
    td_buf_byte(b, '"');
    if (td_utf8_valid(bytes.ptr, bytes.len, &bad)) {
        td_buf_json(b, bytes.ptr, bytes.len);
    } else {
        td_buf_str(b, "bytes:");
        for (size_t i = 0; i < bytes.len; i++)
            td_buf_fmt(b, "\\\\x%02x", (unsigned)(unsigned char)bytes.ptr[i]);
    }
    td_buf_byte(b, '"');
}

static void add_rival(td_buf *b, const tokenizer *t, int32_t id, float logprob)
{
    add_token(b, t, id);
    td_buf_byte(b, ':');
    chat_answer_logprob(b, logprob);
}

/* The likeliest, and the one that was drawn if it is not among them. */
static void add_top(td_buf *b, const tokenizer *t, const token_logprobs *p)
{
    const td_logprobs *l = &p->logprobs;
    bool drawn = false;

    comma(b);
    td_buf_byte(b, '{');
    for (int32_t k = 0; k < l->n; k++) {
        if (k > 0)
            td_buf_byte(b, ',');
        add_rival(b, t, l->id[k], l->logprob[k]);
        drawn = drawn || l->id[k] == p->token;
    }
    if (!drawn) {
        if (l->n > 0)
            td_buf_byte(b, ',');
        add_rival(b, t, p->token, l->chosen);
    }
    td_buf_byte(b, '}');
}

void completion_logprobs_push(completion_logprobs *l, const tokenizer *t,
                              const token_logprobs *list, size_t n)
{
    if (l->n_waiting + n > l->max_waiting) {
        size_t more = 2 * (l->n_waiting + n);
        size_t *p = realloc(l->waiting, more * sizeof *p);

        if (p == NULL) {
            l->oom = true;
            return;
        }
        l->waiting = p;
        l->max_waiting = more;
    }
    for (size_t i = 0; i < n; i++) {
        l->waiting[l->n_waiting++] = list[i].at;
        comma(&l->tokens);
        add_token(&l->tokens, t, list[i].token);
        comma(&l->values);
        chat_answer_logprob(&l->values, list[i].logprobs.chosen);
        add_top(&l->top, t, &list[i]);
    }
}

static size_t count_chars(const char *text, size_t n)
{
    size_t chars = 0;

    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)text[i] & 0xc0) != 0x80;
    return chars;
}

void completion_logprobs_text(completion_logprobs *l, td_slice text)
{
    for (size_t i = 0; i < l->n_waiting; i++) {
        size_t into = l->waiting[i] > l->bytes ? l->waiting[i] - l->bytes : 0;

        comma(&l->offsets);
        td_buf_fmt(&l->offsets, "%zu",
                   l->chars + count_chars(text.ptr, into < text.len ? into : text.len));
    }
    l->n_waiting = 0;
    l->bytes += text.len;
    l->chars += count_chars(text.ptr, text.len);
}

static void add_list(td_buf *out, const char *name, td_buf *list)
{
    td_buf_str(out, name);
    td_buf_add(out, list->ptr, list->len);
    out->oom = out->oom || list->oom;
    td_buf_clear(list);
}

void completion_logprobs_write(completion_logprobs *l, td_buf *out)
{
    out->oom = out->oom || l->oom;
    if (l->tokens.len == 0) {
        td_buf_str(out, "null");
        return;
    }
    add_list(out, "{\"tokens\":[", &l->tokens);
    add_list(out, "],\"token_logprobs\":[", &l->values);
    add_list(out, "],\"top_logprobs\":[", &l->top);
    add_list(out, "],\"text_offset\":[", &l->offsets);
    td_buf_str(out, "]}");
}
