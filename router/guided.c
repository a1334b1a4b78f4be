#include "router/guided.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/grammar.h"
#include "common/guide.h"
#include "router/harmony_tools.h"

struct guided {
    Tandem__Guide pb;
    Tandem__GuideFunction *functions, **list;
    td_slice format_param;
    td_slice *params; /* of functions */
    td_buf text;      /* of all schemas */
};

static bool wants_json(const chat *c)
{
    return c->format == CHAT_FORMAT_JSON_OBJECT ||
           (c->format == CHAT_FORMAT_JSON_SCHEMA && !c->format_loose);
}

bool guided_wanted(const chat *c)
{
    if (wants_json(c))
        return true;
    switch (c->tool_choice) {
    case CHAT_TOOL_REQUIRED:
    case CHAT_TOOL_NAMED: return true;
    case CHAT_TOOL_NONE: return c->n_tools > 0;
    case CHAT_TOOL_AUTO: break;
    }
    for (size_t i = 0; i < c->n_tools; i++)
        if (c->tools[i].strict)
            return true;
    return false;
}

void guided_free(guided *g)
{
    if (g == NULL)
        return;
    free(g->functions);
    free(g->list);
    free(g->params);
    td_buf_free(&g->text);
    free(g);
}

static ProtobufCBinaryData bytes_of(td_slice s)
{
    return (ProtobufCBinaryData){s.len, (uint8_t *)(uintptr_t)s.ptr};
}

/* A schema at the end of the text, and where it is: the text still moves. */
static ProtobufCBinaryData add_schema(guided *g, const cJSON *schema, const char *otherwise)
{
    size_t from = g->text.len;

    if (schema != NULL)
        harmony_json_compact(&g->text, schema);
    else
        td_buf_str(&g->text, otherwise);
    return (ProtobufCBinaryData){g->text.len - from, (uint8_t *)from};
}

static void settle(const guided *g, ProtobufCBinaryData *schema)
{
    schema->data = schema->len > 0 ? (uint8_t *)g->text.ptr + (uintptr_t)schema->data : NULL;
}

static void add_function(guided *g, const chat_tool *t)
{
    Tandem__GuideFunction *f = &g->functions[g->pb.n_functions];

    tandem__guide_function__init(f);
    f->name = bytes_of(chat_bare_name(t->name));
    if (t->strict) /* one without parameters takes none */
        f->schema =
            add_schema(g, t->parameters, "{\"type\":\"object\",\"additionalProperties\":false}");
    g->params[g->pb.n_functions] = t->param;
    g->list[g->pb.n_functions++] = f;
}

static td_status check_bounds(const guided *g, td_error *err)
{
    if (g->pb.n_functions > TD_GUIDE_MAX_FUNCTIONS)
        return td_fail_param(err, "tools",
                             "%zu tools beside what an answer must be held to: at most %d are "
                             "possible",
                             g->pb.n_functions, TD_GUIDE_MAX_FUNCTIONS);
    if (g->text.len > TD_GUIDE_MAX_BYTES)
        return td_fail_param(err, g->pb.schema.len > 0 ? "response_format" : "tools",
                             "schemas of %zu bytes to be enforced: at most %d are possible",
                             g->text.len, TD_GUIDE_MAX_BYTES);
    return TD_OK;
}

static td_status add_functions(guided *g, const chat *c, td_error *err)
{
    td_slice only = chat_bare_name(c->tool_choice_name);

    g->functions = calloc(c->n_tools + 1, sizeof *g->functions);
    g->list = calloc(c->n_tools + 1, sizeof *g->list);
    g->params = calloc(c->n_tools + 1, sizeof *g->params);
    if (g->functions == NULL || g->list == NULL || g->params == NULL)
        return td_fail(err, TD_NOMEM, "no memory for %zu functions", c->n_tools);
    g->pb.functions = g->list;
    for (size_t i = 0; i < chat_visible_tools(c); i++)
        if (c->tool_choice != CHAT_TOOL_NAMED ||
            td_slice_eq(chat_bare_name(c->tools[i].name), only))
            add_function(g, &c->tools[i]);
    return TD_OK;
}

td_status guided_create(const chat *c, guided **out, td_error *err)
{
    bool json = wants_json(c);
    bool call = c->tool_choice == CHAT_TOOL_REQUIRED || c->tool_choice == CHAT_TOOL_NAMED;
    guided *g;
    td_status st;

    if (c->continue_final && (json || call))
        return td_fail_param(err, "continue_final_message",
                             "continue_final_message cannot be together with %s: what is continued "
                             "is free text",
                             json ? "a response format" : "a call that must be made");
    g = calloc(1, sizeof *g);
    if (g == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a guide");
    tandem__guide__init(&g->pb);
    g->pb.final = !call;
    g->pb.preamble = !call && !json;
    g->pb.json = !call && json;
    g->pb.begun = c->continue_final;
    g->format_param = c->format_param;
    if (g->pb.json && c->format_schema != NULL)
        g->pb.schema = add_schema(g, c->format_schema, "");
    st = add_functions(g, c, err);
    if (st == TD_OK && g->text.oom)
        st = td_fail(err, TD_NOMEM, "no memory for the schemas");
    if (st == TD_OK)
        st = check_bounds(g, err);
    if (st != TD_OK) {
        guided_free(g);
        return st;
    }
    settle(g, &g->pb.schema);
    for (size_t i = 0; i < g->pb.n_functions; i++)
        settle(g, &g->functions[i].schema);
    *out = g;
    return TD_OK;
}

static td_status check_schema(ProtobufCBinaryData schema, td_slice param, size_t *states,
                              td_error *err)
{
    td_grammar *grammar = NULL;
    td_error why = {0};
    td_status st;
    char name[64];

    if (schema.len == 0)
        return TD_OK;
    st = td_grammar_from_schema((const char *)schema.data, schema.len, &grammar, &why);
    if (st == TD_OK) {
        *states += td_grammar_states(grammar);
        if (*states > TD_GUIDE_MAX_STATES)
            st = td_fail(&why, TD_INVALID, "with those before it, it needs more than %d states",
                         TD_GUIDE_MAX_STATES);
    }
    td_grammar_free(grammar);
    if (st != TD_INVALID) {
        if (st != TD_OK && err != NULL)
            *err = why;
        return st;
    }
    snprintf(name, sizeof name, "%.*s", (int)param.len, param.len > 0 ? param.ptr : "");
    return td_fail_param(err, name, "%s cannot be enforced: %s. strict: false does without", name,
                         why.text);
}

td_status guided_check(const guided *g, td_error *err)
{
    size_t states = 0;
    td_status st = check_schema(g->pb.schema, g->format_param, &states, err);

    for (size_t i = 0; st == TD_OK && i < g->pb.n_functions; i++)
        st = check_schema(g->functions[i].schema, g->params[i], &states, err);
    return st;
}

const Tandem__Guide *guided_message(const guided *g)
{
    return &g->pb;
}
