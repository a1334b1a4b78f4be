/* The text of the system message and of the developer message that carries the tools. Sections are
 * joined by an empty line; one that has nothing to say is absent. */
#include "router/harmony_render.h"

#include "router/harmony_builtin.h"
#include "router/harmony_tools.h"

static void add_slice(td_buf *out, td_slice s)
{
    td_buf_add(out, s.ptr, s.len);
}

/* An empty line between sections: before the next one when something stands since `from`. */
static void add_gap(td_buf *out, size_t from)
{
    if (out->len > from)
        td_buf_str(out, "\n\n");
}

static void add_line(td_buf *out, size_t from, const char *label, td_slice text)
{
    if (text.len == 0)
        return;
    if (out->len > from)
        td_buf_byte(out, '\n');
    td_buf_str(out, label);
    add_slice(out, text);
}

/* Sections in the order of their names, which is the reference's. */
static void add_builtin_tools(const chat *c, td_buf *out)
{
    static const struct {
        chat_builtin tool;
        const char *section;
    } builtin[] = {{CHAT_BUILTIN_BROWSER, harmony_browser_section},
                   {CHAT_BUILTIN_PYTHON, harmony_python_section}};

    if (c->builtin_tools == 0)
        return;
    td_buf_str(out, "\n\n# Tools");
    for (size_t i = 0; i < sizeof builtin / sizeof *builtin; i++) {
        if ((c->builtin_tools & builtin[i].tool) == 0)
            continue;
        td_buf_str(out, "\n\n");
        td_buf_str(out, builtin[i].section);
    }
}

static void add_channels(const chat *c, td_buf *out)
{
    if (c->channels.len == 0)
        return;
    td_buf_str(out, "\n\n# Valid channels: ");
    add_slice(out, c->channels);
    td_buf_str(out, ". Channel must be included for every message.");
    if (chat_visible_tools(c) > 0)
        td_buf_str(out, "\nCalls to these tools must go to the commentary channel: 'functions'.");
}

td_status harmony_system_text(const harmony *h, const chat *c, td_buf *out, td_error *err)
{
    static const char *const effort[] = {
        [CHAT_EFFORT_LOW] = "low", [CHAT_EFFORT_MEDIUM] = "medium", [CHAT_EFFORT_HIGH] = "high"};
    size_t from = out->len;

    (void)h;
    add_line(out, from, "", c->identity);
    add_line(out, from, "Knowledge cutoff: ", c->cutoff);
    add_line(out, from, "Current date: ", c->date);
    add_gap(out, from);
    td_buf_fmt(out, "Reasoning: %s", effort[c->effort]);
    add_builtin_tools(c, out);
    add_channels(c, out);
    return out->oom ? td_fail(err, TD_NOMEM, "no memory for the system message") : TD_OK;
}

/* The texts of the system and developer messages at the start of the conversation. */
static void add_instructions(const chat *c, td_buf *out, size_t from)
{
    for (size_t i = 0; i < c->n_messages; i++) {
        const chat_message *m = &c->messages[i];

        if (m->role != CHAT_SYSTEM && m->role != CHAT_DEVELOPER)
            break;
        if (m->content.len == 0)
            continue;
        td_buf_str(out, out->len == from ? "# Instructions\n\n" : "\n\n");
        add_slice(out, m->content);
    }
}

/* The model reads the wanted format here; nothing but a grammar can enforce it. */
static void add_response_format(const chat *c, td_buf *out, size_t from)
{
    td_slice name = c->format_name, text = c->format_description;

    if (c->format == CHAT_FORMAT_TEXT)
        return;
    add_gap(out, from);
    td_buf_str(out, "# Response Formats\n\n## ");
    if (c->format == CHAT_FORMAT_JSON_OBJECT) {
        td_buf_str(out, "json_object\n\n{\"type\":\"object\"}");
        return;
    }
    add_slice(out, name.len > 0 ? name : TD_SLICE("response"));
    td_buf_str(out, "\n\n");
    if (text.len > 0) {
        td_buf_str(out, "// ");
        add_slice(out, text);
        td_buf_byte(out, '\n');
    }
    if (c->format_schema != NULL)
        harmony_json_compact(out, c->format_schema);
    else
        td_buf_str(out, "{}");
}

td_status harmony_developer_text(const harmony *h, const chat *c, td_buf *out, td_error *err)
{
    size_t from = out->len;
    td_status st;

    add_instructions(c, out, from);
    if (chat_visible_tools(c) > 0) {
        add_gap(out, from);
        st = harmony_tools_section(c, harmony_options_of(h)->union_any_of, out, err);
        if (st != TD_OK)
            return st;
    }
    add_response_format(c, out, from);
    return out->oom ? td_fail(err, TD_NOMEM, "no memory for the developer message") : TD_OK;
}
