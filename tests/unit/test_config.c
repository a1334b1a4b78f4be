/* config: where a value comes from, what a bad one is told, what people are shown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/config.h"

typedef enum backend { BACKEND_CPU, BACKEND_CUDA } backend;

typedef struct settings {
    uint32_t max_batch;
    int64_t offset;
    uint64_t seed;
    double share;
    bool warm_up;
    char *model;
    backend where;
    uint64_t kv_bytes;
    int64_t lease_ms;
    td_strlist routers;
} settings;

static const char *const backends[] = {"cpu", "cuda", NULL};
static const td_option table[] = {
    {"max-batch", TD_OPT_U32, offsetof(settings, max_batch), "128", 1, 1024, "Requests in a step.",
     NULL},
    {"offset", TD_OPT_I64, offsetof(settings, offset), "-5", 0, 0, "A signed number.", NULL},
    {"seed", TD_OPT_U64, offsetof(settings, seed), "0", 0, 0, "Of the sampler.", NULL},
    {"share", TD_OPT_F64, offsetof(settings, share), "0.9", 0, 1, "Of device memory.", NULL},
    {"warm-up", TD_OPT_BOOL, offsetof(settings, warm_up), "true", 0, 0, "Run once first.", NULL},
    {"model", TD_OPT_STR, offsetof(settings, model), "", 0, 0, "A folder.", NULL},
    {"backend", TD_OPT_ENUM, offsetof(settings, where), "cpu", 0, 0, "Where it runs.", backends},
    {"kv-bytes", TD_OPT_BYTES, offsetof(settings, kv_bytes), "64MiB", 4096, 1099511627776.0,
     "Of the pool.", NULL},
    {"lease", TD_OPT_DURATION_MS, offsetof(settings, lease_ms), "30s", 100, 600000, "Of a hold.",
     NULL},
    {"routers", TD_OPT_LIST, offsetof(settings, routers), "", 0, 3, "Whom to dial.", NULL},
};
enum { N_OPTIONS = sizeof table / sizeof *table };

static td_error err;
static td_config_action action;

static td_status parse(settings *s, int argc, const char **argv)
{
    memset(s, 0, sizeof *s);
    memset(&err, 0, sizeof err);
    return td_config_parse(table, N_OPTIONS, "tandem-test", "tests the tables.", argc,
                           (char **)(uintptr_t)argv, s, &action, &err);
}
#define PARSE(s, ...) \
    parse(s, (int)(sizeof((const char *[]){"t", __VA_ARGS__}) / sizeof(char *)), \
          (const char *[]){"t", __VA_ARGS__})
#define PARSE_NONE(s) parse(s, 1, (const char *[]){"t"})

static void done(settings *s)
{
    td_config_free(table, N_OPTIONS, s);
    assert_null(s->model);
    assert_null(s->routers.ptr);
}

/* A config file with this text; its name is good until the next call. */
static const char *file_with(const char *text)
{
    static char path[64];
    FILE *f;
    int fd;

    strcpy(path, "/tmp/tandem-config-XXXXXX");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    f = fdopen(fd, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return path;
}

static int clear_env(void **state)
{
    static const char *const names[] = {"TANDEM_MAX_BATCH", "TANDEM_MODEL", "TANDEM_WARM_UP",
                                        "TANDEM_CONFIG"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    return 0;
}

static void test_config_defaults_fill_every_type(void **state)
{
    settings s;

    (void)state;
    assert_int_equal(PARSE_NONE(&s), TD_OK);
    assert_int_equal(action, TD_CONFIG_RUN);
    assert_int_equal(s.max_batch, 128);
    assert_int_equal(s.offset, -5);
    assert_true(s.share == 0.9);
    assert_true(s.warm_up);
    assert_string_equal(s.model, "");
    assert_int_equal(s.where, BACKEND_CPU);
    assert_int_equal(s.kv_bytes, 64 << 20);
    assert_int_equal(s.lease_ms, 30000);
    assert_int_equal(s.routers.len, 0);
    done(&s);
}

static void test_config_flag_over_environment_over_file_over_default(void **state)
{
    const char *path = file_with("{\"max-batch\": 3, \"model\": \"from file\", \"lease\": \"1s\"}");
    settings s;

    (void)state;
    setenv("TANDEM_MAX_BATCH", "2", 1);
    setenv("TANDEM_MODEL", "from env", 1);
    assert_int_equal(PARSE(&s, "--config", path, "--max-batch=1"), TD_OK);
    assert_int_equal(s.max_batch, 1);
    assert_string_equal(s.model, "from env");
    assert_int_equal(s.lease_ms, 1000);
    assert_int_equal(s.where, BACKEND_CPU);
    done(&s);
    setenv("TANDEM_CONFIG", path, 1); /* the file itself may be named by the environment */
    assert_int_equal(PARSE_NONE(&s), TD_OK);
    assert_int_equal(s.max_batch, 2);
    assert_int_equal(s.lease_ms, 1000);
    done(&s);
    unlink(path);
}

static void test_config_flags_take_both_spellings(void **state)
{
    settings s;

    (void)state;
    assert_int_equal(PARSE(&s, "--max-batch", "64", "--backend=cuda", "--no-warm-up", "--routers",
                           "tcp://a:1, tcp://b:2", "--seed", "18446744073709551615", "--model=--x"),
                     TD_OK);
    assert_int_equal(s.max_batch, 64);
    assert_int_equal(s.where, BACKEND_CUDA);
    assert_false(s.warm_up);
    assert_int_equal(s.routers.len, 2);
    assert_string_equal(s.routers.ptr[1], "tcp://b:2");
    assert_true(s.seed == UINT64_MAX);
    assert_string_equal(s.model, "--x");
    done(&s);
    assert_int_equal(PARSE(&s, "--warm-up=false", "--warm-up", "--max-batch=2", "--max-batch=3"),
                     TD_OK);
    assert_true(s.warm_up); /* the last one counts */
    assert_int_equal(s.max_batch, 3);
    done(&s);
}

static void test_config_file_takes_json_types(void **state)
{
    const char *path = file_with("{\"max-batch\": 7, \"offset\": -12, \"share\": 0.25,\n"
                                 "\"warm-up\": false, \"backend\": \"cuda\", \"kv-bytes\": 8192,\n"
                                 "\"seed\": \"9007199254740993\", \"routers\": [\"a\", \"b\"]}\n");
    settings s;

    (void)state;
    assert_int_equal(PARSE(&s, "--config", path), TD_OK);
    assert_int_equal(s.max_batch, 7);
    assert_int_equal(s.offset, -12);
    assert_true(s.share == 0.25);
    assert_false(s.warm_up);
    assert_int_equal(s.where, BACKEND_CUDA);
    assert_int_equal(s.kv_bytes, 8192);
    assert_true(s.seed == 9007199254740993u);
    assert_int_equal(s.routers.len, 2);
    done(&s);
    unlink(path);
}

static void test_config_bad_values_name_source_value_and_range(void **state)
{
    static const struct {
        const char *arg, *want;
    } cases[] = {
        {"--max-batch=0", "--max-batch: \"0\" is not a whole number from 1 to 1024"},
        {"--max-batch=4294967297", "from 1 to 1024"},
        {"--max-batch=-1", "from 1 to 1024"},
        {"--max-batch= 5", "\" 5\" is not"},
        {"--max-batch=5x", "\"5x\" is not"},
        {"--max-batch=", "\"\" is not"},
        {"--seed=18446744073709551616", "a whole number from 0 up"},
        {"--offset=9223372036854775808", "not a whole number"},
        {"--share=1.01", "\"1.01\" is not a number from 0 to 1"},
        {"--share=nan", "a number"},
        {"--warm-up=yes", "true or false"},
        {"--backend=gpu", "\"gpu\" is not one of cpu, cuda"},
        {"--kv-bytes=64M", "a size (such as 512KiB or 64MiB) from 4KiB to 1TiB"},
        {"--kv-bytes=4097.5", "a size"},
        {"--kv-bytes=99999999TiB", "a size"},
        {"--kv-bytes=16777216TiB", "a size"}, /* 2^64: wraps to 0 if nobody looks */
        {"--lease=30", "\"30\" is not a time (such as 500ms, 5s or 2m) from 100ms to 10m"},
        {"--lease=11m", "from 100ms to 10m"},
        {"--lease=200.5ms", "a time"},
        {"--routers=a,,b", "without empty items"},
        {"--routers=a,b,c,d", "items: 0 to 3"},
    };
    settings s;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(PARSE(&s, "--model=kept?", cases[i].arg), TD_INVALID);
        if (strstr(err.text, cases[i].want) == NULL)
            fail_msg("%s: \"%s\" lacks \"%s\"", cases[i].arg, err.text, cases[i].want);
        assert_null(s.model); /* a refused parse leaves nothing behind */
    }
    assert_string_equal(err.param, "--routers");
    setenv("TANDEM_MAX_BATCH", "many", 1);
    assert_int_equal(PARSE_NONE(&s), TD_INVALID);
    assert_string_equal(err.text, "environment TANDEM_MAX_BATCH: \"many\" is not a whole number "
                                  "from 1 to 1024");
}

/* Of this program's; other programs' stand beside them. */
static void test_config_refuses_variables_that_are_slips(void **state)
{
    static const char *const slips[] = {"TANDEM_MAX_BACH", "TANDEM_MAX_BTACH", "TANDEM_Max_Batch",
                                        "TANDEM_CONFG"};
    static const char *const others[] = {"TANDEM_E2E_BIN", "TANDEM_LISTEN", "TANDEM_MAX_BODY",
                                         "TANDEM_",        "TANDEM",        "TANDEM_TP"};
    settings s;

    (void)state;
    for (size_t i = 0; i < sizeof slips / sizeof *slips; i++) {
        setenv(slips[i], "2", 1);
        assert_int_equal(PARSE(&s, "--max-batch=1"), TD_INVALID);
        assert_non_null(strstr(err.text, slips[i]));
        assert_non_null(
            strstr(err.text, i < 3 ? "did you mean TANDEM_MAX_BATCH?" : "TANDEM_CONFIG"));
        unsetenv(slips[i]);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        setenv(others[i], "2", 1);
        assert_int_equal(PARSE(&s, "--max-batch=1"), TD_OK);
        done(&s);
        unsetenv(others[i]);
    }
}

static void test_config_unknown_flags_suggest_the_nearest(void **state)
{
    settings s;

    (void)state;
    assert_int_equal(PARSE(&s, "--max-bach", "3"), TD_INVALID);
    assert_string_equal(err.text, "--max-bach: no such option; did you mean --max-batch?");
    assert_int_equal(PARSE(&s, "--prnt-config"), TD_INVALID);
    assert_non_null(strstr(err.text, "--print-config?"));
    assert_int_equal(PARSE(&s, "--zzzzzzzz=1"), TD_INVALID);
    assert_string_equal(err.text, "--zzzzzzzz: no such option; --help lists all");
    assert_int_equal(PARSE(&s, "--no-max-batch"), TD_INVALID);
    assert_int_equal(PARSE(&s, "--no-warm-up=true"), TD_INVALID);
    assert_int_equal(PARSE(&s, "stray"), TD_INVALID);
    assert_non_null(strstr(err.text, "unexpected argument \"stray\""));
    assert_int_equal(PARSE(&s, "--"), TD_INVALID);
    assert_int_equal(PARSE(&s, "--max-batch"), TD_INVALID);
    assert_string_equal(err.text, "--max-batch: a value must follow");
    assert_int_equal(PARSE(&s, "--model", "--max-batch", "3"), TD_INVALID);
    assert_string_equal(err.text, "--model: a value must follow");
}

static void test_config_file_errors_name_file_key_and_line(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"{\"help\": true}", "help: no such option; --help lists all"},
        {"{\"max_batch\": 3}", "max_batch: no such option; did you mean max-batch?"},
        {"{\"max-batch\": 0}", "max-batch: \"0\" is not a whole number from 1 to 1024"},
        {"{\"max-batch\": 1.5}", "\"1.5\" is not"},
        {"{\"max-batch\": true}", "max-batch must be a whole number"},
        {"{\"max-batch\": null}", "max-batch must be a whole number"},
        {"{\"model\": 5}", "model must be text"},
        {"{\"seed\": 18446744073709551615}", "seed must be"}, /* a double would round it */
        {"{\"routers\": [\"a,b\"]}", "routers must be"},
        {"{\"max-batch\": 1, \"max-batch\": 2}", "max-batch is there twice"},
        {"{\"max-batch\": 1,\n\n oops}", "not a JSON object (line 3)"},
        {"{} {}", "not a JSON object"},
        {"{\"model\":\n\"a\\u0000b\"}", "not a JSON object (line 2)"},
        {"{\"model\": \"a\\uZZ00b\"}", "not a JSON object (line 1)"},
        {"{\"model\": \"\xff\"}", "not a JSON object"},
        {"[]", "not a JSON object"},
        {"", "not a JSON object"},
    };
    settings s;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = file_with(cases[i].text);

        assert_int_equal(PARSE(&s, "--config", path), TD_INVALID);
        if (strstr(err.text, cases[i].want) == NULL || strstr(err.text, path) == NULL)
            fail_msg("%s: \"%s\" lacks \"%s\"", cases[i].text, err.text, cases[i].want);
        unlink(path);
    }
    assert_int_equal(PARSE(&s, "--config=/nowhere/t.json"), TD_INVALID);
    assert_string_equal(err.text, "config file /nowhere/t.json: No such file or directory");
    assert_int_equal(PARSE(&s, "--config=/tmp"), TD_INVALID);
}

static void test_config_option_without_default_must_be_given(void **state)
{
    static const td_option one[] = {
        {"model", TD_OPT_STR, offsetof(settings, model), NULL, 0, 0, "A folder.", NULL}};
    settings s = {0};
    char *none[] = {(char *)"t"};

    (void)state;
    assert_int_equal(td_config_parse(one, 1, "t", "t.", 1, none, &s, &action, &err), TD_INVALID);
    assert_string_equal(err.text, "--model must be given: by that flag, by TANDEM_MODEL, or as "
                                  "\"model\" in a config file");
    setenv("TANDEM_MODEL", "", 1);
    assert_int_equal(td_config_parse(one, 1, "t", "t.", 1, none, &s, &action, &err), TD_INVALID);
    assert_string_equal(err.text, "environment TANDEM_MODEL: it must be given, and is empty");
    setenv("TANDEM_MODEL", "/m", 1);
    assert_int_equal(td_config_parse(one, 1, "t", "t.", 1, none, &s, &action, &err), TD_OK);
    assert_string_equal(s.model, "/m");
    td_config_free(one, 1, &s);
}

/* What a run prints to stdout, with the run expected to say "exit 0". */
static void printed(td_buf *b, int argc, const char **argv)
{
    FILE *f = tmpfile();
    int saved = dup(STDOUT_FILENO);
    settings s;
    td_status st;
    int c;

    assert_non_null(f);
    fflush(stdout);
    dup2(fileno(f), STDOUT_FILENO);
    st = parse(&s, argc, argv);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    assert_int_equal(st, TD_OK);
    assert_int_equal(action, TD_CONFIG_EXIT_OK);
    assert_null(s.model);
    rewind(f);
    while ((c = fgetc(f)) != EOF)
        td_buf_byte(b, (char)c);
    fclose(f);
}

static void assert_has(const td_buf *b, const char *want)
{
    if (strstr(b->ptr, want) == NULL)
        fail_msg("\"%s\" is not in:\n%s", want, b->ptr);
}

static void test_config_help_shows_every_option_with_its_facts(void **state)
{
    td_buf b = {0};

    (void)state;
    printed(&b, 3, (const char *[]){"t", "--nonsense", "--help"});
    assert_has(&b, "tandem-test: tests the tables.");
    assert_has(&b, "--max-batch N");
    assert_has(&b, "A whole number from 1 to 1024; default 128; TANDEM_MAX_BATCH.");
    assert_has(&b, "--backend cpu|cuda");
    assert_has(&b, "--warm-up[=BOOL]");
    for (const char *p = b.ptr; *p != '\0';) { /* it fits a terminal */
        size_t len = strcspn(p, "\n");

        assert_true(len <= 100);
        p += len + (p[len] == '\n');
    }
    td_buf_clear(&b);
    printed(&b, 2, (const char *[]){"t", "--help=markdown"});
    assert_has(&b,
               "| `--max-batch` | `TANDEM_MAX_BATCH` | a whole number from 1 to 1024 | `128` |");
    td_buf_clear(&b);
    printed(&b, 2, (const char *[]){"t", "--version"});
    assert_has(&b, "tandem-test 0.");
    td_buf_free(&b);
}

static void test_config_print_says_what_is_in_force_and_from_where(void **state)
{
    const char *path = file_with("{\"lease\": \"1s\", \"share\": 0.7}");
    td_buf b = {0};

    (void)state;
    setenv("TANDEM_WARM_UP", "0", 1);
    printed(&b, 5, (const char *[]){"t", "--print-config", "--config", path, "--max-batch=9"});
    assert_has(&b, "max-batch = 9                        # flag --max-batch\n");
    assert_has(&b, "warm-up   = 0                        # environment TANDEM_WARM_UP\n");
    assert_has(&b, "share     = 0.7                      # file /tmp/tandem-config-");
    assert_has(&b, "kv-bytes  = 64MiB                    # default\n");
    td_buf_free(&b);
    unlink(path);
}

static void test_config_units(void **state)
{
    uint64_t bytes = 0;
    int64_t ms = 0;

    (void)state;
    assert_true(td_parse_bytes("1.5GiB", &bytes) && bytes == 1610612736u);
    assert_true(td_parse_bytes("64Mi", &bytes) && bytes == 64 << 20);
    assert_true(td_parse_bytes("0", &bytes) && bytes == 0);
    assert_true(td_parse_bytes("512B", &bytes) && bytes == 512);
    assert_true(td_parse_duration_ms("1.5s", &ms) && ms == 1500);
    assert_true(td_parse_duration_ms("2h", &ms) && ms == 7200000);
    assert_true(td_parse_duration_ms("0", &ms) && ms == 0);
    ms = 7;
    assert_false(td_parse_duration_ms("", &ms));
    assert_false(td_parse_duration_ms("-5s", &ms));
    assert_false(td_parse_duration_ms("1.2.3s", &ms));
    assert_false(td_parse_duration_ms("5 s", &ms));
    assert_false(td_parse_bytes(".", &bytes));
    assert_false(td_parse_bytes("KiB", &bytes));
    assert_int_equal(ms, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_config_defaults_fill_every_type, clear_env),
        cmocka_unit_test_setup(test_config_flag_over_environment_over_file_over_default, clear_env),
        cmocka_unit_test_setup(test_config_flags_take_both_spellings, clear_env),
        cmocka_unit_test_setup(test_config_file_takes_json_types, clear_env),
        cmocka_unit_test_setup(test_config_bad_values_name_source_value_and_range, clear_env),
        cmocka_unit_test_setup(test_config_refuses_variables_that_are_slips, clear_env),
        cmocka_unit_test_setup(test_config_unknown_flags_suggest_the_nearest, clear_env),
        cmocka_unit_test_setup(test_config_file_errors_name_file_key_and_line, clear_env),
        cmocka_unit_test_setup(test_config_option_without_default_must_be_given, clear_env),
        cmocka_unit_test_setup(test_config_help_shows_every_option_with_its_facts, clear_env),
        cmocka_unit_test_setup(test_config_print_says_what_is_in_force_and_from_where, clear_env),
        cmocka_unit_test_setup(test_config_units, clear_env),
    };

    return cmocka_run_group_tests_name("config", tests, NULL, NULL);
}
