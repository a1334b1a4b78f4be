#include "tests/unit/guide_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

#include "router/guided.h"
#include "router/openai.h"
#include "router/tokenizer.h"
#include "tests/unit/harmony_fixture.h"

enum { TEXT_TOKENS = 12, MAX_TOKENS = 4000 };

td_guides *guides;
int32_t n_ids;

void guide_parse(const char *members, generation *g)
{
    const openai_defaults d = {.date = "", .allow_ignore_eos = true, .vocab = n_ids};
    td_error err = {0};
    char body[4096];
    int n = snprintf(body, sizeof body,
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},"
                     "{\"role\":\"assistant\",\"content\":\"So\"}],%s}",
                     members);

    assert_true(n > 0 && n < (int)sizeof body);
    if (openai_parse_chat(body, (size_t)n, &d, g, &err) != TD_OK ||
        generation_guide(g, &err) != TD_OK)
        fail_msg("%s: %s", members, err.text);
}

td_guide *guide_open_at(const generation *g, const td_tokens *answer)
{
    td_guide *out = NULL;
    td_error err = {0};

    assert_non_null(g->guide);
    if (td_guide_create(guides, guided_message(g->guide), answer->ptr, answer->len, &out, &err) !=
        TD_OK)
        fail_msg("%s", err.text);
    return out;
}

bool in_mask(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> id % 32 & 1;
}

static uint64_t next_random(uint64_t *seed)
{
    *seed += UINT64_C(0x9e3779b97f4a7c15);
    return (*seed ^ *seed >> 31) * UINT64_C(0xbf58476d1ce4e5b9) >> 16;
}

/* A token of the mask; in a hurry one that ends something, where there is one. */
static int32_t choose(const uint32_t *mask, bool hurry, uint64_t *seed)
{
    static const char *const ends[] = {"\"", "}", "]"}; /* a string first: in one all are text */
    const tokenizer *t = harmony_tokenizer(fixture_harmony());
    int32_t n = 0, at, chosen = -1;

    for (int32_t id = 0; id < n_ids; id++) {
        if (in_mask(mask, id) && tokenizer_is_special(t, id) && hurry)
            return id;
        n += in_mask(mask, id);
    }
    assert_true(n > 0);
    for (size_t i = 0; hurry && i < 3; i++)
        for (int32_t id = 0; id < n_ids; id++) {
            td_slice piece;

            if (in_mask(mask, id) && tokenizer_bytes(t, id, &piece) &&
                td_slice_eq(piece, td_slice_of(ends[i])))
                return id;
        }
    at = (int32_t)(next_random(seed) % (uint64_t)n);
    for (int32_t id = 0; chosen < 0; id++)
        if (in_mask(mask, id) && at-- == 0)
            chosen = id;
    return chosen;
}

/* The same place, come to in another way: same mask, and what is not in it is refused. */
static void check_resumed(const generation *g, const td_tokens *answer, const uint32_t *mask,
                          uint64_t *seed)
{
    td_guide *again = guide_open_at(g, answer);
    int32_t other = (int32_t)(next_random(seed) % (uint64_t)n_ids);
    td_error err = {0};

    assert_memory_equal(td_guide_mask(again), mask, ((size_t)n_ids + 31) / 32 * 4);
    if (td_guide_accept(again, other, &err) != (in_mask(mask, other) ? TD_OK : TD_INVALID))
        fail_msg("token %d, in the mask: %d, %s", other, in_mask(mask, other), err.text);
    td_guide_free(again);
}

td_tokens guide_walk(const generation *g, uint64_t seed)
{
    td_tokens ids = {0};
    td_guide *at = guide_open_at(g, &ids);
    const uint32_t *mask;
    td_error err = {0};
    size_t since = 0;

    while ((mask = td_guide_mask(at)) != NULL) {
        bool hurry = ++since > TEXT_TOKENS || next_random(&seed) % 12 == 0;
        int32_t token = choose(mask, hurry, &seed);

        if (next_random(&seed) % 8 == 0)
            check_resumed(g, &ids, mask, &seed);
        if (tokenizer_is_special(harmony_tokenizer(fixture_harmony()), token))
            since = 0;
        td_tokens_push(&ids, token);
        if (td_guide_accept(at, token, &err) != TD_OK)
            fail_msg("token %zu is %d: %s", ids.len - 1, token, err.text);
        if (ids.len == MAX_TOKENS) {
            td_buf text = fixture_text(fixture_harmony(), &ids);

            fail_msg("no end: %.*s", 600, text.ptr);
        }
    }
    td_guide_free(at);
    return ids;
}
int guide_set_up(void **state)
{
    td_error err = {0};

    (void)state;
    n_ids = tokenizer_vocab(harmony_tokenizer(fixture_harmony()));
    if (td_guides_open(FOLDER, n_ids, &guides, &err) == TD_OK)
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

int guide_tear_down(void **state)
{
    td_guides_close(guides);
    return fixture_tear_down(state);
}
