/* The pure parts of a push: which bytes go where, for any pair of splits, and counting notices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/hash.h"
#include "common/kv_notice.h"
#include "common/kv_plan.h"
#include "tests/unit/kv_scenario.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ the plan */

typedef struct copied {
    uint64_t bytes, digest;
    size_t puts;
} copied;

/* Carry out the puts of one chunk of one request on every source rank. */
static void copy_chunk(const kv_world *w, int i, int32_t from, int32_t to, unsigned char **src,
                       unsigned char **dst, copied *sum)
{
    td_kv_place a = kv_world_src(w, i), b = kv_world_dst(w, i);
    td_kv_puts puts = {0};

    for (int32_t rank = 0; rank < w->src.tp; rank++)
        for (int32_t layer = 0; layer < w->src.n_layers; layer++) {
            td_kv_puts_clear(&puts);
            assert_int_equal(
                td_kv_plan(&a, rank, &b, w->req[i].n_tokens, layer, from, to, &puts, NULL), TD_OK);
            for (size_t k = 0; k < puts.len; k++) {
                td_kv_put p = puts.ptr[k];

                assert_in_range(p.dst_rank, 0, w->dst.tp - 1);
                assert_true(p.src_offset + p.bytes <= w->src.region_bytes);
                assert_true(p.dst_offset + p.bytes <= w->dst.region_bytes);
                memcpy(dst[p.dst_rank] + p.dst_offset, src[rank] + p.src_offset, p.bytes);
                sum->bytes += p.bytes;
            }
            sum->puts += puts.len;
            sum->digest += td_kv_digest(&a, rank, src[rank], w->req[i].n_tokens, layer, from, to);
        }
    td_kv_puts_free(&puts);
}

static uint64_t destination_digest(const kv_world *w, int i, unsigned char **dst)
{
    td_kv_place b = kv_world_dst(w, i);
    uint64_t sum = 0;

    for (int32_t rank = 0; rank < w->dst.tp; rank++)
        for (int32_t layer = 0; layer < w->dst.n_layers; layer++)
            sum +=
                td_kv_digest(&b, rank, dst[rank], w->req[i].n_tokens, layer, 0, w->req[i].n_tokens);
    return sum;
}

static void copy_world(const kv_scenario *s)
{
    kv_world w;
    unsigned char *src[TD_KV_MAX_SOURCES], *dst[TD_KV_MAX_SOURCES];
    kv_expect expect[KV_MAX_REQUESTS];
    uint64_t rng = s->seed ^ 1;

    kv_world_init(&w, s);
    for (int32_t r = 0; r < s->src_tp; r++)
        src[r] = kv_world_src_region(&w, r);
    for (int32_t r = 0; r < s->dst_tp; r++)
        dst[r] = kv_world_dst_region(&w);
    for (int i = 0; i < s->n_requests; i++) {
        copied sum = {0};

        for (int32_t from = 0, to; from < w.req[i].n_tokens; from = to) {
            to = from + kv_random_in(&rng, 1, s->chunk);
            if (to > w.req[i].n_tokens)
                to = w.req[i].n_tokens;
            copy_chunk(&w, i, from, to, src, dst, &sum);
        }
        expect[i] = KV_LANDED;
        assert_int_equal(sum.bytes, td_kv_transfer_bytes(&w.src, w.req[i].n_tokens));
        assert_int_equal(sum.digest, destination_digest(&w, i, dst));
    }
    assert_int_equal(kv_world_check(&w, dst, expect), 0);
    for (int32_t r = 0; r < s->src_tp; r++)
        free(src[r]);
    for (int32_t r = 0; r < s->dst_tp; r++)
        free(dst[r]);
    kv_world_free(&w);
}

static void test_kv_plan_lands_every_byte_for_any_splits_pages_and_chunks(void **state)
{
    (void)state;
    const int32_t tps[] = {1, 2, 4, 8};
    uint64_t rng = 2024;

    for (int n = 0; n < 160; n++) {
        kv_scenario s = {
            .seed = kv_random(&rng),
            .n_layers = kv_random_in(&rng, 1, 5),
            .n_kv_heads = 8,
            .head_dim = 2 * kv_random_in(&rng, 1, 6),
            .window = kv_random_in(&rng, 1, 200),
            .all_windowed = kv_random_in(&rng, 0, 9) == 0,
            .f32 = kv_random_in(&rng, 0, 3) == 0,
            .src_tp = tps[n % 4],
            .dst_tp = tps[n / 4 % 4],
            .n_requests = kv_random_in(&rng, 1, 4),
            .min_tokens = 1,
            .max_tokens = n % 8 == 0 ? 5 : 700,
            .chunk = kv_random_in(&rng, 1, 300),
        };

        copy_world(&s);
    }
}

/* The longest possible runs: one prompt in consecutive pages on both sides is one put per layer,
 * head and side; a window that crosses the end of a ring is two. */
static void test_kv_plan_merges_consecutive_pages_into_one_put(void **state)
{
    (void)state;
    td_model_config c = {.n_layers = 2, .n_kv_heads = 2, .head_dim = 8, .window = 100};
    uint32_t pages[16];
    td_kv_geometry g;
    td_kv_puts puts = {0};

    c.windowed[0] = true;
    for (uint32_t i = 0; i < 16; i++)
        pages[i] = i + 1;
    assert_int_equal(td_kv_geometry_init(&g, &c, 1, TD_KV_BF16, 20, 2, 2, NULL), TD_OK);
    td_kv_place p = {&g, pages, 16, 1};

    assert_int_equal(td_kv_plan(&p, 0, &p, 1000, 1, 0, 1000, &puts, NULL), TD_OK);
    assert_int_equal(puts.len, 2 * 2);
    assert_int_equal(puts.ptr[0].bytes, 1000 * 16);
    td_kv_puts_clear(&puts);
    /* positions 901 .. 999: pages 14 and 15 of the prompt, ring pages 0 and 1 */
    assert_int_equal(td_kv_plan(&p, 0, &p, 1000, 0, 0, 1000, &puts, NULL), TD_OK);
    assert_int_equal(puts.len, 2 * 2);
    td_kv_puts_clear(&puts);
    /* positions 851 .. 949: pages 13 and 14, ring pages 1 and 0 */
    assert_int_equal(td_kv_plan(&p, 0, &p, 950, 0, 0, 950, &puts, NULL), TD_OK);
    assert_int_equal(puts.len, 2 * 2 * 2);
    td_kv_puts_clear(&puts);
    /* an early chunk of a window layer is nothing at all */
    assert_int_equal(td_kv_plan(&p, 0, &p, 1000, 0, 0, 512, &puts, NULL), TD_OK);
    assert_int_equal(puts.len, 0);
    td_kv_puts_free(&puts);
}

static void test_kv_digest_tells_swapped_rows_and_changed_bytes(void **state)
{
    (void)state;
    kv_scenario s = {
        .seed = 5,
        .n_layers = 2,
        .n_kv_heads = 2,
        .head_dim = 4,
        .window = 32,
        .src_tp = 1,
        .dst_tp = 1,
        .n_requests = 1,
        .min_tokens = 100,
        .max_tokens = 100,
        .chunk = 64,
    };
    kv_world w;

    kv_world_init(&w, &s);
    unsigned char *region = kv_world_src_region(&w, 0);
    td_kv_place p = kv_world_src(&w, 0);
    uint64_t before = td_kv_digest(&p, 0, region, 100, 1, 0, 100);
    unsigned char *row = region + td_kv_offset(&w.src, 1, 0, 0, p.pages[0], 3), saved[8];

    row[7] ^= 1;
    assert_int_not_equal(td_kv_digest(&p, 0, region, 100, 1, 0, 100), before);
    row[7] ^= 1;
    memcpy(saved, row, 8);
    memcpy(row, row + 8, 8);
    memcpy(row + 8, saved, 8);
    assert_int_not_equal(td_kv_digest(&p, 0, region, 100, 1, 0, 100), before);
    free(region);
    kv_world_free(&w);
}

static void test_kv_place_check_names_what_does_not_fit(void **state)
{
    (void)state;
    kv_scenario s = {
        .seed = 5,
        .n_layers = 2,
        .n_kv_heads = 2,
        .head_dim = 4,
        .window = 32,
        .src_tp = 1,
        .dst_tp = 1,
        .n_requests = 1,
        .min_tokens = 100,
        .max_tokens = 100,
        .chunk = 64,
    };
    kv_world w;
    td_error err = {0};

    kv_world_init(&w, &s);
    td_kv_place p = kv_world_src(&w, 0);
    assert_int_equal(td_kv_place_check(&p, 100, "source", &err), TD_OK);
    assert_int_equal(td_kv_place_check(&p, 0, "source", &err), TD_INVALID);
    assert_int_equal(td_kv_place_check(&p, 129, "source", &err), TD_INVALID);
    assert_string_equal(err.text, "source: 2 pages given, 129 tokens need 3");
    p.ring = w.src.n_rings;
    assert_int_equal(td_kv_place_check(&p, 100, "source", &err), TD_INVALID);
    p.ring = 0;
    w.req[0].src_pages[1] = w.src.n_pages;
    assert_int_equal(td_kv_place_check(&p, 100, "source", &err), TD_INVALID);
    assert_non_null(strstr(err.text, "outside a pool"));
    kv_world_free(&w);
}

static void test_kv_pages_of_expands_extents_and_cannot_be_made_to_overflow(void **state)
{
    (void)state;
    const td_kv_extent ext[] = {{7, 2}, {3, 1}, {0xffffffff, 0xffffffff}, {0, 0xffffffff}};
    uint32_t pages[4] = {0};

    assert_int_equal(td_kv_pages_of(ext, 4, pages, 3), 3 + 2 * UINT64_C(0xffffffff));
    assert_int_equal(pages[0], 7);
    assert_int_equal(pages[1], 8);
    assert_int_equal(pages[2], 3);
    assert_int_equal(pages[3], 0);
}

/* ------------------------------------------------------------------ notices and arrivals */

static td_kv_notice sample_notice(void)
{
    return (td_kv_notice){
        .request = UINT64_C(0x1122334455667788),
        .attempt = 3,
        .epoch = 0xfffffff0,
        .source_rank = 1,
        .n_sources = 4,
        .status = TD_OK,
        .bytes = UINT64_C(1) << 40,
        .puts = 77,
        .first_token = -5,
        .index = 9,
        .has_digest = true,
        .digest = UINT64_C(0xdeadbeefcafef00d),
        .logprobs = {.n = 2, .chosen = -1.5f, .id = {7, 200000}, .logprob = {-0.25f, -1.5f}},
    };
}

static void test_kv_notice_survives_the_wire(void **state)
{
    (void)state;
    td_kv_notice a = sample_notice(), b;
    unsigned char wire[TD_KV_NOTICE_BYTES];

    td_kv_notice_encode(&a, wire);
    assert_int_equal(td_kv_notice_decode(wire, sizeof wire, &b, NULL), TD_OK);
    assert_int_equal(b.request, a.request);
    assert_int_equal(b.attempt, a.attempt);
    assert_int_equal(b.epoch, a.epoch);
    assert_int_equal(b.source_rank, a.source_rank);
    assert_int_equal(b.n_sources, a.n_sources);
    assert_int_equal(b.status, a.status);
    assert_int_equal(b.bytes, a.bytes);
    assert_int_equal(b.puts, a.puts);
    assert_int_equal(b.first_token, a.first_token);
    assert_int_equal(b.index, a.index);
    assert_int_equal(b.has_digest, a.has_digest);
    assert_int_equal(b.digest, a.digest);
    assert_memory_equal(&b.logprobs, &a.logprobs, sizeof a.logprobs);
    a.logprobs = (td_logprobs){.n = -1};
    td_kv_notice_encode(&a, wire);
    assert_int_equal(td_kv_notice_decode(wire, sizeof wire, &b, NULL), TD_OK);
    assert_int_equal(b.logprobs.n, -1);
}

static void test_kv_notice_decode_refuses_every_altered_byte_and_length(void **state)
{
    (void)state;
    td_kv_notice a = sample_notice(), out = {.request = 42};
    unsigned char wire[TD_KV_NOTICE_BYTES + 1] = {0};

    td_kv_notice_encode(&a, wire);
    for (size_t n = 0; n <= sizeof wire; n++)
        if (n != TD_KV_NOTICE_BYTES)
            assert_int_equal(td_kv_notice_decode(wire, n, &out, NULL), TD_INVALID);
    for (size_t i = 0; i < TD_KV_NOTICE_BYTES; i++) {
        wire[i] ^= 0x10;
        assert_int_equal(td_kv_notice_decode(wire, TD_KV_NOTICE_BYTES, &out, NULL), TD_INVALID);
        wire[i] ^= 0x10;
    }
    /* well formed but out of range */
    a.source_rank = a.n_sources;
    td_kv_notice_encode(&a, wire);
    assert_int_equal(td_kv_notice_decode(wire, TD_KV_NOTICE_BYTES, &out, NULL), TD_INVALID);
    a = sample_notice();
    a.n_sources = TD_KV_MAX_SOURCES + 1;
    td_kv_notice_encode(&a, wire);
    assert_int_equal(td_kv_notice_decode(wire, TD_KV_NOTICE_BYTES, &out, NULL), TD_INVALID);
    a = sample_notice();
    a.status = TD_STATUS_COUNT;
    td_kv_notice_encode(&a, wire);
    assert_int_equal(td_kv_notice_decode(wire, TD_KV_NOTICE_BYTES, &out, NULL), TD_INVALID);
    assert_int_equal(out.request, 42);
}

static td_kv_notice notice_of(uint32_t rank, uint32_t n, uint64_t bytes, td_status status)
{
    return (td_kv_notice){
        .request = 7,
        .attempt = 1,
        .epoch = 2,
        .source_rank = rank,
        .n_sources = n,
        .status = status,
        .bytes = bytes,
        .puts = 1,
        .first_token = 11,
        .index = 0,
    };
}

static void test_kv_arrival_completes_when_all_sources_are_in_whatever_their_order(void **state)
{
    (void)state;
    td_kv_arrival a;
    td_kv_notice first = notice_of(2, 3, 30, TD_OK), second = notice_of(0, 3, 30, TD_OK),
                 third = notice_of(1, 3, 40, TD_OK);

    td_kv_arrival_init(&a, 7, 1, 2, 100);
    assert_int_equal(td_kv_arrival_state_of(&a), TD_KV_ARRIVAL_PENDING);
    assert_int_equal(td_kv_arrival_add(&a, &first, NULL), TD_OK);
    assert_int_equal(td_kv_arrival_add(&a, &second, NULL), TD_OK);
    assert_int_equal(td_kv_arrival_state_of(&a), TD_KV_ARRIVAL_PENDING);
    assert_int_equal(td_kv_arrival_add(&a, &third, NULL), TD_OK);
    assert_int_equal(td_kv_arrival_state_of(&a), TD_KV_ARRIVAL_COMPLETE);
    assert_int_equal(a.first_token, 11);
    assert_int_equal(a.puts, 3);
}

static void test_kv_arrival_refuses_what_is_not_its_own(void **state)
{
    (void)state;
    td_kv_arrival a;
    td_kv_notice n = notice_of(0, 2, 50, TD_OK);

    td_kv_arrival_init(&a, 7, 1, 2, 100);
    n.epoch = 3;
    assert_int_equal(td_kv_arrival_add(&a, &n, NULL), TD_INVALID);
    n = notice_of(0, 2, 50, TD_OK);
    n.attempt = 0;
    assert_int_equal(td_kv_arrival_add(&a, &n, NULL), TD_INVALID);
    n = notice_of(0, 2, 50, TD_OK);
    n.request = 8;
    assert_int_equal(td_kv_arrival_add(&a, &n, NULL), TD_INVALID);
    n = notice_of(0, 2, 50, TD_OK);
    assert_int_equal(td_kv_arrival_add(&a, &n, NULL), TD_OK);
    assert_int_equal(td_kv_arrival_add(&a, &n, NULL), TD_INVALID); /* twice */
    n = notice_of(1, 3, 50, TD_OK);
    assert_int_equal(td_kv_arrival_add(&a, &n, NULL), TD_INVALID); /* of 3, not of 2 */
    assert_int_equal(a.bytes, 50);
    assert_int_equal(td_kv_arrival_state_of(&a), TD_KV_ARRIVAL_PENDING);
}

static void test_kv_arrival_fails_only_when_nobody_writes_any_more(void **state)
{
    (void)state;
    td_kv_arrival a;
    td_kv_notice bad = notice_of(0, 2, 10, TD_CANCELED), good = notice_of(1, 2, 50, TD_OK);
    td_error err = {0};

    td_kv_arrival_init(&a, 7, 1, 2, 100);
    assert_int_equal(td_kv_arrival_add(&a, &bad, NULL), TD_OK);
    assert_int_equal(a.status, TD_CANCELED);                             /* lost already, */
    assert_int_equal(td_kv_arrival_state_of(&a), TD_KV_ARRIVAL_PENDING); /* but 1 may still write */
    assert_int_equal(td_kv_arrival_add(&a, &good, NULL), TD_OK);
    assert_int_equal(td_kv_arrival_state_of(&a), TD_KV_ARRIVAL_FAILED);
    assert_int_equal(td_kv_arrival_why(&a, &err), TD_CANCELED);
}

static void test_kv_arrival_fails_on_missing_bytes_and_on_two_first_tokens(void **state)
{
    (void)state;
    td_kv_arrival a;
    td_kv_notice x = notice_of(0, 2, 50, TD_OK), y = notice_of(1, 2, 49, TD_OK);
    td_error err = {0};

    td_kv_arrival_init(&a, 7, 1, 2, 100);
    assert_int_equal(td_kv_arrival_add(&a, &x, NULL), TD_OK);
    assert_int_equal(td_kv_arrival_add(&a, &y, NULL), TD_OK);
    assert_int_equal(td_kv_arrival_state_of(&a), TD_KV_ARRIVAL_FAILED);
    assert_int_equal(td_kv_arrival_why(&a, &err), TD_INTERNAL);
    assert_non_null(strstr(err.text, "99 bytes"));

    td_kv_arrival_init(&a, 7, 1, 2, 100);
    y = notice_of(1, 2, 50, TD_OK);
    y.first_token = 12;
    assert_int_equal(td_kv_arrival_add(&a, &x, NULL), TD_OK);
    assert_int_equal(td_kv_arrival_add(&a, &y, NULL), TD_OK);
    assert_int_equal(td_kv_arrival_state_of(&a), TD_KV_ARRIVAL_FAILED);
    assert_int_equal(td_kv_arrival_why(&a, &err), TD_INTERNAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_plan_lands_every_byte_for_any_splits_pages_and_chunks),
        cmocka_unit_test(test_kv_plan_merges_consecutive_pages_into_one_put),
        cmocka_unit_test(test_kv_digest_tells_swapped_rows_and_changed_bytes),
        cmocka_unit_test(test_kv_place_check_names_what_does_not_fit),
        cmocka_unit_test(test_kv_pages_of_expands_extents_and_cannot_be_made_to_overflow),
        cmocka_unit_test(test_kv_notice_survives_the_wire),
        cmocka_unit_test(test_kv_notice_decode_refuses_every_altered_byte_and_length),
        cmocka_unit_test(test_kv_arrival_completes_when_all_sources_are_in_whatever_their_order),
        cmocka_unit_test(test_kv_arrival_refuses_what_is_not_its_own),
        cmocka_unit_test(test_kv_arrival_fails_only_when_nobody_writes_any_more),
        cmocka_unit_test(test_kv_arrival_fails_on_missing_bytes_and_on_two_first_tokens),
    };

    return cmocka_run_group_tests_name("kv_push", tests, NULL, NULL);
}
