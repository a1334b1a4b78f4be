#include "router/content_logprobs.h"

#include <stdlib.h>
#include <string.h>

/* Text without a header may turn out to be content long after it came; past this many tokens their
 * values are given up. */
enum { MAX_FRESH = 4096 };

void content_logprobs_free(content_logprobs *l)
{
    free(l->fresh);
    free(l->ready);
    *l = (content_logprobs){0};
}

static bool grow(token_logprobs **list, size_t *max, size_t want)
{
    size_t n = *max ? *max : 16;
    token_logprobs *p;

    if (want <= *max)
        return true;
    while (n < want)
        n *= 2;
    p = realloc(*list, n * sizeof *p);
    if (p == NULL)
        return false;
    *list = p;
    *max = n;
    return true;
}

void content_logprobs_push(content_logprobs *l, int32_t token, const Tandem__TokenLogprobs *m)
{
    token_logprobs *t;

    if (l->n_fresh == MAX_FRESH)
        l->n_fresh = 0;
    if (!grow(&l->fresh, &l->max_fresh, l->n_fresh + 1)) {
        l->oom = true;
        return;
    }
    t = &l->fresh[l->n_fresh++];
    *t = (token_logprobs){.token = token, .logprobs.chosen = m->chosen, .at = l->came};
    for (size_t i = 0; i < m->n_ids && i < m->n_values && i < TD_TOP_LOGPROBS; i++) {
        t->logprobs.id[i] = m->ids[i];
        t->logprobs.logprob[i] = m->values[i];
        t->logprobs.n++;
    }
}

static void drop_taken(content_logprobs *l)
{
    if (l->n_taken == 0)
        return;
    l->n_ready -= l->n_taken;
    memmove(l->ready, l->ready + l->n_taken, l->n_ready * sizeof *l->ready);
    l->n_taken = 0;
}

void content_logprobs_count(content_logprobs *l, uint64_t content, uint64_t reasoning)
{
    size_t n = l->n_fresh;

    drop_taken(l);
    if (content - l->content < n)
        n = (size_t)(content - l->content);
    if (n > 0) {
        if (!grow(&l->ready, &l->max_ready, l->n_ready + n)) {
            l->oom = true;
            return;
        }
        memcpy(l->ready + l->n_ready, l->fresh + l->n_fresh - n, n * sizeof *l->ready);
        l->n_ready += n;
    }
    if (content != l->content || reasoning != l->reasoning)
        l->n_fresh = 0;
    l->content = content;
    l->reasoning = reasoning;
}

void content_logprobs_text(content_logprobs *l, size_t came, size_t goes)
{
    l->came += came;
    l->went += goes;
}

const token_logprobs *content_logprobs_take(content_logprobs *l, bool all, size_t *n)
{
    drop_taken(l);
    while (l->n_taken < l->n_ready && (all || l->ready[l->n_taken].at < l->went))
        l->n_taken++;
    *n = l->n_taken;
    return l->ready;
}
