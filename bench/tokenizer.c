/* bench_tokenizer: encoding speed over kinds of text, one thread.
 *
 *   bench_tokenizer TOKENIZER [FILE...]
 *
 * TOKENIZER as tokenizer_open() takes it. The built-in kinds are 1 MiB each: prose first, then
 * texts made to be hard, which must stay within a small factor of it whatever they are; files are
 * added as kinds of their own. Best of several runs, since the machine may be busy. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "router/tokenizer.h"

enum {
    KIND_BYTES = 1 << 20,
    RUNS = 7,
    MAX_FILE = 256 << 20,
};

/* Repeated as a whole. */
static const struct {
    const char *name, *unit;
} repeats[] = {
    {"one letter", "a"},
    {"one capital", "A"},
    {"letters ab", "ab"},
    {"spaces", " "},
    {"newlines", "\n"},
    {"spaces, newlines", "  \n"},
    {"digits", "7"},
    {"carets", "^"},
    {"punctuation", "({[<;:!?>]})"},
    {"contractions 's", "'s"},
    {"word's", "it's"},
    {"one ideograph", "\xe6\x96\x87"},
    {"sentence in Chinese",
     "\xe4\xbd\xa0\xe5\xa5\xbd\xe4\xb8\x96\xe7\x95\x8c\xe6\x88\x91\xe4\xbb\xac"},
    {"combining marks", "\xcc\x81"},
    {"letter and mark", "e\xcc\x81"},
    {"emoji", "\xf0\x9f\xab\xa0"},
    {"NUL", "\0"},
    {"invalid UTF-8", "\xff"},
};

static uint64_t random_state = 1;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

/* Words of varied length and frequency, of which a part is no token; sentences, line breaks. */
static void add_prose(td_buf *b)
{
    static const char *const stems[] = {
        "the",       "of",       "and",     "to",      "in",     "that",    "with",    "for",
        "was",       "on",       "are",     "by",      "this",   "from",    "which",   "or",
        "have",      "an",       "they",    "one",     "had",    "not",     "but",     "what",
        "all",       "were",     "when",    "we",      "there",  "can",     "house",   "water",
        "number",    "people",   "sound",   "place",   "ocean",  "compose", "machine", "letter",
        "answer",    "grow",     "study",   "learn",   "plant",  "cover",   "govern",  "transport",
        "philosoph", "dispatch", "lantern", "quarrel", "velocit"};
    static const char *const ends[] = {"",    "",   "",   "",     "",      "",
                                       "ing", "ed", "ly", "ment", "ation", "'s"};
    uint32_t n = sizeof stems / sizeof *stems, words = 0;

    while (b->len < KIND_BYTES) {
        uint32_t reach = 1 + random_below(n); /* twice: favours the front of the list */

        if (words++ > 0)
            td_buf_byte(b, words % 90 == 0 ? '\n' : ' ');
        td_buf_str(b, stems[random_below(reach)]);
        td_buf_str(b, ends[random_below(sizeof ends / sizeof *ends)]);
        if (random_below(9) == 0)
            td_buf_str(b, random_below(3) == 0 ? "." : ",");
    }
}

static void add_random(td_buf *b, uint32_t first, uint32_t n)
{
    while (b->len < KIND_BYTES) {
        uint32_t cp = first + random_below(n);

        if (cp < 0x80) {
            td_buf_byte(b, (char)cp);
        } else if (cp < 0x800) {
            td_buf_fmt(b, "%c%c", 0xc0 | cp >> 6, 0x80 | (cp & 0x3f));
        } else {
            td_buf_fmt(b, "%c%c%c", 0xe0 | cp >> 12, 0x80 | (cp >> 6 & 0x3f), 0x80 | (cp & 0x3f));
        }
    }
}

static void report(const tokenizer *t, const char *name, const td_buf *text, double *prose)
{
    td_tokens ids = {0};
    td_error err = {0};
    double best = 0, rate;

    for (int i = 0; i < RUNS; i++) {
        td_usec start = td_now_us();
        double us;

        ids.len = 0;
        if (tokenizer_encode(t, text->ptr, text->len, &ids, &err) != TD_OK) {
            printf("%-22s %s\n", name, err.text);
            return;
        }
        us = (double)(td_now_us() - start);
        if (i == 0 || us < best)
            best = us;
    }
    rate = (double)text->len / (best > 0 ? best : 1);
    if (*prose == 0)
        *prose = rate;
    printf("%-22s %8.1f MB/s  %9zu tokens  %6.2f x prose\n", name, rate, ids.len, *prose / rate);
    td_tokens_free(&ids);
}

static void report_kinds(const tokenizer *t, double *prose)
{
    static const struct {
        const char *name;
        uint32_t first, n;
    } randoms[] = {{"random letters", 'a', 26},        {"random ASCII", ' ', 95},
                   {"random digits", '0', 10},         {"random signs", '!', 15},
                   {"random Chinese", 0x4e00, 0x5200}, {"random Hangul", 0xac00, 11172},
                   {"random marks", 0x300, 112}};
    td_buf text = {0};

    add_prose(&text);
    report(t, "prose", &text, prose);
    for (size_t i = 0; i < sizeof repeats / sizeof *repeats; i++) {
        size_t n = strlen(repeats[i].unit);

        td_buf_clear(&text);
        while (text.len < KIND_BYTES)
            td_buf_add(&text, repeats[i].unit, n > 0 ? n : 1);
        report(t, repeats[i].name, &text, prose);
    }
    for (size_t i = 0; i < sizeof randoms / sizeof *randoms; i++) {
        td_buf_clear(&text);
        add_random(&text, randoms[i].first, randoms[i].n);
        report(t, randoms[i].name, &text, prose);
    }
    td_buf_free(&text);
}

static bool report_file(const tokenizer *t, const char *path, double *prose)
{
    FILE *f = fopen(path, "rb");
    td_buf text = {0};
    char chunk[16384];
    size_t n;

    if (f == NULL) {
        perror(path);
        return false;
    }
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0 && text.len < MAX_FILE)
        td_buf_add(&text, chunk, n);
    fclose(f);
    report(t, path, &text, prose);
    td_buf_free(&text);
    return true;
}

int main(int argc, char **argv)
{
    tokenizer *t = NULL;
    td_error err = {0};
    double prose = 0;
    bool good = true;
    td_usec start = td_now_us();

    if (argc < 2 || argv[1][0] == '-') {
        fprintf(stderr, "usage: %s TOKENIZER [FILE...]\n", argv[0]);
        return 2;
    }
    if (tokenizer_open(argv[1], &t, &err) != TD_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("opened in %.0f ms, %d ids\n", (double)(td_now_us() - start) / 1e3, tokenizer_vocab(t));
    report_kinds(t, &prose);
    for (int i = 2; i < argc; i++)
        good = report_file(t, argv[i], &prose) && good;
    tokenizer_close(t);
    return good ? 0 : 1;
}
