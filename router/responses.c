/* One answer owns its HTTP request from the submit on: it ends it exactly once and frees itself. If
 * the client goes first, it cancels the generation. What the answer says is responses_output.c's;
 * here its bytes go out, once a batch of tokens. */
#include "router/responses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "router/chat_answer.h"
#include "router/responses_body.h"
#include "router/responses_output.h"

typedef struct response {
    router *r;
    responses_store *store; /* NULL: the response is not kept */
    char owner[RESPONSES_MAX_OWNER + 1];
    td_http_request *req;
    request *q;
    bool begun;
    /* Bytes of large batches that the client has still to read. Events repeat whole texts and the
     * request itself: that they are long does not make the client a slow one. */
    size_t excused;
    td_timer *ping;
    char label[132];
    responses_request asked; /* its generation has been moved to the request */
    responses_output out;
    td_buf scratch;
} response;

static void free_response(response *a)
{
    td_timer_free(a->ping);
    responses_output_free(&a->out);
    responses_request_free(&a->asked);
    td_buf_free(&a->scratch);
    free(a);
}

static void on_close(td_http_request *req, void *arg)
{
    response *a = arg;

    (void)req;
    request_cancel(a->q, "client_closed");
    free_response(a);
}

static void write_events(response *a)
{
    size_t pending, n = a->out.out.len;

    if (a->out.oom || n == 0) /* with a hole in it nothing more goes out */
        return;
    pending = td_http_stream_pending(a->req);
    a->excused = a->excused < pending ? a->excused : pending;
    td_http_stream_write(a->req, a->out.out.ptr, n);
    if (n > a->r->cfg->slow_client_bytes / 2)
        a->excused += n;
    td_buf_clear(&a->out.out);
    td_timer_in(a->ping, a->r->cfg->sse_ping_ms * TD_USEC_PER_MSEC);
}

/* Close the connection so that the client sees that its answer was cut. */
static void cut(response *a)
{
    td_http_request_on_close(a->req, NULL, NULL);
    td_http_abort(a->req);
    free_response(a);
}

/* ---- the answer's callbacks ---- */

static void on_ping(void *arg)
{
    response *a = arg;

    td_http_stream_write(a->req, ": ping\n\n", 8);
    td_timer_in(a->ping, a->r->cfg->sse_ping_ms * TD_USEC_PER_MSEC);
}

static void on_start(void *user, request *q)
{
    response *a = user;

    (void)q;
    responses_output_start(&a->out);
    if (!a->out.stream)
        return;
    a->begun = true;
    td_http_stream_begin(a->req, 200, "text/event-stream; charset=utf-8",
                         TD_HEADERS({"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}));
    write_events(a);
}

static void on_reasoning(void *user, td_slice text)
{
    response *a = user;

    responses_output_reasoning(&a->out, text);
}

static void on_content(void *user, td_slice text)
{
    response *a = user;

    responses_output_content(&a->out, text, request_final_begun(a->q));
}

static void on_logprobs(void *user, const token_logprobs *list, size_t n)
{
    response *a = user;

    td_buf_clear(&a->scratch);
    chat_answer_logprobs(&a->scratch, a->r, list, n);
    a->out.oom = a->out.oom || a->scratch.oom;
    responses_output_logprobs(&a->out, (td_slice){a->scratch.ptr, a->scratch.len});
}

static void on_call_begin(void *user, size_t index, const char *id, td_slice name)
{
    response *a = user;

    (void)index;
    responses_output_call(&a->out, id, name);
}

static void on_call_args(void *user, size_t index, td_slice text)
{
    response *a = user;

    (void)index;
    responses_output_arguments(&a->out, text);
}

static void on_message_end(void *user, harmony_kind kind, bool complete)
{
    static const responses_kind kinds[] = {[HARMONY_REASONING] = RESPONSES_REASONING,
                                           [HARMONY_CONTENT] = RESPONSES_MESSAGE,
                                           [HARMONY_CALL] = RESPONSES_CALL};
    response *a = user;

    responses_output_message_end(&a->out, kinds[kind], complete);
}

static void on_flush(void *user)
{
    response *a = user;
    size_t limit = a->r->cfg->slow_client_bytes;

    if (!a->begun)
        return;
    write_events(a);
    if (!a->out.oom && td_http_stream_pending(a->req) <= limit + a->excused)
        return;
    if (chat_answer_give_up(a->r, a->req, a->q, a->label, a->out.oom))
        cut(a);
}

static void finish_stream(response *a)
{
    write_events(a);
    if (a->out.oom) {
        cut(a);
        return;
    }
    td_http_request_on_close(a->req, NULL, NULL);
    td_http_stream_end(a->req);
    free_response(a);
}

/* What a later request may refer to: object is the response, and is moved. */
static void keep(response *a, td_buf *object)
{
    size_t own = a->asked.items.len;
    char id[48];

    if (a->asked.items.len > 0 && a->out.n_items > 0)
        td_buf_byte(&a->asked.items, ',');
    responses_output_items(&a->out, &a->asked.items);
    snprintf(id, sizeof id, "resp_%s", a->out.key);
    responses_store_add(a->store, a->owner, id, object, &a->asked.items, own, td_now_us());
}

static void on_finish(void *user, const char *reason, const request_usage *u)
{
    response *a = user;
    td_buf more = {0}, object = {0};

    td_buf_str(&more, ",\"tandem\":");
    chat_answer_timings(&more, request_times_of(a->q));
    responses_output_finish(&a->out, reason, u, td_wall_us() / TD_USEC_PER_SEC,
                            (td_slice){more.ptr, more.len}, &object);
    a->out.oom = a->out.oom || more.oom || object.oom;
    td_buf_free(&more);
    if (!a->begun) {
        td_http_request_on_close(a->req, NULL, NULL);
        if (a->out.oom)
            td_http_error(a->req, 503, "server_error", "no memory for the answer", NULL, NULL,
                          NULL);
        else
            td_http_reply(a->req, 200, "application/json", object.ptr, object.len, NULL);
    }
    if (a->store != NULL && !a->out.oom)
        keep(a, &object);
    td_buf_free(&object);
    if (a->begun)
        finish_stream(a);
    else
        free_response(a);
}

/* What errors of the request machinery call these fields is chat's. */
static void rename_param(td_error *err)
{
    static const char *const names[][2] = {{"messages", "input"},
                                           {"max_tokens", "max_output_tokens"}};
    static const char nested[] = ".function.";
    char *function = strncmp(err->param, "tools[", 6) == 0 ? strstr(err->param, nested) : NULL;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(err->param, names[i][0]) == 0)
            snprintf(err->param, sizeof err->param, "%s", names[i][1]);
    if (function != NULL) { /* a function's members are the tool's own here */
        const char *rest = function + sizeof nested - 2; /* from the second dot on */

        memmove(function, rest, strlen(rest) + 1);
    }
}

static void on_error(void *user, const td_error *error, uint32_t retry_s)
{
    response *a = user;
    td_error err = *error;

    rename_param(&err);
    if (a->begun) { /* the status is long gone: the last event says it */
        responses_output_fail(&a->out, &err);
        finish_stream(a);
        return;
    }
    td_http_request_on_close(a->req, NULL, NULL);
    chat_answer_error(a->req, &err, retry_s);
    free_response(a);
}

static const answer callbacks = {.on_start = on_start,
                                 .on_reasoning = on_reasoning,
                                 .on_content = on_content,
                                 .on_logprobs = on_logprobs,
                                 .on_call_begin = on_call_begin,
                                 .on_call_args = on_call_args,
                                 .on_message_end = on_message_end,
                                 .on_flush = on_flush,
                                 .on_finish = on_finish,
                                 .on_error = on_error};

/* ---- the beginning ---- */

/* Ids come back from clients, and are all that it takes to read what was said: none can be guessed.
 */
static td_status make_key(char key[33], td_error *err)
{
    unsigned char bytes[16];

    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return td_fail(err, TD_INTERNAL, "no random bytes for an id");
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(key + 2 * i, 3, "%02x", bytes[i]);
    return TD_OK;
}

/* *asked is moved. */
static void submit(router *r, responses_store *store, const char *owner, td_http_request *req,
                   responses_request *asked)
{
    response *a = calloc(1, sizeof *a);
    td_error err = {0};
    uint32_t retry_s = 0;
    td_status st;

    if (a != NULL)
        a->ping = td_timer_create(r->loop, on_ping, a);
    if (a == NULL || a->ping == NULL) {
        free(a);
        responses_request_free(asked);
        td_fail(&err, TD_NOMEM, "no memory for the request");
        chat_answer_error(req, &err, 1);
        return;
    }
    a->r = r;
    a->req = req;
    a->asked = *asked;
    a->store = asked->store ? store : NULL;
    snprintf(a->owner, sizeof a->owner, "%s", owner);
    a->out = (responses_output){
        .stream = asked->g.stream, .store = asked->store, .model = router_model(r)};
    a->out.echo = a->asked.echo;
    a->asked.echo = (td_buf){0};
    snprintf(a->label, sizeof a->label, "%s", td_http_request_id(req));
    st = make_key(a->out.key, &err);
    if (st == TD_OK)
        st = request_submit(r, &a->asked.g, a->label, &callbacks, a, &a->q, &retry_s, &err);
    if (st != TD_OK) {
        chat_answer_error(req, &err, retry_s);
        free_response(a);
        return;
    }
    a->out.created_s = request_created_s(a->q);
    td_http_request_on_close(req, on_close, a);
}

/* What of the store a request may refer to. */
typedef struct shelf {
    responses_store *store;
    const char *owner;
} shelf;

static bool find_items(void *arg, td_slice id, td_slice *items)
{
    const shelf *s = arg;

    return responses_store_find(s->store, s->owner, id, td_now_us(), NULL, items);
}

/* An item's id has its response's key in it, and its text among that response's own begins with the
 * id, in quotes that no text inside JSON can have. */
static bool find_item(void *arg, td_slice id, td_slice *json)
{
    const shelf *s = arg;
    const char *key = memchr(id.ptr, '_', id.len);
    char response_id[48], begins[80];
    td_slice items;
    const char *at;

    if (key == NULL || id.len > 48 || id.ptr + id.len - key < 33 ||
        strspn(id.ptr, "abcdefghijklmnopqrstuvwxyz_0123456789") != id.len)
        return false;
    snprintf(response_id, sizeof response_id, "resp_%.32s", key + 1);
    if (!responses_store_find_own(s->store, s->owner, td_slice_of(response_id), td_now_us(),
                                  &items) ||
        items.len == 0)
        return false;
    snprintf(begins, sizeof begins, "{\"id\":\"%.*s\"", (int)id.len, id.ptr);
    at = strstr(items.ptr, begins);
    if (at == NULL)
        return false;
    *json = (td_slice){at, items.len - (size_t)(at - items.ptr)};
    return true;
}

void responses_start(router *r, responses_store *store, const char *owner, td_http_request *req)
{
    shelf s = {store, owner};
    const responses_history history = {.find = find_items, .find_item = find_item, .arg = &s};
    td_slice body = td_http_request_body(req);
    char date[16];
    openai_defaults d = router_defaults(r, date);
    responses_request asked;
    td_error err = {0};
    td_status st;

    st = responses_parse(body.ptr, body.len, &d, store != NULL ? &history : NULL, &asked, &err);
    if (st == TD_OK)
        st = generation_check_model(asked.g.model, router_model(r), &err);
    if (st == TD_OK) {
        submit(r, store, owner, req, &asked);
        return;
    }
    if (strcmp(err.param, "previous_response_id") == 0 && st == TD_NOTFOUND)
        td_http_error(req, 400, "invalid_request_error", err.text, err.param,
                      "previous_response_not_found", NULL);
    else
        chat_answer_error(req, &err, 0);
    responses_request_free(&asked);
}

/* Whether the query asks for the events of a response that has ended. */
static bool wants_stream(const char *query)
{
    static const char name[] = "stream=";

    for (; query != NULL; query = strchr(query, '&')) {
        query += *query == '&';
        if (strncmp(query, name, sizeof name - 1) == 0)
            return strncmp(query + sizeof name - 1, "false", 5) != 0;
    }
    return false;
}

void responses_lookup(responses_store *store, const char *owner, td_http_request *req,
                      const char *id)
{
    bool get = td_http_request_method(req) != TD_HTTP_DELETE;
    td_slice object, name = td_slice_of(id);
    char text[200];

    if (get && wants_stream(td_http_request_query(req))) {
        td_http_error(req, 400, "invalid_request_error",
                      "stream is not supported here: a response that has ended is one object",
                      "stream", NULL, NULL);
    } else if (store != NULL && get &&
               responses_store_find(store, owner, name, td_now_us(), &object, NULL)) {
        td_http_reply(req, 200, "application/json", object.ptr, object.len, NULL);
    } else if (store != NULL && !get && responses_store_remove(store, owner, name, td_now_us())) {
        /* An id that was found is one of ours: it needs no escapes. */
        snprintf(text, sizeof text, "{\"id\":\"%.64s\",\"object\":\"response\",\"deleted\":true}",
                 id);
        td_http_reply(req, 200, "application/json", text, strlen(text), NULL);
    } else {
        snprintf(text, sizeof text, "there is no response '%.*s' here%s", chat_shown(name), id,
                 store == NULL ? ": this server does not store responses" : "");
        td_http_error(req, 404, "invalid_request_error", text, "response_id", "not_found", NULL);
    }
}
