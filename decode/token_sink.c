#include "decode/token_sink.h"

#include <stdlib.h>
#include <string.h>

#include "common/log.h"

typedef struct event {
    Tandem__TokenEvent pb;
    int32_t token;
    td_logprobs logprobs;
    Tandem__TokenLogprobs wire, *wire_list; /* of logprobs; a list of one */
    char text[sizeof((td_error *)0)->text];
} event;

typedef struct link_events {
    event *events;
    Tandem__TokenEvent **list; /* list[i] is &events[i].pb */
    uint32_t n;
} link_events;

struct token_sink {
    int32_t n_links;
    uint32_t cap;
    link_events links[TD_MAX_LINKS];
};

td_status token_sink_create(int32_t n_links, uint32_t max_events, token_sink **out, td_error *err)
{
    token_sink *s = calloc(1, sizeof *s);

    td_assert(n_links <= TD_MAX_LINKS);
    if (s == NULL)
        return td_fail(err, TD_NOMEM, "token sink: no memory");
    s->cap = max_events;
    s->n_links = n_links;
    for (int32_t i = 0; i < n_links; i++) {
        s->links[i].events = calloc(max_events, sizeof *s->links[i].events);
        s->links[i].list = calloc(max_events, sizeof(Tandem__TokenEvent *));
        if (s->links[i].events == NULL || s->links[i].list == NULL) {
            token_sink_free(s);
            return td_fail(err, TD_NOMEM, "token sink: no memory for %u events", max_events);
        }
    }
    *out = s;
    return TD_OK;
}

void token_sink_free(token_sink *s)
{
    if (s == NULL)
        return;
    for (int32_t i = 0; i < s->n_links; i++) {
        free(s->links[i].events);
        free(s->links[i].list);
    }
    free(s);
}

static event *next_event(token_sink *s, const reservation *r)
{
    link_events *l;
    event *e;

    td_assert(r->link >= 0 && r->link < s->n_links);
    l = &s->links[r->link];
    td_assert(l->n < s->cap);
    e = &l->events[l->n];
    l->list[l->n++] = &e->pb;
    tandem__token_event__init(&e->pb);
    e->pb.request = r->request;
    e->pb.attempt = (uint32_t)r->attempt;
    return e;
}

void token_sink_token(token_sink *s, const reservation *r, Tandem__Finish finish)
{
    event *e = next_event(s, r);

    e->token = r->token;
    e->pb.index = r->base_index + r->produced - 1;
    e->pb.tokens = &e->token;
    e->pb.n_tokens = 1;
    e->pb.finish = finish;
    if (!r->generation.sampling.logprobs || r->logprobs.n < 0)
        return;
    e->logprobs = r->logprobs;
    td_logprobs_wire(&e->logprobs, &e->wire);
    e->wire_list = &e->wire;
    e->pb.logprobs = &e->wire_list;
    e->pb.n_logprobs = 1;
}

void token_sink_alive(token_sink *s, const reservation *r)
{
    next_event(s, r)->pb.index = r->base_index + r->produced;
}

void token_sink_error(token_sink *s, const reservation *r, const td_error *err)
{
    event *e = next_event(s, r);

    memcpy(e->text, err->text, sizeof e->text);
    e->pb.index = r->base_index + r->produced;
    e->pb.finish = TANDEM__FINISH__FINISH_ERROR;
    e->pb.status = err->code;
    e->pb.text = (ProtobufCBinaryData){strlen(e->text), (uint8_t *)e->text};
}

void token_sink_flush(token_sink *s, td_worker *worker)
{
    for (int32_t i = 0; i < s->n_links; i++) {
        link_events *l = &s->links[i];
        Tandem__WorkerMessage msg = TANDEM__WORKER_MESSAGE__INIT;
        td_error err = {0};

        if (l->n == 0)
            continue;
        msg.tokens = l->list;
        msg.n_tokens = l->n;
        if (td_worker_send(worker, i, &msg, &err) != TD_OK)
            td_debug("tokens_lost", "link=%d events=%u error=\"%s\"", i, l->n, err.text);
        l->n = 0;
    }
}
