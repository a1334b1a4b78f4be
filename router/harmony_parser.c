/* The beginning and the end of a parser, and what it can be asked. */
#include <stdlib.h>

#include "router/harmony_parser_impl.h"

static const char *const repair_labels[] = {
#define TD_X(name, label, text) [HARMONY_REPAIR_##name] = label,
    HARMONY_REPAIR_MAP(TD_X)
#undef TD_X
};

const char *harmony_repair_label(harmony_repair r)
{
    return r < HARMONY_REPAIR_COUNT ? repair_labels[r] : "unknown";
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
