/* The registry is a list of families, each with a list of metrics. Both only grow, at start, by one
 * thread; the scrape and all updates come later, so the lists need no lock. What does change is
 * atomic, one word each.
 *
 * Every access to those words is relaxed: a metric orders nothing. No reader draws a conclusion
 * about other memory from a count, a scrape may see two metrics an update apart, and each single
 * word is still never torn and never loses an add. */
#include "common/metrics.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/metrics_process.h"

typedef enum kind { KIND_COUNTER, KIND_SECONDS, KIND_GAUGE, KIND_HISTOGRAM } kind;

/* A double in an atomic word, added to by compare-and-swap: C11 has no atomic add for it. */
typedef struct atomic_f64 {
    _Atomic uint64_t bits;
} atomic_f64;

static double f64_load(const atomic_f64 *a)
{
    uint64_t bits = atomic_load_explicit(&a->bits, memory_order_relaxed);
    double v;

    memcpy(&v, &bits, sizeof v);
    return v;
}

static void f64_store(atomic_f64 *a, double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof bits);
    atomic_store_explicit(&a->bits, bits, memory_order_relaxed);
}

static void f64_add(atomic_f64 *a, double delta)
{
    uint64_t old = atomic_load_explicit(&a->bits, memory_order_relaxed), new;
    double v;

    do {
        memcpy(&v, &old, sizeof v);
        v += delta;
        memcpy(&new, &v, sizeof new);
    } while (!atomic_compare_exchange_weak_explicit(&a->bits, &old, new, memory_order_relaxed,
                                                    memory_order_relaxed));
}

struct td_counter {
    _Atomic uint64_t n;
};

struct td_gauge {
    atomic_f64 value;
};

struct td_histogram {
    size_t n_bounds;
    double *bounds;
    _Atomic uint64_t *counts; /* [n_bounds + 1], not cumulative; the last is +Inf's own */
    atomic_f64 sum;
};

typedef struct metric {
    struct metric *next;
    char *labels; /* `a="b",c="d"`, escaped; "" if none */
    union {
        td_counter counter;
        td_gauge gauge;
        td_histogram histogram;
    } u;
} metric;

typedef struct family {
    struct family *next; /* in order of names */
    char *name, *help;
    kind kind;
    metric *metrics; /* in order of creation */
} family;

struct td_metrics {
    char *const_labels; /* as metric.labels */
    family *families;
    bool oom;
    /* What a creation gives out when memory is gone: takes updates, is never shown. The histogram
     * has no bounds, so all it needs is one bucket. */
    _Atomic uint64_t spare_count;
    metric spare_counter, spare_gauge, spare_histogram;
};

/* The format allows colons too; Prometheus means them for recording rules, vLLM has them anyway. */
static bool name_ok(const char *s, bool colons)
{
    if (!isalpha((unsigned char)*s) && *s != '_' && !(colons && *s == ':'))
        return false;
    for (; *s != '\0'; s++) {
        if (!isalnum((unsigned char)*s) && *s != '_' && !(colons && *s == ':'))
            return false;
    }
    return true;
}

/* Backslash and line feed are escaped everywhere, quotes only inside label values. */
static void add_escaped(td_buf *b, const char *s, bool quotes)
{
    for (; *s != '\0'; s++) {
        if (*s == '\n')
            td_buf_str(b, "\\n");
        else if (*s == '\\' || (quotes && *s == '"'))
            td_buf_fmt(b, "\\%c", *s);
        else
            td_buf_byte(b, *s);
    }
}

static void add_labels(td_buf *b, const td_label *labels)
{
    for (; labels != NULL && labels->name != NULL; labels++) {
        td_assert(name_ok(labels->name, false) && strcmp(labels->name, "le") != 0);
        td_buf_fmt(b, "%s%s=\"", b->len ? "," : "", labels->name);
        add_escaped(b, labels->value, true);
        td_buf_byte(b, '"');
    }
}

/* The buffer's text, to free(); NULL when it ran out of memory. */
static char *take_text(td_buf *b)
{
    td_buf_str(b, ""); /* an empty buffer has no text yet */
    if (b->oom) {
        td_buf_free(b);
        return NULL;
    }
    return b->ptr;
}

td_metrics *td_metrics_create(const td_label *const_labels)
{
    td_metrics *m = calloc(1, sizeof *m);
    td_buf b = {0};

    if (m == NULL)
        return NULL;
    add_labels(&b, const_labels);
    m->const_labels = take_text(&b);
    if (m->const_labels == NULL) {
        free(m);
        return NULL;
    }
    m->spare_histogram.u.histogram.counts = &m->spare_count;
    return m;
}

static void metric_free(metric *x, kind k)
{
    if (k == KIND_HISTOGRAM) {
        free(x->u.histogram.bounds);
        free(x->u.histogram.counts);
    }
    free(x->labels);
    free(x);
}

void td_metrics_free(td_metrics *m)
{
    if (m == NULL)
        return;
    for (family *f = m->families, *next_f; f != NULL; f = next_f) {
        next_f = f->next;
        for (metric *x = f->metrics, *next_x; x != NULL; x = next_x) {
            next_x = x->next;
            metric_free(x, f->kind);
        }
        free(f->name);
        free(f->help);
        free(f);
    }
    free(m->const_labels);
    free(m);
}

td_status td_metrics_check(const td_metrics *m, td_error *err)
{
    return m->oom ? td_fail(err, TD_NOMEM, "no memory for the metrics") : TD_OK;
}

/* The family of this name, made if new. NULL: no memory. */
static family *family_of(td_metrics *m, const char *name, const char *help, kind k)
{
    family **at = &m->families, *f;

    td_assert(name_ok(name, true));
    while (*at != NULL && strcmp((*at)->name, name) < 0)
        at = &(*at)->next;
    if (*at != NULL && strcmp((*at)->name, name) == 0) {
        td_assert((*at)->kind == k); /* one name has one type, or the text is not valid */
        return *at;
    }
    f = calloc(1, sizeof *f);
    if (f == NULL)
        return NULL;
    f->name = strdup(name);
    f->help = strdup(help);
    f->kind = k;
    if (f->name == NULL || f->help == NULL) {
        free(f->name);
        free(f->help);
        free(f);
        return NULL;
    }
    f->next = *at;
    *at = f;
    return f;
}

/* The metric with these labels, made if new. NULL: no memory; m->oom is set. */
static metric *metric_of(td_metrics *m, const char *name, const char *help, const td_label *labels,
                         kind k, const double *bounds, size_t n_bounds)
{
    family *f = family_of(m, name, help, k);
    td_buf b = {0};
    metric **at, *x;
    char *text;

    td_buf_str(&b, m->const_labels);
    add_labels(&b, labels);
    text = take_text(&b);
    if (f == NULL || text == NULL)
        goto nomem;
    for (at = &f->metrics; *at != NULL; at = &(*at)->next) {
        if (strcmp((*at)->labels, text) == 0) {
            free(text);
            return *at;
        }
    }
    x = calloc(1, sizeof *x);
    if (x == NULL)
        goto nomem;
    x->labels = text;
    if (k == KIND_HISTOGRAM) {
        td_histogram *h = &x->u.histogram;

        h->bounds = malloc((n_bounds + 1) * sizeof *h->bounds);
        h->counts = calloc(n_bounds + 1, sizeof *h->counts);
        if (h->bounds == NULL || h->counts == NULL) {
            metric_free(x, k);
            text = NULL;
            goto nomem;
        }
        memcpy(h->bounds, bounds, n_bounds * sizeof *bounds);
        h->n_bounds = n_bounds;
    }
    *at = x; /* last: the lists never hold a half-made metric */
    return x;

nomem:
    free(text);
    m->oom = true;
    return NULL;
}

td_counter *td_metrics_counter(td_metrics *m, const char *name, const char *help,
                               const td_label *labels)
{
    metric *x = metric_of(m, name, help, labels, KIND_COUNTER, NULL, 0);

    return x ? &x->u.counter : &m->spare_counter.u.counter;
}

td_counter *td_metrics_counter_seconds(td_metrics *m, const char *name, const char *help,
                                       const td_label *labels)
{
    metric *x = metric_of(m, name, help, labels, KIND_SECONDS, NULL, 0);

    return x ? &x->u.counter : &m->spare_counter.u.counter;
}

td_gauge *td_metrics_gauge(td_metrics *m, const char *name, const char *help,
                           const td_label *labels)
{
    metric *x = metric_of(m, name, help, labels, KIND_GAUGE, NULL, 0);

    return x ? &x->u.gauge : &m->spare_gauge.u.gauge;
}

td_histogram *td_metrics_histogram(td_metrics *m, const char *name, const char *help,
                                   const td_label *labels, const double *bounds, size_t n)
{
    metric *x;

    for (size_t i = 0; i < n; i++)
        td_assert(isfinite(bounds[i]) && (i == 0 || bounds[i] > bounds[i - 1]));
    x = metric_of(m, name, help, labels, KIND_HISTOGRAM, bounds, n);
    return x ? &x->u.histogram : &m->spare_histogram.u.histogram;
}

void td_counter_add(td_counter *c, uint64_t n)
{
    atomic_fetch_add_explicit(&c->n, n, memory_order_relaxed);
}

uint64_t td_counter_value(const td_counter *c)
{
    return atomic_load_explicit(&c->n, memory_order_relaxed);
}

void td_gauge_set(td_gauge *g, double value)
{
    f64_store(&g->value, value);
}

void td_gauge_add(td_gauge *g, double delta)
{
    f64_add(&g->value, delta);
}

double td_gauge_value(const td_gauge *g)
{
    return f64_load(&g->value);
}

void td_histogram_observe_n(td_histogram *h, double value, uint64_t n)
{
    size_t i = 0;

    /* A dozen or two bounds: a scan that mostly stops early beats a binary search. NaN lands in
     * +Inf, and in the sum, where it will be noticed. */
    while (i < h->n_bounds && !(value <= h->bounds[i]))
        i++;
    atomic_fetch_add_explicit(&h->counts[i], n, memory_order_relaxed);
    f64_add(&h->sum, value * (double)n);
}

void td_histogram_observe(td_histogram *h, double value)
{
    td_histogram_observe_n(h, value, 1);
}

void td_histogram_observe_us(td_histogram *h, td_usec us)
{
    td_histogram_observe_n(h, us > 0 ? (double)us / 1e6 : 0, 1);
}

uint64_t td_histogram_count(const td_histogram *h)
{
    uint64_t n = 0;

    for (size_t i = 0; i <= h->n_bounds; i++)
        n += atomic_load_explicit(&h->counts[i], memory_order_relaxed);
    return n;
}

double td_histogram_sum(const td_histogram *h)
{
    return f64_load(&h->sum);
}

/* A number as the format wants it, in the shortest form that reads back the same. */
static void add_number(td_buf *b, double v)
{
    char text[40];

    if (isnan(v)) {
        td_buf_str(b, "NaN");
    } else if (isinf(v)) {
        td_buf_str(b, v > 0 ? "+Inf" : "-Inf");
    } else if (v == floor(v) && fabs(v) < 1e15) {
        td_buf_fmt(b, "%.0f", v);
    } else {
        snprintf(text, sizeof text, "%.15g", v);
        if (strtod(text, NULL) != v)
            snprintf(text, sizeof text, "%.17g", v);
        td_buf_str(b, text);
    }
}

/* "name_suffix{labels,extra} "; braces only around something. */
static void add_series(td_buf *b, const char *name, const char *suffix, const char *labels,
                       const char *extra)
{
    td_buf_fmt(b, "%s%s", name, suffix);
    if (*labels != '\0' || *extra != '\0')
        td_buf_fmt(b, "{%s%s%s}", labels, *labels && *extra ? "," : "", extra);
    td_buf_byte(b, ' ');
}

static void write_histogram(td_buf *b, const char *name, const metric *x)
{
    const td_histogram *h = &x->u.histogram;
    uint64_t cumulative = 0;

    for (size_t i = 0; i <= h->n_bounds; i++) {
        td_buf le = {0};

        td_buf_str(&le, "le=\"");
        add_number(&le, i < h->n_bounds ? h->bounds[i] : INFINITY);
        td_buf_byte(&le, '"');
        cumulative += atomic_load_explicit(&h->counts[i], memory_order_relaxed);
        add_series(b, name, "_bucket", x->labels, le.oom ? "" : le.ptr);
        td_buf_fmt(b, "%lu\n", (unsigned long)cumulative);
        b->oom |= le.oom;
        td_buf_free(&le);
    }
    add_series(b, name, "_sum", x->labels, "");
    add_number(b, td_histogram_sum(h));
    td_buf_byte(b, '\n');
    add_series(b, name, "_count", x->labels, ""); /* the +Inf bucket just written, not a new read */
    td_buf_fmt(b, "%lu\n", (unsigned long)cumulative);
}

static void write_family(td_buf *b, const family *f)
{
    static const char *const types[] = {"counter", "counter", "gauge", "histogram"};

    td_buf_fmt(b, "# HELP %s ", f->name);
    add_escaped(b, f->help, false);
    td_buf_fmt(b, "\n# TYPE %s %s\n", f->name, types[f->kind]);
    for (const metric *x = f->metrics; x != NULL; x = x->next) {
        if (f->kind == KIND_HISTOGRAM) {
            write_histogram(b, f->name, x);
            continue;
        }
        add_series(b, f->name, "", x->labels, "");
        if (f->kind == KIND_COUNTER)
            td_buf_fmt(b, "%lu", (unsigned long)td_counter_value(&x->u.counter));
        else if (f->kind == KIND_SECONDS)
            add_number(b, (double)td_counter_value(&x->u.counter) / 1e6);
        else
            add_number(b, td_gauge_value(&x->u.gauge));
        td_buf_byte(b, '\n');
    }
}

void td_metrics_write(td_metrics *m, td_buf *b)
{
    for (const family *f = m->families; f != NULL; f = f->next)
        write_family(b, f);
    td_metrics_write_process(b);
}
