/* The text of answers, and the JSON around it; their HTTP side is http_answer.c's. */
#include "router/completions.h"

#include <stdlib.h>
#include <string.h>

#include "router/completion_body.h"
#include "router/completion_logprobs.h"
#include "router/http_answer.h"

typedef struct completion completion;

/* One of the answers to the prompt. */
typedef struct choice {
    completion *a;
    uint32_t index;
    const char *reason; /* of its end; a literal */
    td_buf text;        /* of a whole answer */
    completion_logprobs logprobs;
} choice;

struct completion {
    http_answer h;    /* first: it is the HTTP side's owner */
    choice choices[]; /* [h.n] */
};

static void free_completion(http_answer *h)
{
    completion *a = (completion *)h;

    http_answer_fini(h);
    for (uint32_t i = 0; i < h->n; i++) {
        td_buf_free(&a->choices[i].text);
        completion_logprobs_free(&a->choices[i].logprobs);
    }
    free(a);
}

/* ---- pieces of JSON ---- */

/* Up to and with `"choices":[`: events and whole answers begin alike. */
static void add_head(http_answer *h)
{
    const char *model = router_model(h->r);

    td_buf_fmt(&h->out,
               "{\"id\":\"%s\",\"object\":\"text_completion\",\"created\":%lld,\"model\":\"", h->id,
               (long long)h->created_s);
    td_buf_json(&h->out, model, strlen(model));
    td_buf_str(&h->out, "\",\"choices\":[");
}

/* reason NULL: not yet. */
static void add_choice(choice *c, td_slice text, const char *reason)
{
    td_buf *b = &c->a->h.out;

    td_buf_fmt(b, "{\"index\":%u,\"text\":\"", c->index);
    td_buf_json(b, text.ptr, text.len);
    td_buf_str(b, "\",\"logprobs\":");
    completion_logprobs_write(&c->logprobs, b);
    if (reason != NULL)
        td_buf_fmt(b, ",\"finish_reason\":\"%s\"}", reason);
    else
        td_buf_str(b, ",\"finish_reason\":null}");
}

static void add_event(choice *c, td_slice text, const char *reason)
{
    td_buf *b = &c->a->h.out;

    td_buf_str(b, "data: ");
    add_head(&c->a->h);
    add_choice(c, text, reason);
    td_buf_str(b, c->a->h.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

/* ---- the answer's callbacks ---- */

static void on_start(void *user, request *q)
{
    choice *c = user;

    (void)q;
    if (c->a->h.stream)
        http_answer_begin(&c->a->h);
}

static void on_content(void *user, td_slice text)
{
    choice *c = user;

    completion_logprobs_text(&c->logprobs, text);
    if (!c->a->h.stream) {
        td_buf_add(&c->text, text.ptr, text.len);
        return;
    }
    add_event(c, text, NULL);
    http_answer_send(&c->a->h);
}

static void on_logprobs(void *user, const token_logprobs *list, size_t n)
{
    choice *c = user;

    completion_logprobs_push(&c->logprobs, c->a->h.r->tokenizer, list, n);
}

static void on_flush(void *user)
{
    choice *c = user;

    http_answer_flush(&c->a->h, c->index);
}

static void finish_stream(http_answer *h)
{
    if (h->include_usage) {
        td_buf_str(&h->out, "data: ");
        add_head(h);
        http_answer_add_usage(h);
        td_buf_str(&h->out, "\n\n");
    }
    http_answer_end_stream(h);
}

static void finish_whole(completion *a)
{
    td_buf *b = &a->h.out;

    add_head(&a->h);
    for (uint32_t i = 0; i < a->h.n; i++) {
        choice *c = &a->choices[i];

        if (i > 0)
            td_buf_byte(b, ',');
        add_choice(c, (td_slice){c->text.ptr, c->text.len}, c->reason);
        b->oom = b->oom || c->text.oom;
    }
    http_answer_add_usage(&a->h);
    http_answer_end_whole(&a->h);
}

static void on_finish(void *user, const char *reason, const request_usage *u)
{
    choice *c = user;
    http_answer *h = &c->a->h;
    bool last = http_answer_choice_ended(h, c->index, u);

    completion_logprobs_text(&c->logprobs, TD_SLICE(""));
    c->reason = reason;
    if (h->stream) {
        add_event(c, TD_SLICE(""), reason);
        http_answer_send(h);
    }
    if (last && h->stream)
        finish_stream(h);
    else if (last)
        finish_whole(c->a);
}

/* Of one choice, and so of all. */
static void on_error(void *user, const td_error *err, uint32_t retry_s)
{
    choice *c = user;

    http_answer_fail(&c->a->h, err, retry_s);
}

/* A raw generation has content only. */
static const answer callbacks = {.on_start = on_start,
                                 .on_content = on_content,
                                 .on_logprobs = on_logprobs,
                                 .on_flush = on_flush,
                                 .on_finish = on_finish,
                                 .on_error = on_error};

/* *g is moved. */
static void submit(router *r, td_http_request *req, generation *g)
{
    completion *a = calloc(1, sizeof *a + g->n * sizeof *a->choices);
    void *users[GENERATION_MAX_CHOICES];

    for (uint32_t i = 0; a != NULL && i < g->n; i++) {
        a->choices[i].a = a;
        a->choices[i].index = i;
        users[i] = &a->choices[i];
    }
    http_answer_submit(a != NULL ? &a->h : NULL, r, req, g, "cmpl-", &callbacks, users,
                       free_completion);
}

void completions_start(router *r, td_http_request *req)
{
    td_slice body = td_http_request_body(req);
    char date[16];
    openai_defaults d = router_defaults(r, date);
    generation g;
    td_error err = {0};
    td_status st = completion_parse(body.ptr, body.len, &d, r->tokenizer, &g, &err);

    if (st == TD_OK)
        st = generation_check_model(g.model, router_model(r), &err);
    if (st == TD_OK) {
        submit(r, req, &g);
        return;
    }
    chat_answer_error(req, &err, 0);
    generation_free(&g);
}
