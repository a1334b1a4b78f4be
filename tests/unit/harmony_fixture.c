#include "tests/unit/harmony_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tokenizer *tokenizers[2];
static harmony *harmonies[2];

static const harmony *open_once(int which, const char *path)
{
    td_error err;

    if (harmonies[which] != NULL)
        return harmonies[which];
    if (tokenizer_open(path, &tokenizers[which], &err) != TD_OK ||
        harmony_open(tokenizers[which], NULL, &harmonies[which], &err) != TD_OK) {
        fprintf(stderr, "%s: %s\n", path, err.text);
        abort();
    }
    return harmonies[which];
}

const harmony *fixture_harmony(void)
{
    return open_once(0, HARMONY_DATA "tokenizer.json");
}

const harmony *fixture_o200k(void)
{
    const char *path = getenv("TANDEM_O200K");

    return path != NULL && path[0] != '\0' ? open_once(1, path) : NULL;
}

harmony *fixture_with(const harmony *h, const harmony_options *options)
{
    harmony *other = NULL;

    td_assert(harmony_open(harmony_tokenizer(h), options, &other, NULL) == TD_OK);
    return other;
}

int fixture_tear_down(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        harmony_close(harmonies[i]);
        tokenizer_close(tokenizers[i]);
        harmonies[i] = NULL;
        tokenizers[i] = NULL;
    }
    return 0;
}

char *fixture_read(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    td_buf b = {0};
    char chunk[4096];

    if (f == NULL) {
        perror(path);
        abort();
    }
    for (size_t got; (got = fread(chunk, 1, sizeof chunk, f)) > 0;)
        td_buf_add(&b, chunk, got);
    fclose(f);
    td_buf_add(&b, "", 0);
    *n = b.len;
    return b.ptr;
}

cJSON *fixture_json(const char *text, size_t n)
{
    cJSON *root = cJSON_ParseWithLength(text, n);

    if (root != NULL)
        chat_keep_numbers(root, text, n);
    return root;
}

static const cJSON *get(const cJSON *o, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(o, key);
}

static td_slice text(chat *c, const cJSON *v)
{
    const char *s = cJSON_GetStringValue(v);

    return s != NULL ? chat_str(c, s) : (td_slice){NULL, 0};
}

/* A string, or an array of text parts. */
static td_slice content(chat *c, const cJSON *v)
{
    td_buf joined = {0};
    td_slice s;

    if (!cJSON_IsArray(v))
        return text(c, v);
    for (const cJSON *p = v->child; p != NULL; p = p->next)
        td_buf_str(&joined, cJSON_GetStringValue(get(p, "text")));
    s = chat_text(c, joined.ptr, joined.len);
    td_buf_free(&joined);
    return s;
}

static void add_message(chat *c, const cJSON *v)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    const char *role = cJSON_GetStringValue(get(v, "role"));
    const cJSON *reasoning =
        get(v, "reasoning") ? get(v, "reasoning") : get(v, "reasoning_content");
    chat_message *m;
    int r = 0;

    while (strcmp(roles[r], role) != 0)
        r++;
    m = chat_add_message(c, (chat_role)r);
    m->content = content(c, get(v, "content"));
    m->reasoning = text(c, reasoning);
    m->name = text(c, get(v, "name"));
    m->tool_call_id = text(c, get(v, "tool_call_id"));
    for (const cJSON *p = cJSON_GetArrayItem(get(v, "tool_calls"), 0); p != NULL; p = p->next) {
        chat_tool_call *call = chat_add_tool_call(c, m);
        const cJSON *function = get(p, "function");

        call->id = text(c, get(p, "id"));
        call->name = text(c, get(function, "name"));
        call->arguments = text(c, get(function, "arguments"));
    }
}

static void set_tool_choice(chat *c, const cJSON *v)
{
    const char *s = cJSON_GetStringValue(v);

    if (s != NULL) {
        c->tool_choice = strcmp(s, "none") == 0       ? CHAT_TOOL_NONE
                         : strcmp(s, "required") == 0 ? CHAT_TOOL_REQUIRED
                                                      : CHAT_TOOL_AUTO;
    } else if (v != NULL) {
        c->tool_choice = CHAT_TOOL_NAMED;
        c->tool_choice_name = text(c, get(get(v, "function"), "name"));
    }
}

static void set_format(chat *c, const cJSON *v)
{
    const char *type = cJSON_GetStringValue(get(v, "type"));
    const cJSON *schema = get(v, "json_schema");

    if (type != NULL && strcmp(type, "json_object") == 0)
        c->format = CHAT_FORMAT_JSON_OBJECT;
    if (type == NULL || strcmp(type, "json_schema") != 0)
        return;
    c->format = CHAT_FORMAT_JSON_SCHEMA;
    c->format_name = text(c, get(schema, "name"));
    c->format_description = text(c, get(schema, "description"));
    chat_set_format_schema(c, cJSON_Duplicate(get(schema, "schema"), true));
}

void fixture_chat(chat *c, const cJSON *body)
{
    const char *effort = cJSON_GetStringValue(get(body, "reasoning_effort"));

    chat_init(c);
    for (const cJSON *m = cJSON_GetArrayItem(get(body, "messages"), 0); m != NULL; m = m->next)
        add_message(c, m);
    for (const cJSON *p = cJSON_GetArrayItem(get(body, "tools"), 0); p != NULL; p = p->next) {
        const cJSON *function = get(p, "function");
        chat_tool *t = chat_add_tool(c);

        t->name = text(c, get(function, "name"));
        t->description = text(c, get(function, "description"));
        chat_set_parameters(c, t, cJSON_Duplicate(get(function, "parameters"), true));
    }
    set_tool_choice(c, get(body, "tool_choice"));
    set_format(c, get(body, "response_format"));
    if (effort != NULL)
        c->effort = effort[0] == 'l'   ? CHAT_EFFORT_LOW
                    : effort[0] == 'h' ? CHAT_EFFORT_HIGH
                                       : CHAT_EFFORT_MEDIUM;
    for (const cJSON *p = cJSON_GetArrayItem(get(body, "builtin_tools"), 0); p != NULL; p = p->next)
        c->builtin_tools |= strcmp(cJSON_GetStringValue(p), "python") == 0 ? CHAT_BUILTIN_PYTHON
                                                                           : CHAT_BUILTIN_BROWSER;
    if (get(body, "identity") != NULL)
        c->identity = text(c, get(body, "identity"));
    if (get(body, "cutoff") != NULL)
        c->cutoff = text(c, get(body, "cutoff"));
    if (get(body, "channels") != NULL)
        c->channels = text(c, get(body, "channels"));
    c->date = text(c, get(body, "date"));
    c->continue_final = cJSON_IsTrue(get(body, "continue_final"));
}

td_tokens fixture_tokens(const harmony *h, const char *s)
{
    td_tokens ids = {0};

    td_assert(tokenizer_encode_special(harmony_tokenizer(h), s, strlen(s), &ids, NULL) == TD_OK);
    return ids;
}

td_tokens fixture_bytes(const harmony *h, const td_tokens *ids)
{
    td_tokens out = {0};

    for (size_t i = 0; i < ids->len; i++) {
        td_slice bytes;

        if (tokenizer_is_special(harmony_tokenizer(h), ids->ptr[i])) {
            td_tokens_push(&out, ids->ptr[i]);
            continue;
        }
        td_assert(tokenizer_bytes(harmony_tokenizer(h), ids->ptr[i], &bytes));
        for (size_t b = 0; b < bytes.len; b++)
            td_tokens_push(&out, (unsigned char)bytes.ptr[b]);
    }
    return out;
}

td_buf fixture_text(const harmony *h, const td_tokens *ids)
{
    td_buf out = {0};

    td_assert(tokenizer_decode(harmony_tokenizer(h), ids->ptr, ids->len, &out, NULL) == TD_OK);
    td_buf_add(&out, "", 0);
    return out;
}

static void check_text(record *r, td_slice s)
{
    r->half_text |= s.len == 0 || !td_utf8_valid(s.ptr, s.len, NULL);
}

static void on_text(void *user, harmony_kind kind, td_slice s)
{
    record *r = user;

    check_text(r, s);
    td_buf_add(kind == HARMONY_REASONING ? &r->reasoning : &r->content, s.ptr, s.len);
    td_buf_fmt(&r->events, "%c:%.*s\n", kind == HARMONY_REASONING ? 'R' : 'C', (int)s.len, s.ptr);
}

static void on_begin(void *user, size_t index, td_slice name)
{
    record *r = user;

    r->out_of_turn |= index != r->n_calls || name.len == 0;
    td_buf_fmt(&r->events, "B%zu:%.*s\n", index, (int)name.len, name.ptr);
    if (index >= sizeof r->calls / sizeof *r->calls)
        return;
    td_buf_add(&r->calls[index].name, name.ptr, name.len);
    td_buf_add(&r->calls[index].arguments, "", 0);
    r->n_calls = index + 1;
}

static void on_args(void *user, size_t index, td_slice s)
{
    record *r = user;

    check_text(r, s);
    td_buf_fmt(&r->events, "A%zu:%.*s\n", index, (int)s.len, s.ptr);
    if (index >= sizeof r->calls / sizeof *r->calls)
        return;
    r->out_of_turn |= index + 1 != r->n_calls || r->calls[index].ended;
    td_buf_add(&r->calls[index].arguments, s.ptr, s.len);
}

static void on_end(void *user, harmony_kind kind, size_t index, bool complete)
{
    record *r = user;

    td_buf_fmt(&r->events, "E:%c%d\n", "RCT"[kind], complete);
    if (kind != HARMONY_CALL || index >= sizeof r->calls / sizeof *r->calls)
        return;
    r->out_of_turn |= index + 1 != r->n_calls || r->calls[index].ended;
    r->calls[index].ended = true;
    r->calls[index].complete = complete;
}

const harmony_sink record_sink = {
    .on_text = on_text,
    .on_tool_call_begin = on_begin,
    .on_tool_call_args = on_args,
    .on_message_end = on_end,
};

void record_fini(record *r)
{
    td_buf_free(&r->reasoning);
    td_buf_free(&r->content);
    td_buf_free(&r->events);
    for (size_t i = 0; i < sizeof r->calls / sizeof *r->calls; i++) {
        td_buf_free(&r->calls[i].name);
        td_buf_free(&r->calls[i].arguments);
    }
}

void record_run(record *r, const harmony *h, const chat *c, const int32_t *ids, size_t n,
                harmony_end end)
{
    harmony_parser *p = NULL;

    *r = (record){0};
    td_buf_add(&r->reasoning, "", 0);
    td_buf_add(&r->content, "", 0);
    td_buf_add(&r->events, "", 0);
    td_assert(harmony_parser_create(h, c, &record_sink, r, &p, NULL) == TD_OK);
    for (size_t i = 0; i < n; i++)
        if (harmony_parse_push(p, ids[i]))
            break;
    harmony_parse_finish(p, end);
    r->finish_reason = harmony_finish_reason(p, end);
    r->stats = *harmony_parser_stats(p);
    td_assert(!harmony_parser_oom(p));
    harmony_parser_free(p);
}
