/* pretokenize against PCRE2 running the pattern itself. The classes of whitespace are written out,
 * since PCRE2's own \s includes U+180E, which Unicode dropped from White_Space. */
#define PCRE2_CODE_UNIT_WIDTH 8
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
#include <pcre2.h>

#include "common/buf.h"
#include "router/pretokenize.h"
#include "router/unicode_tables.h"

#define SPACES \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}" \
    "\\x{3000}"
#define WORD_HEAD "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define WORD_TAIL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define EXPLICIT \
    WORD_HEAD "*" WORD_TAIL "+" CONTRACTION "|" WORD_HEAD "+" WORD_TAIL "*" CONTRACTION "|" \
              "\\p{N}{1,3}| ?[^" SPACES "\\p{L}\\p{N}]+[\\r\\n/]*|[" SPACES "]*[\\r\\n]+|" \
              "[" SPACES "]+(?![^" SPACES "])|[" SPACES "]+"

enum {
    N_RANDOM = 200000,
};

static const char *const awkward[] = {
    "a",
    "s",
    "S",
    "t",
    "T",
    "r",
    "e",
    "v",
    "E",
    "l",
    "L",
    "m",
    "d",
    "D",
    "Z",
    "\xc3\x89" /* E acute */,
    "\xc3\xa9" /* e acute */,
    "\xc7\x85" /* Dz, title case */,
    "\xca\xb0" /* modifier h */,
    "\xe6\x96\x87" /* ideograph */,
    "\xe0\xa4\xa8" /* Devanagari na */,
    "\xe0\xa5\x80" /* its vowel sign */,
    "\xcc\x81" /* combining acute */,
    "\xe2\x83\x9d" /* enclosing circle */,
    "1",
    "\xd9\xa3" /* Arabic 3 */,
    "\xe2\x85\xa7" /* VIII */,
    "\xc2\xbd" /* half */,
    " ",
    " ",
    "\t",
    "\n",
    "\r",
    "\x0b",
    "\xc2\x85" /* NEL */,
    "\xc2\xa0" /* NBSP */,
    "\xe2\x80\x83" /* em space */,
    "\xe2\x80\xa8" /* line separator */,
    "\xe3\x80\x80" /* ideographic space */,
    "\xe1\xa0\x8e" /* U+180E */,
    "\xe2\x80\x8b" /* ZWSP */,
    "\xe2\x80\x8d" /* ZWJ */,
    "'",
    "'",
    "\xe2\x80\x99" /* typographic apostrophe */,
    "\xc5\xbf" /* long s */,
    "\xe2\x84\xaa" /* Kelvin */,
    "/",
    ".",
    "_",
    "-",
    "\x01",
    "\x7f",
    "\xf0\x9f\x92\x96" /* heart */,
    "\xf0\x90\x90\x80" /* Deseret capital */,
    "\xf3\xa0\x84\x81" /* variation selector */,
    "\xee\x80\x80" /* private use */,
};

static uint64_t random_state;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % n);
}

static pcre2_code *compile(const char *pattern)
{
    int code;
    PCRE2_SIZE at;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);

    assert_non_null(re);
    return re;
}

static void test_pretokenize_cuts_as_the_pattern_does_on_random_text(void **state)
{
    pcre2_code *re = compile(EXPLICIT);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    td_buf text = {0};

    (void)state;
    random_state = 7;
    for (int i = 0; i < N_RANDOM; i++) {
        /* Few different characters at a time make long runs and odd orders likely. */
        uint32_t n = sizeof awkward / sizeof *awkward, few = 2 + random_below(10);
        uint32_t first = random_below(n), length = 1 + random_below(24);

        td_buf_clear(&text);
        for (uint32_t k = 0; k < length; k++)
            td_buf_str(&text, awkward[(first + random_below(few) * 11) % n]);
        for (size_t at = 0; at < text.len;) {
            size_t end = pretokenize_next(text.ptr, text.len, at), want = 0;

            if (pcre2_match(re, (PCRE2_SPTR)text.ptr, text.len, at, PCRE2_ANCHORED, match, NULL) >
                0)
                want = pcre2_get_ovector_pointer(match)[1];
            if (end != want) {
                print_error("string %d: ", i);
                for (size_t k = 0; k < text.len; k++)
                    print_error("%02x", (unsigned char)text.ptr[k]);
                print_error(", piece from %zu: ends at %zu, by the pattern at %zu\n", at, end,
                            want);
            }
            assert_int_equal(end, want);
            at = end;
        }
    }
    td_buf_free(&text);
    pcre2_match_data_free(match);
    pcre2_code_free(re);
}

static size_t put_utf8(char *s, uint32_t cp)
{
    if (cp < 0x80) {
        s[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        s[0] = (char)(0xc0 | cp >> 6);
        s[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        s[0] = (char)(0xe0 | cp >> 12);
        s[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        s[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    s[0] = (char)(0xf0 | cp >> 18);
    s[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    s[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    s[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

/* Assigned characters keep their class from one version of Unicode to the next, so an older PCRE2
 * can check all that it knows. */
static void test_unicode_class_agrees_with_pcre2_on_every_character_it_knows(void **state)
{
    static const char *const patterns[] = {[UC_OTHER] = "[^\\p{L}\\p{M}\\p{N}" SPACES "]",
                                           [UC_UPPER] = "[\\p{Lu}\\p{Lt}]",
                                           [UC_LOWER] = "\\p{Ll}",
                                           [UC_LETTER] = "[\\p{Lm}\\p{Lo}]",
                                           [UC_MARK] = "\\p{M}",
                                           [UC_NUMBER] = "\\p{N}",
                                           [UC_SPACE] = "(?![\\r\\n])[" SPACES "]",
                                           [UC_NEWLINE] = "[\\r\\n]"};
    pcre2_code *classes[8], *assigned = compile("\\P{Cn}");
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    unsigned checked = 0, wrong = 0;
    char version[32] = "";

    (void)state;
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    if (atoi(version) > atoi(td_unicode_version))
        skip(); /* it knows characters that the tables do not */
    for (int c = 0; c < 8; c++)
        classes[c] = compile(patterns[c]);
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char s[4];
        size_t n = put_utf8(s, cp);
        const pcre2_code *re = classes[td_unicode_class(cp)];

        if ((cp >= 0xd800 && cp < 0xe000) ||
            pcre2_match(assigned, (PCRE2_SPTR)s, n, 0, 0, match, NULL) < 0)
            continue;
        checked++;
        if (pcre2_match(re, (PCRE2_SPTR)s, n, 0, 0, match, NULL) < 0 && wrong++ < 10)
            print_error("U+%04X is not of class %d\n", cp, (int)td_unicode_class(cp));
    }
    assert_int_equal(wrong, 0);
    assert_true(checked > 200000);
    assert_int_equal(td_unicode_class(UINT32_MAX), UC_OTHER);
    assert_int_equal(td_unicode_class(0x110000), UC_OTHER);
    for (int c = 0; c < 8; c++)
        pcre2_code_free(classes[c]);
    pcre2_code_free(assigned);
    pcre2_match_data_free(match);
}

static void test_pretokenize_pieces_of_known_texts(void **state)
{
    static const char *const cases[][10] = {
        {"hello", " world"},
        {"  ", " hello", "  "},
        {"I'LL", " don't", " we'Re"},
        {"it", "\xe2\x80\x99s"},
        {"Hello", "WORLD", " foo", "Bar"},
        {"camel", "Case", "XML"},
        {"x", "123", "4", "y"},
        {"1", ",", "234", ".", "5"},
        {"/path", "/to", "//", "x", "\n", "//", "y"},
        {"a", "!\n\n", " b"},
        {"...\n/"},
        {"foo", "  \n", " ", " bar"},
        {"today", "\n \n"},
        {"tab", "\there"},
        {"\xc2\xa0x"},
        {"a", "\xc2\x85"
              "b"},
        {"a", "\xe1\xa0\x8e"
              "b"},
        {"\xe0\xa4\xa8\xe0\xa4\xae\xe0\xa4\xb8\xe0\xa5\x8d\xe0\xa4\xa4\xe0\xa5\x87"},
        {"\xe2\x85\xa7\xc2\xbd"},
        {"=functions"},
        {"000", "000", "000", "0"},
        {"a\xcc\x81", "!\xcc\x81"},
        {"it'\xc5\xbf", "s"},
        {"x", "   ", " y", " "},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_buf text = {0};
        size_t at = 0;

        for (int k = 0; cases[i][k] != NULL; k++)
            td_buf_str(&text, cases[i][k]);
        for (int k = 0; cases[i][k] != NULL; k++) {
            size_t end = pretokenize_next(text.ptr, text.len, at);

            assert_int_equal(end - at, strlen(cases[i][k]));
            at = end;
        }
        assert_int_equal(at, text.len);
        td_buf_free(&text);
    }
}

static void test_pretokenize_reads_nothing_past_the_end(void **state)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)state;
    assert_true(map != MAP_FAILED);
    assert_int_equal(mprotect(map + page, page, PROT_NONE), 0);
    random_state = 3;
    for (int i = 0; i < 20000; i++) {
        char buf[128];
        size_t n = 0, at = 0;

        for (uint32_t k = 1 + random_below(6); k > 0; k--) {
            const char *s = awkward[random_below(sizeof awkward / sizeof *awkward)];

            memcpy(buf + n, s, strlen(s));
            n += strlen(s);
        }
        memcpy(map + page - n, buf, n);
        while (at < n) {
            size_t end = pretokenize_next(map + page - n, n, at);

            assert_true(end > at && end <= n);
            assert_true(end == n || ((unsigned char)buf[end] & 0xc0) != 0x80);
            at = end;
        }
    }
    munmap(map, 2 * page);
}

/* Every run looks ahead over a million characters; were they looked at again from each piece, this
 * would take hours. */
static void test_pretokenize_is_linear_where_pieces_are_short_and_runs_long(void **state)
{
    static const char *const heads[] = {
        "A", "\xcc\x81",  " ",   "\n", "'s",        "\xe6\x96\x87", "^",
        "9", "A\xcc\x81", "\n ", "aA", "\xcc\x81!", " \xcc\x81",    "'ll"};

    (void)state;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        td_buf text = {0};
        size_t pieces = 0;

        while (text.len < 1 << 20)
            td_buf_str(&text, heads[i]);
        assert_false(text.oom);
        for (size_t at = 0; at < text.len; pieces++)
            at = pretokenize_next(text.ptr, text.len, at);
        assert_true(pieces > 0);
        td_buf_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pretokenize_pieces_of_known_texts),
        cmocka_unit_test(test_pretokenize_cuts_as_the_pattern_does_on_random_text),
        cmocka_unit_test(test_unicode_class_agrees_with_pcre2_on_every_character_it_knows),
        cmocka_unit_test(test_pretokenize_reads_nothing_past_the_end),
        cmocka_unit_test(test_pretokenize_is_linear_where_pieces_are_short_and_runs_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
