/* client: HTTP requests that a test has under way, any number at once, without threads. An `ask` is
 * one request on one connection. asks_step() moves many of them on by whatever has arrived; an
 * answer of the Chat Completions API is read as it comes, event by event when it is a stream, into
 * the same fields whether it was one or not. Every wait has a deadline, after which the test fails.
 *
 *   ask a;
 *   ask_chat(&a, port, &(want){.prompt = "hi", .max_tokens = 20, .stream = true});
 *   ASKS_UNTIL(a.n_pieces >= 3, &a, 1);
 *   ask_free(&a);                               // closes the connection, wherever it was
 */
#ifndef TANDEM_TESTS_E2E_CLIENT_H
#define TANDEM_TESTS_E2E_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "common/buf.h"
#include "common/clock.h"

enum { ASK_MAX_CALLS = 8 };

/* How long things may take that ought to be quick: sanitizers and a busy machine are slow. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { E2E_SLOW = 5 };
#else
enum { E2E_SLOW = 1 };
#endif
enum { E2E_DEADLINE_MS = 45000 * E2E_SLOW };

td_usec e2e_deadline(void); /* E2E_DEADLINE_MS from now */

typedef struct ask_call {
    char id[64], name[96];
    td_buf arguments;
} ask_call;

typedef struct ask {
    int fd; /* -1 once the response is whole, or the connection gone */
    td_buf out;
    size_t sent;

    /* The response so far. */
    td_buf in; /* received, not yet taken apart */
    int status;
    td_buf head, body; /* body: without the chunks' frames */
    bool chunked, ended;
    bool cut; /* ended, but not where the framing says that it does */
    size_t length, chunk_left;
    td_usec began, first_piece_at, ended_at;

    /* An answer. */
    bool stream;
    size_t scanned; /* of body, in events */
    size_t n_events, n_comments;
    size_t n_pieces;     /* events with text or a part of a call in their delta (`delta` events) */
    size_t n_roles;      /* events that name the role */
    size_t n_usages;     /* events with a usage object */
    size_t after_finish; /* events with a choice after the one with finish_reason */
    bool role_first, done, after_done;
    td_buf content, reasoning;
    bool content_null;
    ask_call calls[ASK_MAX_CALLS];
    size_t n_calls;
    char id[64], finish[32];
    cJSON *root;                   /* the body, or the last event */
    cJSON *usage, *tandem, *error; /* copies; NULL if none */
} ask;

/* Any request. headers: whole lines, or "". */
void ask_start(ask *a, uint16_t port, const char *method, const char *path, const char *headers,
               const void *body, size_t n);
/* POST of a body to /v1/chat/completions. */
void ask_post(ask *a, uint16_t port, const char *body);

/* What a chat request asks for. All zero: a greedy answer of the length that the context leaves. */
typedef struct want {
    const char *prompt; /* the user's words; NULL: "hi" */
    size_t repeat;      /* the prompt this many times; 0: once */
    size_t turns;       /* sums asked and answered before it */
    unsigned max_tokens;
    double temperature, top_p; /* top_p 0: not sent */
    unsigned seed, top_k;      /* 0: not sent */
    bool stream, usage;
    /* Send it as a client would: one user message, and the answer ends where the model ends it.
     * Otherwise the model goes on with an assistant's message that has been begun, so that each
     * token is content at once, and does not stop before max_tokens. */
    bool plain;
    const char *extra; /* more members: "\"stop\":\"x\"" */
} want;

void want_body(const want *w, td_buf *out);
void ask_chat(ask *a, uint16_t port, const want *w);
/* Ask and wait for the whole answer. */
void ask_whole(ask *a, uint16_t port, const want *w);

/* Wait for something on any of a[0..n) and take it in; past the deadline the test fails. false:
 * nothing is left to wait for, all have ended. */
bool asks_step(ask *a, size_t n, td_usec deadline);
#define ASKS_UNTIL(condition, a, n) \
    do { \
        td_usec until_ = e2e_deadline(); \
        while (!(condition)) \
            if (!asks_step(a, n, until_) && !(condition)) \
                fail_msg("the answer ended before %s: status %d, %.500s", #condition, (a)->status, \
                         (a)->body.ptr ? (a)->body.ptr : ""); \
    } while (0)
void asks_wait(ask *a, size_t n); /* until all have ended */

/* Close, wherever it is; fields stay zeroed. */
void ask_free(ask *a);
void asks_free(ask *a, size_t n);

/* A header's value in a buffer good until the next call; NULL if absent. */
const char *ask_header(const ask *a, const char *name);

/* Numbers of an answer; the test fails when they are not there. */
double ask_usage(const ask *a, const char *name);
double ask_tandem(const ask *a, const char *name);
/* A member of the error object as text; "" when it is null or there is none. */
const char *ask_error(const ask *a, const char *name);

/* A good answer: 200, whole, a finish_reason, no error; a stream with [DONE] and one role. */
void ask_assert_good(const ask *a);
/* The same words, calls, end and number of tokens. */
void ask_assert_same(const ask *a, const ask *b);
/* Bytes of text so far. */
size_t ask_said(const ask *a);
/* What came with no fault in the way and what was carried over the loss of a worker, which had said
 * so many bytes by then. The same, on the CPU. On a GPU (cuda) prefill sums in another order than
 * decode, so that what comes after the loss may be other words: there, what was said before and the
 * number of tokens are the same. */
void ask_assert_carried(const ask *alone, const ask *carried, size_t said, bool cuda);

/* GET, whole: the status; *body (may be NULL) is the caller's. -1: nobody listens there. */
int http_get(uint16_t port, const char *path, td_buf *body);

#endif
