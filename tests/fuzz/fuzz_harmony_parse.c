/* Any ids through the parser: no crash, whole characters, calls opened and closed in turn, and the
 * same sums however one looks at them.
 *
 * The first byte says what is declared, how the stream ends, and what the rest is: a text in which
 * control tokens are spelled out, or ids, a byte each, where bytes from 0xE8 stand for the control
 * tokens and 0xE7 makes the next byte a higher or impossible id. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/harmony_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    ESCAPE = 0xE7,
    FIRST_CONTROL,
};

static td_tokens ids_of(const harmony *h, const uint8_t *data, size_t size, bool text)
{
    const harmony_ids *k = harmony_ids_of(h);
    const int32_t control[] = {k->start,     k->message, k->end, k->channel,
                               k->constrain, k->call,    k->ret, k->endoftext};
    td_tokens ids = {0};

    if (text) {
        td_assert(tokenizer_encode_special(harmony_tokenizer(h), (const char *)data, size, &ids,
                                           NULL) == TD_OK);
        return ids;
    }
    for (size_t i = 0; i < size; i++) {
        if (data[i] == ESCAPE && i + 1 < size)
            td_tokens_push(&ids, 250 + data[++i]); /* up to past the end of the vocabulary */
        else if (data[i] >= FIRST_CONTROL)
            td_tokens_push(&ids, control[data[i] % 8]);
        else
            td_tokens_push(&ids, data[i]);
    }
    return ids;
}

static void check(const record *r, size_t n_ids)
{
    td_assert(!r->half_text && !r->out_of_turn);
    td_assert(td_utf8_valid(r->content.ptr, r->content.len, NULL));
    td_assert(r->content.len == r->stats.content_bytes);
    td_assert(r->reasoning.len == r->stats.reasoning_bytes);
    td_assert(r->stats.tokens <= n_ids && r->stats.reasoning_tokens <= r->stats.tokens);
    for (size_t i = 0; i < r->n_calls; i++) {
        const td_buf *name = &r->calls[i].name;

        td_assert(r->calls[i].ended && name->len > 0);
        td_assert(strspn(name->ptr, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                    "0123456789_.-") == name->len);
        td_assert(!r->calls[i].complete || r->calls[i].arguments.len > 0);
    }
    td_assert(r->stats.calls > 0 || strcmp(r->finish_reason, "tool_calls") != 0);
}

static bool same_text(const td_buf *a, const td_buf *b)
{
    return a->len == b->len && memcmp(a->ptr, b->ptr, a->len) == 0;
}

/* However the text was cut into tokens, the answer is the same. */
static void check_same(const record *a, const record *b)
{
    td_assert(same_text(&a->content, &b->content) && same_text(&a->reasoning, &b->reasoning));
    td_assert(a->n_calls == b->n_calls && strcmp(a->finish_reason, b->finish_reason) == 0);
    for (size_t i = 0; i < a->n_calls; i++)
        td_assert(same_text(&a->calls[i].name, &b->calls[i].name) &&
                  same_text(&a->calls[i].arguments, &b->calls[i].arguments));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"x", "get_weather", "json"};
    static record r, again; /* too large for a stack */
    const harmony *h = fixture_harmony();
    td_tokens ids;
    chat c;

    if (size < 1 || size > 4096)
        return 0;
    chat_init(&c);
    for (int i = 0; i < (data[0] & 3); i++)
        chat_add_tool(&c)->name = chat_str(&c, names[i]);
    c.continue_final = (data[0] & 32) != 0;
    ids = ids_of(h, data + 1, size - 1, (data[0] & 16) != 0);
    record_run(&r, h, &c, ids.ptr, ids.len, (harmony_end)(data[0] >> 2 & 3));
    check(&r, ids.len);
    if ((data[0] & 16) != 0) {
        td_tokens bytes = fixture_bytes(h, &ids);

        record_run(&again, h, &c, bytes.ptr, bytes.len, (harmony_end)(data[0] >> 2 & 3));
        check(&again, bytes.len);
        check_same(&r, &again);
        record_fini(&again);
        td_tokens_free(&bytes);
    }
    record_fini(&r);
    td_tokens_free(&ids);
    chat_free(&c);
    return 0;
}
