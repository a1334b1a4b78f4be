/* responses_body: the JSON of OpenAI's Responses API, checked field by field into a generation.
 *
 * The rules of openai.h hold: a mistake is named by its field ("input[2].content[0]"), what would
 * change the answer and is not done is refused by name, unknown fields are ignored. Thread-safe. */
#ifndef TANDEM_ROUTER_RESPONSES_BODY_H
#define TANDEM_ROUTER_RESPONSES_BODY_H

#include "router/openai.h"

/* Where earlier responses are found. */
typedef struct responses_history {
    /* The items of the conversation that ended with this response, as JSON with commas between.
     * False: there is no such response. The slice holds until the parse is over. */
    bool (*find)(void *arg, td_slice id, td_slice *items);
    /* An item of such a response's output, by its own id: its JSON begins the slice, which may go
     * on behind it. */
    bool (*find_item)(void *arg, td_slice id, td_slice *json);
    void *arg;
} responses_history;

typedef struct responses_request {
    generation g;
    bool store; /* the response is to be kept: there is a history, and the client did not say no */
    /* Members of every Response object of this request that repeat or complete what was asked:
     * `"background":false,...`. */
    td_buf echo;
    /* The conversation up to this answer, with what the previous response stood for: items as JSON
     * with commas between. Only when store. */
    td_buf items;
} responses_request;

/* Parse a body; body[n] must be NUL. *q is initialised here and to be freed by the caller whatever
 * is returned. TD_INVALID with err->param; TD_NOTFOUND: no response previous_response_id (h NULL:
 * nothing is kept); TD_NOMEM. */
TD_MUST_CHECK td_status responses_parse(const char *body, size_t n, const openai_defaults *d,
                                        const responses_history *h, responses_request *q,
                                        td_error *err);
void responses_request_free(responses_request *q); /* NULL is fine */

#endif
