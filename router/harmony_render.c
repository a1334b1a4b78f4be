/* A conversation is walked once, in order; every message of the chat becomes none, one or several
 * messages of the format, each encoded piece by piece. Control tokens are pushed as ids, all text
 * goes through tokenizer_encode(), which never yields one. */
#include "router/harmony_render.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/harmony_calls.h"
#include "router/harmony_tools.h"
#include "router/tokenizer.h"

/* What a rendering in progress needs at hand. */
typedef struct render {
    const harmony *h;
    const harmony_ids *ids;
    const chat *c;
    td_tokens *out;
    td_error *err;
    harmony_calls calls;
    size_t keep_from; /* reasoning of messages before this one is left out */
    td_buf scratch;
} render;

static td_status add_text(const harmony *h, td_slice text, td_tokens *out, td_error *err)
{
    if (text.len == 0)
        return TD_OK;
    return tokenizer_encode(harmony_tokenizer(h), text.ptr, text.len, out, err);
}

static bool starts_with(td_slice s, td_slice prefix)
{
    return s.len >= prefix.len && memcmp(s.ptr, prefix.ptr, prefix.len) == 0;
}

/* What follows the author: recipient, channel and content type, each with its own lead. */
static td_status add_header(const harmony *h, const harmony_message *m, td_tokens *out,
                            td_error *err)
{
    const td_slice marker = TD_SLICE("<|constrain|>");
    const harmony_ids *ids = harmony_ids_of(h);
    td_buf to = {0}, type = {0};
    td_slice recipient;
    td_status st = TD_OK;

    if (m->recipient.len > 0) {
        td_buf_str(&to, " to=");
        td_buf_add(&to, m->recipient.ptr, m->recipient.len);
    }
    recipient = (td_slice){to.ptr, to.len};
    if (!harmony_options_of(h)->recipient_after_channel || m->channel.len == 0)
        st = add_text(h, recipient, out, err);
    if (st == TD_OK && m->channel.len > 0) {
        td_tokens_push(out, ids->channel);
        st = add_text(h, m->channel, out, err);
        if (st == TD_OK && harmony_options_of(h)->recipient_after_channel)
            st = add_text(h, recipient, out, err);
    }
    if (st == TD_OK && m->content_type.len > 0) {
        td_slice rest = m->content_type;

        td_buf_byte(&type, ' ');
        if (starts_with(rest, marker)) {
            rest = (td_slice){rest.ptr + marker.len, rest.len - marker.len};
            st = add_text(h, (td_slice){type.ptr, type.len}, out, err);
            td_tokens_push(out, ids->constrain);
            td_buf_clear(&type);
        }
        td_buf_add(&type, rest.ptr, rest.len);
        if (st == TD_OK)
            st = add_text(h, (td_slice){type.ptr, type.len}, out, err);
    }
    if (st == TD_OK && (to.oom || type.oom))
        st = td_fail(err, TD_NOMEM, "no memory for a message header");
    td_buf_free(&to);
    td_buf_free(&type);
    return st;
}

td_status harmony_render_message(const harmony *h, const harmony_message *m, td_tokens *out,
                                 td_error *err)
{
    const harmony_ids *ids = harmony_ids_of(h);
    size_t before = out->len;
    td_status st;

    td_tokens_push(out, ids->start);
    st = add_text(h, m->author, out, err);
    if (st == TD_OK)
        st = add_header(h, m, out, err);
    td_tokens_push(out, ids->message);
    if (st == TD_OK)
        st = add_text(h, m->content, out, err);
    if (m->terminator >= 0)
        td_tokens_push(out, m->terminator);
    if (st == TD_OK && out->oom)
        st = td_fail(err, TD_NOMEM, "no memory for %zu prompt tokens", out->len);
    if (st != TD_OK)
        out->len = before;
    return st;
}

/* A message that only has an author and content. */
static td_status add_plain(render *r, const char *author, td_slice content)
{
    const harmony_message m = {
        .author = td_slice_of(author), .content = content, .terminator = r->ids->end};

    return harmony_render_message(r->h, &m, r->out, r->err);
}

static td_slice call_type(const harmony *h)
{
    return harmony_options_of(h)->plain_json_type ? TD_SLICE("json")
                                                  : TD_SLICE("<|constrain|>json");
}

/* "functions." + name, in the scratch buffer until the next use. */
static td_slice function_author(render *r, td_slice name)
{
    td_buf_clear(&r->scratch);
    td_buf_str(&r->scratch, "functions.");
    td_buf_add(&r->scratch, name.ptr, name.len);
    return (td_slice){r->scratch.ptr, r->scratch.len};
}

/* Whether a message is a final answer: what ends a turn, and with it the life of its reasoning. */
static bool is_final(const chat_message *m)
{
    return m->role == CHAT_ASSISTANT && m->content.len > 0 && m->n_calls == 0 && !m->preamble;
}

/* How many messages there are, not counting those at the end that render to nothing. */
static size_t n_said(const chat *c)
{
    size_t n = c->n_messages;

    for (; n > 0; n--) {
        const chat_message *m = &c->messages[n - 1];

        if (m->role == CHAT_USER || m->role == CHAT_TOOL || m->content.len > 0 ||
            m->reasoning.len > 0 || m->n_calls > 0)
            break;
    }
    return n;
}

/* Reasoning, then what was said, then the calls: the order in which the model writes. */
static td_status add_assistant(render *r, size_t index, int32_t final_terminator)
{
    const chat_message *m = &r->c->messages[index];
    harmony_message out = {.author = TD_SLICE("assistant"), .terminator = r->ids->end};
    td_status st = TD_OK;

    if (m->reasoning.len > 0 && index >= r->keep_from) {
        out.channel = TD_SLICE("analysis");
        out.content = m->reasoning;
        st = harmony_render_message(r->h, &out, r->out, r->err);
    }
    if (st == TD_OK && m->content.len > 0) {
        out.channel = is_final(m) ? TD_SLICE("final") : TD_SLICE("commentary");
        out.content = m->content;
        if (is_final(m))
            out.terminator = final_terminator;
        st = harmony_render_message(r->h, &out, r->out, r->err);
    }
    for (size_t i = 0; st == TD_OK && i < m->n_calls; i++) {
        out.recipient = function_author(r, chat_bare_name(m->calls[i].name));
        out.channel = TD_SLICE("commentary");
        out.content_type = call_type(r->h);
        out.content = m->calls[i].arguments;
        out.terminator = r->ids->call;
        st = harmony_render_message(r->h, &out, r->out, r->err);
    }
    return st;
}

typedef struct tool_result {
    harmony_answer answer;
    size_t index; /* of the message */
} tool_result;

static int by_call(const void *pa, const void *pb)
{
    const tool_result *a = pa, *b = pb;

    if (a->answer.order != b->answer.order)
        return a->answer.order < b->answer.order ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* The tool messages [from, to), in the order of the calls. A client may send them in any order; the
 * model only ever saw them in this one, and has no ids to match them by. */
static td_status add_tool_results(render *r, size_t from, size_t to)
{
    tool_result *results = calloc(to - from, sizeof *results);
    td_status st = TD_OK;

    if (results == NULL)
        return td_fail(r->err, TD_NOMEM, "no memory for %zu tool results", to - from);
    for (size_t i = from; st == TD_OK && i < to; i++) {
        results[i - from].index = i;
        st = harmony_calls_answer(&r->calls, r->c, i, &results[i - from].answer, r->err);
    }
    if (st == TD_OK)
        qsort(results, to - from, sizeof *results, by_call);
    for (size_t i = 0; st == TD_OK && i < to - from; i++) {
        const harmony_message m = {
            .author = function_author(r, results[i].answer.name),
            .recipient = TD_SLICE("assistant"),
            .channel = TD_SLICE("commentary"),
            .content = r->c->messages[results[i].index].content,
            .terminator = r->ids->end,
        };

        st = harmony_render_message(r->h, &m, r->out, r->err);
    }
    free(results);
    return st;
}

/* Developer messages after the start of the conversation: no tools, just new instructions. */
static td_status add_later_instructions(render *r, td_slice text)
{
    if (text.len == 0)
        return TD_OK;
    td_buf_clear(&r->scratch);
    td_buf_str(&r->scratch, "# Instructions\n\n");
    td_buf_add(&r->scratch, text.ptr, text.len);
    return add_plain(r, "developer", (td_slice){r->scratch.ptr, r->scratch.len});
}

static td_status add_opening(render *r)
{
    td_buf text = {0};
    td_status st = harmony_system_text(r->h, r->c, &text, r->err);

    if (st == TD_OK)
        st = add_plain(r, "system", (td_slice){text.ptr, text.len});
    td_buf_clear(&text);
    if (st == TD_OK)
        st = harmony_developer_text(r->h, r->c, &text, r->err);
    if (st == TD_OK && text.len > 0)
        st = add_plain(r, "developer", (td_slice){text.ptr, text.len});
    td_buf_free(&text);
    return st;
}

static td_status add_messages(render *r, int32_t last_final_terminator)
{
    const chat *c = r->c;
    size_t i = 0, n = n_said(c);
    td_status st = TD_OK;

    while (i < c->n_messages &&
           (c->messages[i].role == CHAT_SYSTEM || c->messages[i].role == CHAT_DEVELOPER))
        i++; /* these are in the first developer message */
    while (st == TD_OK && i < c->n_messages) {
        const chat_message *m = &c->messages[i];
        size_t to = i + 1;

        switch (m->role) {
        case CHAT_SYSTEM:
        case CHAT_DEVELOPER: st = add_later_instructions(r, m->content); break;
        case CHAT_USER: st = add_plain(r, "user", m->content); break;
        case CHAT_ASSISTANT:
            st = add_assistant(r, i, to == n ? last_final_terminator : r->ids->end);
            break;
        case CHAT_TOOL:
            while (to < c->n_messages && c->messages[to].role == CHAT_TOOL)
                to++;
            st = add_tool_results(r, i, to);
            break;
        }
        i = to;
    }
    return st;
}

/* The model was trained without the reasoning of turns that have ended, and with that of the turn
 * it is in. When the last message is the final answer itself (continued, or training data), the
 * turn it ends is still the current one. */
static size_t first_kept_reasoning(const harmony *h, const chat *c)
{
    size_t i = n_said(c);

    if (harmony_options_of(h)->keep_analysis)
        return 0;
    if (i > 0 && is_final(&c->messages[i - 1])) {
        while (i > 0 && c->messages[i - 1].role != CHAT_USER)
            i--;
        return i;
    }
    while (i > 0 && !is_final(&c->messages[i - 1]))
        i--;
    return i;
}

static td_status check_tool_choice(const chat *c, td_error *err)
{
    td_slice name = chat_bare_name(c->tool_choice_name);

    if (c->tool_choice == CHAT_TOOL_REQUIRED && c->n_tools == 0)
        return td_fail_param(err, "tool_choice", "a call is required but there are no tools");
    if (c->tool_choice != CHAT_TOOL_NAMED)
        return TD_OK;
    for (size_t i = 0; i < c->n_tools; i++)
        if (td_slice_eq(chat_bare_name(c->tools[i].name), name))
            return TD_OK;
    return td_fail_param(err, "tool_choice",
                         "tool_choice names the function '%.*s', which is not in tools",
                         chat_shown(name), name.ptr ? name.ptr : "");
}

static td_status check(const chat *c, td_error *err)
{
    char param[64];

    if (c->oom)
        return td_fail(err, TD_NOMEM, "no memory for the conversation");
    if (c->n_messages == 0)
        return td_fail_param(err, "messages", "must hold at least one message");
    if (c->continue_final && !is_final(&c->messages[c->n_messages - 1])) {
        snprintf(param, sizeof param, "messages[%zu]", c->n_messages - 1);
        return td_fail_param(err, param,
                             "only an assistant message with content and without tool calls can "
                             "be continued");
    }
    return check_tool_choice(c, err);
}

/* All messages. The last one, if it is a final answer, ends in last_final_terminator. */
static td_status render_all(const harmony *h, const chat *c, int32_t last_final_terminator,
                            td_tokens *out, td_error *err)
{
    render r = {.h = h, .ids = harmony_ids_of(h), .c = c, .out = out, .err = err};
    td_status st = check(c, err);

    if (st == TD_OK)
        st = harmony_calls_init(c, &r.calls, err);
    if (st != TD_OK)
        return st;
    r.keep_from = first_kept_reasoning(h, c);
    st = add_opening(&r);
    if (st == TD_OK)
        st = add_messages(&r, last_final_terminator);
    if (st == TD_OK && r.scratch.oom)
        st = td_fail(err, TD_NOMEM, "no memory for the prompt");
    td_buf_free(&r.scratch);
    harmony_calls_fini(&r.calls);
    return st;
}

td_status harmony_prime(const harmony *h, const chat *c, td_tokens *out, td_error *err)
{
    const harmony_message m = {.channel = TD_SLICE("final")};
    td_status st;

    if (!c->continue_final)
        return TD_OK;
    st = add_header(h, &m, out, err);
    td_tokens_push(out, harmony_ids_of(h)->message);
    return st;
}

td_status harmony_render(const harmony *h, const chat *c, td_tokens *out, td_error *err)
{
    const harmony_ids *ids = harmony_ids_of(h);
    size_t before = out->len;
    td_status st = render_all(h, c, c->continue_final ? -1 : ids->end, out, err);

    if (st == TD_OK && !c->continue_final) {
        td_tokens_push(out, ids->start);
        st = add_text(h, TD_SLICE("assistant"), out, err);
        if (st == TD_OK)
            st = harmony_prime(h, c, out, err);
    }
    if (st == TD_OK && out->oom)
        st = td_fail(err, TD_NOMEM, "no memory for %zu prompt tokens", out->len);
    if (st != TD_OK)
        out->len = before;
    return st;
}

td_status harmony_render_training(const harmony *h, const chat *c, td_tokens *out, td_error *err)
{
    size_t before = out->len;
    td_status st = render_all(h, c, harmony_ids_of(h)->ret, out, err);

    if (st != TD_OK)
        out->len = before;
    return st;
}
