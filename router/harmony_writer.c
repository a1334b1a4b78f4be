#include "router/harmony_writer.h"

#include <string.h>

static void send_text(harmony_writer *w, td_slice text)
{
    if (w->route == HARMONY_TO_REASONING)
        w->stats->reasoning_bytes += text.len;
    else
        w->stats->content_bytes += text.len;
    if (w->sink.on_text != NULL)
        w->sink.on_text(w->user, (harmony_kind)w->route, text);
}

static void send_args(harmony_writer *w, td_slice text)
{
    if (w->sink.on_tool_call_args != NULL)
        w->sink.on_tool_call_args(w->user, w->call, text);
}

/* Arguments of white space alone are none, so it waits until something follows. */
static void deliver_args(harmony_writer *w, td_slice text)
{
    size_t n = 0;

    while (!w->wrote && n < text.len && memchr(" \t\r\n", text.ptr[n], 4) != NULL)
        n++;
    if (!w->wrote && n == text.len) {
        td_buf_add(&w->blank, text.ptr, text.len);
        return;
    }
    if (!w->wrote && w->blank.len > 0)
        send_args(w, (td_slice){w->blank.ptr, w->blank.len});
    w->wrote = true;
    send_args(w, text);
}

/* The characters in the scratch buffer, to whom the open message is for. */
static void deliver(harmony_writer *w)
{
    td_slice text = {w->scratch.ptr, w->scratch.len};
    uint64_t sent =
        w->route == HARMONY_TO_REASONING ? w->stats->reasoning_bytes : w->stats->content_bytes;

    w->oom |= w->scratch.oom;
    if (text.len == 0 || w->route == HARMONY_TO_NOBODY)
        return;
    if (w->route == HARMONY_TO_CALL) {
        deliver_args(w, text);
        return;
    }
    if (!w->wrote && sent > 0)
        send_text(w, TD_SLICE("\n"));
    w->wrote = true;
    send_text(w, text);
}

void harmony_writer_open(harmony_writer *w, harmony_route to, td_slice name)
{
    w->route = to;
    w->wrote = false;
    td_buf_clear(&w->blank);
    if (to != HARMONY_TO_CALL)
        return;
    w->call = w->stats->calls++;
    if (w->sink.on_tool_call_begin != NULL)
        w->sink.on_tool_call_begin(w->user, w->call, name);
}

void harmony_writer_bytes(harmony_writer *w, td_slice bytes)
{
    td_buf_clear(&w->scratch);
    w->stats->repairs[HARMONY_REPAIR_BAD_UTF8] +=
        (uint32_t)utf8_stream_push(&w->utf8, bytes, &w->scratch);
    deliver(w);
}

void harmony_writer_unknown(harmony_writer *w)
{
    td_buf_clear(&w->scratch);
    w->stats->repairs[HARMONY_REPAIR_BAD_UTF8] += (uint32_t)utf8_stream_end(&w->utf8, &w->scratch);
    td_buf_str(&w->scratch, "\xEF\xBF\xBD");
    deliver(w);
}

void harmony_writer_close(harmony_writer *w, bool complete)
{
    size_t index = w->route == HARMONY_TO_CALL ? w->call : 0;

    td_buf_clear(&w->scratch);
    w->stats->repairs[HARMONY_REPAIR_BAD_UTF8] += (uint32_t)utf8_stream_end(&w->utf8, &w->scratch);
    deliver(w);
    w->oom |= w->blank.oom;
    if (w->route == HARMONY_TO_CALL && !w->wrote && complete) {
        w->stats->repairs[HARMONY_REPAIR_EMPTY_ARGUMENTS]++;
        send_args(w, TD_SLICE("{}"));
    }
    if (w->route != HARMONY_TO_NOBODY && w->sink.on_message_end != NULL)
        w->sink.on_message_end(w->user, (harmony_kind)w->route, index, complete);
}

void harmony_writer_fini(harmony_writer *w)
{
    td_buf_free(&w->blank);
    td_buf_free(&w->scratch);
}
