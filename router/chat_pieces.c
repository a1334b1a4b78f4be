/* Pieces of JSON and of conduct that the answers of all endpoints share. */
#include "router/chat_answer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "router/tokenizer.h"
#include "router/utf8_stream.h"

/* ---- errors ---- */

static const char *error_type(td_status s)
{
    switch (s) {
    case TD_INVALID:
    case TD_TOOLARGE: return "invalid_request_error";
    case TD_NOTFOUND: return "invalid_request_error";
    case TD_BUSY: return "rate_limit_error";
    case TD_UNAVAILABLE: return "service_unavailable_error";
    default: return "server_error";
    }
}

static const char *error_code(const td_error *err)
{
    td_status s = err->code;

    return strstr(err->text, "context window") != NULL && s == TD_INVALID
               ? "context_length_exceeded"
           : s == TD_NOTFOUND    ? "model_not_found"
           : s == TD_BUSY        ? "rate_limit_exceeded"
           : s == TD_UNAVAILABLE ? "service_unavailable"
                                 : NULL;
}

void chat_answer_error(td_http_request *req, const td_error *err, uint32_t retry_s)
{
    char seconds[16];
    td_http_header retry[] = {{"Retry-After", seconds}, {NULL, NULL}};

    snprintf(seconds, sizeof seconds, "%u", retry_s);
    td_http_error(req, td_status_http(err->code), error_type(err->code), err->text,
                  err->param[0] ? err->param : NULL, error_code(err), retry_s > 0 ? retry : NULL);
}

void chat_answer_fail(td_http_request *req, td_buf *out, bool begun, const td_error *err,
                      uint32_t retry_s)
{
    td_http_request_on_close(req, NULL, NULL);
    if (!begun) {
        chat_answer_error(req, err, retry_s);
        return;
    }
    /* The status is long gone: the error is an event, and [DONE] does not follow. */
    td_buf_clear(out);
    td_buf_str(out, "data: ");
    td_http_error_json(out, error_type(err->code), err->text, err->param[0] ? err->param : NULL,
                       error_code(err));
    td_buf_str(out, "\n\n");
    td_http_stream_write(req, out->ptr, out->len);
    td_http_stream_cut(req);
}

/* ---- pieces of JSON ---- */

void chat_answer_usage(td_buf *b, const request_usage *u)
{
    td_buf_fmt(b,
               "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%u},"
               "\"completion_tokens_details\":{\"reasoning_tokens\":%u}}",
               u->prompt_tokens, u->completion_tokens, u->prompt_tokens + u->completion_tokens,
               u->cached_tokens, u->reasoning_tokens);
}

void chat_answer_timings(td_buf *b, const request_times *t)
{
    td_buf_fmt(b,
               "{\"ttft_ms\":%.3f,\"e2e_ms\":%.3f,\"prefill_queue_ms\":%.3f,\"prefill_ms\":%.3f,"
               "\"kv_tail_ms\":%.3f,\"kv_bytes\":%llu,\"kv_puts\":%u,\"kv_transport\":\"",
               (double)(t->first_token - t->submitted) / 1e3,
               (double)(t->last_token - t->submitted) / 1e3, (double)t->prefill_queue_us / 1e3,
               (double)t->prefill_compute_us / 1e3, (double)t->push_tail_us / 1e3,
               (unsigned long long)t->kv_bytes, t->kv_puts);
    td_buf_json(b, t->kv_transport, strlen(t->kv_transport));
    td_buf_fmt(b, "\",\"retries\":%u}", t->retries);
}

void chat_answer_sum(answer_sum *s, const request_usage *u, const request_times *t)
{
    request_times *all = &s->times;

    if (s->n++ == 0) {
        s->usage = *u;
        *all = *t;
        return;
    }
    s->usage.completion_tokens += u->completion_tokens;
    s->usage.reasoning_tokens += u->reasoning_tokens;
    if (u->cached_tokens > s->usage.cached_tokens)
        s->usage.cached_tokens = u->cached_tokens;
    if (t->first_token < all->first_token)
        all->first_token = t->first_token;
    if (t->last_token > all->last_token)
        all->last_token = t->last_token;
    all->prefill_queue_us += t->prefill_queue_us;
    all->prefill_compute_us += t->prefill_compute_us;
    all->push_tail_us += t->push_tail_us;
    all->kv_bytes += t->kv_bytes;
    all->kv_puts += t->kv_puts;
    all->retries += t->retries;
}

void chat_answer_logprob(td_buf *b, float v)
{
    td_buf_fmt(b, "%.9g", isfinite(v) ? (double)v : -9999.0);
}

/* `"token":..,"logprob":..,"bytes":[..]`; a token may be a part of a character, which `token` shows
 * as U+FFFD. */
static void add_token(td_buf *b, const router *r, int32_t id, float logprob)
{
    td_buf text = {0};
    utf8_stream u = {0};
    td_slice bytes = {"", 0};

    tokenizer_bytes(r->tokenizer, id, &bytes); /* none for an id that is only in the model */
    utf8_stream_push(&u, bytes, &text);
    utf8_stream_end(&u, &text);
    td_buf_str(b, "\"token\":");
    td_buf_byte(b, '"');
    td_buf_json(b, text.ptr, text.len);
    td_buf_byte(b, '"');
    td_buf_str(b, ",\"logprob\":");
    chat_answer_logprob(b, logprob);
    td_buf_str(b, ",\"bytes\":[");
    for (size_t i = 0; i < bytes.len; i++)
        td_buf_fmt(b, "%s%u", i > 0 ? "," : "", (unsigned)(unsigned char)bytes.ptr[i]);
    td_buf_byte(b, ']');
    b->oom = b->oom || text.oom;
    td_buf_free(&text);
}

void chat_answer_logprobs(td_buf *b, const router *r, const token_logprobs *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const td_logprobs *l = &list[i].logprobs;

        td_buf_str(b, b->len > 0 ? ",{" : "{");
        add_token(b, r, list[i].token, l->chosen);
        td_buf_str(b, ",\"top_logprobs\":[");
        for (int32_t k = 0; k < l->n; k++) {
            td_buf_str(b, k > 0 ? ",{" : "{");
            add_token(b, r, l->id[k], l->logprob[k]);
            td_buf_byte(b, '}');
        }
        td_buf_str(b, "]}");
    }
}

/* ---- conduct ---- */

bool chat_answer_give_up(const router *r, td_http_request *req, request *q, const char *label,
                         bool broken)
{
    size_t pending = td_http_stream_pending(req);
    const char *why = broken ? "no_memory" : "slow_client";

    if (!broken && pending <= r->cfg->slow_client_bytes)
        return false;
    td_warn("answer_cut", "client_id=\"%s\" why=%s pending_bytes=%zu", label, why, pending);
    request_cancel(q, why);
    return true;
}
