/* Who may ask and how much: API keys, and the router's bounds on what clients send. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/e2e/cluster.h"

#define ONE "sk-one-0123456789abcdef"
#define TWO "sk-two-0123456789abcdef"
#define HI "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":3}"

static void put_file(const char *path, const char *text)
{
    char fresh[200];
    FILE *f;

    /* As tools do it: a file beside it takes its place, so that no half of it is ever read. */
    snprintf(fresh, sizeof fresh, "%s.new", path);
    f = fopen(fresh, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(rename(fresh, path), 0);
}

static int status_of(cluster *c, const char *method, const char *path, const char *headers,
                     const char *body, char *code, char *message)
{
    ask a;
    int status;

    ask_start(&a, cluster_port(c), method, path, headers, body, strlen(body));
    asks_wait(&a, 1);
    status = a.status;
    if (code != NULL)
        snprintf(code, 64, "%s", ask_error(&a, "code"));
    if (message != NULL)
        snprintf(message, 256, "%s", ask_error(&a, "message"));
    if (status == 401) {
        assert_string_equal(ask_header(&a, "WWW-Authenticate"), "Bearer");
        assert_string_equal(ask_error(&a, "type"), "invalid_request_error");
    }
    ask_free(&a);
    return status;
}

static int chat_with(cluster *c, const char *headers)
{
    return status_of(c, "POST", "/v1/chat/completions", headers, HI, NULL, NULL);
}

#define AUTH(key) "Authorization: Bearer " key "\r\n"

static void test_api_keys_are_needed(cluster *c)
{
    static const struct {
        const char *method, *path;
    } closed[] = {{"POST", "/v1/chat/completions"},
                  {"POST", "/v1/completions"},
                  {"POST", "/v1/responses"},
                  {"GET", "/v1/responses/resp_1"},
                  {"POST", "/tokenize"},
                  {"POST", "/detokenize"},
                  {"GET", "/v1/models"},
                  {"GET", "/v1/models/tandem-tiny"},
                  {"GET", "/version"},
                  {"GET", "/nothing"},
                  {"GET", "/v1/chat/completions"}};
    char path[160], options[200], code[64], message[256];
    process *r;

    snprintf(path, sizeof path, "%s/keys", c->folder);
    snprintf(options, sizeof options, "--api-keys %s", path);
    put_file(path, "# one client\n" ONE "\n");
    r = cluster_router(c, options);
    cluster_prefill(c, "");
    cluster_decode(c, "");
    cluster_ready(c); /* /ready needs no key */
    assert_int_equal(http_get(r->port, "/health", NULL), 200);
    assert_int_equal(http_get(r->port, "/metrics", NULL), 200);
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++) {
        if (status_of(c, closed[i].method, closed[i].path, "", "", code, message) != 401)
            fail_msg("%s is open", closed[i].path);
        assert_string_equal(code, "invalid_api_key");
        assert_non_null(strstr(message, "needs an API key"));
    }
    assert_int_equal(chat_with(c, AUTH(ONE)), 200);
    assert_int_equal(chat_with(c, AUTH(ONE "x")), 401);
    assert_int_equal(chat_with(c, "Authorization: " ONE "\r\n"), 401);
    assert_int_equal(status_of(c, "POST", "/tokenize", AUTH(TWO), HI, code, message), 401);
    assert_non_null(strstr(message, "not one of"));
    assert_null(strstr(message, "sk-"));

    /* Another file, by a signal: the next request is held to it. */
    put_file(path, TWO "\n");
    process_signal(r, SIGHUP);
    E2E_AWAIT(process_log_count(r, "api_keys_loaded") == 2);
    assert_int_equal(chat_with(c, AUTH(ONE)), 401);
    assert_int_equal(chat_with(c, AUTH(TWO)), 200);
    /* A bad one changes nothing; and a change is seen without a signal too. */
    put_file(path, "oops\n");
    E2E_AWAIT(process_logged(r, "api_keys_not_loaded"));
    assert_int_equal(chat_with(c, AUTH(TWO)), 200);
    put_file(path, ONE "\n" TWO "\n");
    E2E_AWAIT(process_log_count(r, "api_keys_loaded") == 3);
    assert_int_equal(chat_with(c, AUTH(ONE)), 200);
    assert_int_equal(chat_with(c, AUTH(TWO)), 200);
    assert_false(process_logged(r, "sk-"));
    unlink(path);
}

/* What one key's client was told no other key's can look up, go on from, refer to or delete. */
static void test_responses_are_their_keys(cluster *c)
{
    static const char said[] = "{\"input\":\"hi\",\"max_output_tokens\":2}";
    char path[160], options[200], id[64], one[128], body[400], code[64];
    ask a;

    snprintf(path, sizeof path, "%s/keys", c->folder);
    snprintf(options, sizeof options, "--api-keys %s", path);
    put_file(path, ONE "\n" TWO "\n");
    cluster_router(c, options);
    cluster_prefill(c, "");
    cluster_decode(c, "");
    cluster_ready(c);
    ask_start(&a, cluster_port(c), "POST", "/v1/responses", AUTH(ONE), said, sizeof said - 1);
    asks_wait(&a, 1);
    assert_int_equal(a.status, 200);
    assert_int_equal(sscanf(a.body.ptr, "{\"id\":\"%60[a-z0-9_]", id), 1);
    ask_free(&a);
    snprintf(one, sizeof one, "/v1/responses/%s", id);
    snprintf(body, sizeof body,
             "{\"input\":\"hi\",\"max_output_tokens\":2,\"previous_response_id\":\"%s\"}", id);
    assert_int_equal(status_of(c, "GET", one, AUTH(TWO), "", code, NULL), 404);
    assert_string_equal(code, "not_found");
    assert_int_equal(status_of(c, "DELETE", one, AUTH(TWO), "", NULL, NULL), 404);
    assert_int_equal(status_of(c, "POST", "/v1/responses", AUTH(TWO), body, code, NULL), 400);
    assert_string_equal(code, "previous_response_not_found");
    assert_int_equal(status_of(c, "POST", "/v1/responses", AUTH(ONE), body, NULL, NULL), 200);
    assert_int_equal(status_of(c, "GET", one, AUTH(ONE), "", NULL, NULL), 200);
    assert_int_equal(status_of(c, "DELETE", one, AUTH(ONE), "", NULL, NULL), 200);
    assert_int_equal(status_of(c, "GET", one, AUTH(ONE), "", NULL, NULL), 404);
    unlink(path);
}

/* Each bound is a flag, and says what it was. */
static void test_bounds_of_bodies(cluster *c)
{
    td_buf b = {0};
    char message[256];

    cluster_router(c, "--max-body 2048 --max-header 2048 --max-json-depth 9 --max-messages 3 "
                      "--max-tools 2");
    cluster_prefill(c, "");
    cluster_decode(c, "");
    cluster_ready(c);
#define STATUS(body) status_of(c, "POST", "/v1/chat/completions", "", body, NULL, message)
    assert_int_equal(STATUS(HI), 200);
    td_buf_str(&b, "{\"messages\":\"");
    while (b.len < 2100)
        td_buf_byte(&b, 'x');
    assert_int_equal(STATUS(b.ptr), 413);
    assert_non_null(strstr(message, "2048"));
    td_buf_clear(&b);
    td_buf_str(&b, "X-Long: ");
    while (b.len < 2100)
        td_buf_byte(&b, 'x');
    td_buf_str(&b, "\r\n");
    assert_int_equal(status_of(c, "GET", "/v1/models", b.ptr, "", NULL, message), 431);
    assert_non_null(strstr(message, "2048"));
    td_buf_free(&b);
    assert_int_equal(STATUS("{\"messages\":[[[[[[[[[[]]]]]]]]]]}"), 400);
    assert_non_null(strstr(message, "deeper than 9"));
#define M "{\"role\":\"user\",\"content\":\"x\"}"
    assert_int_equal(STATUS("{\"messages\":[" M "," M "," M "],\"max_tokens\":2}"), 200);
    assert_int_equal(STATUS("{\"messages\":[" M "," M "," M "," M "]}"), 400);
    assert_non_null(strstr(message, "more than 3 messages"));
    assert_int_equal(status_of(c, "POST", "/v1/responses", "",
                               "{\"input\":[" M "," M "," M "," M "]}", NULL, message),
                     400);
    assert_non_null(strstr(message, "more than 3 items"));
#define T(name) "{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"
    assert_int_equal(
        STATUS("{\"messages\":[" M "],\"max_tokens\":2,\"tools\":[" T("a") "," T("b") "]}"), 200);
    assert_int_equal(STATUS("{\"messages\":[" M "],\"tools\":[" T("a") "," T("b") "," T("c") "]}"),
                     400);
    assert_non_null(strstr(message, "more than 2 tools"));
}

/* A thousand connections that say nothing, and some that begin and stop, beside a client. */
static void test_idle_connections_hold_up_nobody(cluster *c)
{
    enum { N = 1000 };
    ask *idle = calloc(N, sizeof *idle), a;
    struct rlimit files;
    process *r;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = files.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_max < 2 * N) {
        free(idle);
        skip();
    }
    r = cluster_router(c, "--read-timeout 500ms --idle-timeout 500ms");
    cluster_prefill(c, "");
    cluster_decode(c, "");
    cluster_ready(c);
    for (int i = 0; i < N; i++)
        ask_start(&idle[i], r->port, "POST", "/v1/models", "Content-Length: 5\r\n", "", 0);
    for (int i = 0; i < 5; i++) {
        ask_whole(&a, r->port, &(want){.max_tokens = 20, .stream = i % 2 == 0});
        ask_assert_good(&a);
        ask_free(&a);
    }
    /* All of them are closed by the router, which then holds none. */
    E2E_AWAIT(process_metric(r, "tandem:http_connections") <= 2);
    for (int i = 0; i < N; i++)
        ask_free(&idle[i]);
    free(idle);
}

/* What the kernel does not allow is not promised. */
static void test_few_descriptors_are_said(cluster *c)
{
    char link[64], program[256], command[640], line[512];
    bool said = false;
    ssize_t n;
    pid_t pid;
    FILE *f;

    cluster_router(c, "");
    snprintf(link, sizeof link, "/proc/%d/exe", (int)c->router->pid);
    n = readlink(link, program, sizeof program - 1);
    assert_true(n > 0);
    program[n] = '\0';
    /* A hard limit that is lowered does not come back: in a shell of its own. */
    snprintf(command, sizeof command,
             "ulimit -n 256; echo $$; exec %s --model models/tandem-tiny --http-listen 127.0.0.1:0 "
             "--workers-listen tcp://127.0.0.1:0 2>&1",
             program);
    f = popen(command, "re");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    pid = (pid_t)atoi(line);
    while (fgets(line, sizeof line, f) != NULL && strstr(line, " listening ") == NULL)
        said = said || (strstr(line, "few_descriptors limit=256") != NULL &&
                        strstr(line, " max_connections=128") != NULL);
    kill(pid, SIGTERM);
    assert_int_equal(pclose(f), 0);
    assert_true(said);
    assert_false(process_logged(c->router, "few_descriptors"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        E2E_TEST(test_api_keys_are_needed),      E2E_TEST(test_responses_are_their_keys),
        E2E_TEST(test_bounds_of_bodies),         E2E_TEST(test_idle_connections_hold_up_nobody),
        E2E_TEST(test_few_descriptors_are_said),
    };

    return cmocka_run_group_tests_name("access", tests, NULL, NULL);
}
