/* rpc calls against processes that die and peers that speak nonsense.
 *
 * Run with arguments this program is the process that will be killed: see child_main(). */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/unit/rpc_fixture.h"

extern char **environ;

/* ---- a peer that speaks nonsense ---- */

static int raw_connect(const char *url)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    a.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* Whether the other side ends the connection in time. */
static bool raw_closed(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char sink[256];
    ssize_t n;

    do {
        if (poll(&p, 1, TALLY_SECONDS * 1000) != 1)
            return false;
        n = read(fd, sink, sizeof sink);
    } while (n > 0);
    return true;
}

static const char hello[] = "\0SP\0\0\x30\0\0"; /* of a REQ */

static void raw_expect(int fd, const char *bytes, size_t n)
{
    char got[64];

    for (size_t at = 0; at < n;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t r;

        assert_int_equal(poll(&p, 1, TALLY_SECONDS * 1000), 1);
        r = read(fd, got + at, n - at);
        assert_true(r > 0);
        at += (size_t)r;
    }
    assert_memory_equal(got, bytes, n);
}

static void answer_ok(void *user, rpc_call *call, const void *bytes, size_t n)
{
    (void)user;
    rpc_reply(call, n == 2 && memcmp(bytes, "hi", 2) == 0 ? "ok" : "??", 2);
}

/* Through a device a request has two ids, and both must come back. And bytes come as they like. */
static void test_rpc_server_reads_a_routed_request_byte_by_byte(void **state)
{
    static const char request[] = "\0\0\0\0\0\0\0\x0a"
                                  "\0\0\0\x05\x80\0\0\x07hi";
    static const char reply[] = "\0\0\0\0\0\0\0\x0a"
                                "\0\0\0\x05\x80\0\0\x07ok";
    rpc_server *s =
        serve(&(rpc_server_options){.url = "tcp://127.0.0.1:0", .on_request = answer_ok});
    int fd = raw_connect(rpc_server_url(s));

    (void)state;
    for (int i = 0; i < 8; i++)
        assert_int_equal(write(fd, hello + i, 1), 1);
    for (size_t i = 0; i < sizeof request - 1; i++)
        assert_int_equal(write(fd, request + i, 1), 1);
    raw_expect(fd, "\0SP\0\0\x31\0\0", 8);
    raw_expect(fd, reply, sizeof reply - 1);
    close(fd);
    rpc_server_close(s);
}

/* Replies pile up in front of a peer that does not read them, until it is disconnected. */
static void test_rpc_server_disconnects_a_peer_that_does_not_read(void **state)
{
    enum { BYTES = 1 << 20, REQUESTS_SENT = 30 };
    rpc_server *s = serve(&(rpc_server_options){
        .url = "tcp://127.0.0.1:0", .on_request = echo, .on_peer = server_peer});
    int fd = raw_connect(rpc_server_url(s));
    unsigned char head[12] = {0, 0, 0, 0, 0, (BYTES + 4) >> 16, 0, 4, 0x80, 0, 0, 1};
    char *body = calloc(1, BYTES);

    (void)state;
    assert_non_null(body);
    assert_int_equal(write(fd, hello, 8), 8);
    for (int i = 0; i < REQUESTS_SENT; i++) {
        assert_int_equal(write(fd, head, sizeof head), sizeof head);
        assert_int_equal(write(fd, body, BYTES), BYTES);
    }
    assert_true(tally_reaches(&seen, REQUESTS, REQUESTS_SENT));
    assert_true(tally_reaches(&seen, DOWN, 1));
    close(fd);
    free(body);
    rpc_server_close(s);
}

static void test_rpc_server_survives_peers_that_speak_nonsense(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
    } after[] = {
        {"\xff\xff\xff\xff\xff\xff\xff\xff", 8}, /* a message of 2^64 - 1 bytes */
        {"\0\0\x01\0\0\0\0\0", 8},               /* of 2^40 */
        {"\0\0\0\0\0\0\0\x03"
         "abc",
         11},                    /* too short for a request id */
        {"\0\0\0\0\0\0\0\0", 8}, /* empty */
    };
    rpc_server *s = serve(&(rpc_server_options){.url = "tcp://127.0.0.1:0", .on_request = echo});
    rpc_client *c = dial(&(rpc_client_options){.url = rpc_server_url(s)});
    td_buf reply = {0};
    int fd;

    (void)state;
    for (size_t i = 0; i < sizeof after / sizeof after[0]; i++) {
        fd = raw_connect(rpc_server_url(s));
        assert_int_equal(write(fd, hello, 8), 8);
        assert_int_equal(write(fd, after[i].bytes, after[i].n), after[i].n);
        assert_true(raw_closed(fd));
        close(fd);
    }
    fd = raw_connect(rpc_server_url(s));
    assert_int_equal(write(fd, "GET / HTTP/1.1\r\n\r\n", 18), 18);
    assert_true(raw_closed(fd));
    close(fd);
    assert_int_equal(call_text(c, "still there", &reply), TD_OK);
    assert_int_equal(tally_of(&seen, REQUESTS), 1);
    td_buf_free(&reply);
    rpc_client_close(c);
    rpc_server_close(s);
}

/* ---- a server in a process of its own, to be killed ---- */

typedef struct child {
    pid_t pid;
    int out; /* its stdout */
} child;

static child spawn_self(const char *mode, const char *arg)
{
    char *const argv[] = {"test_rpc_process", (char *)mode, (char *)arg, NULL};
    posix_spawn_file_actions_t actions;
    int ends[2];
    child ch;

    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    assert_int_equal(posix_spawn(&ch.pid, "/proc/self/exe", &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    ch.out = ends[0];
    return ch;
}

/* The next line of the child's output. False: it ended, or nothing came in time. */
static bool child_line(child *ch, char *line, size_t cap)
{
    for (size_t n = 0; n < cap; n++) {
        struct pollfd p = {.fd = ch->out, .events = POLLIN};

        if (poll(&p, 1, TALLY_SECONDS * 1000) != 1 || read(ch->out, line + n, 1) != 1)
            return false;
        if (line[n] == '\n') {
            line[n] = '\0';
            return true;
        }
    }
    return false;
}

static int child_end(child *ch, int signo)
{
    int how = 0;

    if (signo != 0)
        kill(ch->pid, signo);
    assert_int_equal(waitpid(ch->pid, &how, 0), ch->pid);
    close(ch->out);
    return how;
}

static void say(const char *word, const void *bytes, size_t n)
{
    char line[128];
    int len = snprintf(line, sizeof line, "%s%.*s\n", word, (int)n, (const char *)bytes);

    if (write(1, line, (size_t)len) != len)
        abort();
}

static void child_on_request(void *user, rpc_call *call, const void *bytes, size_t n)
{
    (void)user;
    say("got ", bytes, n);
    if (n < 4 || memcmp(bytes, "hold", 4) != 0)
        rpc_reply(call, bytes, n);
}

static void child_close_in_callback(void *user, rpc_call *call, const void *bytes, size_t n)
{
    (void)call;
    (void)bytes;
    (void)n;
    rpc_server_close(*(rpc_server **)user);
}

static int child_main(const char *mode, const char *url)
{
    rpc_server *s = NULL;
    rpc_server_options opt = {.url = url, .on_request = child_on_request, .user = &s};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (strcmp(mode, "close-in-callback") == 0) {
        opt.on_request = child_close_in_callback;
        if (freopen("/dev/null", "w", stderr) == NULL)
            return 1;
    }
    if (rpc_server_open(&opt, &s, NULL) != TD_OK)
        return 1;
    say("", rpc_server_url(s), strlen(rpc_server_url(s)));
    for (;;)
        pause();
}

static void killed_server(const char *listen_url)
{
    enum { HELD = 20 };
    child a = spawn_self("serve", listen_url), b;
    char url[128], line[128];
    td_buf reply = {0};
    rpc_client *c;

    assert_true(child_line(&a, url, sizeof url));
    c = dial(&(rpc_client_options){.url = url, .on_peer = client_peer});
    for (int i = 0; i < HELD; i++)
        assert_int_equal(rpc_client_call(c, "hold", 4, LONG_MS, count_end, NULL, NULL), TD_OK);
    for (int i = 0; i < HELD; i++) {
        assert_true(child_line(&a, line, sizeof line));
        assert_string_equal(line, "got hold");
    }
    child_end(&a, SIGKILL);
    assert_true(tally_reaches(&seen, counter_of(TD_UNAVAILABLE), HELD));

    b = spawn_self("serve", url);
    assert_true(child_line(&b, line, sizeof line));
    assert_int_equal(call_text(c, "after", &reply), TD_OK);
    /* Had a request been sent again, it would have come on this connection before. */
    assert_true(child_line(&b, line, sizeof line));
    assert_string_equal(line, "got after");
    assert_int_equal(ended(), HELD);
    kill(b.pid, SIGKILL);
    assert_false(child_line(&b, line, sizeof line)); /* and none after */
    child_end(&b, 0);
    rpc_client_close(c);
    td_buf_free(&reply);
    for (int i = 0; i < TALLY_COUNTERS; i++)
        seen.count[i] = 0;
}

static void test_rpc_killed_server_fails_its_calls_once_and_gets_none_again(void **state)
{
    char ipc[64];

    (void)state;
    killed_server("tcp://127.0.0.1:0");
    killed_server(fresh_ipc(ipc, sizeof ipc));
    unlink(ipc + strlen("ipc://")); /* a killed server leaves its path */
}

static void test_rpc_close_in_a_callback_aborts_instead_of_freezing(void **state)
{
    child ch = spawn_self("close-in-callback", "tcp://127.0.0.1:0");
    char url[128];
    rpc_client *c;
    int how;

    (void)state;
    assert_true(child_line(&ch, url, sizeof url));
    c = dial(&(rpc_client_options){.url = url});
    assert_int_equal(rpc_client_call(c, "x", 1, LONG_MS, count_end, NULL, NULL), TD_OK);
    assert_true(tally_reaches(&seen, counter_of(TD_UNAVAILABLE), 1));
    how = child_end(&ch, 0);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGABRT);
    rpc_client_close(c);
}

#define T(name) cmocka_unit_test_setup_teardown(test_rpc_##name, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T(server_reads_a_routed_request_byte_by_byte),
        T(server_disconnects_a_peer_that_does_not_read),
        T(server_survives_peers_that_speak_nonsense),
        T(killed_server_fails_its_calls_once_and_gets_none_again),
        T(close_in_a_callback_aborts_instead_of_freezing),
    };

    if (argc == 3)
        return child_main(argv[1], argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
