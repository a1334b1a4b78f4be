/* Folders in which a file is missing, of the wrong kind, cut, or damaged in its header: the message
 * names the file and what to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/checkpoint_refusal.h"

static void test_checkpoint_intact_folder_loads(void **state)
{
    td_error err = {0};

    if (open_dir(*state, &err) != TD_OK)
        fail_msg("%s", err.text);
}

static void test_checkpoint_missing_shard_is_named_before_others_are_opened(void **state)
{
    tiny_model *m = *state;

    tiny_put(m, SHARD_0, "x", 1); /* would be refused, were it looked at */
    remove_file(m, SHARD_1);
    EXPECT(m, TD_NOTFOUND, SHARD_1, INDEX, "1 of 3 files missing", AGAIN);
    remove_file(m, SHARD_2);
    EXPECT(m, TD_NOTFOUND, SHARD_1, "2 of 3 files missing", AGAIN);
}

static void test_checkpoint_reported_index_names_its_missing_shard(void **state)
{
    tiny_model *m = *state;
    FILE *f = fopen("tests/data/checkpoint/missing_shard.index.json", "rb");
    char text[1024];
    size_t n;

    assert_non_null(f);
    n = fread(text, 1, sizeof text, f);
    fclose(f);
    tiny_put(m, INDEX, text, n);
    tiny_put(m, "model-00001-of-00002.safetensors", "", 0);
    remove_file(m, SHARD_2);
    EXPECT(m, TD_NOTFOUND, "model-00002-of-00002.safetensors", "the copy looks incomplete", AGAIN);
}

static void test_checkpoint_dangling_link_is_a_missing_shard(void **state)
{
    tiny_model *m = *state;
    char path[512];

    remove_file(m, SHARD_1);
    tiny_path(m, SHARD_1, path, sizeof path);
    assert_int_equal(symlink("../blobs/0123", path), 0); /* as a hub cache has them */
    EXPECT(m, TD_NOTFOUND, SHARD_1, AGAIN);
}

static void test_checkpoint_links_to_shards_are_followed(void **state)
{
    tiny_model *m = *state;
    char from[512], to[512];
    td_error err = {0};

    tiny_path(m, SHARD_1, from, sizeof from);
    tiny_path(m, "blob", to, sizeof to);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(symlink("blob", from), 0);
    if (open_dir(m, &err) != TD_OK)
        fail_msg("%s", err.text);
}

static void test_checkpoint_folder_that_is_none(void **state)
{
    tiny_model *m = *state, other = *m;

    snprintf(other.dir, sizeof other.dir, "/no/such/folder");
    EXPECT((&other), TD_NOTFOUND, "No such file");
    snprintf(other.dir, sizeof other.dir, "CMakeLists.txt");
    EXPECT((&other), TD_INVALID, "is a file, expected a folder");
    snprintf(other.dir, sizeof other.dir, "%.40s/config.json/x", m->dir);
    EXPECT((&other), TD_NOTFOUND, "Not a directory");
    snprintf(other.dir, sizeof other.dir, "tests");
    EXPECT((&other), TD_NOTFOUND, "neither " INDEX " nor model.safetensors", AGAIN);
}

static void test_checkpoint_lost_index_is_named(void **state)
{
    tiny_model *m = *state;

    remove_file(m, INDEX);
    EXPECT(m, TD_NOTFOUND, "has safetensors files but no " INDEX, AGAIN);
}

static void test_checkpoint_shard_that_is_a_folder(void **state)
{
    tiny_model *m = *state;
    char path[512];

    remove_file(m, SHARD_1);
    tiny_path(m, SHARD_1, path, sizeof path);
    assert_int_equal(mkdir(path, 0700), 0);
    EXPECT(m, TD_IO, SHARD_1, "is a folder");
}

static void test_checkpoint_unreadable_shard(void **state)
{
    tiny_model *m = *state;
    char path[512];

    tiny_path(m, SHARD_1, path, sizeof path);
    if (geteuid() == 0) { /* root reads everything: use what even root cannot open */
        assert_int_equal(unlink(path), 0);
        assert_int_equal(symlink(SHARD_1, path), 0);
        EXPECT(m, TD_IO, SHARD_1, "cannot open", "symbolic links");
    } else {
        assert_int_equal(chmod(path, 0), 0);
        EXPECT(m, TD_IO, SHARD_1, "cannot open", "Permission denied");
    }
}

static void test_checkpoint_fifo_is_refused_not_waited_for(void **state)
{
    tiny_model *m = *state;
    char path[512];

    remove_file(m, SHARD_1);
    tiny_path(m, SHARD_1, path, sizeof path);
    assert_int_equal(mkfifo(path, 0600), 0);
    EXPECT(m, TD_IO, SHARD_1, "expected a regular file");
}

static void test_checkpoint_every_shard_cut_or_grown(void **state)
{
    static const char *const shards[] = {SHARD_0, SHARD_1, SHARD_2};
    tiny_model *m = *state;

    for (size_t i = 0; i < 3; i++) {
        size_t n;
        char *bytes = tiny_get(m, shards[i], &n);
        const size_t cuts[] = {0, 3, 7, 8, 9, 500, n / 2, n - 12, n - 1};

        for (size_t k = 0; k < sizeof cuts / sizeof cuts[0]; k++) {
            tiny_put(m, shards[i], bytes, cuts[k]);
            EXPECT(m, TD_INVALID, shards[i], "the copy looks incomplete", AGAIN);
        }
        tiny_put(m, shards[i], bytes, n + 1); /* the NUL that tiny_get() adds */
        EXPECT(m, TD_INVALID, shards[i], "expected", "found", AGAIN);
        tiny_put(m, shards[i], bytes, n);
        free(bytes);
    }
    test_checkpoint_intact_folder_loads(state);
}

static void test_checkpoint_wrong_header_length(void **state)
{
    static const uint64_t lengths[] = {UINT64_MAX - 2, UINT64_MAX, UINT64_C(1) << 40, 0};
    tiny_model *m = *state;
    size_t n;
    char *bytes = tiny_get(m, SHARD_1, &n);

    for (size_t i = 0; i < 4; i++) {
        for (int b = 0; b < 8; b++)
            bytes[b] = (char)(lengths[i] >> (8 * b));
        tiny_put(m, SHARD_1, bytes, n);
        EXPECT(m, TD_INVALID, SHARD_1, "header length");
    }
    free(bytes);
}

static void test_checkpoint_damaged_headers_in_a_folder(void **state)
{
    static const struct {
        const char *from, *to, *expected;
    } cases[] = {
        {"{\"__metadata__\"", "{{\"__metadata__\"", "not JSON"},
        {"\"model.norm.weight\": {\"dtype\": \"BF16\", \"shape\": [64]",
         "\"model.norm.weight\": {\"dtype\": \"BF16\", \"shape\": [65]", "model.norm.weight"},
        {"\"model.norm.weight\": {\"dtype\": \"BF16\"", "\"model.norm.weight\": {\"dtype\": \"X\"",
         "model.norm.weight"},
        {"\"model.norm.weight\"", "\"model.layers.0.input_layernorm.bias\"", "model.norm.weight"},
    };
    tiny_model *m = *state;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tiny_write(m);
        tiny_edit_header(m, SHARD_1, cases[i].from, cases[i].to);
        EXPECT(m, TD_INVALID, SHARD_1, cases[i].expected);
    }
}

static void test_checkpoint_long_folder_names_keep_the_reason(void **state)
{
    tiny_model *m = *state;
    char dir[4200];
    td_checkpoint *c = NULL;
    td_error err = {0};

    memset(dir, '/', sizeof dir);
    snprintf(dir + 3900, 100, "%s", m->dir); /* "////.../tmp/td-tiny": the same folder */
    remove_file(m, SHARD_1);
    assert_int_equal(td_checkpoint_open(dir, &m->cfg, &c, &err), TD_NOTFOUND);
    assert_non_null(strstr(err.text, SHARD_1));
    assert_non_null(strstr(err.text, AGAIN));
    memset(dir, 'a', sizeof dir - 1);
    dir[sizeof dir - 1] = '\0';
    assert_int_equal(td_checkpoint_open(dir, &m->cfg, &c, &err), TD_INVALID);
    assert_non_null(strstr(err.text, "4096"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        REFUSAL_CASE(test_checkpoint_intact_folder_loads),
        REFUSAL_CASE(test_checkpoint_missing_shard_is_named_before_others_are_opened),
        REFUSAL_CASE(test_checkpoint_reported_index_names_its_missing_shard),
        REFUSAL_CASE(test_checkpoint_dangling_link_is_a_missing_shard),
        REFUSAL_CASE(test_checkpoint_links_to_shards_are_followed),
        REFUSAL_CASE(test_checkpoint_folder_that_is_none),
        REFUSAL_CASE(test_checkpoint_lost_index_is_named),
        REFUSAL_CASE(test_checkpoint_shard_that_is_a_folder),
        REFUSAL_CASE(test_checkpoint_unreadable_shard),
        REFUSAL_CASE(test_checkpoint_fifo_is_refused_not_waited_for),
        REFUSAL_CASE(test_checkpoint_every_shard_cut_or_grown),
        REFUSAL_CASE(test_checkpoint_wrong_header_length),
        REFUSAL_CASE(test_checkpoint_damaged_headers_in_a_folder),
        REFUSAL_CASE(test_checkpoint_long_folder_names_keep_the_reason),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
