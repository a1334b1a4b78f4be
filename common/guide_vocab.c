/* The vocabulary as guides need it. The specials of Harmony are found by name; every other special
 * token, and every row of the model that has no piece, is nobody's. */
#include "common/guide_impl.h"

#include <stdlib.h>
#include <string.h>

#include "common/json_file.h"

static const char *const control_names[GUIDE_SYMBOLS - GUIDE_START] = {
    "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
    "<|end|>",   "<|call|>",    "<|return|>"};

static td_status read_vocab(td_guides *g, const char *folder, td_error *err)
{
    td_buf path = {0}, text = {0};
    td_status st = TD_OK;

    td_buf_fmt(&path, "%s/tokenizer.json", folder);
    if (path.oom)
        st = td_fail(err, TD_NOMEM, "no memory for a path");
    if (st == TD_OK)
        st = td_file_read(path.ptr, VOCAB_MAX_FILE, &text, err);
    if (st == TD_OK) {
        st = vocab_load_json(&g->v, text.ptr, text.len, err);
        if (st != TD_OK)
            td_wrap(err, "%s", td_path_tail(path.ptr));
    }
    td_buf_free(&path);
    td_buf_free(&text);
    free(g->v.merges); /* of use to an encoder only */
    g->v.merges = NULL;
    return st;
}

static td_status find_controls(td_guides *g, td_error *err)
{
    for (size_t i = 0; i < sizeof control_names / sizeof *control_names; i++) {
        const vocab_special *s =
            vocab_find_special(&g->v, control_names[i], strlen(control_names[i]));

        if (s == NULL)
            return td_fail(err, TD_INVALID, "tokenizer.json has no token %s", control_names[i]);
        g->control[i] = s->id;
    }
    return TD_OK;
}

static td_status make_set(td_guides *g, td_error *err)
{
    const uint8_t **pieces = calloc((size_t)g->n_ids, sizeof *pieces);
    uint32_t *lengths = calloc((size_t)g->n_ids, sizeof *lengths);
    td_status st = TD_OK;

    if (pieces == NULL || lengths == NULL)
        st = td_fail(err, TD_NOMEM, "no memory for %d tokens", g->n_ids);
    for (int32_t id = 0; st == TD_OK && id < g->v.n_ordinary; id++) {
        td_slice piece = vocab_bytes(&g->v, id);

        pieces[id] = (const uint8_t *)piece.ptr;
        lengths[id] = (uint32_t)piece.len;
    }
    if (st == TD_OK)
        st = td_token_set_create(pieces, lengths, g->n_ids, &g->set, err);
    free(pieces);
    free(lengths);
    return st;
}

static td_status make_text_masks(td_guides *g, td_error *err)
{
    g->text_end = calloc(g->n_words, sizeof *g->text_end);
    g->text_return = calloc(g->n_words, sizeof *g->text_return);
    if (g->text_end == NULL || g->text_return == NULL)
        return td_fail(err, TD_NOMEM, "no memory for masks of %d tokens", g->n_ids);
    for (int32_t id = 0; id < g->v.n_ordinary; id++)
        guide_allow(g->text_end, id);
    memcpy(g->text_return, g->text_end, g->n_words * sizeof *g->text_end);
    guide_allow(g->text_end, g->control[GUIDE_END - GUIDE_START]);
    guide_allow(g->text_return, g->control[GUIDE_RETURN - GUIDE_START]);
    return TD_OK;
}

td_status td_guides_open(const char *folder, int32_t n_ids, td_guides **out, td_error *err)
{
    td_guides *g = calloc(1, sizeof *g);
    td_status st;

    if (g == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a vocabulary");
    pthread_mutex_init(&g->lock, NULL);
    g->most_mask_bytes = GUIDE_CACHE_MASK_BYTES;
    g->n_ids = n_ids;
    g->n_words = ((size_t)n_ids + 31) / 32;
    st = read_vocab(g, folder, err);
    if (st == TD_OK && g->v.n_ids > n_ids)
        st = td_fail(err, TD_INVALID, "tokenizer.json has %d ids, the model %d rows", g->v.n_ids,
                     n_ids);
    if (st == TD_OK)
        st = find_controls(g, err);
    if (st == TD_OK)
        st = make_set(g, err);
    if (st == TD_OK)
        st = make_text_masks(g, err);
    if (st != TD_OK) {
        td_guides_close(g);
        return st;
    }
    *out = g;
    return TD_OK;
}

void td_guides_close(td_guides *g)
{
    if (g == NULL)
        return;
    guide_ahead_end(g);
    for (size_t i = 0; i < GUIDE_CACHE; i++)
        guide_plan_free(g->cache[i]);
    td_token_set_free(g->set);
    vocab_fini(&g->v);
    free(g->text_end);
    free(g->text_return);
    pthread_mutex_destroy(&g->lock);
    free(g);
}
