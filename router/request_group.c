/* Several answers to one question: what was asked is held once, its prompt is made once, and what
 * ends one of them before its time ends all. Apart from that each is a request like any other. */
#include "router/request_impl.h"

#include <stdlib.h>

#include "common/log.h"

td_status request_group_create(generation *g, request_group **out, td_error *err)
{
    request_group *s = calloc(1, sizeof *s);

    if (s == NULL) {
        generation_free(g);
        generation_init(g);
        return td_fail(err, TD_NOMEM, "no memory for a request");
    }
    s->asked = *g;
    s->n = g->n;
    s->refs = 1;
    generation_init(g);
    *out = s;
    return TD_OK;
}

void request_group_join(request_group *s, request *q, uint32_t choice)
{
    s->refs++;
    s->members[choice] = q;
    q->group = s;
    q->choice = choice;
    q->g = s->asked;
}

void request_group_leave(request *q)
{
    q->group->members[q->choice] = NULL;
}

void request_group_drop(request_group *s)
{
    if (s == NULL || --s->refs > 0)
        return;
    generation_free(&s->asked);
    free(s);
}

void request_group_rendered(request *q)
{
    request_group *s = q->group;

    s->refs++; /* any of them may end as it goes on, and be the last */
    for (uint32_t i = 0; i < s->n; i++) {
        request *m = s->members[i];

        if (m == NULL || m == q)
            continue;
        m->render.status = q->render.status;
        m->render.err = q->render.err;
        td_tokens_add(&m->render.prompt, q->render.prompt.ptr, q->render.prompt.len);
        m->rendered = true;
    }
    q->rendered = true;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->members[i] != NULL && !s->members[i]->dismissed)
            request_advance(s->members[i]);
    request_group_drop(s);
}

bool request_group_runs(const request *q)
{
    const request_group *s = q->group;

    for (uint32_t i = 0; i < s->n; i++)
        if (s->members[i] != NULL && s->members[i] != q && s->members[i]->phase > RQ_PLACE)
            return true;
    return false;
}

/* ---- the end of all ---- */

static void unheard_request(void *user, request *q)
{
    (void)user;
    (void)q;
}

static void unheard_text(void *user, td_slice text)
{
    (void)user;
    (void)text;
}

static void unheard_call(void *user, size_t index, const char *id, td_slice name)
{
    (void)user;
    (void)index;
    (void)id;
    (void)name;
}

static void unheard_args(void *user, size_t index, td_slice text)
{
    (void)user;
    (void)index;
    (void)text;
}

static void unheard_flush(void *user)
{
    (void)user;
}

static void unheard_finish(void *user, const char *reason, const request_usage *u)
{
    (void)user;
    (void)reason;
    (void)u;
}

static void unheard_error(void *user, const td_error *err, uint32_t retry_s)
{
    (void)user;
    (void)err;
    (void)retry_s;
}

static const answer unheard = {.on_start = unheard_request,
                               .on_reasoning = unheard_text,
                               .on_content = unheard_text,
                               .on_call_begin = unheard_call,
                               .on_call_args = unheard_args,
                               .on_flush = unheard_flush,
                               .on_finish = unheard_finish,
                               .on_error = unheard_error};

static void cancel_dismissed(void *arg)
{
    router *r = arg;
    request *q, *next;

    HASH_ITER(hh, r->by_id, q, next)
    if (q->dismissed && !q->gone)
        request_cancel(q, q->cancel_why);
}

void request_group_dismiss(request *q, const char *why)
{
    request_group *s = q->group;
    router *r = q->r;
    bool any = false;

    if (s->dismissed) /* by one of them, who ends by itself */
        return;
    s->dismissed = true;
    for (uint32_t i = 0; i < s->n; i++) {
        request *m = s->members[i];

        if (m == NULL || m == q || m->dismissed)
            continue;
        any = m->dismissed = true;
        m->answer = unheard;
        m->user = NULL;
        m->cancel_why = why;
    }
    if (!any)
        return;
    r->dismiss.fn = cancel_dismissed;
    r->dismiss.arg = r;
    /* A loop that has stopped has nobody on the way through anything. */
    if (!td_loop_post_task(r->loop, &r->dismiss))
        cancel_dismissed(r);
}
