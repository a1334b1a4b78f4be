/* From tokens to an answer: the Harmony parser splits them into reasoning, content and calls;
 * content passes through the stop strings; what may go out goes to the answer at once. */
#include "router/request_impl.h"

#include <stdio.h>
#include <string.h>

static void count_logprobs(request *q)
{
    const harmony_stats *s = q->g.raw ? NULL : harmony_parser_stats(q->parser);

    content_logprobs_count(&q->logprobs, s ? s->content_tokens : q->raw_tokens,
                           s ? s->reasoning_tokens : 0);
}

static void send_logprobs(request *q, bool all)
{
    size_t n;
    const token_logprobs *list = content_logprobs_take(&q->logprobs, all, &n);

    if (n > 0 && q->answer.on_logprobs != NULL)
        q->answer.on_logprobs(q->user, list, n);
}

static void on_text(void *user, harmony_kind kind, td_slice text)
{
    request *q = user;
    td_slice ready;

    if (q->stop_string_hit || q->cancel_wanted)
        return;
    if (kind == HARMONY_REASONING) {
        if (!q->g.hide_reasoning)
            q->answer.on_reasoning(q->user, text);
        return;
    }
    q->stop_string_hit = stop_strings_push(q->stops, text, &ready);
    if (q->g.logprobs) {
        count_logprobs(q);
        content_logprobs_text(&q->logprobs, text.len, ready.len);
        send_logprobs(q, false);
    }
    if (ready.len > 0)
        q->answer.on_content(q->user, ready);
}

static void on_call_begin(void *user, size_t index, td_slice name)
{
    request *q = user;
    char id[48];

    if (q->stop_string_hit || q->cancel_wanted)
        return;
    snprintf(id, sizeof id, "call_%016llx%02zu", (unsigned long long)q->id, index);
    q->answer.on_call_begin(q->user, index, id, name);
}

static void on_call_args(void *user, size_t index, td_slice text)
{
    request *q = user;

    if (!q->stop_string_hit && !q->cancel_wanted)
        q->answer.on_call_args(q->user, index, text);
}

static void on_message_end(void *user, harmony_kind kind, size_t index, bool complete)
{
    request *q = user;
    td_slice rest;

    (void)index;
    if (q->cancel_wanted || q->answer.on_message_end == NULL)
        return;
    if (kind == HARMONY_CONTENT && !q->stop_string_hit) {
        rest = stop_strings_flush(q->stops);
        if (q->g.logprobs) {
            count_logprobs(q);
            content_logprobs_text(&q->logprobs, 0, rest.len);
            send_logprobs(q, true);
        }
        if (rest.len > 0)
            q->answer.on_content(q->user, rest);
    }
    if (!q->cancel_wanted)
        q->answer.on_message_end(q->user, kind, complete);
}

bool request_final_begun(const request *q)
{
    return q->parser == NULL || harmony_parser_stats(q->parser)->final_begun;
}

/* One token of a raw answer: control tokens are not text, and those that stop end it. */
static bool raw_push(request *q, int32_t token)
{
    const tokenizer *t = q->r->tokenizer;
    td_slice bytes;

    for (size_t i = 0; i < q->r->n_stop_ids; i++)
        if (token == q->r->stop_ids[i])
            return true;
    if (tokenizer_is_special(t, token) || !tokenizer_bytes(t, token, &bytes))
        return false;
    q->raw_tokens++;
    td_buf_clear(&q->raw_text);
    utf8_stream_push(&q->raw_utf8, bytes, &q->raw_text);
    if (q->raw_text.len > 0)
        on_text(q, HARMONY_CONTENT, (td_slice){q->raw_text.ptr, q->raw_text.len});
    return false;
}

static void raw_finish(request *q)
{
    td_buf_clear(&q->raw_text);
    utf8_stream_end(&q->raw_utf8, &q->raw_text);
    if (q->raw_text.len > 0)
        on_text(q, HARMONY_CONTENT, (td_slice){q->raw_text.ptr, q->raw_text.len});
}

td_status request_output_open(request *q, td_error *err)
{
    static const harmony_sink sink = {.on_text = on_text,
                                      .on_tool_call_begin = on_call_begin,
                                      .on_tool_call_args = on_call_args,
                                      .on_message_end = on_message_end};
    td_status st = stop_strings_create(q->g.stop, q->g.n_stop, &q->stops, err);

    if (st == TD_OK && !q->g.raw)
        st = harmony_parser_create(q->r->harmony, &q->g.chat, &sink, q, &q->parser, err);
    return st;
}

void request_output_close(request *q)
{
    harmony_parser_free(q->parser);
    stop_strings_free(q->stops);
    td_buf_free(&q->raw_text);
    content_logprobs_free(&q->logprobs);
    q->parser = NULL;
    q->stops = NULL;
}

static void take_one(request *q, int32_t token)
{
    td_usec now = td_now_us();

    td_tokens_push(&q->out, token);
    if (q->out.len == 1) {
        q->times.first_token = now;
        td_histogram_observe_us(q->r->m.ttft, now - q->times.submitted);
    } else {
        td_histogram_observe_us(q->r->m.itl, now - q->times.last_token);
    }
    q->times.last_token = now;
    q->usage.completion_tokens = (uint32_t)q->out.len;
    td_counter_add(q->r->m.generation_tokens, 1);
}

td_status request_output_tokens(request *q, uint32_t index, const int32_t *tokens, size_t n,
                                Tandem__TokenLogprobs *const *logprobs, size_t n_logprobs,
                                output_state *state, td_error *err)
{
    *state = OUTPUT_MORE;
    for (size_t i = 0; i < n && *state == OUTPUT_MORE; i++) {
        bool over;

        if (index + i < q->out.len)
            continue; /* the first token comes twice, from prefill and from decode */
        if (index + i > q->out.len)
            return td_fail(err, TD_INTERNAL, "token %zu came after token %zu", (size_t)index + i,
                           q->out.len);
        if (q->g.logprobs && i >= n_logprobs)
            return td_fail(err, TD_INTERNAL, "token %u came without its log-probabilities",
                           (unsigned)(index + i));
        if (q->g.logprobs && !tokenizer_is_special(q->r->tokenizer, tokens[i]))
            content_logprobs_push(&q->logprobs, tokens[i], logprobs[i]);
        take_one(q, tokens[i]);
        if (q->out.oom)
            return td_fail(err, TD_NOMEM, "no memory for the answer's tokens");
        q->in_output = true;
        if (!q->started) {
            q->started = true;
            q->answer.on_start(q->user, q);
        }
        over = !q->cancel_wanted &&
               (q->g.raw ? raw_push(q, tokens[i]) : harmony_parse_push(q->parser, tokens[i]));
        q->in_output = false;
        if (q->g.logprobs)
            count_logprobs(q);
        if (q->logprobs.oom)
            return td_fail(err, TD_NOMEM, "no memory for the answer's log-probabilities");
        if (q->raw_text.oom)
            return td_fail(err, TD_NOMEM, "no memory for the answer's text");
        if (q->cancel_wanted)
            *state = OUTPUT_GONE;
        else if (q->stop_string_hit)
            *state = OUTPUT_STOP_STRING;
        else if (over && !q->g.ignore_eos)
            *state = OUTPUT_STOP;
        else if (q->out.len >= q->max_tokens)
            *state = OUTPUT_LENGTH;
    }
    if (*state == OUTPUT_MORE) {
        q->in_output = true;
        q->answer.on_flush(q->user);
        q->in_output = false;
        if (q->cancel_wanted)
            *state = OUTPUT_GONE;
    }
    return TD_OK;
}

const char *request_output_finish(request *q, harmony_end end)
{
    const harmony_stats *s;
    td_slice rest;

    q->in_output = true;
    if (q->g.raw)
        raw_finish(q);
    else
        harmony_parse_finish(q->parser, end);
    rest = stop_strings_flush(q->stops);
    if (q->g.logprobs && !q->stop_string_hit && !q->cancel_wanted) {
        count_logprobs(q);
        send_logprobs(q, true);
    }
    if (rest.len > 0 && !q->stop_string_hit && !q->cancel_wanted)
        q->answer.on_content(q->user, rest);
    q->in_output = false;
    if (q->g.raw)
        return end == HARMONY_END_LENGTH ? "length" : "stop";
    s = harmony_parser_stats(q->parser);
    q->usage.reasoning_tokens = (uint32_t)s->reasoning_tokens;
    for (int i = 0; i < HARMONY_REPAIR_COUNT; i++)
        if (s->repairs[i] > 0)
            td_counter_add(q->r->m.repairs[i], s->repairs[i]);
    return harmony_finish_reason(q->parser, end);
}
