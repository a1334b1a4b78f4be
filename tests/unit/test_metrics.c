/* metrics: the text that is written, read back by a small parser, and by promtool where there is
 * one. hist: quantiles against sorted data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/hist.h"
#include "common/metrics.h"

/* The value of the line that begins with this series, exactly; fails the test if it is missing or
 * there twice. */
static double value_of(const td_buf *b, const char *series)
{
    double v = NAN;
    int found = 0;

    for (const char *line = b->ptr; line != NULL && *line != '\0';) {
        size_t n = strlen(series);
        const char *end = strchr(line, '\n');

        assert_non_null(end); /* every line ends */
        if (strncmp(line, series, n) == 0 && line[n] == ' ') {
            v = strtod(line + n + 1, NULL);
            found++;
        }
        line = end + 1;
    }
    if (found != 1)
        fail_msg("%d lines of %s in:\n%s", found, series, b->ptr);
    return v;
}

static void assert_has(const td_buf *b, const char *want)
{
    if (strstr(b->ptr, want) == NULL)
        fail_msg("\"%s\" is not in:\n%s", want, b->ptr);
}

/* Each family: HELP, TYPE, then its lines and nobody else's; no series twice. */
static void assert_well_formed(const td_buf *b)
{
    char family[128] = "", line[1024];
    td_buf seen = {0};

    td_buf_byte(&seen, '\n');
    for (const char *p = b->ptr; *p != '\0';) {
        size_t len = strcspn(p, "\n");

        assert_true(len > 0 && len < sizeof line && p[len] == '\n');
        memcpy(line, p, len);
        line[len] = '\0';
        p += len + 1;
        if (strncmp(line, "# HELP ", 7) == 0) {
            assert_int_equal(sscanf(line, "# HELP %127s", family), 1);
        } else if (strncmp(line, "# TYPE ", 7) == 0) {
            char name[128], type[16];

            assert_int_equal(sscanf(line, "# TYPE %127s %15s", name, type), 2);
            assert_string_equal(name, family);
            snprintf(line, sizeof line, "\n# TYPE %s ", name);
            assert_null(strstr(seen.ptr, line)); /* one family, one place */
        } else {
            char *value = strrchr(line, ' ');
            size_t n = strlen(family);

            assert_non_null(value);
            assert_int_equal(strncmp(line, family, n), 0);
            assert_non_null(strchr("_ {", line[n]));
            *value = '\0';
            td_buf_str(&seen, line);
            td_buf_byte(&seen, '\n');
            continue;
        }
        td_buf_str(&seen, line);
        td_buf_byte(&seen, '\n');
    }
    td_buf_free(&seen);
}

/* A registry with every kind in it, as a router would have. */
static td_metrics *sample(void)
{
    td_metrics *m = td_metrics_create(TD_LABELS({"model_name", "gpt \"oss\"\\20b\n"}));
    td_histogram *h;

    assert_non_null(m);
    td_counter_add(td_metrics_counter(m, "vllm:request_success_total", "Finished\nrequests \\ all.",
                                      TD_LABELS({"finished_reason", "stop"})),
                   3);
    td_gauge_set(td_metrics_gauge(m, "vllm:kv_cache_usage_perc", "Share in use.", NULL), 0.25);
    td_counter_add(td_metrics_counter(m, "vllm:request_success_total", "Finished\nrequests \\ all.",
                                      TD_LABELS({"finished_reason", "length"})),
                   18446744073709551615u);
    td_counter_add(td_metrics_counter_seconds(m, "tandem:device_busy_seconds_total", "Busy.", NULL),
                   1500000);
    h = td_metrics_histogram(m, "vllm:time_to_first_token_seconds", "TTFT.", NULL,
                             TD_BUCKETS(TTFT));
    td_histogram_observe(h, 0.001); /* on a bound: le means less or equal */
    td_histogram_observe_us(h, 30000);
    td_histogram_observe_us(h, -5);
    td_histogram_observe_n(h, 5000, 2);
    assert_int_equal(td_metrics_check(m, NULL), TD_OK);
    return m;
}

static void test_metrics_text_reads_back(void **state)
{
    td_metrics *m = sample();
    td_buf b = {0};
#define MODEL "model_name=\"gpt \\\"oss\\\"\\\\20b\\n\""
#define TTFT "vllm:time_to_first_token_seconds"

    (void)state;
    td_metrics_write(m, &b);
    assert_false(b.oom);
    assert_well_formed(&b);
    assert_has(&b, "# HELP vllm:request_success_total Finished\\nrequests \\\\ all.\n"
                   "# TYPE vllm:request_success_total counter\n");
    assert_true(value_of(&b, "vllm:request_success_total{" MODEL ",finished_reason=\"stop\"}") ==
                3);
    assert_has(&b, "finished_reason=\"length\"} 18446744073709551615\n");
    assert_true(value_of(&b, "vllm:kv_cache_usage_perc{" MODEL "}") == 0.25);
    assert_true(value_of(&b, "tandem:device_busy_seconds_total{" MODEL "}") == 1.5);
    assert_has(&b, "# TYPE " TTFT " histogram\n");
    assert_true(value_of(&b, TTFT "_bucket{" MODEL ",le=\"0.001\"}") == 2);
    assert_true(value_of(&b, TTFT "_bucket{" MODEL ",le=\"0.02\"}") == 2);
    assert_true(value_of(&b, TTFT "_bucket{" MODEL ",le=\"0.04\"}") == 3);
    assert_true(value_of(&b, TTFT "_bucket{" MODEL ",le=\"2560\"}") == 3);
    assert_true(value_of(&b, TTFT "_bucket{" MODEL ",le=\"+Inf\"}") == 5);
    assert_true(value_of(&b, TTFT "_count{" MODEL "}") == 5);
    assert_true(fabs(value_of(&b, TTFT "_sum{" MODEL "}") - 10000.031) < 1e-9);
    td_buf_free(&b);
    td_metrics_free(m);
}

static void test_metrics_same_name_and_labels_is_the_same_metric(void **state)
{
    td_metrics *m = td_metrics_create(NULL);
    td_counter *a = td_metrics_counter(m, "tandem:x_total", "X.", TD_LABELS({"k", "1"}));
    td_counter *b = td_metrics_counter(m, "tandem:x_total", "X.", TD_LABELS({"k", "2"}));

    (void)state;
    assert_ptr_not_equal(a, b);
    assert_ptr_equal(a, td_metrics_counter(m, "tandem:x_total", "X.", TD_LABELS({"k", "1"})));
    td_metrics_free(m);
    td_metrics_free(NULL);
}

static void test_metrics_gauge_goes_up_and_down_and_shows_odd_values(void **state)
{
    td_metrics *m = td_metrics_create(NULL);
    td_gauge *g = td_metrics_gauge(m, "tandem:g", "G.", NULL);
    td_buf b = {0};

    (void)state;
    td_gauge_add(g, 3);
    td_gauge_add(g, -1.5);
    assert_true(td_gauge_value(g) == 1.5);
    td_gauge_set(g, INFINITY);
    td_metrics_write(m, &b);
    assert_has(&b, "\ntandem:g +Inf\n");
    td_buf_clear(&b);
    td_gauge_set(g, NAN);
    td_metrics_write(m, &b);
    assert_has(&b, "\ntandem:g NaN\n");
    td_buf_free(&b);
    td_metrics_free(m);
}

static void test_metrics_process_tells_plausible_values(void **state)
{
    td_metrics *m = td_metrics_create(TD_LABELS({"model_name", "m"}));
    td_buf b = {0};

    (void)state;
    td_metrics_write(m, &b);
    assert_well_formed(&b);
    assert_true(value_of(&b, "process_resident_memory_bytes") > 100e3);
    assert_true(value_of(&b, "process_open_fds") >= 3);
    assert_true(value_of(&b, "process_cpu_seconds_total") >= 0);
    assert_true(fabs(value_of(&b, "process_start_time_seconds") - (double)time(NULL)) < 3600);
    td_buf_free(&b);
    td_metrics_free(m);
}

enum { N_THREADS = 4, N_ADDS = 20000 };
typedef struct shared {
    td_counter *counter;
    td_gauge *gauge;
    td_histogram *histogram;
} shared;

static void *add_many(void *arg)
{
    const shared *s = arg;

    for (int i = 0; i < N_ADDS; i++) {
        td_counter_add(s->counter, 1);
        td_gauge_add(s->gauge, 0.5);
        td_histogram_observe(s->histogram, i % 2 ? 0.5 : 2);
    }
    return NULL;
}

static void test_metrics_lose_no_update_between_threads(void **state)
{
    td_metrics *m = td_metrics_create(NULL);
    shared s = {
        td_metrics_counter(m, "tandem:n_total", "N.", NULL),
        td_metrics_gauge(m, "tandem:g", "G.", NULL),
        td_metrics_histogram(m, "tandem:h", "H.", NULL, (const double[]){1}, 1),
    };
    pthread_t threads[N_THREADS];
    td_buf b = {0};

    (void)state;
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, add_many, &s), 0);
    for (int i = 0; i < 50; i++) { /* scrapes meanwhile agree with themselves */
        td_buf_clear(&b);
        td_metrics_write(m, &b);
        assert_true(value_of(&b, "tandem:h_bucket{le=\"+Inf\"}") == value_of(&b, "tandem:h_count"));
        assert_true(value_of(&b, "tandem:h_bucket{le=\"1\"}") <= value_of(&b, "tandem:h_count"));
    }
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(td_counter_value(s.counter), N_THREADS * N_ADDS);
    assert_true(td_gauge_value(s.gauge) == N_THREADS * N_ADDS / 2.0);
    assert_int_equal(td_histogram_count(s.histogram), N_THREADS * N_ADDS);
    assert_true(td_histogram_sum(s.histogram) == N_THREADS * N_ADDS * 1.25);
    td_buf_free(&b);
    td_metrics_free(m);
}

static void test_metrics_pass_promtool(void **state)
{
    td_metrics *m = sample();
    td_buf b = {0};
    FILE *f;

    (void)state;
    td_metrics_write(m, &b);
    td_metrics_free(m);
    if (system("command -v promtool >/dev/null 2>&1") != 0) {
        td_buf_free(&b);
        print_message("promtool is not installed\n");
        skip();
    }
    f = popen("promtool check metrics", "w");
    assert_non_null(f);
    assert_int_equal(fwrite(b.ptr, 1, b.len, f), b.len);
    /* 3: valid, with advice on names (colons are for recording rules, says its linter). */
    switch (pclose(f) >> 8) {
    case 0:
    case 3: break;
    default: fail_msg("promtool refuses:\n%s", b.ptr);
    }
    td_buf_free(&b);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void test_hist_quantiles_are_within_a_256th_of_sorted_data(void **state)
{
    enum { N = 20000 };
    static const double qs[] = {0, 0.001, 0.1, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 1};
    uint64_t *values = malloc(N * sizeof *values), seed = 42;
    td_hist *all = calloc(1, sizeof *all), *half = calloc(2, sizeof *half);

    (void)state;
    for (int shape = 0; shape < 3; shape++) {
        memset(all, 0, sizeof *all);
        memset(half, 0, 2 * sizeof *half);
        for (size_t i = 0; i < N; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            values[i] = shape == 0   ? seed >> 60                    /* a few small ones */
                        : shape == 1 ? (seed >> 40) % 90000          /* flat */
                                     : (seed >> 32) >> (seed >> 59); /* over nine decades */
            td_hist_add(all, values[i]);
            td_hist_add(&half[i % 2], values[i]);
        }
        td_hist_merge(&half[0], &half[1]);
        assert_memory_equal(all->bucket, half[0].bucket, sizeof all->bucket);
        assert_true(all->count == half[0].count && all->min == half[0].min &&
                    all->max == half[0].max);
        qsort(values, N, sizeof *values, by_value);
        for (size_t i = 0; i < sizeof qs / sizeof *qs; i++) {
            double rank = ceil(qs[i] * N);
            uint64_t want = values[rank < 1 ? 0 : (size_t)rank - 1];
            double got = (double)td_hist_quantile(all, qs[i]);

            if (fabs(got - (double)want) > (double)want / 256)
                fail_msg("shape %d q %g: %g is not %lu", shape, qs[i], got, (unsigned long)want);
        }
    }
    free(values);
    free(all);
    free(half);
}

static void test_hist_edges(void **state)
{
    td_hist *h = calloc(1, sizeof *h);

    (void)state;
    assert_int_equal(td_hist_quantile(h, 0.5), 0);
    assert_true(td_hist_mean(h) == 0 && td_hist_stddev(h) == 0);
    td_hist_add(h, UINT64_MAX); /* the last bucket there is */
    assert_true(td_hist_quantile(h, 0.5) == UINT64_MAX);
    memset(h, 0, sizeof *h);
    for (uint64_t v = 0; v < 1000; v++) /* small ones are exact, and edges do not overlap */
        td_hist_add(h, v);
    assert_int_equal(td_hist_quantile(h, 0.2), 199);
    assert_true(td_hist_mean(h) == 499.5);
    assert_true(fabs(td_hist_stddev(h) - 288.675) < 0.001);
    assert_int_equal(td_hist_quantile(h, 1), 999);
    free(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics_text_reads_back),
        cmocka_unit_test(test_metrics_same_name_and_labels_is_the_same_metric),
        cmocka_unit_test(test_metrics_gauge_goes_up_and_down_and_shows_odd_values),
        cmocka_unit_test(test_metrics_process_tells_plausible_values),
        cmocka_unit_test(test_metrics_lose_no_update_between_threads),
        cmocka_unit_test(test_metrics_pass_promtool),
        cmocka_unit_test(test_hist_quantiles_are_within_a_256th_of_sorted_data),
        cmocka_unit_test(test_hist_edges),
    };

    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
