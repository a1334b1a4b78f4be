#include "router/responses_output.h"

#include <stdlib.h>
#include <string.h>

#include "router/utf8_stream.h"

/* ---- pieces of JSON ---- */

static void add_string(td_buf *b, td_slice text)
{
    td_buf_byte(b, '"');
    td_buf_json(b, text.ptr, text.len);
    td_buf_byte(b, '"');
}

static td_slice slice_of(const td_buf *b)
{
    return (td_slice){b->ptr != NULL ? b->ptr : "", b->len};
}

static const char *prefix_of(responses_kind kind)
{
    static const char *const prefixes[] = {
        [RESPONSES_REASONING] = "rs", [RESPONSES_MESSAGE] = "msg", [RESPONSES_CALL] = "fc"};

    return prefixes[kind];
}

static void add_item_id(const responses_output *o, size_t i, td_buf *b)
{
    td_buf_fmt(b, "%s_%s%02zu", prefix_of(o->items[i].kind), o->key, i);
}

/* A part of a message's or a reasoning item's content. */
static void add_part(const responses_item *t, td_slice text, td_slice logprobs, td_buf *b)
{
    if (t->kind == RESPONSES_REASONING) {
        td_buf_str(b, "{\"type\":\"reasoning_text\",\"text\":");
        add_string(b, text);
        td_buf_byte(b, '}');
        return;
    }
    td_buf_str(b, "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[");
    td_buf_add(b, logprobs.ptr, logprobs.len);
    td_buf_str(b, "],\"text\":");
    add_string(b, text);
    td_buf_byte(b, '}');
}

/* An item as it is, or, just begun, without what it may have by now. */
static void add_item(const responses_output *o, size_t i, bool empty, td_buf *b)
{
    const responses_item *t = &o->items[i];

    td_buf_str(b, "{\"id\":\"");
    add_item_id(o, i, b);
    td_buf_fmt(b, "\",\"status\":\"%s\"",
               t->open ? "in_progress" : (t->complete ? "completed" : "incomplete"));
    if (t->kind == RESPONSES_CALL) {
        td_buf_fmt(b, ",\"type\":\"function_call\",\"call_id\":\"%s\",\"name\":", t->call_id);
        add_string(b, slice_of(&t->name));
        td_buf_str(b, ",\"arguments\":");
        add_string(b, empty ? TD_SLICE("") : slice_of(&t->text));
        td_buf_byte(b, '}');
        return;
    }
    if (t->kind == RESPONSES_REASONING)
        td_buf_str(b, ",\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":null");
    else
        td_buf_fmt(b, ",\"type\":\"message\",\"role\":\"assistant\",\"phase\":\"%s\"",
                   t->preamble ? "commentary" : "final_answer");
    td_buf_str(b, ",\"content\":[");
    if (!empty)
        add_part(t, slice_of(&t->text), slice_of(&t->logprobs), b);
    td_buf_str(b, "]}");
}

void responses_output_items(const responses_output *o, td_buf *out)
{
    for (size_t i = 0; i < o->n_items; i++) {
        if (i > 0)
            td_buf_byte(out, ',');
        add_item(o, i, false, out);
    }
}

static void add_usage(td_buf *b, const request_usage *u)
{
    td_buf_fmt(b,
               "{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,"
               "\"cache_write_tokens\":0},\"output_tokens\":%u,\"output_tokens_details\":"
               "{\"reasoning_tokens\":%u},\"total_tokens\":%u}",
               u->prompt_tokens, u->cached_tokens, u->completion_tokens, u->reasoning_tokens,
               u->prompt_tokens + u->completion_tokens);
}

/* How an answer stands. */
typedef struct standing {
    const char *status;
    const char *incomplete; /* reason, or NULL */
    const td_error *err;    /* or NULL */
    const request_usage *usage;
    int64_t completed_s; /* 0: not */
    td_slice more;
} standing;

/* The codes that the API has for an answer that failed. */
static const char *error_code(td_status s)
{
    return s == TD_BUSY      ? "rate_limit_exceeded"
           : s == TD_INVALID ? "invalid_prompt"
                             : "server_error";
}

/* The text of an error may be cut in the middle of a character. */
static void add_error_text(td_buf *b, td_slice text)
{
    td_buf whole = {0};
    utf8_stream u = {0};

    utf8_stream_push(&u, text, &whole);
    utf8_stream_end(&u, &whole);
    add_string(b, slice_of(&whole));
    b->oom = b->oom || whole.oom;
    td_buf_free(&whole);
}

static void add_response(const responses_output *o, const standing *s, td_buf *b)
{
    td_buf_fmt(b,
               "{\"id\":\"resp_%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\","
               "\"completed_at\":",
               o->key, (long long)o->created_s, s->status);
    if (s->completed_s != 0)
        td_buf_fmt(b, "%lld", (long long)s->completed_s);
    else
        td_buf_str(b, "null");
    td_buf_str(b, ",\"error\":");
    if (s->err != NULL) {
        td_buf_fmt(b, "{\"code\":\"%s\",\"message\":", error_code(s->err->code));
        add_error_text(b, td_slice_of(s->err->text));
        td_buf_byte(b, '}');
    } else {
        td_buf_str(b, "null");
    }
    if (s->incomplete != NULL)
        td_buf_fmt(b, ",\"incomplete_details\":{\"reason\":\"%s\"}", s->incomplete);
    else
        td_buf_str(b, ",\"incomplete_details\":null");
    td_buf_str(b, ",\"model\":");
    add_string(b, td_slice_of(o->model));
    td_buf_fmt(b, ",\"store\":%s,\"output\":[", o->store ? "true" : "false");
    responses_output_items(o, b);
    td_buf_str(b, "],\"usage\":");
    if (s->usage != NULL)
        add_usage(b, s->usage);
    else
        td_buf_str(b, "null");
    td_buf_byte(b, ',');
    td_buf_add(b, o->echo.ptr, o->echo.len);
    td_buf_add(b, s->more.ptr, s->more.len);
    td_buf_byte(b, '}');
}

/* ---- events ---- */

/* False: nobody wants events. */
static bool event_begin(responses_output *o, const char *type)
{
    if (!o->stream)
        return false;
    td_buf_fmt(&o->out, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%llu", type, type,
               (unsigned long long)o->sequence++);
    return true;
}

static void event_end(responses_output *o)
{
    td_buf_str(&o->out, "}\n\n");
    o->oom = o->oom || o->out.oom;
}

static void response_event(responses_output *o, const char *type, const standing *s)
{
    if (!event_begin(o, type))
        return;
    td_buf_str(&o->out, ",\"response\":");
    add_response(o, s, &o->out);
    event_end(o);
}

static void item_event(responses_output *o, const char *type, size_t i, bool empty)
{
    if (!event_begin(o, type))
        return;
    td_buf_fmt(&o->out, ",\"output_index\":%zu,\"item\":", i);
    add_item(o, i, empty, &o->out);
    event_end(o);
}

/* An event about the content of the last item, up to where its own members follow. */
static bool content_event(responses_output *o, const char *type)
{
    if (!event_begin(o, type))
        return false;
    td_buf_str(&o->out, ",\"item_id\":\"");
    add_item_id(o, o->n_items - 1, &o->out);
    td_buf_fmt(&o->out, "\",\"output_index\":%zu", o->n_items - 1);
    if (o->items[o->n_items - 1].kind != RESPONSES_CALL)
        td_buf_str(&o->out, ",\"content_index\":0");
    return true;
}

/* Names of the events of a kind's content. */
static const char *delta_of(responses_kind kind)
{
    return kind == RESPONSES_REASONING ? "response.reasoning_text.delta"
           : kind == RESPONSES_MESSAGE ? "response.output_text.delta"
                                       : "response.function_call_arguments.delta";
}

static const char *done_of(responses_kind kind)
{
    return kind == RESPONSES_REASONING ? "response.reasoning_text.done"
           : kind == RESPONSES_MESSAGE ? "response.output_text.done"
                                       : "response.function_call_arguments.done";
}

static void part_event(responses_output *o, const char *type, td_slice text, td_slice logprobs)
{
    if (!content_event(o, type))
        return;
    td_buf_str(&o->out, ",\"part\":");
    add_part(&o->items[o->n_items - 1], text, logprobs, &o->out);
    event_end(o);
}

/* ---- items ---- */

static responses_item *open_item(responses_output *o)
{
    responses_item *t = o->n_items > 0 ? &o->items[o->n_items - 1] : NULL;

    return t != NULL && t->open ? t : NULL;
}

/* Text of the open item. */
static void add_text(responses_output *o, responses_item *t, td_slice text)
{
    td_slice logprobs = t->kind == RESPONSES_MESSAGE ? slice_of(&o->tokens) : TD_SLICE("");

    td_buf_add(&t->text, text.ptr, text.len);
    if (logprobs.len > 0) {
        if (t->logprobs.len > 0)
            td_buf_byte(&t->logprobs, ',');
        td_buf_add(&t->logprobs, logprobs.ptr, logprobs.len);
    }
    o->oom = o->oom || t->text.oom || t->logprobs.oom || o->tokens.oom;
    if (content_event(o, delta_of(t->kind))) {
        td_buf_str(&o->out, ",\"delta\":");
        add_string(&o->out, text);
        if (t->kind == RESPONSES_MESSAGE) {
            td_buf_str(&o->out, ",\"logprobs\":[");
            td_buf_add(&o->out, logprobs.ptr, logprobs.len);
            td_buf_byte(&o->out, ']');
        }
        event_end(o);
    }
    if (t->kind == RESPONSES_MESSAGE)
        td_buf_clear(&o->tokens);
}

static void close_item(responses_output *o, bool complete)
{
    responses_item *t = open_item(o);
    td_slice text, logprobs;

    if (t == NULL)
        return;
    if (t->kind == RESPONSES_MESSAGE && o->tokens.len > 0)
        add_text(o, t, TD_SLICE("")); /* tokens at the end that make no text of their own */
    t->open = false;
    t->complete = complete;
    text = slice_of(&t->text);
    logprobs = slice_of(&t->logprobs);
    if (content_event(o, done_of(t->kind))) {
        td_buf_str(&o->out, t->kind == RESPONSES_CALL ? ",\"arguments\":" : ",\"text\":");
        add_string(&o->out, text);
        if (t->kind == RESPONSES_CALL) {
            td_buf_str(&o->out, ",\"name\":");
            add_string(&o->out, slice_of(&t->name));
        } else if (t->kind == RESPONSES_MESSAGE) {
            td_buf_str(&o->out, ",\"logprobs\":[");
            td_buf_add(&o->out, logprobs.ptr, logprobs.len);
            td_buf_byte(&o->out, ']');
        }
        event_end(o);
    }
    if (t->kind != RESPONSES_CALL)
        part_event(o, "response.content_part.done", text, logprobs);
    item_event(o, "response.output_item.done", o->n_items - 1, false);
}

/* NULL: no memory. The caller fills it in and says begin_item(). */
static responses_item *new_item(responses_output *o, responses_kind kind)
{
    close_item(o, true);
    if (o->n_items == o->cap_items) {
        size_t cap = o->cap_items ? 2 * o->cap_items : 4;
        responses_item *p = realloc(o->items, cap * sizeof *p);

        if (p == NULL) {
            o->oom = true;
            return NULL;
        }
        o->items = p;
        o->cap_items = cap;
    }
    o->items[o->n_items] = (responses_item){.kind = kind, .open = true};
    return &o->items[o->n_items++];
}

static void begin_item(responses_output *o, const responses_item *t)
{
    item_event(o, "response.output_item.added", o->n_items - 1, true);
    if (t->kind != RESPONSES_CALL)
        part_event(o, "response.content_part.added", TD_SLICE(""), TD_SLICE(""));
}

/* Reasoning or a message. Answers in one piece join messages with a line feed; items have none. */
static void take_text(responses_output *o, responses_kind kind, td_slice text, bool preamble)
{
    responses_item *t = open_item(o);

    if (t == NULL || t->kind != kind) {
        if (o->joiner_due[kind] && text.len > 0) {
            o->joiner_due[kind] = false;
            if (text.ptr[0] == '\n')
                text = (td_slice){text.ptr + 1, text.len - 1};
        }
        if (text.len == 0)
            return;
        t = new_item(o, kind);
        if (t == NULL)
            return;
        t->preamble = preamble;
        begin_item(o, t);
        o->sent[kind] = true;
    }
    add_text(o, t, text);
}

/* ---- the pieces of an answer ---- */

void responses_output_start(responses_output *o)
{
    static const standing s = {.status = "in_progress"};

    response_event(o, "response.created", &s);
    response_event(o, "response.in_progress", &s);
}

void responses_output_reasoning(responses_output *o, td_slice text)
{
    take_text(o, RESPONSES_REASONING, text, false);
}

void responses_output_content(responses_output *o, td_slice text, bool final)
{
    take_text(o, RESPONSES_MESSAGE, text, !final);
}

void responses_output_logprobs(responses_output *o, td_slice elements)
{
    if (o->tokens.len > 0)
        td_buf_byte(&o->tokens, ',');
    td_buf_add(&o->tokens, elements.ptr, elements.len);
    o->oom = o->oom || o->tokens.oom;
}

void responses_output_call(responses_output *o, const char *call_id, td_slice name)
{
    responses_item *t = new_item(o, RESPONSES_CALL);

    if (t == NULL)
        return;
    td_buf_add(&t->name, name.ptr, name.len);
    td_assert(strlen(call_id) < sizeof t->call_id);
    strcpy(t->call_id, call_id);
    o->oom = o->oom || t->name.oom;
    begin_item(o, t);
}

void responses_output_arguments(responses_output *o, td_slice text)
{
    responses_item *t = open_item(o);

    if (t != NULL && t->kind == RESPONSES_CALL)
        add_text(o, t, text);
}

void responses_output_message_end(responses_output *o, responses_kind kind, bool complete)
{
    responses_item *t = open_item(o);

    if (t != NULL && t->kind == kind)
        close_item(o, complete);
    if (kind != RESPONSES_CALL)
        o->joiner_due[kind] = o->sent[kind];
}

/* ---- the end ---- */

/* An agent that finds neither words nor a call asks again; that the model had nothing to say is an
 * answer too. */
static void add_empty_message(responses_output *o)
{
    responses_item *t;

    for (size_t i = 0; i < o->n_items; i++)
        if (o->items[i].kind != RESPONSES_REASONING)
            return;
    t = new_item(o, RESPONSES_MESSAGE);
    if (t == NULL)
        return;
    begin_item(o, t);
    close_item(o, true);
}

void responses_output_finish(responses_output *o, const char *reason, const request_usage *u,
                             int64_t now_s, td_slice more, td_buf *object)
{
    bool cut = strcmp(reason, "length") == 0;
    const standing s = {.status = cut ? "incomplete" : "completed",
                        .incomplete = cut ? "max_output_tokens" : NULL,
                        .usage = u,
                        .completed_s = cut ? 0 : now_s,
                        .more = more};

    close_item(o, !cut);
    if (!cut)
        add_empty_message(o);
    response_event(o, cut ? "response.incomplete" : "response.completed", &s);
    if (object != NULL)
        add_response(o, &s, object);
}

void responses_output_fail(responses_output *o, const td_error *err)
{
    const standing s = {.status = "failed", .err = err};

    close_item(o, false);
    response_event(o, "response.failed", &s);
}

void responses_output_free(responses_output *o)
{
    for (size_t i = 0; i < o->n_items; i++) {
        td_buf_free(&o->items[i].name);
        td_buf_free(&o->items[i].text);
        td_buf_free(&o->items[i].logprobs);
    }
    free(o->items);
    td_buf_free(&o->echo);
    td_buf_free(&o->out);
    td_buf_free(&o->tokens);
    *o = (responses_output){0};
}
