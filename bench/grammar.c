/* bench_grammar: how long masks of structured output take, over a real vocabulary, one thread.
 *
 *   bench_grammar TOKENIZER [SCHEMA.json...]
 *
 * TOKENIZER as tokenizer_open() takes it. For each schema an answer is drawn from its masks, over
 * and over: a token is chosen among those allowed (each number of bytes as likely as any other, so
 * that strings end), accepted, and the next mask is timed. `cold` is the first time that a process
 * meets the schema, `prepared` the same after td_grammar_prepare(), `warm` all later answers: the
 * grammar is remembered, the matcher is new. Times are microseconds of this thread's processor a
 * token, so that other work on the machine does not count; asking for one adds some 0.3. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/grammar.h"
#include "common/json_file.h"
#include "router/tokenizer.h"

enum {
    MAX_TIMES = 200000,
    ANSWER_TOKENS = 2000, /* of one answer at most */
    WARM_ANSWERS = 20,
};

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* --- Schemas. */

static void person(td_buf *b)
{
    td_buf_str(b, "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{"
                  "\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"email\":{\"type\":"
                  "\"string\",\"format\":\"email\"},\"tags\":{\"type\":\"array\",\"items\":{"
                  "\"type\":\"string\"}}},\"required\":[\"name\",\"age\",\"email\",\"tags\"],"
                  "\"additionalProperties\":false}");
}

/* n properties of all types, every other one optional. */
static void wide(td_buf *b, int n)
{
    static const char *const types[] = {
        "{\"type\":\"string\"}",
        "{\"type\":\"integer\"}",
        "{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
        "{\"type\":\"boolean\"}",
        "{\"type\":\"string\",\"maxLength\":120}",
        "{\"enum\":[\"low\",\"medium\",\"high\"]}",
        "{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":8}",
        "{\"anyOf\":[{\"type\":\"string\",\"format\":\"date-time\"},{\"type\":\"null\"}]}",
        "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"number\"},\"y\":{\"type\":"
        "\"number\"}},\"required\":[\"x\",\"y\"]}",
    };

    td_buf_str(b, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < n; i++)
        td_buf_fmt(b, "%s\"field_%d_of_record\":%s", i > 0 ? "," : "", i, types[i % 9]);
    td_buf_str(b, "},\"required\":[");
    for (int i = 0; i < n; i += 2)
        td_buf_fmt(b, "%s\"field_%d_of_record\"", i > 0 ? "," : "", i);
    td_buf_str(b, "],\"additionalProperties\":false}");
}

static void wide20(td_buf *b)
{
    wide(b, 20);
}

static void wide100(td_buf *b)
{
    wide(b, 100);
}

static void invoice(td_buf *b)
{
    td_buf_str(
        b,
        "{\"$defs\":{\"money\":{\"type\":\"object\",\"properties\":{\"amount\":{\"type\":"
        "\"number\","
        "\"minimum\":0},\"currency\":{\"type\":\"string\",\"pattern\":\"^[A-Z]{3}$\"}},"
        "\"required\":"
        "[\"amount\",\"currency\"],\"additionalProperties\":false}},\"type\":\"object\","
        "\"properties\":{\"id\":{\"type\":\"string\",\"format\":\"uuid\"},\"date\":{\"type\":"
        "\"string\",\"format\":\"date\"},\"lines\":{\"type\":\"array\",\"minItems\":1,\"items\":{"
        "\"type\":\"object\",\"properties\":{\"sku\":{\"type\":\"string\",\"pattern\":"
        "\"^[A-Z]{2,4}-[0-9]{4,8}$\"},\"text\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":"
        "200},\"count\":{\"type\":\"integer\",\"minimum\":1},\"price\":{\"$ref\":\"#/$defs/"
        "money\"},"
        "\"notes\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}}},\"required\":[\"sku\","
        "\"text\",\"count\",\"price\",\"notes\"],\"additionalProperties\":false}},\"total\":{"
        "\"$ref\":\"#/$defs/money\"}},\"required\":[\"id\",\"date\",\"lines\",\"total\"],"
        "\"additionalProperties\":false}");
}

static void enum200(td_buf *b)
{
    td_buf_str(b, "{\"type\":\"object\",\"properties\":{\"labels\":{\"type\":\"array\",\"items\":{"
                  "\"enum\":[");
    for (int i = 0; i < 200; i++)
        td_buf_fmt(b, "%s\"category %d: %c%c\"", i > 0 ? "," : "", i, 'a' + i % 26, 'a' + i % 7);
    td_buf_str(b, "]},\"minItems\":5}},\"required\":[\"labels\"]}");
}

static void tree(td_buf *b)
{
    td_buf_str(b, "{\"$defs\":{\"node\":{\"anyOf\":[{\"type\":\"object\",\"properties\":{\"kind\":{"
                  "\"const\":\"leaf\"},\"value\":{\"type\":\"string\"}},\"required\":[\"kind\","
                  "\"value\"]},{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"pair\"},"
                  "\"left\":{\"$ref\":\"#/$defs/node\"},\"right\":{\"$ref\":\"#/$defs/node\"}},"
                  "\"required\":[\"kind\",\"left\",\"right\"]}]}},\"$ref\":\"#/$defs/node\"}");
}

static void pattern(td_buf *b)
{
    td_buf_str(b, "{\"type\":\"object\",\"properties\":{\"slug\":{\"type\":\"string\",\"pattern\":"
                  "\"^[a-z0-9]+(-[a-z0-9]+)*$\"},\"line\":{\"type\":\"string\",\"pattern\":"
                  "\"^[^\\\\n]*$\"},\"words\":{\"type\":\"string\",\"pattern\":\"^(\\\\w+ ?)+$\"}},"
                  "\"required\":[\"slug\",\"line\",\"words\"]}");
}

static void any_object(td_buf *b)
{
    td_buf_str(b, "{\"type\":\"object\"}");
}

static const struct {
    const char *name;
    void (*make)(td_buf *b);
} schemas[] = {
    {"person, 4 properties", person},
    {"20 properties", wide20},
    {"100 properties", wide100},
    {"invoice, nested", invoice},
    {"enum of 200", enum200},
    {"union, recursive", tree},
    {"patterns", pattern},
    {"any object", any_object},
};

/* --- Answers. */

typedef struct times {
    double *of;
    size_t n;
} times;

typedef struct world {
    const tokenizer *tok;
    td_token_set *set;
    uint32_t *mask;
    int32_t *allowed;
} world;

/* One of the tokens in the mask; -1: none. */
static int32_t draw(world *w)
{
    size_t n = 0;
    uint32_t len = 1 + random_below(6);
    td_slice piece;

    for (size_t i = 0; i < td_token_set_words(w->set); i++) {
        for (uint32_t bits = w->mask[i]; bits != 0; bits &= bits - 1)
            w->allowed[n++] = (int32_t)(i * 32) + __builtin_ctz(bits);
    }
    if (n == 0)
        return -1;
    for (int tries = 0; tries < 40; tries++) {
        int32_t id = w->allowed[random_below((uint32_t)n)];

        if (tokenizer_bytes(w->tok, id, &piece) && piece.len == len)
            return id;
        /* Few strings would ever end by a draw from all of the vocabulary. */
        if (tries > 2 && n > 1000 && random_below(4) == 0) {
            for (size_t i = 0; i < n; i++) {
                if (tokenizer_bytes(w->tok, w->allowed[i], &piece) && piece.len == 1 &&
                    piece.ptr[0] == '"')
                    return w->allowed[i];
            }
        }
    }
    return w->allowed[random_below((uint32_t)n)];
}

static void answer(world *w, const td_grammar *g, times *t)
{
    td_matcher *m = NULL;
    td_error err;

    if (td_matcher_create(g, w->set, &m, &err) != TD_OK)
        return;
    for (int i = 0; i < ANSWER_TOKENS; i++) {
        double start = now_us();
        int32_t id;
        td_slice piece;

        if (!td_matcher_mask(m, w->mask))
            break;
        if (t->n < MAX_TIMES)
            t->of[t->n++] = now_us() - start;
        id = draw(w);
        if (id < 0 || (td_matcher_may_end(m) && random_below(4) == 0))
            break;
        if (!tokenizer_bytes(w->tok, id, &piece) ||
            !td_matcher_accept(m, (const uint8_t *)piece.ptr, piece.len)) {
            printf("token %d is in the mask, but is not accepted\n", id);
            exit(1);
        }
    }
    td_matcher_free(m);
}

static int compare(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;

    return (a > b) - (a < b);
}

static void report(const char *name, times *t)
{
    if (t->n == 0)
        return;
    qsort(t->of, t->n, sizeof *t->of, compare);
    printf("  %-9s %7zu masks: median %6.2f, p99 %8.2f, max %9.2f us\n", name, t->n,
           t->of[t->n / 2], t->of[t->n * 99 / 100], t->of[t->n - 1]);
    t->n = 0;
}

static void run(world *w, const char *name, const td_buf *schema, times *t)
{
    td_grammar *g = NULL;
    td_error err = {0};
    double start = now_us();

    if (td_grammar_from_schema(schema->ptr, schema->len, &g, &err) != TD_OK) {
        printf("%-22s %s\n", name, err.text);
        return;
    }
    printf("%s: %zu bytes, made in %.2f ms, %zu states\n", name, schema->len,
           (now_us() - start) / 1e3, td_grammar_states(g));
    answer(w, g, t);
    report("cold", t);
    for (int i = 0; i < WARM_ANSWERS; i++)
        answer(w, g, t);
    report("warm", t);
    td_grammar_free(g);
    if (td_grammar_from_schema(schema->ptr, schema->len, &g, &err) != TD_OK)
        return;
    start = now_us();
    td_grammar_prepare(g, w->set, 10 * 1000 * 1000);
    printf("  all masks prepared in %.1f ms\n", (now_us() - start) / 1e3);
    for (int i = 0; i < WARM_ANSWERS; i++)
        answer(w, g, t);
    report("prepared", t);
    td_grammar_free(g);
}

static td_token_set *make_set(const tokenizer *tok)
{
    int n = tokenizer_vocab(tok);
    const uint8_t **pieces = calloc((size_t)n, sizeof *pieces);
    uint32_t *lengths = calloc((size_t)n, sizeof *lengths);
    td_token_set *set = NULL;
    td_error err = {0};
    double start;

    for (int32_t i = 0; pieces != NULL && lengths != NULL && i < n; i++) {
        td_slice piece;

        if (tokenizer_is_special(tok, i) || !tokenizer_bytes(tok, i, &piece))
            continue;
        pieces[i] = (const uint8_t *)piece.ptr;
        lengths[i] = (uint32_t)piece.len;
    }
    start = now_us();
    if (pieces != NULL && lengths != NULL &&
        td_token_set_create(pieces, lengths, n, &set, &err) == TD_OK)
        printf("%d tokens: set made in %.0f ms\n", n, (now_us() - start) / 1e3);
    free(pieces);
    free(lengths);
    return set;
}

int main(int argc, char **argv)
{
    tokenizer *tok = NULL;
    td_error err = {0};
    td_buf schema = {0};
    times t = {calloc(MAX_TIMES, sizeof(double)), 0};
    world w = {0};

    if (argc < 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: bench_grammar TOKENIZER [SCHEMA.json...]\n");
        return 2;
    }
    if (tokenizer_open(argv[1], &tok, &err) != TD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    w.tok = tok;
    w.set = make_set(tok);
    w.mask = w.set == NULL ? NULL : malloc(td_token_set_words(w.set) * sizeof *w.mask);
    w.allowed = w.set == NULL ? NULL : malloc(td_token_set_words(w.set) * 32 * sizeof *w.allowed);
    if (t.of == NULL || w.mask == NULL || w.allowed == NULL)
        return 1;
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas && argc == 2; i++) {
        td_buf_clear(&schema);
        schemas[i].make(&schema);
        run(&w, schemas[i].name, &schema, &t);
    }
    for (int i = 2; i < argc; i++) {
        td_buf_clear(&schema);
        if (td_file_read(argv[i], TD_GRAMMAR_MAX_SCHEMA, &schema, &err) != TD_OK)
            printf("%s\n", err.text);
        else
            run(&w, argv[i], &schema, &t);
    }
    td_buf_free(&schema);
    td_token_set_free(w.set);
    tokenizer_close(tok);
    free(w.mask);
    free(w.allowed);
    free(t.of);
    return 0;
}
