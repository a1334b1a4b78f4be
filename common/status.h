/* status: one way to report failure, shared by everything.
 *
 * A td_status says what a program does next; td_error.text says what a person does next, with the
 * numbers in it. The first function that knows which error it is calls td_fail(); those above pass
 * the code on, or td_wrap() it with what they were doing. Whoever ends the chain logs it, once.
 *
 * All functions here are thread-safe as long as each td_error belongs to one thread. */
#ifndef TANDEM_COMMON_STATUS_H
#define TANDEM_COMMON_STATUS_H

#include <stdbool.h>
#include <stddef.h>

/* One table: name, HTTP status, whether another worker may be tried, what it means. */
#define TD_STATUS_MAP(X) \
    X(OK, 200, false, "done") \
    X(PENDING, 202, false, "started; the completion will say how it ended") \
    X(INVALID, 400, false, "the request or argument is wrong") \
    X(NOTFOUND, 404, false, "no such thing") \
    X(TOOLARGE, 413, false, "over a size limit") \
    X(BUSY, 429, true, "no room now") \
    X(CANCELED, 499, false, "the client went away") \
    X(INTERNAL, 500, true, "a broken invariant") \
    X(DEVICE, 500, true, "a GPU or its driver failed") \
    X(IO, 500, false, "a file or socket could not be read or written") \
    X(UNAVAILABLE, 503, true, "the peer is gone or not ready") \
    X(NOMEM, 503, true, "out of host or device memory") \
    X(DEADLINE, 504, true, "too late to be useful") \
    X(DEADEND, 500, false, "an answer that nothing can follow, here or elsewhere")

typedef enum td_status {
#define TD_X(name, http, retry, text) TD_##name,
    TD_STATUS_MAP(TD_X)
#undef TD_X
        TD_STATUS_COUNT
} td_status;

typedef struct td_error {
    td_status code;
    char text[504]; /* one sentence, for a person; cut if too long */
    char param[64]; /* the request field or flag at fault, "" if none */
} td_error;

#define TD_MUST_CHECK __attribute__((warn_unused_result))
#define TD_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* Record what failed and return the code, so that `return td_fail(err, ...)` reads as one thought.
 * err may be NULL. Clears err->param. */
td_status td_fail(td_error *err, td_status code, const char *fmt, ...) TD_PRINTF(3, 4);

/* As td_fail() for TD_INVALID, naming the field ("messages[2].content") or flag at fault. */
td_status td_fail_param(td_error *err, const char *param, const char *fmt, ...) TD_PRINTF(3, 4);

/* Put "what was being done: " before the text that err holds; returns err's code, or TD_INTERNAL
 * when err is NULL or holds none. */
td_status td_wrap(td_error *err, const char *fmt, ...) TD_PRINTF(2, 3);

/* "BUSY", 429, whether another worker may be tried. Out of range: "UNKNOWN", 500, false. */
const char *td_status_name(td_status s);
int td_status_http(td_status s);
bool td_status_retryable(td_status s);

/* An invariant of our own whose breach would give a wrong answer. On in every build; aborts with
 * the place and the expression. Never for input from outside. */
#define td_assert(cond) ((cond) ? (void)0 : td_assert_failed(#cond, __FILE__, __LINE__, __func__))
void td_assert_failed(const char *cond, const char *file, int line, const char *func)
    __attribute__((noreturn));

/* Checks that cost too much for every build: on under sanitizers. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define td_dassert(cond) td_assert(cond)
#else
#define td_dassert(cond) ((void)sizeof(cond))
#endif

#endif
