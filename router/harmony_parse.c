/* A machine of four states, driven by ids:
 *
 *   BETWEEN   no message is open        --<|start|>, <|channel|>, text--> HEADER
 *   HEADER    collecting a header       --<|message|>--> CONTENT, --an end--> BETWEEN
 *   CONTENT   inside a message          --an end--> BETWEEN, --<|start|>--> HEADER
 *   DONE      a stop token came         everything else is dropped
 *
 * Headers are read by harmony_header.c when they end. What a state does with an id that does not
 * belong there is decided here, always so that text of the answer survives and text of the format
 * does not. Two things wait: a <|channel|> inside content until the text after it tells whether a
 * new header begins, and bare text without any header until it is known whether more follows. */
#include "router/harmony_parse.h"

#include <stdlib.h>
#include <string.h>

#include "router/harmony_header.h"
#include "router/harmony_recipient.h"
#include "router/harmony_writer.h"
#include "router/tokenizer.h"

typedef enum state {
    ST_BETWEEN,
    ST_HEADER,
    ST_CONTENT,
    ST_DONE,
} state;

/* How the header that is being collected began. */
typedef enum origin {
    FROM_PROMPT, /* the prompt's <|start|>assistant */
    FROM_START,  /* a <|start|> of the model */
    FROM_TEXT,   /* text where a <|start|> was due */
    FROM_MARKER, /* <|channel|> or <|message|> where a <|start|> was due */
} origin;

struct harmony_parser {
    const harmony *h;
    harmony_ids ids;
    harmony_writer out;
    chat text; /* owns the names */
    td_slice *name_list;
    harmony_names names;
    td_tokens prime; /* fed before the first id: what the prompt already fixed */

    state state;
    origin origin;
    harmony_header header;

    bool after_analysis; /* the last message was reasoning */
    bool marker_waits;   /* a <|channel|> came inside content... */
    td_buf waiting;      /* ...and this text after it */
    td_buf bare;         /* text of a message that had no header at all */
    uint64_t bare_ids;   /* the ids that made it */

    harmony_stats stats;
    bool primed, finished, oom;
};

static const char *const repair_labels[] = {
#define TD_X(name, label, text) [HARMONY_REPAIR_##name] = label,
    HARMONY_REPAIR_MAP(TD_X)
#undef TD_X
};

const char *harmony_repair_label(harmony_repair r)
{
    return r < HARMONY_REPAIR_COUNT ? repair_labels[r] : "unknown";
}

static void count(harmony_parser *p, harmony_repair r)
{
    p->stats.repairs[r]++;
}

static void close_message(harmony_parser *p, bool complete)
{
    harmony_writer_close(&p->out, complete);
    p->after_analysis = p->out.route == HARMONY_TO_REASONING;
}

/* A whole message at once. */
static void send_message(harmony_parser *p, harmony_route to, td_slice name, td_slice text,
                         bool complete)
{
    harmony_writer_open(&p->out, to, name);
    harmony_writer_bytes(&p->out, text);
    close_message(p, complete);
}

static void begin_header(harmony_parser *p, origin from)
{
    harmony_header_clear(&p->header, from == FROM_START);
    p->origin = from;
    p->state = ST_HEADER;
}

/* Where a message goes. Recipients decide before channels, because models put calls on any. */
static harmony_route route_of(harmony_parser *p, const harmony_heading *hg)
{
    if (hg->author != HARMONY_AUTHOR_ASSISTANT)
        return HARMONY_TO_NOBODY;
    if (hg->target == HARMONY_TARGET_FUNCTION)
        return HARMONY_TO_CALL;
    if (hg->target == HARMONY_TARGET_BUILTIN)
        return HARMONY_TO_REASONING;
    /* A namespace of the model's own invention. Where tools are at hand it wanted to call one, and
     * an agent can answer "no such tool"; where none are, only the channel is left to go by. */
    if (hg->target == HARMONY_TARGET_UNKNOWN && p->names.n > 0 && hg->channel != HARMONY_FINAL)
        return HARMONY_TO_CALL;
    switch (hg->channel) {
    case HARMONY_ANALYSIS: return HARMONY_TO_REASONING;
    case HARMONY_COMMENTARY: return HARMONY_TO_CONTENT;
    case HARMONY_FINAL: p->stats.final_begun = true; return HARMONY_TO_CONTENT;
    case HARMONY_NO_CHANNEL: break;
    }
    if (p->stats.final_begun)
        return HARMONY_TO_REASONING;
    p->stats.final_begun = true;
    return HARMONY_TO_CONTENT;
}

/* Text without a header, once it is known what it was. */
static void release_bare(harmony_parser *p, harmony_route to, bool complete)
{
    td_buf text = p->bare;

    if (text.len == 0)
        return;
    p->bare = (td_buf){0};
    if (to == HARMONY_TO_REASONING)
        p->stats.reasoning_tokens += p->bare_ids;
    else
        p->stats.final_begun = true;
    if (to == HARMONY_TO_CONTENT)
        p->stats.content_tokens += p->bare_ids;
    send_message(p, to, TD_SLICE(""), (td_slice){text.ptr, text.len}, complete);
    td_buf_free(&text);
}

/* <|message|>: the header is whole. */
static void end_header(harmony_parser *p)
{
    harmony_heading hg = harmony_header_read(&p->header, &p->names, p->stats.repairs);

    p->oom |= p->header.text.oom || p->header.marks.oom;
    /* The model plays the other side after its own answer or call: its turn is over. */
    if (hg.author != HARMONY_AUTHOR_ASSISTANT && (p->stats.final_begun || p->stats.calls > 0)) {
        release_bare(p, HARMONY_TO_REASONING, true);
        p->state = ST_DONE;
        p->stats.done = true;
        return;
    }
    release_bare(p, HARMONY_TO_REASONING, true);
    harmony_writer_open(&p->out, route_of(p, &hg), hg.name);
    p->state = ST_CONTENT;
}

/* Whether cut-off text may be the beginning of a header rather than of an answer. */
static bool is_cut_header(td_slice body)
{
    static const char *const words[] = {"assistant", "analysis", "commentary", "final",     "to=",
                                        "json",      "code",     "text",       "functions."};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (body.len <= strlen(words[i]) && memcmp(body.ptr, words[i], body.len) == 0)
            return true;
    return false;
}

/* How a header without <|message|> ended. */
typedef enum header_end {
    BY_END,  /* <|end|>, or an implied one: more may follow */
    BY_STOP, /* the answer is over */
    BY_CUT,  /* the answer was cut: the header may be half of one */
} header_end;

/* No <|message|> came: what is not header is the content. */
static void abandon_header(harmony_parser *p, header_end how)
{
    harmony_heading hg;
    bool bare;
    td_slice body;
    harmony_route to;

    p->state = ST_BETWEEN;
    p->oom |= p->header.text.oom || p->header.marks.oom;
    if (p->header.text.len == 0 && p->header.marks.len == 0)
        return;
    hg = harmony_header_read_body(&p->header, &p->names, p->stats.repairs);
    bare = hg.channel == HARMONY_NO_CHANNEL && hg.target == HARMONY_TARGET_NONE &&
           p->header.marks.len == 0;
    body = hg.body;
    if (how == BY_CUT && (body.len == 0 || is_cut_header(body)))
        return; /* also a call whose name may be half */
    if (how == BY_CUT && bare && p->origin == FROM_START && memchr(body.ptr, ' ', body.len) == NULL)
        return; /* an author, or half of one */
    if (body.len == 0 && hg.target != HARMONY_TARGET_FUNCTION) {
        if (p->origin != FROM_PROMPT || p->header.marks.len > 0)
            count(p, HARMONY_REPAIR_MESSAGE_MISSING);
        return;
    }
    count(p, HARMONY_REPAIR_MESSAGE_MISSING);
    if (bare && p->origin == FROM_TEXT &&
        (p->stats.final_begun || !(p->after_analysis || p->bare.len > 0))) {
        count(p, HARMONY_REPAIR_TEXT_BETWEEN);
        return;
    }
    release_bare(p, HARMONY_TO_REASONING, true);
    if (bare && p->origin != FROM_START && hg.author == HARMONY_AUTHOR_ASSISTANT) {
        td_buf_clear(&p->bare);
        td_buf_add(&p->bare, body.ptr, body.len);
        p->bare_ids = p->header.text_ids;
        p->oom |= p->bare.oom;
        return; /* the end of the answer, or the next message, tells what it is */
    }
    to = route_of(p, &hg);
    if (to == HARMONY_TO_REASONING)
        p->stats.reasoning_tokens += p->header.text_ids;
    if (to == HARMONY_TO_CONTENT)
        p->stats.content_tokens += p->header.text_ids;
    send_message(p, to, hg.name, body, how != BY_CUT);
}

static void end_answer(harmony_parser *p, harmony_end end)
{
    bool complete = end == HARMONY_END_STOP || end == HARMONY_END_STOP_STRING;

    if (p->state == ST_HEADER)
        abandon_header(p, complete ? BY_STOP : BY_CUT);
    else if (p->state == ST_CONTENT)
        close_message(p, complete);
    release_bare(p, HARMONY_TO_CONTENT, complete);
}

/* A <|channel|> inside content turned out to be no header: what was held is content. */
static void drop_marker(harmony_parser *p)
{
    td_buf text = p->waiting;

    if (!p->marker_waits)
        return;
    p->waiting = (td_buf){0};
    p->marker_waits = false;
    count(p, HARMONY_REPAIR_CONTROL_IN_CONTENT);
    harmony_writer_bytes(&p->out, (td_slice){text.ptr, text.len});
    td_buf_free(&text);
}

/* Text after a <|channel|> inside content. */
static void text_after_marker(harmony_parser *p, td_slice bytes)
{
    td_slice word;
    size_t skip = 0, len;

    td_buf_add(&p->waiting, bytes.ptr, bytes.len);
    p->oom |= p->waiting.oom;
    word = (td_slice){p->waiting.ptr, p->waiting.len};
    while (skip < word.len && skip < 2 && word.ptr[skip] == ' ')
        skip++;
    word = (td_slice){word.ptr + skip, word.len - skip};
    if (harmony_channel_begins(word))
        return;
    if (harmony_channel_prefix(word, &len) == HARMONY_NO_CHANNEL) {
        drop_marker(p);
        return;
    }
    count(p, HARMONY_REPAIR_END_MISSING);
    close_message(p, true);
    begin_header(p, FROM_MARKER);
    harmony_header_mark(&p->header, HARMONY_PART_CHANNEL);
    td_buf_add(&p->header.text, word.ptr, word.len);
    p->header.text_ids++;
    td_buf_clear(&p->waiting);
    p->marker_waits = false;
}

static void push_text(harmony_parser *p, td_slice bytes, bool known)
{
    switch (p->state) {
    case ST_BETWEEN: {
        size_t n = 0;

        while (n < bytes.len && memchr(" \t\r\n", bytes.ptr[n], 4) != NULL)
            n++;
        if (n == bytes.len || !known)
            return;
        count(p, HARMONY_REPAIR_START_MISSING);
        begin_header(p, FROM_TEXT);
    } /* fall through */
    case ST_HEADER:
        if (known) {
            td_buf_add(&p->header.text, bytes.ptr, bytes.len);
            p->header.text_ids++;
        }
        return;
    case ST_CONTENT:
        if (p->out.route == HARMONY_TO_REASONING)
            p->stats.reasoning_tokens++;
        if (p->out.route == HARMONY_TO_CONTENT)
            p->stats.content_tokens++;
        if (p->marker_waits && known) {
            text_after_marker(p, bytes);
            return;
        }
        drop_marker(p);
        if (!known)
            harmony_writer_unknown(&p->out);
        else
            harmony_writer_bytes(&p->out, bytes);
        return;
    case ST_DONE: return;
    }
}

/* <|start|> */
static void push_start(harmony_parser *p)
{
    bool between = p->state == ST_BETWEEN;

    if (p->state == ST_CONTENT) {
        count(p, HARMONY_REPAIR_END_MISSING);
        close_message(p, true);
    } else if (p->state == ST_HEADER && p->origin == FROM_TEXT && p->header.marks.len == 0) {
        count(p, HARMONY_REPAIR_TEXT_BETWEEN);
    } else if (!between) {
        count(p, HARMONY_REPAIR_START_REPEATED);
        abandon_header(p, BY_END);
    }
    begin_header(p, FROM_START);
}

/* <|end|>, and the stop tokens, which also end the answer. */
static void push_end(harmony_parser *p, bool stop)
{
    if (stop) {
        if (p->state == ST_BETWEEN)
            count(p, HARMONY_REPAIR_END_REPEATED);
        end_answer(p, HARMONY_END_STOP);
        p->state = ST_DONE;
        p->stats.done = true;
        return;
    }
    if (p->state == ST_BETWEEN)
        count(p, HARMONY_REPAIR_END_REPEATED);
    else if (p->state == ST_HEADER)
        abandon_header(p, BY_END);
    else
        close_message(p, true);
    p->state = ST_BETWEEN;
}

/* <|channel|>, <|constrain|>, <|message|> */
static void push_marker(harmony_parser *p, int32_t id)
{
    if (p->state == ST_CONTENT) {
        if (id == p->ids.channel)
            p->marker_waits = true;
        else
            count(p, HARMONY_REPAIR_CONTROL_IN_CONTENT);
        return;
    }
    if (p->state == ST_BETWEEN) {
        count(p, HARMONY_REPAIR_START_MISSING);
        begin_header(p, FROM_MARKER);
    }
    if (id == p->ids.message)
        end_header(p);
    else
        harmony_header_mark(&p->header,
                            id == p->ids.channel ? HARMONY_PART_CHANNEL : HARMONY_PART_CONSTRAIN);
}

static void step(harmony_parser *p, int32_t id)
{
    const harmony_ids *k = &p->ids;
    td_slice bytes;
    bool marker = id == k->channel || id == k->constrain || id == k->message;
    bool stop = id == k->ret || id == k->call || (id >= 0 && id == k->endoftext);

    if (p->state == ST_DONE) {
        count(p, HARMONY_REPAIR_AFTER_END);
    } else if (id == k->start || id == k->end || marker || stop) {
        drop_marker(p);
        if (id == k->start)
            push_start(p);
        else if (marker)
            push_marker(p, id);
        else
            push_end(p, stop);
    } else if (tokenizer_is_special(harmony_tokenizer(p->h), id)) {
        drop_marker(p);
        count(p, HARMONY_REPAIR_CONTROL_IN_CONTENT);
    } else if (tokenizer_bytes(harmony_tokenizer(p->h), id, &bytes)) {
        push_text(p, bytes, true);
    } else {
        count(p, HARMONY_REPAIR_UNKNOWN_ID);
        push_text(p, (td_slice){NULL, 0}, false);
    }
}

/* What the prompt fixed is read as if the model had written it, but counts for nothing. */
static void feed_prime(harmony_parser *p)
{
    if (p->primed)
        return;
    p->primed = true;
    for (size_t i = 0; i < p->prime.len; i++)
        step(p, p->prime.ptr[i]);
    memset(p->stats.repairs, 0, sizeof p->stats.repairs);
    p->header.text_ids = 0;
}

bool harmony_parse_push(harmony_parser *p, int32_t id)
{
    if (p->finished)
        return true;
    feed_prime(p);
    p->stats.tokens++;
    step(p, id);
    return p->state == ST_DONE;
}

void harmony_parse_finish(harmony_parser *p, harmony_end end)
{
    if (p->finished)
        return;
    feed_prime(p);
    p->finished = true;
    if (p->state == ST_DONE)
        return;
    /* A marker with the beginning of a channel's name is a header that was cut, not content. */
    if (p->marker_waits && !(end == HARMONY_END_LENGTH || end == HARMONY_END_ABORT))
        drop_marker(p);
    end_answer(p, end);
    p->state = ST_DONE;
}

const char *harmony_finish_reason(const harmony_parser *p, harmony_end end)
{
    if (p->stats.done || end == HARMONY_END_STOP)
        return p->stats.calls > 0 ? "tool_calls" : "stop";
    return end == HARMONY_END_LENGTH ? "length" : "stop";
}

const harmony_stats *harmony_parser_stats(const harmony_parser *p)
{
    return &p->stats;
}

bool harmony_parser_oom(const harmony_parser *p)
{
    return p->oom || p->out.oom || p->text.oom;
}

td_status harmony_parser_create(const harmony *h, const chat *c, const harmony_sink *sink,
                                void *user, harmony_parser **out, td_error *err)
{
    harmony_parser *p = calloc(1, sizeof *p);
    size_t n = c != NULL ? chat_visible_tools(c) : 0;
    td_status st = TD_OK;

    if (p == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a parser");
    p->h = h;
    p->ids = *harmony_ids_of(h);
    p->out = (harmony_writer){.sink = *sink, .user = user, .stats = &p->stats};
    chat_init(&p->text);
    if (n > 0) {
        p->name_list = calloc(n, sizeof *p->name_list);
        if (p->name_list == NULL)
            st = td_fail(err, TD_NOMEM, "no memory for the names of %zu tools", n);
    }
    for (size_t i = 0; st == TD_OK && i < n; i++) {
        td_slice name = chat_bare_name(c->tools[i].name);

        p->name_list[i] = chat_text(&p->text, name.ptr, name.len);
    }
    p->names = (harmony_names){p->name_list, st == TD_OK ? n : 0};
    if (st == TD_OK && c != NULL)
        st = harmony_prime(h, c, &p->prime, err);
    if (st == TD_OK && (p->text.oom || p->prime.oom))
        st = td_fail(err, TD_NOMEM, "no memory for a parser's names");
    begin_header(p, FROM_PROMPT);
    if (st != TD_OK) {
        harmony_parser_free(p);
        return st;
    }
    *out = p;
    return TD_OK;
}

void harmony_parser_free(harmony_parser *p)
{
    if (p == NULL)
        return;
    chat_free(&p->text);
    free(p->name_list);
    td_tokens_free(&p->prime);
    harmony_header_free(&p->header);
    td_buf_free(&p->waiting);
    td_buf_free(&p->bare);
    harmony_writer_fini(&p->out);
    free(p);
}
