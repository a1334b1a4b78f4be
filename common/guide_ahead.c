/* Masks of new plans, made on a thread of its own while the prompt is still being read: what an
 * answer then meets is there already. A plan that finds the line full, or that has no more room,
 * has its masks made as they are met. */
#include "common/guide_impl.h"

#include <stdlib.h>

#include "common/clock.h"

enum {
    LINE = 32,        /* plans that wait */
    SLICE_US = 20000, /* between two looks at whether to stop */
    SLICES = 50,      /* a grammar: a second, and the rest is not worth it */
};

struct guide_ahead {
    pthread_t thread;
    pthread_cond_t wake;
    guide_plan *line[LINE]; /* td_guides.lock, as the rest; each with a reference */
    size_t first, n;
    bool stop;
};

static bool stopped(td_guides *g)
{
    bool stop;

    pthread_mutex_lock(&g->lock);
    stop = g->ahead->stop;
    pthread_mutex_unlock(&g->lock);
    return stop;
}

static void prepare(td_guides *g, const td_grammar *grammar)
{
    td_usec t0 = 0, us = SLICE_US;

    if (grammar == NULL)
        return;
    for (int i = 0; i < SLICES && us >= SLICE_US && !stopped(g); i++) {
        t0 = td_now_us();
        td_grammar_prepare(grammar, g->set, SLICE_US);
        us = td_now_us() - t0; /* less than was given: there is no more to do */
    }
}

static void *ahead_main(void *arg)
{
    td_guides *g = arg;
    struct guide_ahead *a = g->ahead;

    pthread_mutex_lock(&g->lock);
    for (;;) {
        guide_plan *p;

        while (!a->stop && a->n == 0)
            pthread_cond_wait(&a->wake, &g->lock);
        if (a->stop)
            break;
        p = a->line[a->first];
        a->first = (a->first + 1) % LINE;
        a->n--;
        pthread_mutex_unlock(&g->lock);
        prepare(g, p->final);
        prepare(g, p->object);
        for (int32_t i = 0; i < p->n_functions; i++)
            prepare(g, p->schemas[i]);
        guide_plan_put(g, p);
        pthread_mutex_lock(&g->lock);
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

td_status td_guides_work_ahead(td_guides *g, td_error *err)
{
    struct guide_ahead *a = calloc(1, sizeof *a);

    if (a == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a thread that makes masks");
    pthread_cond_init(&a->wake, NULL);
    g->ahead = a;
    if (pthread_create(&a->thread, NULL, ahead_main, g) != 0) {
        g->ahead = NULL;
        pthread_cond_destroy(&a->wake);
        free(a);
        return td_fail(err, TD_NOMEM, "no thread that makes masks");
    }
    return TD_OK;
}

void guide_ahead_add(td_guides *g, guide_plan *p)
{
    struct guide_ahead *a = g->ahead;

    if (a == NULL || a->n == LINE)
        return;
    p->refs++;
    a->line[(a->first + a->n++) % LINE] = p;
    pthread_cond_signal(&a->wake);
}

void guide_ahead_end(td_guides *g)
{
    struct guide_ahead *a = g->ahead;

    if (a == NULL)
        return;
    pthread_mutex_lock(&g->lock);
    a->stop = true;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&g->lock);
    pthread_join(a->thread, NULL);
    for (; a->n > 0; a->n--) {
        guide_plan_put(g, a->line[a->first]);
        a->first = (a->first + 1) % LINE;
    }
    pthread_cond_destroy(&a->wake);
    free(a);
    g->ahead = NULL;
}
