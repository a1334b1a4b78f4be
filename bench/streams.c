/* bench_streams: what the router adds to each token, and what a stream costs it.
 *
 *   bench_streams [--streams 1,100,1000] [--tokens 250] [--pace 20ms] [--program ROUTER]
 *                 [--model FOLDER]
 *
 * It starts a router, is its workers (streams_workers.h: no model, a token a stream every --pace
 * milliseconds) and its clients: nonblocking sockets and epoll, all streams of chat completions at
 * once. The time of a token is from the moment when the decode worker gave its step's message to
 * the transport to the moment when the client's read() had returned it. It so includes both
 * transports and the client's own work, and on a machine with few cores their waiting for each
 * other: it is a bound from above of what the router adds. Only tokens that come while all streams
 * are running count; the router's processor time is of the same window, and so is its resident
 * memory. */
#define _GNU_SOURCE /* memmem */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/streams_workers.h"
#include "common/config.h"

enum { READ_BYTES = 64 << 10, TAIL_BYTES = 256, MAX_KINDS = 16, PATIENCE_US = 60000000 };

typedef struct options {
    char *streams, *program, *model;
    uint32_t tokens;
    int64_t pace_ms;
} options;

static const td_option table[] = {
    {"streams", TD_OPT_STR, offsetof(options, streams), "1,100,1000", 0, 0,
     "How many streams at once, one measurement each.", NULL},
    {"tokens", TD_OPT_U32, offsetof(options, tokens), "250", 20, 1000, "Tokens of each stream.",
     NULL},
    {"pace", TD_OPT_DURATION_MS, offsetof(options, pace_ms), "20ms", 1, 10000,
     "Time between two tokens of a stream.", NULL},
    {"program", TD_OPT_STR, offsetof(options, program), "", 0, 0,
     "The router's program. Empty: tandem-router beside this one.", NULL},
    {"model", TD_OPT_STR, offsetof(options, model), "models/tandem-tiny", 0, 0,
     "Folder with the tokenizer.", NULL},
};

/* One client. What it has read and not understood yet is the end of a line at most. */
typedef struct stream {
    int fd; /* -1: it has ended */
    td_usec asked, first_at;
    char tail[TAIL_BYTES];
    size_t n_tail;
    int number; /* at the workers; -1: not known yet */
    uint32_t value, letters;
    bool done;
} stream;

typedef struct bench {
    options o;
    pid_t router;
    char log[64];
    uint16_t port;
    stream_workers *workers;

    stream *streams;
    uint32_t n, n_running, n_started;
    int epoll;
    float *added; /* us, of each token in the window */
    size_t n_added, max_added;
    td_usec from, to;          /* the window */
    uint64_t cpu_from, cpu_to; /* clock ticks */
    double rss_mib;
} bench;

static void die(const char *what, const char *why)
{
    fprintf(stderr, "bench_streams: %s: %s\n", what, why);
    exit(1);
}

/* ---- the router ---- */

static bool in_log(const bench *b, const char *key, char *out, size_t cap)
{
    FILE *f = fopen(b->log, "re");
    char line[1024], *at;
    bool found = false;

    while (f != NULL && !found && fgets(line, sizeof line, f) != NULL) {
        at = strstr(line, key);
        found = at != NULL && strchr(line, '\n') != NULL;
        if (found)
            snprintf(out, cap, "%.*s", (int)strcspn(at + strlen(key), " \n"), at + strlen(key));
    }
    if (f != NULL)
        fclose(f);
    return found;
}

static void start_router(bench *b, char workers[static 128])
{
    char program[512], port[16];
    td_usec until = td_now_us() + PATIENCE_US;
    int fd;

    snprintf(program, sizeof program, "%s", b->o.program);
    if (program[0] == '\0') {
        ssize_t n = readlink("/proc/self/exe", program, sizeof program - 32);

        if (n < 0)
            die("/proc/self/exe", strerror(errno));
        program[n] = '\0';
        strcpy(strrchr(program, '/') + 1, "tandem-router");
    }
    snprintf(b->log, sizeof b->log, "/tmp/bench_streams-XXXXXX");
    fd = mkstemp(b->log);
    if (fd < 0)
        die(b->log, strerror(errno));
    b->router = fork();
    if (b->router == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(fd, 1);
        dup2(fd, 2);
        execl(program, program, "--model", b->o.model, "--http-listen", "127.0.0.1:0",
              "--workers-listen", "tcp://127.0.0.1:0", "--max-requests", "100000",
              "--max-connections", "100000", "--max-tokens-inside", "1000000000", (char *)NULL);
        perror(program);
        _exit(127);
    }
    close(fd);
    while (!in_log(b, " http_port=", port, sizeof port) || !in_log(b, " workers=", workers, 128)) {
        if (waitpid(b->router, NULL, WNOHANG) != 0 || td_now_us() > until)
            die(program, "it did not start");
        usleep(5000);
    }
    b->port = (uint16_t)atoi(port);
}

static uint64_t cpu_ticks(pid_t pid)
{
    unsigned long user = 0, sys = 0;
    char path[64];
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    f = fopen(path, "re");
    if (f == NULL ||
        fscanf(f, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &sys) != 2)
        die(path, "cannot be read");
    fclose(f);
    return user + sys;
}

static double rss_mib(pid_t pid)
{
    char path[64];
    long pages = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    f = fopen(path, "re");
    if (f == NULL || fscanf(f, "%*d %ld", &pages) != 1)
        die(path, "cannot be read");
    fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / (1 << 20);
}

/* ---- clients ---- */

static int dial(uint16_t port)
{
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0)
        die("connect", strerror(errno));
    return fd;
}

static bool is_ready(uint16_t port)
{
    static const char get[] = "GET /ready HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n";
    char answer[512] = "";
    int fd = dial(port);
    bool ready = send(fd, get, sizeof get - 1, MSG_NOSIGNAL) > 0 &&
                 recv(fd, answer, sizeof answer - 1, 0) > 0 &&
                 strncmp(answer, "HTTP/1.1 200", 12) == 0;

    close(fd);
    return ready;
}

static void begin(bench *b, stream *s)
{
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = s};
    char body[256], request[512];
    int n = snprintf(body, sizeof body,
                     "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"stream\":true,"
                     "\"temperature\":0,\"max_tokens\":%u}",
                     b->o.tokens);

    n = snprintf(request, sizeof request,
                 "POST /v1/chat/completions HTTP/1.1\r\nHost: b\r\nContent-Length: %d\r\n\r\n%s", n,
                 body);
    *s = (stream){.fd = dial(b->port), .number = -1, .asked = td_now_us()};
    if (send(s->fd, request, (size_t)n, MSG_NOSIGNAL) != n)
        die("send", strerror(errno));
    if (fcntl(s->fd, F_SETFL, O_NONBLOCK) != 0 ||
        epoll_ctl(b->epoll, EPOLL_CTL_ADD, s->fd, &e) != 0)
        die("epoll", strerror(errno));
    b->n_running++;
}

/* The router's own figures are of the time in which all streams run. */
static void open_window(bench *b)
{
    b->from = td_now_us();
    b->cpu_from = cpu_ticks(b->router);
}

static void close_window(bench *b)
{
    if (b->to != 0)
        return;
    b->to = td_now_us();
    b->cpu_to = cpu_ticks(b->router);
    b->rss_mib = rss_mib(b->router);
}

static void take_letter(bench *b, stream *s, td_usec now)
{
    uint32_t token = stream_workers_first(b->workers, (uint32_t)s->number) + s->letters++;
    td_usec sent = stream_workers_sent(b->workers, (uint32_t)s->number, token);

    if (sent == 0)
        die("a token", "it came before it was sent");
    if (s->letters == 1 && ++b->n_started == b->n)
        open_window(b);
    if (b->from != 0 && b->to == 0 && b->n_added < b->max_added)
        b->added[b->n_added++] = (float)(now - sent);
}

static void take_content(bench *b, stream *s, const char *text, size_t n, td_usec now)
{
    if (n > 0 && s->first_at == 0)
        s->first_at = now;
    for (size_t i = 0; i < n; i++) {
        if (s->number >= 0)
            take_letter(b, s, now);
        else if (text[i] == ' ')
            s->number = (int)s->value;
        else
            s->value = s->value * 10 + (uint32_t)(text[i] - '0');
    }
}

static void take_bytes(bench *b, stream *s, char *in, size_t n, td_usec now)
{
    static const char key[] = "\"content\":\"";
    char *at = in, *end = in + n;

    for (;;) {
        char *found = memmem(at, (size_t)(end - at), key, sizeof key - 1), *quote;

        if (found == NULL)
            break;
        found += sizeof key - 1;
        quote = memchr(found, '"', (size_t)(end - found));
        if (quote == NULL) {
            at = found - (sizeof key - 1);
            break;
        }
        take_content(b, s, found, (size_t)(quote - found), now);
        at = quote + 1;
    }
    s->done = s->done || memmem(at, (size_t)(end - at), "[DONE]", 6) != NULL;
    /* A key that has begun may be at the end; what is before it has been understood. */
    s->n_tail = (size_t)(end - at) < sizeof key + 32 ? (size_t)(end - at) : sizeof key + 32;
    memcpy(s->tail, end - s->n_tail, s->n_tail);
}

static void read_stream(bench *b, stream *s)
{
    static char in[TAIL_BYTES + READ_BYTES];
    ssize_t n;
    td_usec now;

    memcpy(in, s->tail, s->n_tail);
    n = read(s->fd, in + s->n_tail, READ_BYTES);
    now = td_now_us();
    if (n < 0 && errno == EAGAIN)
        return;
    if (n > 0)
        take_bytes(b, s, in, s->n_tail + (size_t)n, now);
    if (n > 0 && !s->done)
        return;
    close_window(b);
    if (!s->done)
        die("a stream", n == 0 ? "it was cut" : strerror(errno));
    close(s->fd);
    s->fd = -1;
    b->n_running--;
}

/* ---- one measurement ---- */

static int by_value(const void *a, const void *b)
{
    const float *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

static double part(const float *sorted, size_t n, double q)
{
    return n > 0 ? (double)sorted[(size_t)((double)(n - 1) * q)] / 1000 : 0;
}

static void print(const bench *b, double idle_mib)
{
    double seconds = (double)(b->to - b->from) / 1e6;
    double cpu = (double)(b->cpu_to - b->cpu_from) / (double)sysconf(_SC_CLK_TCK);
    float *first = calloc(b->n, sizeof *first);

    for (uint32_t i = 0; i < b->n; i++)
        first[i] = (float)(b->streams[i].first_at - b->streams[i].asked);
    qsort(first, b->n, sizeof *first, by_value);
    qsort(b->added, b->n_added, sizeof *b->added, by_value);
    printf("%7u %9.0f %8.3f %8.3f %8.3f %8.1f %8.1f %9.2f %8.1f %9.1f\n", b->n,
           (double)b->n_added / seconds, part(b->added, b->n_added, 0.5),
           part(b->added, b->n_added, 0.99), part(b->added, b->n_added, 1), part(first, b->n, 0.5),
           part(first, b->n, 0.99), 100 * cpu / seconds,
           b->n_added ? cpu * 1e6 / (double)b->n_added : 0, b->rss_mib);
    printf("%*s (%.1f KiB a stream over %.1f MiB idle)\n", 7, "",
           (b->rss_mib - idle_mib) * 1024 / b->n, idle_mib);
    fflush(stdout);
    free(first);
}

static void measure(bench *b, uint32_t n)
{
    struct epoll_event events[256];
    td_usec until = td_now_us() + PATIENCE_US + b->o.tokens * b->o.pace_ms * TD_USEC_PER_MSEC * 4;
    double idle = rss_mib(b->router);

    b->n = n;
    b->n_running = b->n_started = 0;
    b->from = b->to = 0;
    b->n_added = 0;
    b->max_added = (size_t)n * b->o.tokens;
    b->added = calloc(b->max_added, sizeof *b->added);
    b->streams = calloc(n, sizeof *b->streams);
    b->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (b->added == NULL || b->streams == NULL || b->epoll < 0)
        die("memory", strerror(errno));
    for (uint32_t i = 0; i < n; i++)
        begin(b, &b->streams[i]);
    while (b->n_running > 0) {
        int k = epoll_wait(b->epoll, events, 256, 1000);

        if (td_now_us() > until)
            die("the streams", "they take too long");
        for (int i = 0; i < k; i++)
            read_stream(b, events[i].data.ptr);
    }
    if (b->from == 0)
        die("--tokens", "the first stream ended before the last had begun: give more");
    print(b, idle);
    close(b->epoll);
    free(b->added);
    free(b->streams);
}

int main(int argc, char **argv)
{
    static bench b;
    struct rlimit files;
    uint32_t kinds[MAX_KINDS], n_kinds = 0, all = 0;
    td_config_action action;
    char workers[128];
    td_error err = {0};
    tokenizer *t;

    if (td_config_parse(table, sizeof table / sizeof *table, "bench_streams",
                        "What a router adds to each token of many streams.", argc, argv, &b.o,
                        &action, &err) != TD_OK)
        die("options", err.text);
    if (action == TD_CONFIG_EXIT_OK)
        return 0;
    for (char *at = strtok(b.o.streams, ","); at != NULL; at = strtok(NULL, ",")) {
        if (atoi(at) < 1 || atoi(at) > 20000 || n_kinds == MAX_KINDS)
            die("--streams", "numbers from 1 to 20000 with commas, at most 16");
        kinds[n_kinds] = (uint32_t)atoi(at);
        all += kinds[n_kinds++];
    }
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (tokenizer_open(b.o.model, &t, &err) != TD_OK)
        die("--model", err.text);
    start_router(&b, workers);
    if (stream_workers_start(workers, t, all, b.o.tokens + 1, b.o.pace_ms * TD_USEC_PER_MSEC,
                             &b.workers, &err) != TD_OK)
        die("workers", err.text);
    for (td_usec until = td_now_us() + PATIENCE_US; !is_ready(b.port); usleep(5000))
        if (td_now_us() > until)
            die("the router", "it does not become ready");
    printf("%7s %9s %8s %8s %8s %8s %8s %9s %8s %9s\n", "streams", "tokens/s", "p50 ms", "p99 ms",
           "max ms", "ttft p50", "ttft p99", "router %", "us/token", "MiB");
    for (uint32_t i = 0; i < n_kinds; i++)
        measure(&b, kinds[i]);
    kill(b.router, SIGTERM);
    waitpid(b.router, NULL, 0);
    stream_workers_stop(b.workers);
    tokenizer_close(t);
    unlink(b.log);
    td_config_free(table, sizeof table / sizeof *table, &b.o);
    return 0;
}
