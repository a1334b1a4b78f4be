/* A sorted array instead of a table: built once, looked up in O(log n), and nothing a client can
 * choose makes it slow. */
#include "router/harmony_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct harmony_call {
    td_slice id, name;
    size_t order;
    size_t message;  /* where it stands */
    size_t first;    /* index of the first call with this id in the same message */
    size_t answered; /* results so far; kept on that first call */
};

bool harmony_call_name_ok(td_slice name)
{
    if (name.len < 1 || name.len > HARMONY_MAX_CALL_NAME)
        return false;
    for (size_t i = 0; i < name.len; i++) {
        char c = name.ptr[i];

        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '-' || c == '.'))
            return false;
    }
    return true;
}

static int compare_ids(td_slice a, td_slice b)
{
    size_t n = a.len < b.len ? a.len : b.len;
    int d = n > 0 ? memcmp(a.ptr, b.ptr, n) : 0;

    if (d != 0)
        return d;
    return a.len < b.len ? -1 : a.len > b.len;
}

static int by_id_and_order(const void *pa, const void *pb)
{
    const harmony_call *a = pa, *b = pb;
    int d = compare_ids(a->id, b->id);

    if (d != 0)
        return d;
    return a->order < b->order ? -1 : a->order > b->order;
}

td_status harmony_calls_init(const chat *c, harmony_calls *out, td_error *err)
{
    harmony_call *calls;
    size_t n = 0, k = 0;

    for (size_t i = 0; i < c->n_messages; i++)
        n += c->messages[i].n_calls;
    *out = (harmony_calls){NULL, 0};
    if (n == 0)
        return TD_OK;
    calls = calloc(n, sizeof *calls);
    if (calls == NULL)
        return td_fail(err, TD_NOMEM, "no memory for %zu tool calls", n);
    for (size_t i = 0; i < c->n_messages; i++) {
        const chat_message *m = &c->messages[i];

        for (size_t j = 0; j < m->n_calls; j++, k++) {
            td_slice name = chat_bare_name(m->calls[j].name);

            if (!harmony_call_name_ok(name)) {
                char param[96];

                free(calls);
                snprintf(param, sizeof param, "messages[%zu].tool_calls[%zu].function.name", i, j);
                return td_fail_param(
                    err, param, "a function name is 1 to %d of a-z A-Z 0-9 _ . -, got '%.*s'",
                    HARMONY_MAX_CALL_NAME, chat_shown(name), name.ptr != NULL ? name.ptr : "");
            }
            calls[k] = (harmony_call){.id = m->calls[j].id, .name = name, .order = k, .message = i};
        }
    }
    qsort(calls, n, sizeof *calls, by_id_and_order);
    for (size_t i = 0; i < n; i++) {
        bool same = i > 0 && calls[i].message == calls[i - 1].message &&
                    compare_ids(calls[i].id, calls[i - 1].id) == 0;

        calls[i].first = same ? calls[i - 1].first : i;
    }
    *out = (harmony_calls){calls, n};
    return TD_OK;
}

void harmony_calls_fini(harmony_calls *calls)
{
    free(calls->ptr);
    *calls = (harmony_calls){NULL, 0};
}

td_status harmony_calls_answer(harmony_calls *calls, const chat *c, size_t index,
                               harmony_answer *out, td_error *err)
{
    td_slice id = c->messages[index].tool_call_id;
    size_t lo = 0, hi = calls->n;
    char param[64];
    harmony_call *first, *pick;

    /* How many calls sort before (id, index): the one before that point is the latest earlier. */
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int d = compare_ids(calls->ptr[mid].id, id);

        if (d < 0 || (d == 0 && calls->ptr[mid].message < index))
            lo = mid + 1;
        else
            hi = mid;
    }
    if (id.ptr == NULL || lo == 0 || compare_ids(calls->ptr[lo - 1].id, id) != 0) {
        snprintf(param, sizeof param, "messages[%zu].tool_call_id", index);
        if (id.ptr == NULL)
            return td_fail_param(err, param, "a tool message needs the id of the call it answers");
        return td_fail_param(err, param, "no earlier assistant message has a tool call '%.*s'",
                             chat_shown(id), id.ptr);
    }
    pick = &calls->ptr[lo - 1];
    first = &calls->ptr[pick->first];
    if (first + first->answered < pick)
        pick = first + first->answered;
    first->answered++;
    *out = (harmony_answer){pick->order, pick->name};
    return TD_OK;
}
