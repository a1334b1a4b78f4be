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
#include <string.h>

#include "router/harmony_parser_impl.h"
#include "router/tokenizer.h"

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
