#include "tests/e2e/client.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

enum { MAX_POLLED = 1024 };

td_usec e2e_deadline(void)
{
    return td_now_us() + E2E_DEADLINE_MS * TD_USEC_PER_MSEC;
}

/* ---- the answer ---- */

static void add_text(td_buf *to, const cJSON *v)
{
    if (cJSON_IsString(v))
        td_buf_str(to, v->valuestring);
}

static void copy_string(char *to, size_t cap, const cJSON *v)
{
    if (cJSON_IsString(v))
        snprintf(to, cap, "%s", v->valuestring);
}

static void replace(cJSON **at, const cJSON *v)
{
    if (v == NULL || cJSON_IsNull(v))
        return;
    cJSON_Delete(*at);
    *at = cJSON_Duplicate(v, 1);
}

/* `calls` of a message or of a delta; only the latter's have an index. */
static void take_calls(ask *a, const cJSON *calls)
{
    const cJSON *call;
    size_t i = 0;

    cJSON_ArrayForEach(call, calls)
    {
        const cJSON *index = cJSON_GetObjectItem(call, "index");
        const cJSON *function = cJSON_GetObjectItem(call, "function");
        ask_call *c;

        if (a->stream) {
            assert_true(cJSON_IsNumber(index));
            i = (size_t)index->valuedouble;
        }
        assert_true(i < ASK_MAX_CALLS);
        c = &a->calls[i];
        if (i >= a->n_calls) {
            assert_int_equal(i, a->n_calls); /* indices come in order */
            a->n_calls = i + 1;
            assert_true(cJSON_IsString(cJSON_GetObjectItem(call, "id")));
            assert_string_equal(cJSON_GetObjectItem(call, "type")->valuestring, "function");
            assert_true(cJSON_IsString(cJSON_GetObjectItem(function, "name")));
        } else {
            assert_null(cJSON_GetObjectItem(call, "id")); /* id and name are said once */
            assert_null(cJSON_GetObjectItem(function, "name"));
        }
        copy_string(c->id, sizeof c->id, cJSON_GetObjectItem(call, "id"));
        copy_string(c->name, sizeof c->name, cJSON_GetObjectItem(function, "name"));
        td_buf_str(&c->arguments, "");
        add_text(&c->arguments, cJSON_GetObjectItem(function, "arguments"));
        i++;
    }
}

/* A message, or the delta of a stream. */
static void take_message(ask *a, const cJSON *m)
{
    const cJSON *content = cJSON_GetObjectItem(m, "content");
    const cJSON *reasoning = cJSON_GetObjectItem(m, "reasoning");
    const cJSON *other = cJSON_GetObjectItem(m, "reasoning_content");
    const cJSON *calls = cJSON_GetObjectItem(m, "tool_calls");
    bool says = (cJSON_IsString(content) && content->valuestring[0] != '\0') ||
                cJSON_IsString(reasoning) || calls != NULL;

    if (cJSON_GetObjectItem(m, "role") != NULL) {
        assert_string_equal(cJSON_GetObjectItem(m, "role")->valuestring, "assistant");
        a->role_first = a->role_first || a->n_events <= 1;
        a->n_roles++;
    }
    if (reasoning != NULL) /* one thing under two names */
        assert_true(cJSON_Compare(reasoning, other, 1));
    a->content_null = cJSON_IsNull(content);
    add_text(&a->content, content);
    add_text(&a->reasoning, reasoning);
    take_calls(a, calls);
    if (says && a->first_piece_at == 0)
        a->first_piece_at = td_now_us();
    a->n_pieces += says;
}

static void take_object(ask *a, const char *json)
{
    const cJSON *choices, *choice, *finish, *text;

    cJSON_Delete(a->root);
    a->root = cJSON_Parse(json);
    if (a->root == NULL)
        fail_msg("not JSON: %.300s", json);
    replace(&a->error, cJSON_GetObjectItem(a->root, "error"));
    replace(&a->tandem, cJSON_GetObjectItem(a->root, "tandem"));
    if (cJSON_IsObject(cJSON_GetObjectItem(a->root, "usage")))
        a->n_usages++;
    replace(&a->usage, cJSON_GetObjectItem(a->root, "usage"));
    copy_string(a->id, sizeof a->id, cJSON_GetObjectItem(a->root, "id"));
    choices = cJSON_GetObjectItem(a->root, "choices");
    choice = cJSON_GetArrayItem(choices, 0);
    if (choice == NULL)
        return;
    if (a->finish[0] != '\0')
        a->after_finish++;
    text = cJSON_GetObjectItem(choice, "text"); /* of the legacy Completions API */
    add_text(&a->content, text);
    a->n_pieces += cJSON_IsString(text) && text->valuestring[0] != '\0';
    take_message(a, cJSON_GetObjectItem(choice, a->stream ? "delta" : "message"));
    finish = cJSON_GetObjectItem(choice, "finish_reason");
    copy_string(a->finish, sizeof a->finish, finish);
}

/* An event of the Responses API, which are named as their type; its deltas are pieces. */
static void take_named_event(ask *a, const char *line)
{
    const char *data = strstr(line, "\ndata: ");
    const cJSON *type, *response;

    a->n_events++;
    take_object(a, data + 7);
    type = cJSON_GetObjectItem(a->root, "type");
    assert_true(cJSON_IsString(type));
    assert_int_equal(strlen(type->valuestring), data - line - 7);
    assert_memory_equal(type->valuestring, line + 7, (size_t)(data - line) - 7);
    a->n_pieces += strstr(type->valuestring, ".delta") != NULL;
    if (strcmp(type->valuestring, "response.output_text.delta") == 0)
        add_text(&a->content, cJSON_GetObjectItem(a->root, "delta"));
    if (strcmp(type->valuestring, "response.reasoning_text.delta") == 0)
        add_text(&a->reasoning, cJSON_GetObjectItem(a->root, "delta"));
    response = cJSON_GetObjectItem(a->root, "response");
    replace(&a->usage, cJSON_GetObjectItem(response, "usage"));
    replace(&a->tandem, cJSON_GetObjectItem(response, "tandem"));
    replace(&a->error, cJSON_GetObjectItem(response, "error"));
}

/* Events that have come in whole. */
static void take_events(ask *a)
{
    char *end;

    while (a->body.ptr != NULL && (end = strstr(a->body.ptr + a->scanned, "\n\n")) != NULL) {
        const char *line = a->body.ptr + a->scanned;

        *end = '\0';
        a->scanned = (size_t)(end - a->body.ptr) + 2;
        if (a->done)
            a->after_done = true;
        if (line[0] == ':') {
            a->n_comments++;
        } else if (strcmp(line, "data: [DONE]") == 0) {
            a->done = true;
        } else if (strncmp(line, "data: ", 6) == 0) {
            a->n_events++;
            take_object(a, line + 6);
        } else if (strncmp(line, "event: ", 7) == 0 && strstr(line, "\ndata: ") != NULL) {
            take_named_event(a, line);
        } else {
            fail_msg("not an event: %.200s", line);
        }
        *end = '\n';
    }
}

/* ---- HTTP ---- */

static void end(ask *a, bool cut)
{
    a->ended = true;
    a->cut = cut;
    a->ended_at = td_now_us();
    close(a->fd);
    a->fd = -1;
    td_buf_str(&a->body, "");
    if (!a->stream && !cut && a->body.len > 0 && a->body.ptr[0] == '{')
        take_object(a, a->body.ptr);
}

static void drop_front(td_buf *b, size_t n)
{
    memmove(b->ptr, b->ptr + n, b->len - n + 1);
    b->len -= n;
}

const char *ask_header(const ask *a, const char *name)
{
    static char value[512];
    size_t n = strlen(name);

    for (const char *line = a->head.ptr ? strstr(a->head.ptr, "\r\n") : NULL; line != NULL;
         line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, n) == 0 && strncmp(line + n, ": ", 2) == 0) {
            snprintf(value, sizeof value, "%.*s", (int)strcspn(line + n + 2, "\r"), line + n + 2);
            return value;
        }
    }
    return NULL;
}

static bool take_head(ask *a)
{
    const char *stop = a->in.ptr ? strstr(a->in.ptr, "\r\n\r\n") : NULL;
    const char *value;

    if (stop == NULL)
        return false;
    td_buf_add(&a->head, a->in.ptr, (size_t)(stop - a->in.ptr) + 4);
    drop_front(&a->in, a->head.len);
    assert_int_equal(sscanf(a->head.ptr, "HTTP/1.%*d %d", &a->status), 1);
    if (a->status == 100) { /* "go on", which nobody asked for: the real one follows */
        td_buf_free(&a->head);
        a->status = 0;
        return take_head(a);
    }
    value = ask_header(a, "Transfer-Encoding");
    a->chunked = value != NULL;
    value = ask_header(a, "Content-Length");
    a->length = value ? strtoul(value, NULL, 10) : SIZE_MAX;
    value = ask_header(a, "Content-Type");
    a->stream = value != NULL && strncmp(value, "text/event-stream", 17) == 0;
    return true;
}

/* Move what has come in over to the body; true when the body is whole. */
static bool take_body(ask *a)
{
    while (a->chunked) {
        char *line;
        size_t n;

        if (a->chunk_left == 0) {
            line = a->in.ptr ? strstr(a->in.ptr, "\r\n") : NULL;
            if (line == NULL)
                return false;
            a->chunk_left = strtoul(a->in.ptr, NULL, 16) + 2;
            drop_front(&a->in, (size_t)(line - a->in.ptr) + 2);
            if (a->chunk_left == 2)
                return true;
        }
        n = a->in.len < a->chunk_left ? a->in.len : a->chunk_left;
        if (n == 0)
            return false;
        /* The frame's own line end is not the body's. */
        if (a->chunk_left > 2)
            td_buf_add(&a->body, a->in.ptr, n < a->chunk_left - 2 ? n : a->chunk_left - 2);
        a->chunk_left -= n;
        drop_front(&a->in, n);
    }
    if (a->in.len > 0) {
        td_buf_add(&a->body, a->in.ptr, a->in.len);
        td_buf_clear(&a->in);
    }
    return a->body.len >= a->length;
}

static void on_readable(ask *a)
{
    char block[65536];
    ssize_t n = recv(a->fd, block, sizeof block, MSG_DONTWAIT);
    bool whole;

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0)
        td_buf_add(&a->in, block, (size_t)n);
    if (a->status == 0 && !take_head(a)) {
        if (n <= 0)
            end(a, true);
        return;
    }
    whole = take_body(a);
    if (a->stream)
        take_events(a);
    if (whole)
        end(a, false);
    else if (n <= 0)
        end(a, a->chunked || a->length != SIZE_MAX);
}

static void on_writable(ask *a)
{
    ssize_t n =
        send(a->fd, a->out.ptr + a->sent, a->out.len - a->sent, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (n > 0)
        a->sent += (size_t)n;
    else if (n < 0 && errno != EAGAIN && errno != EINTR)
        a->sent = a->out.len; /* it will not read on; what it has to say may still come */
}

bool asks_step(ask *a, size_t n, td_usec deadline)
{
    struct pollfd polled[MAX_POLLED];
    ask *of[MAX_POLLED];
    td_usec left = deadline - td_now_us();
    nfds_t k = 0;
    int rc;

    for (size_t i = 0; i < n; i++) {
        if (a[i].ended)
            continue;
        assert_true(k < MAX_POLLED);
        of[k] = &a[i];
        polled[k++] = (struct pollfd){
            .fd = a[i].fd, .events = (short)(POLLIN | (a[i].sent < a[i].out.len ? POLLOUT : 0))};
    }
    if (k == 0)
        return false;
    rc = poll(polled, k, left > 0 ? (int)(left / 1000) + 1 : 0);
    if (rc == 0)
        fail_msg("%u of %zu requests still wait; the first has status %d, %.300s", (unsigned)k, n,
                 of[0]->status, of[0]->body.ptr ? of[0]->body.ptr : "nothing");
    for (nfds_t i = 0; i < k && rc > 0; i++) {
        if (polled[i].revents & POLLOUT)
            on_writable(of[i]);
        if (polled[i].revents & (POLLIN | POLLHUP | POLLERR))
            on_readable(of[i]);
    }
    return true;
}

void asks_wait(ask *a, size_t n)
{
    td_usec deadline = e2e_deadline();

    while (asks_step(a, n, deadline))
        continue;
}

static int connect_to(uint16_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void fill_request(ask *a, const char *method, const char *path, const char *headers,
                         const void *body, size_t n)
{
    td_buf_fmt(&a->out, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s", method, path, headers);
    if (body != NULL)
        td_buf_fmt(&a->out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", n);
    td_buf_str(&a->out, "\r\n");
    if (body != NULL)
        td_buf_add(&a->out, body, n);
    assert_false(a->out.oom);
    on_writable(a);
}

void ask_start(ask *a, uint16_t port, const char *method, const char *path, const char *headers,
               const void *body, size_t n)
{
    *a = (ask){.fd = connect_to(port), .began = td_now_us()};
    if (a->fd < 0)
        fail_msg("nobody listens on port %u: %s", port, strerror(errno));
    fill_request(a, method, path, headers, body, n);
}

void ask_post(ask *a, uint16_t port, const char *body)
{
    ask_start(a, port, "POST", "/v1/chat/completions", "", body, strlen(body));
}

void want_body(const want *w, td_buf *out)
{
    const char *prompt = w->prompt ? w->prompt : "hi";

    td_buf_str(out, "{\"messages\":[");
    for (unsigned i = 0; i < w->turns; i++) {
        unsigned a = i * 7 % 50, b = i * 13 % 40;

        td_buf_fmt(out,
                   "{\"role\":\"user\",\"content\":\"Compute %u + %u.\"},"
                   "{\"role\":\"assistant\",\"content\":\"%u + %u = %u.\"},",
                   a, b, a, b, a + b);
    }
    td_buf_str(out, "{\"role\":\"user\",\"content\":\"");
    for (size_t i = 0; i < (w->repeat ? w->repeat : 1); i++)
        td_buf_json(out, prompt, strlen(prompt));
    td_buf_str(out, w->plain ? "\"}]"
                             : "\"},{\"role\":\"assistant\",\"content\":\"So\"}],"
                               "\"continue_final_message\":true,\"ignore_eos\":true");
    td_buf_fmt(out, ",\"temperature\":%g", w->temperature);
    if (w->max_tokens > 0)
        td_buf_fmt(out, ",\"max_tokens\":%u", w->max_tokens);
    if (w->top_p > 0)
        td_buf_fmt(out, ",\"top_p\":%g", w->top_p);
    if (w->top_k > 0)
        td_buf_fmt(out, ",\"top_k\":%u", w->top_k);
    if (w->seed > 0)
        td_buf_fmt(out, ",\"seed\":%u", w->seed);
    if (w->stream)
        td_buf_fmt(out, ",\"stream\":true,\"stream_options\":{\"include_usage\":%s}",
                   w->usage ? "true" : "false");
    if (w->extra != NULL)
        td_buf_fmt(out, ",%s", w->extra);
    td_buf_str(out, "}");
    assert_false(out->oom);
}

void ask_chat(ask *a, uint16_t port, const want *w)
{
    td_buf body = {0};

    want_body(w, &body);
    ask_post(a, port, body.ptr);
    td_buf_free(&body);
}

void ask_whole(ask *a, uint16_t port, const want *w)
{
    ask_chat(a, port, w);
    asks_wait(a, 1);
}

void ask_free(ask *a)
{
    if (!a->ended && a->fd >= 0)
        close(a->fd);
    td_buf_free(&a->out);
    td_buf_free(&a->in);
    td_buf_free(&a->head);
    td_buf_free(&a->body);
    td_buf_free(&a->content);
    td_buf_free(&a->reasoning);
    for (size_t i = 0; i < ASK_MAX_CALLS; i++)
        td_buf_free(&a->calls[i].arguments);
    cJSON_Delete(a->root);
    cJSON_Delete(a->usage);
    cJSON_Delete(a->tandem);
    cJSON_Delete(a->error);
    *a = (ask){.fd = -1, .ended = true};
}

void asks_free(ask *a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ask_free(&a[i]);
}

int http_get(uint16_t port, const char *path, td_buf *body)
{
    ask a = {.fd = connect_to(port), .began = td_now_us()};
    int status;

    if (a.fd < 0)
        return -1;
    fill_request(&a, "GET", path, "Connection: close\r\n", NULL, 0);
    asks_wait(&a, 1);
    status = a.cut ? -1 : a.status;
    if (body != NULL)
        td_buf_add(body, a.body.ptr, a.body.len);
    ask_free(&a);
    return status;
}
