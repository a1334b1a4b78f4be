/* One pass over the words of the parts, in order. A word is understood (author, channel, recipient,
 * content type) or it is not; what is not is ignored and counted, or, in a header that never came
 * to its <|message|>, begins the content. */
#include "router/harmony_header.h"

#include <string.h>

#include "router/harmony_recipient.h"

void harmony_header_clear(harmony_header *hd, bool role_open)
{
    td_buf_clear(&hd->text);
    hd->marks.len = 0;
    hd->marks.oom = false;
    hd->role_open = role_open;
    hd->text_ids = 0;
}

void harmony_header_mark(harmony_header *hd, harmony_part part)
{
    td_tokens_push(&hd->marks, (int32_t)hd->text.len);
    td_tokens_push(&hd->marks, (int32_t)part);
}

void harmony_header_free(harmony_header *hd)
{
    td_buf_free(&hd->text);
    td_tokens_free(&hd->marks);
}

static const char *const channel_names[] = {
    [HARMONY_ANALYSIS] = "analysis",
    [HARMONY_COMMENTARY] = "commentary",
    [HARMONY_FINAL] = "final",
};

harmony_channel harmony_channel_prefix(td_slice text, size_t *len)
{
    for (int c = HARMONY_ANALYSIS; c <= HARMONY_FINAL; c++) {
        if (harmony_word_begins(text, channel_names[c])) {
            *len = strlen(channel_names[c]);
            return (harmony_channel)c;
        }
    }
    *len = 0;
    return HARMONY_NO_CHANNEL;
}

bool harmony_channel_begins(td_slice text)
{
    for (int c = HARMONY_ANALYSIS; c <= HARMONY_FINAL; c++) {
        char head[16];

        if (text.len >= strlen(channel_names[c]))
            continue;
        memcpy(head, channel_names[c], text.len);
        head[text.len] = '\0';
        if (harmony_word_is(text, head))
            return true;
    }
    return false;
}

/* Length of the white space character (Unicode White_Space) at p, 0 when there is none. */
static size_t space_len(const char *p, size_t n)
{
    const unsigned char *b = (const unsigned char *)p;

    if (b[0] == ' ' || (b[0] >= 0x09 && b[0] <= 0x0d))
        return 1;
    if (n >= 2 && b[0] == 0xc2 && (b[1] == 0x85 || b[1] == 0xa0))
        return 2;
    if (n < 3)
        return 0;
    if (b[0] == 0xe2 && b[1] == 0x80 &&
        ((b[2] >= 0x80 && b[2] <= 0x8a) || b[2] == 0xa8 || b[2] == 0xa9 || b[2] == 0xaf))
        return 3;
    if (memcmp(b, "\xe1\x9a\x80", 3) == 0 || memcmp(b, "\xe2\x81\x9f", 3) == 0 ||
        memcmp(b, "\xe3\x80\x80", 3) == 0)
        return 3;
    return 0;
}

/* The next word of text[*at, end); false at the end. *at is then past the word. */
static bool next_word(const char *text, size_t *at, size_t end, td_slice *word)
{
    size_t i = *at, from;

    for (size_t n; i < end && (n = space_len(text + i, end - i)) > 0;)
        i += n;
    for (from = i; i < end && space_len(text + i, end - i) == 0;)
        i++;
    *word = (td_slice){text + from, i - from};
    *at = i;
    return word->len > 0;
}

typedef struct reader {
    const harmony_header *hd;
    const harmony_names *names;
    uint32_t *repairs;
    harmony_heading *out;
    bool body;         /* there is no <|message|>: look for where the content begins */
    harmony_part part; /* being read */
    bool first;        /* at the first word of the part */
    bool value_next;   /* "to=" was the whole word: the next one is the recipient */
    bool equals_next;  /* "to" was the whole word */
    int channels;      /* known ones so far */
    int recipients;    /* so far */
    td_slice rest;     /* of the word just read: bytes that are not header */
    bool rest_is_text; /* not what is left of a name, but the next thing that was said */
} reader;

static void count(reader *r, harmony_repair repair)
{
    r->repairs[repair]++;
}

static bool is_type(td_slice word)
{
    return harmony_word_is(word, "json") || harmony_word_is(word, "code") ||
           harmony_word_is(word, "text");
}

static void take_channel(reader *r, harmony_channel channel)
{
    if (r->channels++ > 0)
        count(r, HARMONY_REPAIR_CHANNEL_REPEATED);
    r->out->channel = channel; /* the last one counts */
}

/* The last recipient that is declared or built in, else the last one. */
static void take_recipient(reader *r, td_slice word, bool had_to)
{
    harmony_recipient to = harmony_recipient_read(word, r->names);
    bool known = to.declared || to.target == HARMONY_TARGET_BUILTIN;
    bool have_known = r->out->declared || r->out->target == HARMONY_TARGET_BUILTIN;

    r->rest = (td_slice){word.ptr + to.used, word.len - to.used};
    if (to.odd || !had_to)
        count(r, HARMONY_REPAIR_RECIPIENT_SPELLING);
    if (to.target == HARMONY_TARGET_NONE)
        return;
    if (r->recipients++ > 0)
        count(r, HARMONY_REPAIR_RECIPIENT_REPEATED);
    if (have_known && !known)
        return;
    r->out->target = to.target;
    r->out->declared = to.declared;
    r->out->name = to.name;
}

/* Where "to=" stands inside a word, after something else; 0 when it does not. */
static size_t glued_to(td_slice word)
{
    for (size_t i = 1; i + 3 <= word.len; i++)
        if (harmony_word_begins((td_slice){word.ptr + i, word.len - i}, "to="))
            return i;
    return 0;
}

/* Author of a message that began with <|start|>. False when the word is none. */
static bool read_author(reader *r, td_slice word)
{
    static const char *const others[] = {"user", "system", "developer"};
    const char *colon = memchr(word.ptr, ':', word.len);
    td_slice role = {word.ptr, colon != NULL ? (size_t)(colon - word.ptr) : word.len};

    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (harmony_word_is(role, others[i])) {
            r->out->author = HARMONY_AUTHOR_OTHER;
            return true;
        }
    }
    if (harmony_word_is(role, "tool") || harmony_word_begins(word, "functions.") ||
        harmony_word_begins(word, "browser.") || harmony_word_is(word, "python") ||
        harmony_names_have(r->names, word)) {
        r->out->author = HARMONY_AUTHOR_TOOL;
        return true;
    }
    return false;
}

static bool read_word(reader *r, td_slice word);

/* More than signs: a letter, a digit or a character beyond ASCII. */
static bool says_something(td_slice text)
{
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.ptr[i];

        if (c >= 0x80 || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z'))
            return true;
    }
    return false;
}

/* "assistant", also with the next part of the header glued to it, "assistantfinal". */
static bool read_assistant(reader *r, td_slice word)
{
    const size_t n = sizeof "assistant" - 1;
    size_t len;

    if (!harmony_word_begins(word, "assistant"))
        return false;
    word = (td_slice){word.ptr + n, word.len - n};
    if (word.len == 0 || word.ptr[0] == ':')
        return true;
    if (harmony_channel_prefix(word, &len) != HARMONY_NO_CHANNEL && len == word.len) {
        count(r, HARMONY_REPAIR_CHANNEL_SPELLING);
        take_channel(r, harmony_channel_prefix(word, &len));
        return true;
    }
    if (harmony_word_begins(word, "to="))
        return read_word(r, word);
    if (!r->body || !r->hd->role_open || !says_something(word))
        return false;
    r->rest = word; /* "assistantHello" */
    return r->rest_is_text = true;
}

/* The name of a channel with whatever is glued to it. False when the word begins with none. */
static bool read_channel(reader *r, td_slice word)
{
    size_t len;
    harmony_channel channel = harmony_channel_prefix(word, &len);
    td_slice tail = {word.ptr + len, word.len - len};

    if (channel == HARMONY_NO_CHANNEL)
        return false;
    if (tail.len > 0 || memcmp(word.ptr, channel_names[channel], len) != 0)
        count(r, HARMONY_REPAIR_CHANNEL_SPELLING);
    take_channel(r, channel);
    if (tail.len == 0 || is_type(tail))
        return true;
    if (harmony_word_begins(tail, "to="))
        return read_word(r, tail);
    r->rest = tail;
    r->rest_is_text = says_something(tail); /* "finalHello" */
    return true;
}

/* Whether the text after a word, white space aside, looks like JSON. */
static bool json_follows(const reader *r, td_slice word)
{
    const char *end = r->hd->text.ptr + r->hd->text.len, *p = word.ptr + word.len;

    for (size_t n; p < end && (n = space_len(p, (size_t)(end - p))) > 0;)
        p += n;
    return p < end && (*p == '{' || *p == '[');
}

/* In a header without <|message|>, "json" may be the first word of the content, so it counts as a
 * type only where one is due. */
static bool type_is_due(const reader *r, td_slice word)
{
    return !r->body || r->recipients > 0 || json_follows(r, word);
}

/* The word after <|constrain|>: a type, whatever it says. Without a <|message|> it may also be the
 * first word of the content, so then it must look like a type, or stand before JSON. */
static bool read_constraint(reader *r, td_slice word)
{
    td_slice type = {word.ptr, 0};

    if (r->body) { /* json{"a":1} */
        while (type.len < word.len && (word.ptr[type.len] | 32) >= 'a' &&
               (word.ptr[type.len] | 32) <= 'z')
            type.len++;
        if (type.len == 0 ||
            !(is_type(type) || harmony_word_is(type, "response") || json_follows(r, type)))
            return false;
        r->rest = (td_slice){word.ptr + type.len, word.len - type.len};
        word = type;
    }
    if (!is_type(word))
        count(r, HARMONY_REPAIR_TYPE_ODD);
    return true;
}

/* Take one word; false when it means nothing in a header. */
static bool read_word(reader *r, td_slice word)
{
    bool first = r->first;
    size_t at, len;

    r->first = false;
    if (r->value_next || (r->equals_next && word.ptr[0] == '=')) {
        td_slice value = word;

        if (!r->value_next)
            value = (td_slice){word.ptr + 1, word.len - 1};
        r->equals_next = false;
        r->value_next = value.len == 0;
        count(r, HARMONY_REPAIR_RECIPIENT_SPELLING);
        if (value.len > 0)
            take_recipient(r, value, true);
        return true;
    }
    r->equals_next = false;
    if (harmony_word_begins(word, "to=")) {
        r->value_next = word.len == 3;
        if (word.len > 3)
            take_recipient(r, (td_slice){word.ptr + 3, word.len - 3}, true);
        return true;
    }
    if (harmony_word_begins(word, "functions.")) {
        if (first && r->part == HARMONY_PART_ROLE && r->hd->role_open)
            return read_author(r, word);
        take_recipient(r, word, false);
        return true;
    }
    if (first && r->part == HARMONY_PART_ROLE) {
        if (read_assistant(r, word) || (r->hd->role_open && read_author(r, word)))
            return true;
    }
    if (first && r->part == HARMONY_PART_CHANNEL) {
        if (read_channel(r, word))
            return true;
        if (r->body && word.ptr[0] != '{' && word.ptr[0] != '[')
            return true; /* the name of a channel that nobody knows, not content */
    }
    at = glued_to(word);
    if (at > 0 && is_type((td_slice){word.ptr, at})) { /* jsonto=functions.x */
        count(r, HARMONY_REPAIR_RECIPIENT_SPELLING);
        take_recipient(r, (td_slice){word.ptr + at + 3, word.len - at - 3}, true);
        return true;
    }
    if (first && r->part == HARMONY_PART_CONSTRAIN)
        return read_constraint(r, word);
    if (is_type(word) && type_is_due(r, word))
        return true;
    if (!r->body && harmony_names_have(r->names, word)) {
        take_recipient(r, word, false);
        return true;
    }
    /* A channel that does not stand where it should; one that does will outweigh it. */
    if (!r->body && r->part != HARMONY_PART_CONSTRAIN && r->channels == 0 &&
        harmony_channel_prefix(word, &len) != HARMONY_NO_CHANNEL && len == word.len) {
        count(r, HARMONY_REPAIR_CHANNEL_SPELLING);
        r->out->channel = harmony_channel_prefix(word, &len);
        return true;
    }
    if (harmony_word_is(word, "to")) {
        r->equals_next = true; /* junk, unless "=" follows */
        return !r->body;
    }
    return false;
}

/* All words of one part. In the last part of a header without <|message|>, the first one that
 * means nothing begins the body; true when it did. */
static bool read_part(reader *r, size_t from, size_t to, bool last)
{
    const char *text = r->hd->text.ptr;
    td_slice word;

    r->first = true;
    r->value_next = r->equals_next = false;
    while (next_word(text, &from, to, &word)) {
        r->rest = (td_slice){word.ptr + word.len, 0};
        r->rest_is_text = false;
        if (read_word(r, word)) {
            if (r->body && last && r->rest.len > 0 &&
                (r->rest_is_text || r->rest.ptr[0] == '{' || r->rest.ptr[0] == '[')) {
                r->out->body = r->rest;
                return true;
            }
            if (r->rest.len > 0)
                count(r, HARMONY_REPAIR_JUNK_IN_HEADER);
            continue;
        }
        if (r->body && last) {
            r->out->body = word;
            return true;
        }
        count(r, HARMONY_REPAIR_JUNK_IN_HEADER);
    }
    return false;
}

static harmony_heading read_header(const harmony_header *hd, const harmony_names *names,
                                   uint32_t *repairs, bool body)
{
    harmony_heading out = {.author = HARMONY_AUTHOR_ASSISTANT};
    reader r = {.hd = hd, .names = names, .repairs = repairs, .out = &out, .body = body};
    size_t n_marks = hd->marks.len / 2, end = hd->text.len;

    for (size_t i = 0; i <= n_marks && end > 0; i++) {
        const int32_t *mark = i > 0 ? &hd->marks.ptr[2 * (i - 1)] : NULL;

        r.part = mark != NULL ? (harmony_part)mark[1] : HARMONY_PART_ROLE;
        if (read_part(&r, mark != NULL ? (size_t)mark[0] : 0,
                      i < n_marks ? (size_t)hd->marks.ptr[2 * i] : end, i == n_marks))
            break;
    }
    if (out.channel == HARMONY_NO_CHANNEL && out.author == HARMONY_AUTHOR_ASSISTANT)
        count(&r, HARMONY_REPAIR_CHANNEL_MISSING);
    if (out.author != HARMONY_AUTHOR_ASSISTANT)
        count(&r, HARMONY_REPAIR_ROLE_ODD);
    if (out.target == HARMONY_TARGET_UNKNOWN ||
        (out.target == HARMONY_TARGET_FUNCTION && !out.declared))
        count(&r, HARMONY_REPAIR_RECIPIENT_UNKNOWN);
    if (out.body.ptr != NULL) { /* up to the end of the header, without white space there */
        out.body.len = (size_t)(hd->text.ptr + end - out.body.ptr);
        while (out.body.len > 0 && space_len(out.body.ptr + out.body.len - 1, 1) > 0)
            out.body.len--;
    }
    return out;
}

harmony_heading harmony_header_read(const harmony_header *hd, const harmony_names *names,
                                    uint32_t *repairs)
{
    return read_header(hd, names, repairs, false);
}

harmony_heading harmony_header_read_body(const harmony_header *hd, const harmony_names *names,
                                         uint32_t *repairs)
{
    return read_header(hd, names, repairs, true);
}
