/* tandem-ask: put one question to a router and show the answer as it comes: what the model thinks,
 * what it says, which functions it would call, and how long each part took. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/gateway.h"
#include "common/config.h"

typedef struct ask_config {
    char *router, *system, *date, *body;
    int32_t effort;
    bool weather, table;
    uint32_t max_tokens, logprobs;
    double temperature;
    uint64_t seed;
    int64_t timeout_ms;
    char *listen, *advertise;
} ask_config;

static const char *const effort_words[] = {"low", "medium", "high", NULL};

static const td_option options[] = {
    {"router", TD_OPT_STR, offsetof(ask_config, router), "tcp://127.0.0.1:7002", 0, 0,
     "The router's RPC port.", NULL},
    {"listen", TD_OPT_STR, offsetof(ask_config, listen), "tcp://127.0.0.1:0", 0, 0,
     "Where the router's events come in.", NULL},
    {"advertise", TD_OPT_STR, offsetof(ask_config, advertise), "", 0, 0,
     "How the router reaches that. Empty: what was listened on.", NULL},
    {"effort", TD_OPT_ENUM, offsetof(ask_config, effort), "medium", 0, 0,
     "How much the model thinks before it answers.", effort_words},
    {"system", TD_OPT_STR, offsetof(ask_config, system), "", 0, 0,
     "Instructions that go before the question.", NULL},
    {"weather", TD_OPT_BOOL, offsetof(ask_config, weather), "false", 0, 0,
     "Offer the model a get_weather function.", NULL},
    {"body", TD_OPT_STR, offsetof(ask_config, body), "", 0, 0,
     "Send this file as the /v1/chat/completions body instead of a question.", NULL},
    {"max-tokens", TD_OPT_U32, offsetof(ask_config, max_tokens), "1024", 1, 1e9, "Longest answer.",
     NULL},
    {"temperature", TD_OPT_F64, offsetof(ask_config, temperature), "0", 0, 2,
     "0 always takes the likeliest token.", NULL},
    {"seed", TD_OPT_U64, offsetof(ask_config, seed), "0", 0, 0, "Picks one of the answers.", NULL},
    {"logprobs", TD_OPT_U32, offsetof(ask_config, logprobs), "0", 0, 20,
     "After the answer, its tokens with their probabilities and this many of the likeliest in "
     "their "
     "place.",
     NULL},
    {"table", TD_OPT_BOOL, offsetof(ask_config, table), "true", 0, 0,
     "Print the timing table after the answer.", NULL},
    {"timeout", TD_OPT_DURATION_MS, offsetof(ask_config, timeout_ms), "60s", 1, 86400000,
     "Longest wait for the next piece of the answer.", NULL},
};
enum { N_OPTIONS = sizeof options / sizeof *options };

static void add_message(td_buf *b, const char *role, const char *text)
{
    td_buf_fmt(b, "{\"role\":\"%s\",\"content\":\"", role);
    td_buf_json(b, text, strlen(text));
    td_buf_str(b, "\"}");
}

static void build_body(const ask_config *c, const char *question, td_buf *b)
{
    td_buf_str(b, "{\"messages\":[");
    if (c->system[0] != '\0') {
        add_message(b, "system", c->system);
        td_buf_byte(b, ',');
    }
    add_message(b, "user", question);
    td_buf_fmt(b,
               "],\"reasoning_effort\":\"%s\",\"max_tokens\":%u,\"temperature\":%g,\"seed\":%llu",
               effort_words[c->effort], c->max_tokens, c->temperature, (unsigned long long)c->seed);
    if (c->logprobs > 0)
        td_buf_fmt(b, ",\"logprobs\":true,\"top_logprobs\":%u", c->logprobs);
    if (c->weather)
        td_buf_str(b, ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\","
                      "\"description\":\"Get the current weather in a city.\",\"parameters\":{"
                      "\"type\":\"object\",\"properties\":{\"location\":{\"type\":\"string\","
                      "\"description\":\"The city.\"}},\"required\":[\"location\"]}}}]");
    td_buf_byte(b, '}');
}

enum { BODY_CAP = 64 << 20 }; /* no router takes that much */

static td_status read_body(const char *path, td_buf *b, td_error *err)
{
    FILE *f = fopen(path, "rb");
    char chunk[65536];
    size_t n;

    if (f == NULL)
        return td_fail(err, TD_IO, "--body: %s cannot be read", path);
    while (b->len <= BODY_CAP && (n = fread(chunk, 1, sizeof chunk, f)) > 0)
        td_buf_add(b, chunk, n);
    n = (size_t)ferror(f);
    fclose(f);
    if (b->len > BODY_CAP)
        return td_fail(err, TD_TOOLARGE, "--body: %s is larger than 64 MiB", path);
    return n ? td_fail(err, TD_IO, "--body: %s cannot be read", path) : TD_OK;
}

/* Headings and dim text on a terminal, plain text elsewhere. */
typedef struct screen {
    bool color;
    gateway_kind shown; /* what is being printed; GATEWAY_FINISHED: nothing yet */
    uint32_t choice;    /* of which answer */
} screen;

static void heading(screen *s, gateway_kind kind, uint32_t choice, const char *name)
{
    if (s->shown == kind && s->choice == choice)
        return;
    if (s->shown != GATEWAY_FINISHED)
        printf("%s\n", s->color ? "\033[0m" : "");
    printf("%s[%s", s->color ? "\033[1m" : "", name);
    if (choice > 0)
        printf(" %u", choice + 1); /* of several answers, which come mixed */
    printf("]%s ", s->color ? "\033[0m" : "");
    s->choice = choice;
    if (s->color && kind == GATEWAY_REASONING)
        printf("\033[2m");
    s->shown = kind;
}

static void print_text(td_slice t)
{
    fwrite(t.ptr, 1, t.len, stdout);
    fflush(stdout);
}

/* `"token" -0.12`, in JSON's spelling; a part of a character as its bytes. */
static void add_token(td_buf *b, const gateway_token *t)
{
    td_buf_byte(b, '"');
    if (td_utf8_valid(t->text.ptr, t->text.len, &(size_t){0}))
        td_buf_json(b, t->text.ptr, t->text.len);
    else
        for (size_t i = 0; i < t->text.len; i++)
            td_buf_fmt(b, "\\x%02x", (unsigned)(unsigned char)t->text.ptr[i]);
    td_buf_fmt(b, "\" %.3f", (double)t->logprob);
}

static void add_logprobs(td_buf *b, const gateway_event *e)
{
    td_buf_str(b, "  ");
    if (e->choice > 0)
        td_buf_fmt(b, "(%u) ", e->choice + 1);
    add_token(b, &e->token);
    for (size_t i = 0; i < e->n_top; i++) {
        td_buf_str(b, i == 0 ? "  of " : ", ");
        add_token(b, &e->top[i]);
    }
    td_buf_byte(b, '\n');
}

static void print_table(const gateway_event *e)
{
    double itl = e->completion_tokens > 1
                     ? (double)(e->e2e_us - e->ttft_us) / 1e3 / (e->completion_tokens - 1)
                     : 0;

    printf("\n  %-22s %u\n", "prompt tokens", e->prompt_tokens);
    printf("  %-22s %u (%u of reasoning)\n", "answer tokens", e->completion_tokens,
           e->reasoning_tokens);
    printf("  %-22s %.1f ms (prefill %.1f ms)\n", "time to first token", (double)e->ttft_us / 1e3,
           (double)e->prefill_us / 1e3);
    printf("  %-22s %.2f ms\n", "inter-token latency", itl);
    printf("  %-22s %.1f ms\n", "whole answer", (double)e->e2e_us / 1e3);
    if (e->kv_transport.len > 0)
        printf("  %-22s %llu bytes in %u puts over %.*s, %.2f ms of it after prefill\n",
               "KV-cache moved", (unsigned long long)e->kv_bytes, e->kv_puts,
               (int)e->kv_transport.len, e->kv_transport.ptr, (double)e->kv_tail_us / 1e3);
    else /* the source looks once more at its peer before it reports: a short answer may be over */
        printf("  %-22s whole; its report came after the answer\n", "KV-cache moved");
    if (e->retries > 0)
        printf("  %-22s %u\n", "retries", e->retries);
}

/* Show one answer to its end. */
static td_status show(gateway *g, const ask_config *c, td_error *err)
{
    screen s = {.color = isatty(STDOUT_FILENO), .shown = GATEWAY_FINISHED};
    gateway_event e;
    td_buf tokens = {0};
    td_status st;

    for (;;) {
        st = gateway_next(g, td_now_us() + c->timeout_ms * TD_USEC_PER_MSEC, &e, err);
        if (st != TD_OK)
            break;
        switch (e.kind) {
        case GATEWAY_REASONING:
            heading(&s, e.kind, e.choice, "analysis");
            print_text(e.text);
            break;
        case GATEWAY_CONTENT:
            heading(&s, e.kind, e.choice, "final");
            print_text(e.text);
            break;
        case GATEWAY_CALL:
            s.shown = s.shown == GATEWAY_CALL ? GATEWAY_ARGUMENTS : s.shown; /* two in a row */
            heading(&s, GATEWAY_CALL, e.choice, "call");
            print_text(e.text);
            printf(" ");
            break;
        case GATEWAY_ARGUMENTS:
            if (s.choice != e.choice)
                heading(&s, GATEWAY_CALL, e.choice, "call");
            print_text(e.text);
            break;
        case GATEWAY_TOKEN: add_logprobs(&tokens, &e); break;
        case GATEWAY_FINISHED:
            printf("%s\n", s.color ? "\033[0m" : "");
            if (tokens.len > 0 && e.open == 0)
                printf("\n%.*s", (int)tokens.len, tokens.ptr);
            if (c->table)
                print_table(&e);
            s.shown = GATEWAY_FINISHED;
            break;
        case GATEWAY_FAILED:
            printf("%s\n", s.color ? "\033[0m" : "");
            st = td_fail(err, e.status, "%.*s", (int)(e.text.len < 400 ? e.text.len : 400),
                         e.text.ptr);
            break;
        }
        if (st != TD_OK || (e.kind == GATEWAY_FINISHED && e.open == 0))
            break;
    }
    if (st == TD_OK && tokens.oom)
        st = td_fail(err, TD_NOMEM, "no memory for the log-probabilities");
    td_buf_free(&tokens);
    return st;
}

/* Whether the last argument is the value of the flag before it. */
static bool last_is_a_value(int argc, char **argv)
{
    const char *flag = argc > 2 ? argv[argc - 2] : "";

    if (strncmp(flag, "--", 2) != 0)
        return false;
    for (size_t i = 0; i < N_OPTIONS; i++)
        if (strcmp(flag + 2, options[i].name) == 0)
            return options[i].type != TD_OPT_BOOL;
    return strcmp(flag, "--config") == 0;
}

int main(int argc, char **argv)
{
    ask_config c = {0};
    td_config_action action;
    td_buf body = {0};
    gateway *g = NULL;
    uint64_t stream;
    td_error err = {0};
    const char *question = NULL;
    td_status st;

    /* The question is the last argument; what is before it are flags. */
    if (argc > 1 && argv[argc - 1][0] != '-' && !last_is_a_value(argc, argv))
        question = argv[--argc];
    if (td_config_parse(options, N_OPTIONS, "tandem-ask",
                        "Asks one question: tandem-ask [flags] QUESTION", argc, argv, &c, &action,
                        &err) != TD_OK) {
        fprintf(stderr, "tandem-ask: %s\n", err.text);
        return 2;
    }
    if (action == TD_CONFIG_EXIT_OK)
        return 0;
    if ((question == NULL) == (c.body[0] == '\0')) {
        fprintf(stderr, "tandem-ask: give a question as the last argument, or --body FILE\n");
        td_config_free(options, N_OPTIONS, &c);
        return 2;
    }
    if (question != NULL)
        build_body(&c, question, &body);
    st = question != NULL ? TD_OK : read_body(c.body, &body, &err);
    if (st == TD_OK && body.oom)
        st = td_fail(&err, TD_NOMEM, "no memory for the question");
    if (st == TD_OK)
        st = gateway_open(&(gateway_options){.router = c.router,
                                             .listen = c.listen,
                                             .advertise = c.advertise[0] ? c.advertise : NULL},
                          &g, &err);
    if (st == TD_OK)
        st = gateway_generate(g, (td_slice){body.ptr, body.len}, NULL, &stream, &err);
    if (st == TD_OK)
        st = show(g, &c, &err);
    if (st != TD_OK)
        fprintf(stderr, "tandem-ask: %s%s%s\n", err.param, err.param[0] ? ": " : "", err.text);
    gateway_close(g);
    td_buf_free(&body);
    td_config_free(options, N_OPTIONS, &c);
    return st == TD_OK ? 0 : 1;
}
