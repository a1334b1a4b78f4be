#include "tests/e2e/cluster.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MODEL "models/tandem-tiny"

enum { MAX_ARGS = 96 };

/* A worker is lost when four heartbeats are missed. The default is two seconds, which a busy
 * machine may well take from a process; tests in which one freezes set their own. */
#define PATIENT "3s"

void e2e_pause(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
}

bool model_is_trained(void)
{
    return access(MODEL "/model.safetensors", R_OK) == 0 ||
           access(MODEL "/model.safetensors.index.json", R_OK) == 0;
}

void cluster_use_random_weights(cluster *c)
{
    snprintf(c->model, sizeof c->model, "--model %s --random-weights 1", MODEL);
}

void cluster_use_best_weights(cluster *c)
{
    if (model_is_trained())
        snprintf(c->model, sizeof c->model, "--model %s", MODEL);
}

/* ---- processes ---- */

/* In the child: become the program, or say why not. */
static void become(const process *p, char *line, pid_t parent)
{
    char *argv[MAX_ARGS], *save = NULL, program[512];
    int log = open(p->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    int argc = 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (log < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0 || getppid() != parent)
        _exit(120);
    snprintf(program, sizeof program, "%s/tandem-%s",
             getenv("TANDEM_E2E_BIN") ? getenv("TANDEM_E2E_BIN") : TANDEM_BIN, p->program);
    argv[argc++] = program;
    for (char *word = strtok_r(line, " ", &save); word != NULL && argc < MAX_ARGS - 1;
         word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    argv[argc] = NULL;
    execv(program, argv);
    dprintf(2, "cannot run %s: %s\n", program, strerror(errno));
    _exit(121);
}

static void spawn(process *p)
{
    char line[sizeof p->options];
    pid_t parent = getpid();

    memcpy(line, p->options, sizeof line);
    p->stopped = false;
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0)
        become(p, line, parent);
}

bool process_ended(process *p, int *code)
{
    int status;

    if (waitpid(p->pid, &status, WNOHANG) != p->pid)
        return false;
    p->pid = 0;
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return true;
}

/* The last word that follows `key` in its log. A program that ends instead fails the test. */
static void await_word(process *p, const char *key, size_t seen, char *out, size_t cap)
{
    td_usec deadline = e2e_deadline();
    td_buf log = {0};
    int code = 0;

    for (;;) {
        char *at, *last = NULL;
        size_t n = 0;

        process_log(p, &log);
        for (at = log.ptr ? strstr(log.ptr, key) : NULL; at != NULL; at = strstr(at + 1, key)) {
            last = at + strlen(key);
            n++;
        }
        /* Not a line that is half written. */
        if (n > seen && strchr(last, '\n') != NULL) {
            snprintf(out, cap, "%.*s", (int)strcspn(last, " \n"), last);
            break;
        }
        if (process_ended(p, &code))
            fail_msg("%s ended with %d before it said %s", p->name, code, key);
        if (td_now_us() > deadline)
            fail_msg("%s never said %s", p->name, key);
        td_buf_clear(&log);
        e2e_pause();
    }
    td_buf_free(&log);
}

static process *add(cluster *c, const char *program, const char *name)
{
    process *p = &c->all[c->n];
    char folder[sizeof c->folder];

    assert_true(c->n < CLUSTER_MAX);
    c->n++;
    snprintf(p->program, sizeof p->program, "%s", program);
    snprintf(p->name, sizeof p->name, "%s", name);
    memcpy(folder, c->folder, sizeof folder);
    snprintf(p->path, sizeof p->path, "%s/%s.log", folder, name);
    return p;
}

static void await_router(cluster *c, process *p, size_t seen)
{
    char word[64];

    await_word(p, " workers=", seen, c->workers_url, sizeof c->workers_url);
    await_word(p, " http_port=", seen, word, sizeof word);
    p->port = (uint16_t)atoi(word);
}

static process *start_router(cluster *c, const char *url, const char *options)
{
    process *p;
    char name[32];
    size_t k = 0;

    for (size_t i = 0; i < c->n; i++)
        k += strcmp(c->all[i].program, "router") == 0;
    snprintf(name, sizeof name, k > 0 ? "router%zu" : "router", k);
    p = add(c, "router", name);
    snprintf(p->options, sizeof p->options,
             "--model %s --http-listen 127.0.0.1:0 --workers-listen %s --date 2025-06-28 %s", MODEL,
             url, options);
    spawn(p);
    await_router(c, p, 0);
    return p;
}

process *cluster_router(cluster *c, const char *options)
{
    const char *url = c->workers_url[0] ? c->workers_url : "tcp://127.0.0.1:0";

    c->router = start_router(c, url, options);
    return c->router;
}

process *cluster_second_router(cluster *c, const char *options)
{
    char first[sizeof c->workers_url], second[sizeof c->workers_url];
    process *p;

    memcpy(first, c->workers_url, sizeof first);
    p = start_router(c, "tcp://127.0.0.1:0", options);
    memcpy(second, c->workers_url, sizeof second);
    snprintf(c->workers_url, sizeof c->workers_url, "%.70s,%.70s", first, second);
    return p;
}

const char *cluster_worker_options(void)
{
    const char *options = getenv("TANDEM_E2E_WORKERS");

    return options ? options : "";
}

bool cluster_is_cuda(void)
{
    return strstr(cluster_worker_options(), "cuda") != NULL;
}

static process *start_worker(cluster *c, const char *role, const char *options)
{
    char name[32];
    process *p;
    size_t k = 0;

    for (size_t i = 0; i < c->n; i++)
        k += strcmp(c->all[i].program, role) == 0;
    snprintf(name, sizeof name, "%s%zu", role, k);
    p = add(c, role, name);
    snprintf(
        p->options, sizeof p->options,
        "%s --router %s --worker-id %s --admin-listen 127.0.0.1:0 --threads 1 --heartbeat %s %s %s",
        c->model, c->workers_url, name, PATIENT, cluster_worker_options(), options);
    spawn(p);
    return p;
}

process *cluster_prefill(cluster *c, const char *options)
{
    return start_worker(c, "prefill", options);
}

process *cluster_decode(cluster *c, const char *options)
{
    return start_worker(c, "decode", options);
}

void cluster_simple(cluster *c)
{
    cluster_router(c, "");
    cluster_prefill(c, "");
    cluster_decode(c, "");
    cluster_ready(c);
}

static size_t lives(const process *p)
{
    return process_log_count(p, " admin_port=");
}

void cluster_ready(cluster *c)
{
    char word[16];

    for (size_t i = 0; i < c->n; i++) {
        process *p = &c->all[i];

        if (p->pid == 0 || p == c->router || strcmp(p->program, "router") == 0)
            continue;
        if (p->port == 0) {
            await_word(p, " admin_port=", 0, word, sizeof word);
            p->port = (uint16_t)atoi(word);
        }
        E2E_AWAIT(http_get(p->port, "/ready", NULL) == 200);
    }
    E2E_AWAIT(http_get(c->router->port, "/ready", NULL) == 200);
}

uint16_t cluster_port(const cluster *c)
{
    return c->router->port;
}

/* Whether a signal would find somebody at home: a program that has only just been started has not
 * come to it yet. */
static bool handles(const process *p, int signo)
{
    char path[64], line[128];
    unsigned long long mask;
    bool found = false;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/status", (int)p->pid);
    f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "SigBlk: %llx", &mask) == 1 || sscanf(line, "SigCgt: %llx", &mask) == 1)
            found = found || (mask >> (signo - 1) & 1);
    if (f != NULL)
        fclose(f);
    return found;
}

void process_signal(process *p, int signo)
{
    assert_true(p->pid > 0);
    if (signo == SIGTERM || signo == SIGINT || signo == SIGHUP) /* UCX has one for the last, too */
        E2E_AWAIT(handles(p, SIGTERM) && handles(p, signo));
    assert_int_equal(kill(p->pid, signo), 0);
    p->stopped = signo == SIGSTOP || (p->stopped && signo != SIGCONT);
}

static int wait_for_end(process *p, int signo, int64_t ms)
{
    /* Taking down a GPU's context takes a second, and longer where several processes do. */
    td_usec deadline = td_now_us() + ms * TD_USEC_PER_MSEC * (cluster_is_cuda() ? 5 : 1);
    int code = 0;

    assert_true(p->pid > 0);
    while (!process_ended(p, &code)) {
        if (td_now_us() > deadline)
            fail_msg("%s has not ended within %lld ms", p->name, (long long)ms);
        if (signo != 0) /* process_signal() would look for a handler in what has just ended */
            kill(p->pid, signo);
        e2e_pause();
    }
    return code;
}

int process_wait(process *p, int64_t ms)
{
    return wait_for_end(p, 0, ms);
}

int process_insist(process *p, int signo, int64_t ms)
{
    return wait_for_end(p, signo, ms);
}

void process_kill(process *p)
{
    process_signal(p, SIGKILL);
    assert_int_equal(process_wait(p, E2E_DEADLINE_MS), -SIGKILL);
}

void process_restart(cluster *c, process *p)
{
    bool router = strcmp(p->program, "router") == 0;
    size_t seen = router ? process_log_count(p, " http_port=") : lives(p);
    char word[16];

    assert_int_equal(p->pid, 0);
    if (router) { /* where its workers look for it */
        snprintf(p->options, sizeof p->options,
                 "--model %s --http-listen 127.0.0.1:0 --workers-listen %s --date 2025-06-28",
                 MODEL, c->workers_url);
        spawn(p);
        await_router(c, p, seen);
        return;
    }
    spawn(p);
    await_word(p, " admin_port=", seen, word, sizeof word);
    p->port = (uint16_t)atoi(word);
}

void process_stop(process *p, int64_t ms)
{
    int code;

    process_signal(p, SIGTERM);
    code = process_wait(p, ms);
    if (code != 0)
        fail_msg("%s ended with %d after SIGTERM", p->name, code);
}

/* ---- what they say ---- */

void process_log(const process *p, td_buf *out)
{
    char block[65536];
    int fd = open(p->path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    td_buf_str(out, "");
    if (fd < 0)
        return;
    while ((n = read(fd, block, sizeof block)) > 0)
        td_buf_add(out, block, (size_t)n);
    close(fd);
}

size_t process_log_count(const process *p, const char *text)
{
    td_buf log = {0};
    size_t n = 0;

    process_log(p, &log);
    for (const char *at = strstr(log.ptr, text); at != NULL; at = strstr(at + 1, text))
        n++;
    td_buf_free(&log);
    return n;
}

bool process_logged(const process *p, const char *text)
{
    return process_log_count(p, text) > 0;
}

double process_metric(const process *p, const char *name)
{
    td_buf body = {0};
    size_t n = strlen(name);
    double value = 0;
    bool found = false;
    int status = http_get(p->port, "/metrics", &body);

    if (status != 200)
        fail_msg("%s does not show its metrics: %d", p->name, status);
    for (const char *line = body.ptr; line != NULL && !found; line = strchr(line, '\n')) {
        line += *line == '\n';
        found = strncmp(line, name, n) == 0 && line[n] == ' ';
        if (found)
            value = strtod(line + n, NULL);
    }
    td_buf_free(&body);
    if (!found)
        fail_msg("%s has no metric %s", p->name, name);
    return value;
}

bool decode_is_empty(const process *p)
{
    return process_metric(p, "vllm:kv_cache_usage_perc") == 0 &&
           process_metric(p, "tandem:reservations_open") == 0 &&
           process_metric(p, "tandem:quarantined_pages") == 0 &&
           process_metric(p, "vllm:num_requests_running") == 0 &&
           process_metric(p, "vllm:num_requests_waiting") == 0;
}

bool prefill_is_empty(const process *p)
{
    return process_metric(p, "vllm:kv_cache_usage_perc") == 0 &&
           process_metric(p, "tandem:kv_transfers_running") == 0 &&
           process_metric(p, "tandem:prefill_queued_tokens") == 0 &&
           process_metric(p, "vllm:num_requests_running") == 0 &&
           process_metric(p, "vllm:num_requests_waiting") == 0;
}

void cluster_await_nothing_held(cluster *c, const process *decode)
{
    E2E_AWAIT(process_metric(c->router, "vllm:num_requests_running") == 0);
    E2E_AWAIT(decode_is_empty(decode));
}

void process_log_word(const process *p, const char *mark, char *out, size_t cap)
{
    td_buf log = {0};
    const char *at;

    process_log(p, &log);
    at = log.ptr != NULL ? strstr(log.ptr, mark) : NULL;
    assert_non_null(at);
    snprintf(out, cap, "%.*s", (int)strcspn(at + strlen(mark), " \n"), at + strlen(mark));
    td_buf_free(&log);
}
