/* Any description of a guide, as it could come by the wire: a refusal with its reason, or a guide
 * whose masks lead on to an end that the Harmony parser reads without a repair.
 *
 * A byte of flags, how many functions, then texts that end at a NUL: the answer's schema, and a
 * name and a schema for each function. The bytes behind them choose tokens. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/guide.h"
#include "tests/unit/harmony_fixture.h"

enum { MAX_FUNCTIONS = 4, STEPS = 400 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static ProtobufCBinaryData take_text(const uint8_t **at, const uint8_t *end)
{
    const uint8_t *nul = memchr(*at, '\0', (size_t)(end - *at));
    ProtobufCBinaryData text = {(size_t)((nul != NULL ? nul : end) - *at),
                                (uint8_t *)(uintptr_t)*at};

    *at = nul != NULL ? nul + 1 : end;
    return text;
}

/* The bit of the mask that a byte chooses; without one, the last, which is a control token where
 * one may come, so that a walk comes to its end. */
static int32_t choose(const uint32_t *mask, int32_t n_ids, const uint8_t *at, const uint8_t *end)
{
    int32_t n = 0, want, id;

    for (id = 0; id < n_ids; id++)
        n += mask[id / 32] >> id % 32 & 1;
    td_assert(n > 0); /* a dead end is no mask at all */
    want = at < end ? *at * n / 256 : n - 1;
    for (id = 0; want >= 0; id++)
        want -= mask[id / 32] >> id % 32 & 1;
    return id - 1;
}

static void walk(td_guides *guides, const Tandem__Guide *m, td_guide *g, const uint8_t *at,
                 const uint8_t *end)
{
    static record r; /* too large for a stack */
    const harmony *h = fixture_harmony();
    int32_t n_ids = tokenizer_vocab(harmony_tokenizer(h));
    td_tokens ids = {0};
    td_guide *again = NULL;
    const uint32_t *mask = NULL;
    chat c;

    for (int step = 0; step < STEPS && (mask = td_guide_mask(g)) != NULL; step++, at++) {
        td_tokens_push(&ids, choose(mask, n_ids, at, end));
        td_assert(td_guide_accept(g, ids.ptr[ids.len - 1], NULL) == TD_OK);
    }
    td_assert(td_guide_create(guides, m, ids.ptr, ids.len, &again, NULL) == TD_OK);
    td_assert((td_guide_mask(again) == NULL) == (td_guide_mask(g) == NULL));
    td_guide_free(again);
    chat_init(&c);
    c.continue_final = m->begun;
    for (size_t i = 0; i < m->n_functions; i++)
        chat_add_tool(&c)->name =
            chat_text(&c, m->functions[i]->name.data, m->functions[i]->name.len);
    record_run(&r, h, &c, ids.ptr, ids.len, mask == NULL ? HARMONY_END_STOP : HARMONY_END_LENGTH);
    td_assert(mask != NULL || r.stats.done);
    for (int i = 0; i < HARMONY_REPAIR_COUNT; i++)
        td_assert(mask != NULL || m->n_functions > 0 || i == HARMONY_REPAIR_BAD_UTF8 ||
                  r.stats.repairs[i] == 0);
    record_fini(&r);
    chat_free(&c);
    td_tokens_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static td_guides *guides;
    const uint8_t *at = data + 2, *end = data + size;
    Tandem__Guide m = TANDEM__GUIDE__INIT;
    Tandem__GuideFunction functions[MAX_FUNCTIONS], *list[MAX_FUNCTIONS];
    td_guide *g = NULL;
    td_error err = {0};

    if (guides == NULL)
        td_assert(td_guides_open(HARMONY_DATA,
                                 tokenizer_vocab(harmony_tokenizer(fixture_harmony())), &guides,
                                 NULL) == TD_OK);
    if (size < 2 || size > 8192)
        return 0;
    m.final = data[0] & 1;
    m.preamble = data[0] >> 1 & 1;
    m.json = data[0] >> 2 & 1;
    m.begun = data[0] >> 3 & 1;
    m.functions = list;
    m.n_functions = data[1] % (MAX_FUNCTIONS + 1);
    m.schema = take_text(&at, end);
    for (size_t i = 0; i < m.n_functions; i++) {
        tandem__guide_function__init(&functions[i]);
        functions[i].name = take_text(&at, end);
        functions[i].schema = take_text(&at, end);
        list[i] = &functions[i];
    }
    if (td_guide_create(guides, &m, NULL, 0, &g, &err) != TD_OK) {
        td_assert(err.code == TD_INVALID && err.text[0] != '\0' && g == NULL);
        return 0;
    }
    walk(guides, &m, g, at, end);
    td_guide_free(g);
    return 0;
}
