#include "common/status.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int http;
    bool retry;
} table[TD_STATUS_COUNT] = {
#define TD_X(name, http, retry, text) {#name, http, retry},
    TD_STATUS_MAP(TD_X)
#undef TD_X
};

static td_status fail_v(td_error *err, td_status code, const char *param, const char *fmt,
                        va_list ap)
{
    if (err == NULL)
        return code;
    err->code = code;
    snprintf(err->param, sizeof err->param, "%s", param);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    return code;
}

td_status td_fail(td_error *err, td_status code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fail_v(err, code, "", fmt, ap);
    va_end(ap);
    return code;
}

td_status td_fail_param(td_error *err, const char *param, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fail_v(err, TD_INVALID, param, fmt, ap);
    va_end(ap);
    return TD_INVALID;
}

td_status td_wrap(td_error *err, const char *fmt, ...)
{
    char head[sizeof err->text];
    char tail[sizeof err->text];
    va_list ap;
    int n;

    if (err == NULL || err->code == TD_OK)
        return TD_INTERNAL;
    va_start(ap, fmt);
    n = vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    if (n < 0)
        return err->code;
    memcpy(tail, err->text, sizeof tail);
    n = (size_t)n < sizeof head ? n : (int)sizeof head - 1;
    /* Precision bounds both parts, so a long tail is cut and never overruns. */
    snprintf(err->text, sizeof err->text, "%.*s: %.*s", n, head,
             (int)(sizeof err->text - (size_t)n > 3 ? sizeof err->text - (size_t)n - 3 : 0), tail);
    return err->code;
}

const char *td_status_name(td_status s)
{
    return (uint32_t)s < TD_STATUS_COUNT ? table[s].name : "UNKNOWN";
}

int td_status_http(td_status s)
{
    return (uint32_t)s < TD_STATUS_COUNT ? table[s].http : 500;
}

bool td_status_retryable(td_status s)
{
    return (uint32_t)s < TD_STATUS_COUNT && table[s].retry;
}

void td_assert_failed(const char *cond, const char *file, int line, const char *func)
{
    fprintf(stderr, "fatal assertion_failed cond=\"%s\" at=%s:%d func=%s\n", cond, file, line,
            func);
    fflush(stderr);
    abort();
}
