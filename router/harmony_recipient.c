#include "router/harmony_recipient.h"

#include <string.h>

#include "router/harmony_calls.h"

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

bool harmony_word_begins(td_slice word, const char *want)
{
    size_t n = strlen(want);

    if (word.len < n)
        return false;
    for (size_t i = 0; i < n; i++)
        if (lower(word.ptr[i]) != want[i])
            return false;
    return true;
}

bool harmony_word_is(td_slice word, const char *want)
{
    return word.len == strlen(want) && harmony_word_begins(word, want);
}

bool harmony_names_have(const harmony_names *names, td_slice word)
{
    for (size_t i = 0; i < names->n; i++)
        if (td_slice_eq(names->ptr[i], word))
            return true;
    return false;
}

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

/* The run of name characters in a word, past any quotes or brackets before it. */
static td_slice name_run(td_slice word)
{
    size_t from = 0, to;

    while (from < word.len && !name_char(word.ptr[from]))
        from++;
    to = from;
    while (to < word.len && name_char(word.ptr[to]) && to - from < HARMONY_MAX_CALL_NAME)
        to++;
    return (td_slice){word.ptr + from, to - from};
}

static td_slice skip(td_slice s, size_t n)
{
    return (td_slice){s.ptr + n, s.len - n};
}

/* The declared tool that a name means: itself, or without a word glued to its end. */
static bool find_declared(td_slice name, const harmony_names *names, td_slice *found)
{
    static const char *const glued[] = {"json",     "code",  "text",     "commentary",
                                        "analysis", "final", "assistant"};

    *found = name;
    if (harmony_names_have(names, name))
        return true;
    for (size_t i = 0; i < sizeof glued / sizeof *glued; i++) {
        size_t n = strlen(glued[i]);

        if (name.len <= n || !harmony_word_is(skip(name, name.len - n), glued[i]))
            continue;
        found->len = name.len - n;
        if (harmony_names_have(names, *found))
            return true;
    }
    *found = name;
    return false;
}

static bool is_builtin(td_slice name)
{
    return td_slice_eq(name, TD_SLICE("python")) || td_slice_eq(name, TD_SLICE("browser")) ||
           (name.len > 8 && memcmp(name.ptr, "browser.", 8) == 0);
}

harmony_recipient harmony_recipient_read(td_slice word, const harmony_names *names)
{
    static const char *const near_prefix[] = {"function.", "tools.", "tool."};
    td_slice run = name_run(word), name = chat_bare_name(run), found;
    bool prefixed = name.len != run.len;
    harmony_recipient r = {
        .used = run.len > 0 ? (size_t)(run.ptr - word.ptr) + run.len : word.len,
        .odd = run.len != word.len,
    };

    while (name.len > 0 && name.ptr[name.len - 1] == '.') { /* the end of a sentence, not a name */
        name.len--;
        r.odd = true;
    }
    if (name.len == 0 || td_slice_eq(name, TD_SLICE("functions")))
        return r;
    if (!prefixed &&
        (td_slice_eq(name, TD_SLICE("assistant")) || td_slice_eq(name, TD_SLICE("user")) ||
         td_slice_eq(name, TD_SLICE("all"))) &&
        !harmony_names_have(names, name))
        return r;

    r.name = name;
    if (harmony_names_have(names, name)) {
        r.declared = true;
    } else if (!prefixed && is_builtin(name)) {
        r.target = HARMONY_TARGET_BUILTIN;
        return r;
    } else if (find_declared(chat_bare_name(name), names, &found)) { /* also said twice */
        r.declared = r.odd = true;
        r.name = found;
    }
    for (size_t i = 0; !r.declared && !prefixed && i < sizeof near_prefix / sizeof *near_prefix;
         i++) {
        size_t n = strlen(near_prefix[i]);

        if (harmony_word_begins(name, near_prefix[i]) &&
            find_declared(skip(name, n), names, &found)) {
            r.declared = r.odd = true;
            r.name = found;
        }
    }
    r.target = prefixed || r.declared ? HARMONY_TARGET_FUNCTION : HARMONY_TARGET_UNKNOWN;
    return r;
}
