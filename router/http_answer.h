/* http_answer: the HTTP side of an answer in one or more choices, whole or as server-sent events.
 *
 * chat_answer.c and completions.c have one as the first member of what they allocate, and write
 * into `out`. From the submit on it owns the reply: it ends the HTTP request exactly once and then
 * has its owner freed. If the client goes first, it cancels the generation. On the loop's thread.
 */
#ifndef TANDEM_ROUTER_HTTP_ANSWER_H
#define TANDEM_ROUTER_HTTP_ANSWER_H

#include "router/chat_answer.h"

typedef struct http_answer http_answer;

struct http_answer {
    router *r;
    td_http_request *req;
    bool stream, include_usage;
    bool begun;  /* a stream's head is out */
    bool broken; /* memory ran out in mid stream: it ends visibly cut */
    td_timer *ping;
    char id[40];
    char label[132];
    int64_t created_s;
    td_buf out; /* one event of a stream, or the whole answer */
    answer_sum sum;
    uint32_t n, n_ended;
    request *q[GENERATION_MAX_CHOICES]; /* by choice; NULL: it has ended */
    void (*free_owner)(http_answer *a); /* calls http_answer_fini() */
};

/* Submit *g (moved), whose choices' events go to users[0 .. g->n). The id is prefix and the first
 * request's. On failure req is answered and the owner freed. a NULL: there was no memory for it. */
void http_answer_submit(http_answer *a, router *r, td_http_request *req, generation *g,
                        const char *prefix, const answer *callbacks, void **users,
                        void (*free_owner)(http_answer *a));
void http_answer_fini(http_answer *a);

/* The head of a stream, once. */
void http_answer_begin(http_answer *a);
/* Write `out` as a part of the stream and clear it. Nothing goes out once something was lost. */
void http_answer_send(http_answer *a);
/* The end of the list of choices, what all of them used, and the end of the object, into `out`. */
void http_answer_add_usage(http_answer *a);
/* One choice has ended; true: all have. */
bool http_answer_choice_ended(http_answer *a, uint32_t choice, const request_usage *u);

/* Each of these may free the owner: the last call of a callback. */

/* A batch of choice's events is out: a client that reads too slowly is cut off. */
void http_answer_flush(http_answer *a, uint32_t choice);
void http_answer_end_stream(http_answer *a); /* [DONE] */
void http_answer_end_whole(http_answer *a);  /* `out` is the JSON */
void http_answer_fail(http_answer *a, const td_error *err, uint32_t retry_s);

#endif
