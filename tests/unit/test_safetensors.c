#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/safetensors.h"

#define DATA "tests/data/checkpoint/"
#define AGAIN "the copy looks incomplete; copy it again"

/* n bytes that end where reading further is a fault, sanitizer or not. */
typedef struct guarded {
    char *map, *bytes;
    size_t map_len;
} guarded;

static guarded guard(const void *bytes, size_t n)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    guarded g = {.map_len = (n + page - 1) / page * page + page};

    g.map = mmap(NULL, g.map_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    g.bytes = g.map + g.map_len - page - n;
    memcpy(g.bytes, bytes, n);
    assert_int_equal(mprotect(g.map + g.map_len - page, page, PROT_NONE), 0);
    return g;
}

static void unguard(guarded *g)
{
    munmap(g->map, g->map_len);
}

/* A file: header text with its length before it, then n_data bytes 0, 1, 2, ... */
static td_buf file_of(const char *header, size_t n_data)
{
    const size_t len = strlen(header);
    td_buf b = {0};

    for (int i = 0; i < 8; i++)
        td_buf_byte(&b, (char)((uint64_t)len >> (8 * i)));
    td_buf_add(&b, header, len);
    for (size_t i = 0; i < n_data; i++)
        td_buf_byte(&b, (char)i);
    assert_false(b.oom);
    return b;
}

static td_status parse_guarded(const void *bytes, size_t n, td_error *err)
{
    td_safetensors *st = NULL;
    guarded g = guard(bytes, n);
    td_status s = td_safetensors_parse(g.bytes, n, "dir/f.safetensors", &st, err);

    if (s == TD_OK)
        td_safetensors_close(st);
    else
        assert_null(st);
    unguard(&g);
    return s;
}

static void refused(const char *header, size_t n_data, const char *const *expected)
{
    td_buf b = file_of(header, n_data);
    td_error err = {0};
    td_status s = parse_guarded(b.ptr, b.len, &err);

    td_buf_free(&b);
    if (s != TD_INVALID)
        fail_msg("accepted (%s): %.200s", td_status_name(s), header);
    if (strstr(err.text, "dir/f.safetensors") == NULL)
        fail_msg("no file name in: %s", err.text);
    for (; *expected != NULL; expected++)
        if (strstr(err.text, *expected) == NULL)
            fail_msg("no \"%s\" in: %s", *expected, err.text);
}

#define REFUSED(header, n_data, ...) \
    refused(header, n_data, (const char *const[]){__VA_ARGS__, NULL})

static void accepted(const char *header, size_t n_data)
{
    td_buf b = file_of(header, n_data);
    td_error err = {0};
    td_status s = parse_guarded(b.ptr, b.len, &err);

    td_buf_free(&b);
    if (s != TD_OK)
        fail_msg("%s: %s", header, err.text);
}

#define T(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #begin \
    "," #end "]}"

static void test_safetensors_finds_tensors_in_any_order(void **state)
{
    td_buf b = file_of("{\"__metadata__\":{\"format\":\"pt\"}," T("z", "U8", "3", 4, 7) "," T(
                           "a", "BF16", "2,1", 0, 4) "}   ",
                       7);
    td_safetensors *st = NULL;
    const td_st_tensor *t;
    td_error err = {0};

    (void)state;
    assert_int_equal(td_safetensors_parse(b.ptr, b.len, "f", &st, &err), TD_OK);
    assert_int_equal(td_safetensors_count(st), 2);
    assert_int_equal(td_safetensors_file_bytes(st), b.len);
    assert_string_equal(td_safetensors_at(st, 0)->name, "a");
    t = td_safetensors_find(st, "z");
    assert_non_null(t);
    assert_string_equal(t->dtype, "U8");
    assert_int_equal(t->n_dims, 1);
    assert_int_equal(t->dim[0], 3);
    assert_memory_equal(t->data, "\4\5\6", 3);
    t = td_safetensors_find(st, "a");
    assert_int_equal(t->n_dims, 2);
    assert_memory_equal(t->data, "\0\1\2\3", 4);
    assert_null(td_safetensors_find(st, "A")); /* names are case-sensitive */
    assert_null(td_safetensors_find(st, "__metadata__"));
    td_safetensors_close(st);
    td_buf_free(&b);
}

static void test_safetensors_accepts_what_the_format_allows(void **state)
{
    (void)state;
    accepted("{}", 0);
    accepted("{\"__metadata__\":{}}", 0);
    accepted("{" T("scalar", "F32", "", 0, 4) "}", 4);
    accepted("{" T("a", "F4", "4", 0, 2) "}", 2);
    accepted("{" T("a", "U8", "1,1,1,1,1,1,1,1", 0, 1) "}", 1);
    /* Empty tensors lie between others, also at equal offsets. */
    accepted("{" T("e", "BF16", "0", 2, 2) "," T("f", "U8", "5,0", 2, 2) "," T(
                 "a", "U8", "2", 0, 2) "," T("b", "U8", "1", 2, 3) "}",
             3);
    accepted("{" T("e", "F64", "9007199254740991,9007199254740991,0", 0, 0) "}", 0);
    accepted("{\"a\":{\"data_offsets\":[0,1],\"extra\":1,\"shape\":[1],\"dtype\":\"U8\"}}", 1);
}

static void test_safetensors_refuses_bad_headers(void **state)
{
    (void)state;
    REFUSED("{", 0, "header length 1", "expected 2");
    REFUSED("[]", 0, "expected '{' at byte 8", "0x5b");
    REFUSED(" {}", 0, "expected '{' at byte 8", "0x20");
    REFUSED("\xef\xbb\xbf{}", 0, "expected '{' at byte 8");
    REFUSED("{}x", 0, "not JSON");
    REFUSED("{} {}", 0, "not JSON");
    REFUSED("{\"a\":", 0, "not JSON");
    REFUSED("{\"a\xff\":1}", 0, "byte 3 is not UTF-8");
    REFUSED("{\"a\\u0000b\":1}", 0, "\\u0000");
    REFUSED("{\"a\\u00zzb\":1}", 0, "four hex digits at byte 3");
    REFUSED("{\"a\":{\"shape\":[01]}}", 0, "not JSON at byte 15");
    REFUSED("{\"a\n\":1}", 0, "control character 0x0a at byte 3");
    REFUSED("{\"a\":[[[[[[]]]]]]}", 0, "nested deeper than 4");
    REFUSED("{\"a\":{\"b\":{\"c\":{\"d\":{\"e\":1}}}}}", 0, "nested deeper than 4");
    REFUSED("{\"a\":5}", 0, "tensor a", "expected an object");
    REFUSED("{\"__metadata__\":5}", 0, "__metadata__: expected an object");
    REFUSED("{\"__metadata__\":{\"n\":5}}", 0, "__metadata__: n: expected a string");
    REFUSED("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ appears twice");
    REFUSED("{" T("a", "U8", "1", 0, 1) "," T("a", "U8", "1", 1, 2) "}", 2, "tensor a",
            "appears twice");
    REFUSED("{" T("a", "U8", "1", 0, 1) "," T("\\u0061", "U8", "1", 1, 2) "}", 2, "tensor a",
            "appears twice");
}

static void test_safetensors_refuses_deep_nesting_without_recursing(void **state)
{
    const size_t n = 1 << 20;
    char *header = malloc(n + 1);

    (void)state;
    assert_non_null(header);
    memset(header, '[', n);
    memcpy(header, "{\"a\":", 5);
    header[n] = '\0';
    REFUSED(header, 0, "nested deeper than 4");
    free(header);
}

static void test_safetensors_refuses_bad_entries(void **state)
{
    (void)state;
    REFUSED("{\"a\":{}}", 0, "tensor a", "shape: expected a list, found nothing");
    REFUSED("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "tensor a", "data_offsets");
    REFUSED("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "tensor a", "dtype",
            "found nothing");
    REFUSED("{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype", "found 7");
    REFUSED("{\"a\":{\"Dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype",
            "found nothing");
    REFUSED("{" T("a", "bf16", "1", 0, 2) "}", 2, "tensor a", "dtype", "\"bf16\"");
    REFUSED("{" T("a", "Q4", "1", 0, 2) "}", 2, "tensor a", "dtype", "\"Q4\"");
    REFUSED("{\"a\":{\"dtype\":\"U8\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
            "tensor a", "dtype appears twice");
    REFUSED("{\"a\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1, "tensor a",
            "shape: expected a list, found 1");
    REFUSED("{" T("a", "U8", "-1", 0, 1) "}", 1, "tensor a", "shape", "found -1");
    REFUSED("{" T("a", "U8", "1.5", 0, 1) "}", 1, "tensor a", "shape", "found 1.5");
    REFUSED("{" T("a", "U8", "1e999", 0, 1) "}", 1, "tensor a", "shape", "found inf");
    REFUSED("{" T("a", "U8", "9007199254740993", 0, 1) "}", 1, "tensor a", "shape");
    REFUSED("{" T("a", "U8", "\"1\"", 0, 1) "}", 1, "tensor a", "shape", "found \"1\"");
    REFUSED("{" T("a", "U8", "null", 0, 1) "}", 1, "tensor a", "shape", "found null");
    REFUSED("{" T("a", "U8", "1,1,1,1,1,1,1,1,1", 0, 1) "}", 1, "tensor a", "at most 8");
    REFUSED("{" T("a", "F4", "3", 0, 2) "}", 2, "tensor a", "no whole number of bytes");
    REFUSED("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "tensor a",
            "two integers");
    REFUSED("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1, "tensor a",
            "two integers");
    REFUSED("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":{\"b\":0,\"e\":1}}}", 1,
            "tensor a", "two integers");
    REFUSED("{" T("a", "U8", "1", -1, 0) "}", 1, "tensor a", "two integers");
    REFUSED("{" T("a", "U8", "1", 0, 18446744073709551617) "}", 1, "tensor a", "two integers");
}

static void test_safetensors_refuses_sizes_that_disagree(void **state)
{
    (void)state;
    REFUSED("{" T("a", "BF16", "3", 0, 5) "}", 5, "tensor a", "BF16 [3] needs 6 bytes", "give 5");
    REFUSED("{" T("a", "U8", "0", 0, 5) "}", 5, "tensor a", "needs 0 bytes", "give 5");
    REFUSED("{" T("a", "U8", "5", 0, 0) "}", 0, "tensor a", "needs 5 bytes", "give 0");
    /* Products that wrap 64 bits, to nothing and to a small number. */
    REFUSED("{" T("a", "U8", "4294967296,4294967296", 0, 0) "}", 0, "tensor a", "below 2^64");
    REFUSED("{" T("a", "F64", "2305843009213693952", 0, 0) "}", 0, "tensor a", "shape");
    REFUSED("{" T("a", "F32", "1152921504606847,16384", 0, 16) "}", 16, "tensor a");
    REFUSED("{" T("a", "U8", "9007199254740991,2049", 0, 1) "}", 1, "tensor a");
    REFUSED("{" T("a", "F64", "9007199254740991,9007199254740991,9007199254740991", 0, 8) "}", 8,
            "tensor a");
}

static void test_safetensors_refuses_data_that_is_not_tiled(void **state)
{
    (void)state;
    REFUSED("{" T("a", "U8", "2", 4, 2) "}", 4, "tensor a", "begin 4 is past end 2");
    REFUSED("{" T("a", "U8", "2", 1, 3) "}", 3, "tensor a", "begins at 1, expected 0",
            "lie between");
    REFUSED("{" T("a", "U8", "2", 0, 2) "," T("b", "U8", "2", 3, 5) "}", 5, "tensor b",
            "begins at 3, expected 2, where a ends", "lie between");
    REFUSED("{" T("a", "U8", "2", 0, 2) "," T("b", "U8", "2", 1, 3) "}", 3, "tensor b",
            "begins at 1, expected 2, where a ends", "overlap");
    REFUSED("{" T("a", "U8", "2", 0, 2) "," T("b", "U8", "2", 0, 2) "}", 2, "overlap");
    REFUSED("{" T("a", "U8", "4", 0, 4) "," T("e", "U8", "0", 2, 2) "}", 4, "tensor e", "overlap");
    REFUSED("{" T("e", "U8", "0", 9, 9) "}", 0, "tensor e", "begins at 9, expected 0");
    REFUSED("{" T("a", "U8", "2", 0, 2) "," T("b", "U8", "2", 2, 4) "}", 3, AGAIN,
            "end of tensor b");
    REFUSED("{" T("a", "U8", "2", 0, 2) "}", 3, AGAIN, "expected 63", "found 64");
    REFUSED("{" T("a", "U8", "9007199254740990", 0, 9007199254740990) "}", 3, AGAIN,
            "to the end of tensor a");
    REFUSED("{}", 1, AGAIN, "expected 10", "found 11");
}

static void test_safetensors_refuses_header_lengths(void **state)
{
    static const struct {
        uint64_t len;
        const char *expected;
    } cases[] = {
        {0, "header length 0, expected 2"},
        {1, "header length 1, expected 2"},
        {3, "header length 3, but the file has 10 bytes"},
        {UINT32_MAX, "header length 4294967295, but the file has 10 bytes"},
        {UINT64_MAX, "header length 18446744073709551615"},
        {UINT64_MAX - 7, "header length 18446744073709551608"},
        {UINT64_C(1) << 63, "header length 9223372036854775808"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char bytes[10] = "xxxxxxxx{}";
        td_error err = {0};

        for (int b = 0; b < 8; b++)
            bytes[b] = (char)(cases[i].len >> (8 * b));
        assert_int_equal(parse_guarded(bytes, sizeof bytes, &err), TD_INVALID);
        if (strstr(err.text, cases[i].expected) == NULL)
            fail_msg("no \"%s\" in: %s", cases[i].expected, err.text);
    }
}

static void test_safetensors_refuses_a_header_over_the_limit(void **state)
{
    char *header = malloc(TD_ST_MAX_HEADER + 2);

    (void)state;
    assert_non_null(header);
    memset(header, ' ', TD_ST_MAX_HEADER + 1);
    memcpy(header, "{}", 2);
    header[TD_ST_MAX_HEADER + 1] = '\0';
    REFUSED(header, 0, "header length 16777217, expected 2 to 16777216");
    header[TD_ST_MAX_HEADER] = '\0';
    accepted(header, 0);
    free(header);
}

static void test_safetensors_refuses_every_cut(void **state)
{
    td_buf b = file_of("{" T("a", "BF16", "2", 0, 4) "," T("b", "U8", "3", 4, 7) "}", 7);
    td_error err = {0};

    (void)state;
    for (size_t n = 0; n < b.len; n++) {
        err.text[0] = '\0';
        if (parse_guarded(b.ptr, n, &err) != TD_INVALID || strstr(err.text, AGAIN) == NULL)
            fail_msg("cut at %zu of %zu: %s", n, b.len, err.text);
    }
    assert_int_equal(parse_guarded(b.ptr, b.len, &err), TD_OK);
    td_buf_free(&b);
}

/* Any one byte of the header changed: refused or accepted, and never read past the end. */
static void test_safetensors_survives_every_flipped_byte(void **state)
{
    td_buf b = file_of("{" T("a", "BF16", "2", 0, 4) "," T("b", "U8", "3", 4, 7) "}", 7);

    (void)state;
    for (size_t i = 0; i < b.len - 7; i++) {
        for (int bit = 0; bit < 8; bit++) {
            td_error err = {0};

            b.ptr[i] = (char)(b.ptr[i] ^ (1 << bit));
            if (parse_guarded(b.ptr, b.len, &err) != TD_OK)
                assert_non_null(strstr(err.text, "dir/f.safetensors"));
            b.ptr[i] = (char)(b.ptr[i] ^ (1 << bit));
        }
    }
    td_buf_free(&b);
}

static void open_refused(const char *path, td_status status, const char *const *expected)
{
    td_safetensors *st = NULL;
    td_error err = {0};
    td_status s = td_safetensors_open(path, &st, &err);

    assert_null(st);
    if (s != status)
        fail_msg("%s: %s %s", path, td_status_name(s), err.text);
    assert_non_null(strstr(err.text, path));
    for (; *expected != NULL; expected++)
        if (strstr(err.text, *expected) == NULL)
            fail_msg("no \"%s\" in: %s", *expected, err.text);
}

#define OPEN_REFUSED(path, status, ...) \
    open_refused(path, status, (const char *const[]){__VA_ARGS__, NULL})

static void test_safetensors_reported_files_are_refused_by_name(void **state)
{
    (void)state;
    OPEN_REFUSED(DATA "shape_past_offsets.safetensors", TD_INVALID, "tensor t",
                 "F32 [1000, 1000] needs 4000000 bytes", "give 4");
    OPEN_REFUSED(DATA "header_length_wraps.safetensors", TD_INVALID,
                 "header length 18446744073709551613", "10 bytes", AGAIN);
    OPEN_REFUSED(DATA "three_bytes.safetensors", TD_INVALID, "3 bytes, expected at least 8", AGAIN);
    OPEN_REFUSED(DATA "cut_short.safetensors", TD_INVALID, "expected 167 bytes", "found 155",
                 AGAIN);
    OPEN_REFUSED(DATA "trailing_bytes.safetensors", TD_INVALID, "expected 87 bytes", "found 95",
                 AGAIN);
}

static void test_safetensors_zero_dimension_is_an_empty_tensor(void **state)
{
    td_safetensors *st = NULL;
    const td_st_tensor *e;
    td_error err = {0};

    (void)state;
    if (td_safetensors_open(DATA "zero_dimension.safetensors", &st, &err) != TD_OK)
        fail_msg("%s", err.text);
    e = td_safetensors_find(st, "e");
    assert_non_null(e);
    assert_int_equal(e->begin, e->end);
    assert_int_equal(e->dim[0], 0);
    assert_int_equal(e->dim[1], 7);
    assert_non_null(td_safetensors_find(st, "a"));
    td_safetensors_close(st);
}

static void test_safetensors_refuses_what_is_no_file(void **state)
{
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\n"
                                  "oid sha256:0123456789abcdef\nsize 4792272488\n";
    char dir[] = "/tmp/td-st-XXXXXX";
    char path[64];
    FILE *f;

    (void)state;
    OPEN_REFUSED("no/such/file.safetensors", TD_NOTFOUND, "No such file");
    OPEN_REFUSED("tests", TD_IO, "is a folder");
    OPEN_REFUSED("/dev/null", TD_IO, "expected a regular file");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/f", dir);
    assert_int_equal(symlink(path, path), 0); /* a loop: unreadable for root too */
    OPEN_REFUSED(path, TD_IO, "cannot open");
    assert_int_equal(unlink(path), 0);
    f = fopen(path, "wb");
    assert_non_null(f);
    fclose(f);
    OPEN_REFUSED(path, TD_INVALID, "0 bytes, expected at least 8", AGAIN);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(pointer, 1, sizeof pointer - 1, f), sizeof pointer - 1);
    fclose(f);
    OPEN_REFUSED(path, TD_INVALID, "Git LFS pointer", "git lfs pull");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors_finds_tensors_in_any_order),
        cmocka_unit_test(test_safetensors_accepts_what_the_format_allows),
        cmocka_unit_test(test_safetensors_refuses_bad_headers),
        cmocka_unit_test(test_safetensors_refuses_deep_nesting_without_recursing),
        cmocka_unit_test(test_safetensors_refuses_bad_entries),
        cmocka_unit_test(test_safetensors_refuses_sizes_that_disagree),
        cmocka_unit_test(test_safetensors_refuses_data_that_is_not_tiled),
        cmocka_unit_test(test_safetensors_refuses_header_lengths),
        cmocka_unit_test(test_safetensors_refuses_a_header_over_the_limit),
        cmocka_unit_test(test_safetensors_refuses_every_cut),
        cmocka_unit_test(test_safetensors_survives_every_flipped_byte),
        cmocka_unit_test(test_safetensors_reported_files_are_refused_by_name),
        cmocka_unit_test(test_safetensors_zero_dimension_is_an_empty_tensor),
        cmocka_unit_test(test_safetensors_refuses_what_is_no_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
