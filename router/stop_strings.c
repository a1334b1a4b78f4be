/* One prefix automaton (Knuth, Morris, Pratt) a stop string. After each byte its state is the
 * length of the longest suffix of the text that begins the string, so the longest of the states is
 * exactly what must be held back. A stop string begins at a character, so what is sent ends at one.
 */
#include "router/stop_strings.h"

#include <stdlib.h>
#include <string.h>

typedef struct needle {
    char *text;
    size_t *border; /* border[i]: longest proper prefix of text[0..i] that is also its suffix */
    size_t len, state;
} needle;

struct stop_strings {
    needle *needles;
    size_t n;
    td_buf out;  /* what the last call made ready */
    td_buf held; /* the end of the text that may begin a stop string */
    int matched;
    bool oom;
};

static td_status needle_init(needle *d, td_slice s, td_error *err)
{
    if (s.len == 0)
        return td_fail_param(err, "stop", "a stop string must not be empty");
    d->text = malloc(s.len);
    d->border = calloc(s.len, sizeof *d->border);
    if (d->text == NULL || d->border == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a stop string of %zu bytes", s.len);
    d->len = s.len;
    memcpy(d->text, s.ptr, s.len);
    for (size_t i = 1, k = 0; i < s.len; i++) {
        while (k > 0 && s.ptr[i] != s.ptr[k])
            k = d->border[k - 1];
        if (s.ptr[i] == s.ptr[k])
            k++;
        d->border[i] = k;
    }
    return TD_OK;
}

td_status stop_strings_create(const td_slice *stops, size_t n, stop_strings **out, td_error *err)
{
    stop_strings *s = calloc(1, sizeof *s);
    td_status st = TD_OK;

    if (s == NULL)
        return td_fail(err, TD_NOMEM, "no memory for stop strings");
    s->matched = -1;
    if (n > 0) {
        s->needles = calloc(n, sizeof *s->needles);
        if (s->needles == NULL)
            st = td_fail(err, TD_NOMEM, "no memory for %zu stop strings", n);
        else
            s->n = n;
    }
    for (size_t i = 0; st == TD_OK && i < n; i++)
        st = needle_init(&s->needles[i], stops[i], err);
    if (st != TD_OK) {
        stop_strings_free(s);
        return st;
    }
    *out = s;
    return TD_OK;
}

void stop_strings_free(stop_strings *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < s->n; i++) {
        free(s->needles[i].text);
        free(s->needles[i].border);
    }
    free(s->needles);
    td_buf_free(&s->out);
    td_buf_free(&s->held);
    free(s);
}

/* One byte further; true when the string is complete, after which there is no further one. */
static bool needle_step(needle *d, char c)
{
    size_t k = d->state;

    while (k > 0 && c != d->text[k])
        k = d->border[k - 1];
    if (c == d->text[k])
        k++;
    d->state = k;
    return k == d->len;
}

static td_slice ready_text(const stop_strings *s)
{
    return (td_slice){s->out.ptr != NULL ? s->out.ptr : "", s->out.len};
}

bool stop_strings_push(stop_strings *s, td_slice text, td_slice *ready)
{
    size_t keep = 0, whole;

    td_buf_clear(&s->out);
    if (s->matched >= 0) {
        *ready = ready_text(s);
        return true;
    }
    for (size_t i = 0; i < text.len && s->matched < 0; i++) {
        size_t longest = 0;

        for (size_t d = 0; d < s->n; d++) {
            needle *nd = &s->needles[d];

            if (needle_step(nd, text.ptr[i]) && nd->len > longest) {
                longest = nd->len;
                s->matched = (int)d;
            }
        }
        if (s->matched >= 0)
            text.len = i + 1;
    }

    /* Of held + text, all is ready but the last `keep` bytes. */
    for (size_t d = 0; s->matched < 0 && d < s->n; d++)
        if (s->needles[d].state > keep)
            keep = s->needles[d].state;
    if (s->matched >= 0)
        keep = s->needles[s->matched].len;
    td_buf_add(&s->held, text.ptr, text.len);
    whole = s->held.len > keep ? s->held.len - keep : 0;
    td_buf_add(&s->out, s->held.ptr, whole);
    s->oom |= s->out.oom || s->held.oom;
    if (s->matched >= 0) {
        td_buf_clear(&s->held);
    } else if (whole > 0) {
        memmove(s->held.ptr, s->held.ptr + whole, s->held.len - whole);
        s->held.len -= whole;
    }
    *ready = ready_text(s);
    return s->matched >= 0;
}

td_slice stop_strings_flush(stop_strings *s)
{
    td_buf_clear(&s->out);
    if (s->matched < 0)
        td_buf_add(&s->out, s->held.ptr, s->held.len);
    s->oom |= s->out.oom;
    td_buf_clear(&s->held);
    for (size_t d = 0; d < s->n; d++)
        s->needles[d].state = 0; /* what was let go cannot be the beginning of a match */
    return ready_text(s);
}

int stop_strings_matched(const stop_strings *s)
{
    return s->matched;
}

bool stop_strings_oom(const stop_strings *s)
{
    return s->oom;
}
