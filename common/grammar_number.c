/* Decimal numbers between two bounds, digit by digit.
 *
 * A number is followed beside the digits of both bounds: as long as it equals one so far it is
 * "tight" there, and the bound's next digit limits its own; once it is not, only its length
 * matters. Lengths are told apart first, since a longer number without leading zeros is larger.
 * The remainder of a multiple is a third thing that a state knows; a multiple of so many hundredths
 * is one of as many whole ones, two digits further. There are no exponents, and at most 15
 * significant digits where there is a fraction: such numbers are different as doubles when they
 * differ, so that a bound that is outside stays outside for whoever reads them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/grammar_impl.h"

enum {
    INT_DIGITS = 18,
    EXACT_DIGITS = 15,
    MAX_FRACTION = 40, /* of a bound, beyond what a number may have */
    MAX_MULTIPLE = 1000,
    MAX_SCALE = 9,
};

/* A magnitude; digits past the end are zeros. */
typedef struct decimal {
    uint8_t whole[INT_DIGITS], fraction[MAX_FRACTION];
    int n_whole, n_fraction;
} decimal;

typedef struct machine {
    gr_nfa *a;
    decimal lo, hi;
    bool lo_out, hi_out;
    bool integer;
    uint32_t m;    /* multiple of 10 to the power of -scale; 1: any */
    int scale;     /* digits that a fraction may have; -1: as many as there is room for */
    int length;    /* of the whole part in hand */
    int32_t *free; /* states that are not tight: by digits left and remainder; 0: not made */
    int32_t *tail; /* the same in a fraction */
    int32_t to;
} machine;

/* False: too large or too fine. v >= 0 and below 10^18. */
static bool to_decimal(double v, decimal *d)
{
    char text[64];
    int precision = 15, exponent, n = 0;
    uint8_t digits[20];

    memset(d, 0, sizeof *d);
    do
        snprintf(text, sizeof text, "%.*e", precision - 1, v);
    while (strtod(text, NULL) != v && ++precision <= 17);
    exponent = atoi(strchr(text, 'e') + 1);
    for (const char *c = text; *c != 'e'; c++) {
        if (*c >= '0' && *c <= '9')
            digits[n++] = (uint8_t)(*c - '0');
    }
    while (n > 1 && digits[n - 1] == 0)
        n--;
    d->n_whole = exponent > 0 ? exponent + 1 : 1;
    if (d->n_whole > INT_DIGITS)
        return false;
    for (int i = 0; i < n; i++) {
        int at = i - exponent - 1; /* in the fraction; negative: before the point */

        if (at >= MAX_FRACTION)
            return false;
        if (at >= 0) {
            d->fraction[at] = digits[i];
            if (at >= d->n_fraction)
                d->n_fraction = at + 1;
        } else {
            d->whole[d->n_whole + at] = digits[i];
        }
    }
    return true;
}

static void largest(decimal *d)
{
    memset(d, 0, sizeof *d);
    memset(d->whole, 9, sizeof d->whole);
    d->n_whole = INT_DIGITS;
}

/* --- Fractions. */

static bool zeros_from(const decimal *d, int at)
{
    return at >= d->n_fraction;
}

/* A fraction may end before digit `at`. */
static bool may_stop(const machine *x, int at, bool tlo, bool thi)
{
    if (tlo && (!zeros_from(&x->lo, at) || x->lo_out))
        return false;
    return !(thi && zeros_from(&x->hi, at) && x->hi_out);
}

/* Whether a number with `at` digits of a fraction and this remainder is a multiple. */
static bool is_multiple(const machine *x, int at, uint32_t rest)
{
    for (; at < x->scale; at++)
        rest = rest * 10 % x->m;
    return rest == 0;
}

/* From digit `at` of a fraction on, `left` may still come; stop: the number may end here. */
static void fraction(machine *x, int32_t from, int at, int left, bool tlo, bool thi, bool stop,
                     uint32_t rest)
{
    gr_nfa *a = x->a;

    if (a->oom || a->large)
        return; /* or states that cannot be made would be asked for again and again */
    if (stop && may_stop(x, at, tlo, thi) && is_multiple(x, at, rest))
        gr_nfa_eps(a, from, x->to);
    for (int d = 0; d <= 9 && left > 0; d++) {
        int lo = at < MAX_FRACTION ? x->lo.fraction[at] : 0;
        int hi = at < MAX_FRACTION ? x->hi.fraction[at] : 0;
        bool next_lo = tlo && d == lo, next_hi = thi && d == hi;
        uint32_t next_rest = (rest * 10 + (uint32_t)d) % x->m;
        int32_t next, *known = &x->tail[(size_t)(left - 1) * x->m + next_rest];

        if ((tlo && d < lo) || (thi && d > hi))
            continue;
        if (next_lo || next_hi) {
            next = gr_nfa_state(a);
            fraction(x, next, at + 1, left - 1, next_lo, next_hi, true, next_rest);
        } else if ((next = *known) == 0) {
            next = *known = gr_nfa_state(a);
            fraction(x, next, at + 1, left - 1, false, false, true, next_rest);
        }
        gr_nfa_bytes(a, from, (uint8_t)('0' + d), (uint8_t)('0' + d), 0, next);
    }
}

/* The whole part has ended. */
static void whole_done(machine *x, int32_t from, bool tlo, bool thi, uint32_t rest)
{
    int32_t point;

    if (x->integer) {
        if (rest == 0)
            gr_nfa_eps(x->a, from, x->to);
        return;
    }
    if (may_stop(x, 0, tlo, thi) && is_multiple(x, 0, rest))
        gr_nfa_eps(x->a, from, x->to);
    if (x->length >= EXACT_DIGITS)
        return;
    point = gr_nfa_state(x->a);
    gr_nfa_bytes(x->a, from, '.', '.', 0, point);
    fraction(x, point, 0, x->scale >= 0 ? x->scale : EXACT_DIGITS - x->length, tlo, thi, false,
             rest);
}

/* --- Whole parts. */

static void whole(machine *x, int32_t from, int left, bool tlo, bool thi, uint32_t rest)
{
    gr_nfa *a = x->a;
    int at = x->length - left;

    if (a->oom || a->large)
        return;
    if (left == 0) {
        whole_done(x, from, tlo, thi, rest);
        return;
    }
    for (int d = at == 0 && x->length > 1 ? 1 : 0; d <= 9; d++) {
        bool next_lo, next_hi;
        uint32_t next_rest = (rest * 10 + (uint32_t)d) % x->m;
        int32_t next, *known;

        if ((tlo && d < x->lo.whole[at]) || (thi && d > x->hi.whole[at]))
            continue;
        next_lo = tlo && d == x->lo.whole[at];
        next_hi = thi && d == x->hi.whole[at];
        known = &x->free[(size_t)(left - 1) * x->m + next_rest];
        if (next_lo || next_hi) {
            next = gr_nfa_state(a);
            whole(x, next, left - 1, next_lo, next_hi, next_rest);
        } else if ((next = *known) == 0) {
            next = *known = gr_nfa_state(a);
            whole(x, next, left - 1, false, false, next_rest);
        }
        gr_nfa_bytes(a, from, (uint8_t)('0' + d), (uint8_t)('0' + d), 0, next);
    }
}

/* Magnitudes from x->lo to x->hi. */
static bool magnitudes(machine *x, int32_t from)
{
    size_t n_free = (size_t)INT_DIGITS * x->m;
    int longest = x->scale > 0 ? EXACT_DIGITS - x->scale : INT_DIGITS;
    bool ok;

    x->free = calloc(n_free, sizeof *x->free);
    x->tail = calloc((size_t)EXACT_DIGITS * x->m, sizeof *x->tail);
    ok = x->free != NULL && x->tail != NULL;
    for (int n = x->lo.n_whole; ok && n <= x->hi.n_whole && n <= longest; n++) {
        x->length = n;
        if (x->scale < 0) /* how long a fraction may be depends on the length */
            memset(x->free, 0, n_free * sizeof *x->free);
        whole(x, from, n, n == x->lo.n_whole, n == x->hi.n_whole, 0);
    }
    free(x->free);
    free(x->tail);
    return ok;
}

/* One sign: magnitudes between lo and hi, those of a range that has been turned to it. */
static td_status side(gr_nfa *a, int32_t from, const gr_range *r, bool integer, double lo,
                      bool lo_out, bool bounded, double hi, bool hi_out, int32_t to, td_error *err)
{
    machine x = {.a = a,
                 .integer = integer,
                 .m = r->multiple > 1 ? r->multiple : 1,
                 .scale = integer || r->multiple > 0 ? r->scale : -1,
                 .to = to};

    x.lo_out = lo_out;
    x.hi_out = hi_out && bounded && hi < 1e18;
    if (lo >= 1e18)
        return TD_OK; /* no number that we write is so large */
    if (!to_decimal(lo, &x.lo))
        return td_fail(err, TD_INVALID, "a bound of %.17g has too many digits", lo);
    if (!bounded || hi >= 1e18)
        largest(&x.hi);
    else if (!to_decimal(hi, &x.hi))
        return td_fail(err, TD_INVALID, "a bound of %.17g has too many digits", hi);
    if ((!integer && x.hi.n_fraction + (bounded ? x.hi.n_whole : 0) > EXACT_DIGITS && x.hi_out) ||
        (!integer && x.lo.n_fraction + x.lo.n_whole > EXACT_DIGITS && x.lo_out))
        return td_fail(err, TD_INVALID, "an exclusive bound of more than %d digits", EXACT_DIGITS);
    if (!magnitudes(&x, from))
        return td_fail(err, TD_NOMEM, "no memory for the grammar");
    return TD_OK;
}

bool gr_number_multiple(double v, gr_range *r)
{
    decimal d;
    uint64_t m = 0;

    if (!(v > 0 && v <= MAX_MULTIPLE) || !to_decimal(v, &d) || d.n_fraction > MAX_SCALE)
        return false;
    for (int i = 0; i < d.n_whole; i++)
        m = m * 10 + d.whole[i];
    for (int i = 0; i < d.n_fraction; i++)
        m = m * 10 + d.fraction[i];
    if (m > MAX_MULTIPLE)
        return false;
    r->multiple = (uint32_t)m;
    r->scale = d.n_fraction;
    return true;
}

td_status gr_number_nfa(gr_nfa *a, int32_t from, const gr_range *range, int32_t to, td_error *err)
{
    gr_range r = *range;
    bool integer;
    td_status st = TD_OK;

    /* Of halves and the like, only the whole ones that are integers are left. */
    for (; r.integer && r.scale > 0; r.scale--) {
        for (uint32_t prime = 2; prime <= 5; prime += 3)
            r.multiple = r.multiple % prime == 0 ? r.multiple / prime : r.multiple;
    }
    integer = r.integer || (r.multiple > 0 && r.scale == 0);
    if (integer) { /* bounds that are inside */
        if (r.has_lo)
            r.lo = r.lo_out && r.lo == floor(r.lo) ? r.lo + 1 : ceil(r.lo);
        if (r.has_hi)
            r.hi = r.hi_out && r.hi == ceil(r.hi) ? r.hi - 1 : floor(r.hi);
        r.lo_out = r.hi_out = false;
    }
    if (r.has_lo && r.has_hi && (r.lo > r.hi || (r.lo == r.hi && (r.lo_out || r.hi_out))))
        return td_fail(err, TD_INVALID, "no number is between its bounds");
    if (!r.has_lo || r.lo < 0) {
        bool low = r.has_hi && r.hi < 0, zero = r.has_hi && r.hi == 0;
        int32_t minus = gr_nfa_state(a);
        double least = low ? -r.hi : 0;

        if (integer && least == 0)
            least = 1; /* there is no -0 */
        gr_nfa_bytes(a, from, '-', '-', 0, minus);
        if (!(r.has_lo && least > -r.lo))
            st = side(a, minus, &r, integer, least, (low || zero) && r.hi_out, r.has_lo, -r.lo,
                      r.lo_out, to, err);
    }
    if (st == TD_OK && (!r.has_hi || r.hi >= 0)) {
        bool high = r.has_lo && r.lo > 0, zero = r.has_lo && r.lo == 0;

        st = side(a, from, &r, integer, high ? r.lo : 0, (high || zero) && r.lo_out, r.has_hi, r.hi,
                  r.hi_out, to, err);
    }
    return st;
}
