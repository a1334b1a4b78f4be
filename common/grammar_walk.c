/* Walks over a trie of tokens from a set of places: what can follow, and where rules end. */
#include <stdlib.h>

#include "common/grammar_entry.h"

bool gr_walk_init(gr_walk *w, gr_run *r, const gr_trie *t, uint32_t *mask)
{
    *w = (gr_walk){.r = r, .t = t, .mask = mask};
    w->begin = malloc((t->max_depth + 2) * sizeof *w->begin);
    w->frames = malloc((t->max_depth + 2) * sizeof *w->frames);
    w->depth_used = calloc(t->max_depth + 2, sizeof *w->depth_used);
    return w->begin != NULL && w->frames != NULL && w->depth_used != NULL;
}

void gr_walk_fini(gr_walk *w)
{
    free(w->begin);
    free(w->frames);
    free(w->depth_used);
}

/* Inside a plain string there is one place; past its end there is none. */
static void count_used(gr_walk *w, const gr_node *node, uint32_t end, uint32_t d)
{
    const gr_config *c = &w->r->at[w->begin[d]];
    uint16_t used = w->depth_used[d - 1];

    if (c->state != GR_END)
        used = (uint16_t)(GR_FAR - c->room);
    w->depth_used[d] = used;
    for (uint32_t k = node->token; k < end; k++)
        w->used[w->t->ids[k]] = c->state == GR_END ? used | GR_CLOSES : used;
}

bool gr_walk_nodes(gr_walk *w, uint32_t lo, uint32_t hi, uint32_t base, size_t first, size_t n)
{
    gr_run *r = w->r;
    const gr_trie *t = w->t;
    size_t end = first + n;
    uint32_t frames = r->n_frames;

    w->begin[0] = first;
    w->begin[1] = end;
    w->frames[0] = frames;
    for (uint32_t i = lo; i < hi;) {
        const gr_node *node = &t->nodes[i];
        uint32_t d = node->depth - base;
        size_t made;

        if (node->reach <= w->skip) {
            i = node->next;
            continue;
        }
        /* Sets of deeper nodes that came before this one are over. */
        r->n = w->begin[d];
        gr_run_cut_frames(r, w->frames[d - 1]);
        made = gr_run_step(r, w->begin[d - 1], w->begin[d] - w->begin[d - 1], node->byte);
        if (made == 0) {
            if (r->oom)
                break;
            i = node->next;
            continue;
        }
        w->begin[d + 1] = r->n;
        w->frames[d] = r->n_frames;
        for (uint32_t k = node->token; k < t->nodes[i + 1].token; k++)
            w->mask[t->ids[k] / 32] |= 1u << t->ids[k] % 32;
        if (w->used != NULL)
            count_used(w, node, t->nodes[i + 1].token, d);
        if (w->exits != NULL && node->next > i + 1) {
            for (size_t k = w->begin[d]; k < r->n; k++) {
                if (r->at[k].state != GR_END)
                    continue;
                if (!gr_entry_note_exit(w->exits, i, w->depth_used[d]))
                    r->oom = true;
                break;
            }
        }
        i++;
    }
    r->n = end;
    gr_run_cut_frames(r, frames);
    return !r->oom;
}
