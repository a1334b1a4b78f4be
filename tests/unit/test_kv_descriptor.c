/* The descriptor comes over the network: whatever its bytes, it is taken apart within bounds or
 * refused with a reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/hash.h"
#include "common/kv_wire_impl.h"
#include "tests/unit/kv_scenario.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static td_buf sample(void)
{
    td_kv_descriptor d = {
        .wire_hash = UINT64_C(0x0123456789abcdef),
        .ucx_version = 1 << 16 | 13,
        .address = TD_SLICE("an address of some bytes"),
        .n_ranks = 4,
    };
    td_buf out = {0};

    for (int i = 0; i < 4; i++)
        d.rank[i] = (struct td_kv_remote){
            .base = UINT64_C(0x7f0000000000) + (uint64_t)i,
            .bytes = 4096,
            .memory = i == 3 ? TD_KV_CUDA : TD_KV_HOST,
            .rkey = TD_SLICE("a key"),
        };
    kv_descriptor_write(&out, &d);
    assert_false(out.oom);
    return out;
}

static void set_checksum(char *bytes, size_t n)
{
    uint64_t sum = td_hash_end(td_hash_bytes(TD_HASH_START, bytes, n - 8));

    for (int i = 0; i < 8; i++)
        bytes[n - 8 + (size_t)i] = (char)(sum >> (8 * i));
}

static void test_kv_descriptor_survives_the_wire(void **state)
{
    (void)state;
    td_buf b = sample();
    td_kv_descriptor d;

    assert_int_equal(td_kv_descriptor_parse((td_slice){b.ptr, b.len}, &d, NULL), TD_OK);
    assert_int_equal(d.wire_hash, UINT64_C(0x0123456789abcdef));
    assert_int_equal(d.ucx_version, 1 << 16 | 13);
    assert_int_equal(d.n_ranks, 4);
    assert_true(td_slice_eq(d.address, TD_SLICE("an address of some bytes")));
    assert_int_equal(d.rank[2].base, UINT64_C(0x7f0000000002));
    assert_int_equal(d.rank[3].memory, TD_KV_CUDA);
    assert_true(td_slice_eq(d.rank[3].rkey, TD_SLICE("a key")));
    td_buf_free(&b);
}

/* The bytes end where memory ends, so one read too many is a crash. */
static void test_kv_descriptor_parse_refuses_every_cut_and_every_altered_byte(void **state)
{
    (void)state;
    td_buf b = sample();
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    td_kv_descriptor d = {.n_ranks = -7};
    td_error err;

    assert_true(map != MAP_FAILED && b.len < page);
    assert_int_equal(mprotect(map + page, page, PROT_NONE), 0);
    for (size_t n = 0; n < b.len; n++) {
        char *at = map + page - n;

        memcpy(at, b.ptr, n);
        assert_int_equal(td_kv_descriptor_parse((td_slice){at, n}, &d, &err), TD_INVALID);
        if (n >= 8) { /* a cut that somebody signed */
            set_checksum(at, n);
            assert_int_equal(td_kv_descriptor_parse((td_slice){at, n}, &d, &err), TD_INVALID);
        }
    }
    for (size_t i = 0; i < b.len; i++) {
        b.ptr[i] ^= 0x04;
        assert_int_equal(td_kv_descriptor_parse((td_slice){b.ptr, b.len}, &d, &err), TD_INVALID);
        b.ptr[i] ^= 0x04;
    }
    assert_int_equal(d.n_ranks, -7);
    munmap(map, 2 * page);
    td_buf_free(&b);
}

static bool inside(td_slice part, const char *bytes, size_t n)
{
    return part.ptr >= bytes && part.len <= n && part.ptr + part.len <= bytes + n;
}

/* Random damage with a right checksum: refused, or every slice lies inside. */
static void test_kv_descriptor_parse_of_forged_bytes_stays_inside(void **state)
{
    (void)state;
    td_buf good = sample();
    char *bytes = malloc(good.len);
    uint64_t rng = 77;
    int accepted = 0;

    for (int round = 0; round < 200000; round++) {
        td_kv_descriptor d;

        memcpy(bytes, good.ptr, good.len);
        for (int k = kv_random_in(&rng, 1, 3); k > 0; k--)
            bytes[kv_random(&rng) % (good.len - 8)] = (char)kv_random(&rng);
        set_checksum(bytes, good.len);
        if (td_kv_descriptor_parse((td_slice){bytes, good.len}, &d, NULL) != TD_OK)
            continue;
        accepted++;
        assert_in_range(d.n_ranks, 1, TD_KV_MAX_RANKS);
        assert_true(inside(d.address, bytes, good.len));
        for (int32_t r = 0; r < d.n_ranks; r++)
            assert_true(inside(d.rank[r].rkey, bytes, good.len));
    }
    assert_true(accepted > 1000); /* or this tests nothing */
    free(bytes);
    td_buf_free(&good);
}

static void test_kv_descriptor_names_versions_that_do_not_match(void **state)
{
    (void)state;
    td_buf b = sample();
    td_kv_descriptor d;
    td_error err;

    b.ptr[4] = 9;
    set_checksum(b.ptr, b.len);
    assert_int_equal(td_kv_descriptor_parse((td_slice){b.ptr, b.len}, &d, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "version 9"));
    assert_int_equal(kv_ucx_version_check(1 << 16 | 13, 1 << 16 | 13, &err), TD_OK);
    assert_int_equal(kv_ucx_version_check(1 << 16 | 16, 1 << 16 | 22, &err), TD_OK);
    assert_int_equal(kv_ucx_version_check(1 << 16 | 13, 1 << 16 | 22, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "UCX 1.22"));
    td_buf_free(&b);
}

static void test_kv_data_header_survives_the_wire_and_refuses_damage(void **state)
{
    (void)state;
    kv_data a = {.stream = UINT64_C(0x8877665544332211),
                 .offset = UINT64_C(1) << 40,
                 .rank = 3,
                 .len = 8000},
            b;
    unsigned char wire[KV_DATA_HEADER_BYTES];

    kv_data_encode(&a, wire);
    assert_int_equal(kv_data_decode(wire, sizeof wire, &b, NULL), TD_OK);
    assert_int_equal(b.stream, a.stream);
    assert_int_equal(b.offset, a.offset);
    assert_int_equal(b.rank, a.rank);
    assert_int_equal(b.len, a.len);
    for (size_t i = 0; i < sizeof wire; i++) {
        wire[i] ^= 0x40;
        assert_int_equal(kv_data_decode(wire, sizeof wire, &b, NULL), TD_INVALID);
        assert_int_equal(kv_data_decode(wire, i, &b, NULL), TD_INVALID);
        wire[i] ^= 0x40;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_descriptor_survives_the_wire),
        cmocka_unit_test(test_kv_descriptor_parse_refuses_every_cut_and_every_altered_byte),
        cmocka_unit_test(test_kv_descriptor_parse_of_forged_bytes_stays_inside),
        cmocka_unit_test(test_kv_descriptor_names_versions_that_do_not_match),
        cmocka_unit_test(test_kv_data_header_survives_the_wire_and_refuses_damage),
    };

    return cmocka_run_group_tests_name("kv_descriptor", tests, NULL, NULL);
}
