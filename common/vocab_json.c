/* tokenizer.json, as Hugging Face's tokenizers library writes it. Only what byte-level BPE over the
 * o200k pattern needs is understood; a file that asks for anything else is refused, because to
 * ignore it would give other tokens than the model was trained on.
 *
 * The vocabulary is written in an alphabet that stands for bytes: printable Latin-1 characters
 * stand for themselves, the other 68 bytes for U+0100 and up. */
#include "common/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "common/json_file.h"
#include "common/json_scan.h"

enum {
    ALPHABET = 0x144, /* code points that stand for a byte lie below */
    N_REST = 68,      /* bytes that are not printable Latin-1 */
};

const char VOCAB_PATTERN[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* The parts of the file; ptr is NULL for those not seen. */
typedef struct json_parts {
    const char *file;
    td_slice added_tokens, normalizer, pre_tokenizer, model;
    td_slice type, vocab, merges, dropout, prefix, suffix, byte_fallback, ignore_merges;
} json_parts;

typedef struct json_part {
    const char *name;
    size_t offset;
} json_part;

#define PART(field) offsetof(json_parts, field)

static const json_part file_parts[] = {
    {"added_tokens", PART(added_tokens)},
    {"normalizer", PART(normalizer)},
    {"pre_tokenizer", PART(pre_tokenizer)},
    {"model", PART(model)},
    {NULL, 0},
};

static const json_part model_parts[] = {
    {"type", PART(type)},
    {"vocab", PART(vocab)},
    {"merges", PART(merges)},
    {"dropout", PART(dropout)},
    {"continuing_subword_prefix", PART(prefix)},
    {"end_of_word_suffix", PART(suffix)},
    {"byte_fallback", PART(byte_fallback)},
    {"ignore_merges", PART(ignore_merges)},
    {NULL, 0},
};

static void scan_part(json_scan *s, const json_parts *p, td_slice text)
{
    json_scan_init(s, text);
    s->start = p->file; /* so that mistakes are counted from the start of the file */
}

/* Find the named members of an object. Others are skipped. */
static td_status find_parts(json_parts *p, td_slice object, const json_part *parts, td_error *err)
{
    json_scan s;
    td_buf name = {0};
    td_slice value;
    td_status st = TD_OK;
    bool first = true;

    scan_part(&s, p, object);
    json_scan_enter(&s, '{');
    while (st == TD_OK && json_scan_more(&s, '}', &first) && json_scan_name(&s, &name) &&
           json_scan_value(&s, &value)) {
        for (const json_part *part = parts; part->name != NULL; part++) {
            td_slice *to = (td_slice *)((char *)p + part->offset);

            if (name.len != strlen(part->name) || memcmp(name.ptr, part->name, name.len) != 0)
                continue;
            if (to->ptr != NULL)
                st = td_fail(err, TD_INVALID, "\"%s\" is given twice", part->name);
            *to = value;
        }
    }
    json_scan_end(&s);
    td_buf_free(&name);
    return st != TD_OK ? st : json_scan_error(&s, err);
}

static bool is_text(td_slice value, const char *text)
{
    return td_slice_eq(value, td_slice_of(text));
}

/* Absent, null, or one of two spellings of "nothing". */
static bool is_off(td_slice value, const char *off)
{
    return value.ptr == NULL || is_text(value, "null") || is_text(value, off);
}

static td_status check_model(json_parts *p, vocab *v, td_error *err)
{
    if (!is_text(p->type, "\"BPE\""))
        return td_fail(err, TD_INVALID, "model.type is %.*s, expected \"BPE\"",
                       p->type.ptr ? (int)(p->type.len < 40 ? p->type.len : 40) : 6,
                       p->type.ptr ? p->type.ptr : "absent");
    if (p->vocab.ptr == NULL || p->merges.ptr == NULL)
        return td_fail(err, TD_INVALID, "model has no \"%s\"", p->vocab.ptr ? "merges" : "vocab");
    if (!is_off(p->dropout, "0.0"))
        return td_fail(err, TD_INVALID, "model.dropout is set: tokens would be random");
    if (!is_off(p->prefix, "\"\"") || !is_off(p->suffix, "\"\""))
        return td_fail(err, TD_INVALID, "model.%s is set: expected null, as in byte-level BPE",
                       is_off(p->prefix, "\"\"") ? "end_of_word_suffix"
                                                 : "continuing_subword_prefix");
    if (!is_off(p->byte_fallback, "false"))
        return td_fail(err, TD_INVALID, "model.byte_fallback is set: expected false");
    if (!is_off(p->normalizer, "null"))
        return td_fail(err, TD_INVALID, "a normalizer is set: expected null, text is not changed");
    v->whole_piece_first = is_text(p->ignore_merges, "true");
    return TD_OK;
}

static const char *string_of(const cJSON *object, const char *key)
{
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));

    return s != NULL ? s : "";
}

/* Split by the o200k pattern, then bytes to the alphabet, and nothing else. */
static td_status check_steps(const cJSON *root, td_error *err)
{
    const cJSON *steps = cJSON_GetObjectItemCaseSensitive(root, "pretokenizers");
    const cJSON *split = cJSON_GetArrayItem(steps, 0), *bytes = cJSON_GetArrayItem(steps, 1);
    const cJSON *pattern = cJSON_GetObjectItemCaseSensitive(split, "pattern");
    const cJSON *invert = cJSON_GetObjectItemCaseSensitive(split, "invert");
    const char *behavior = string_of(split, "behavior");

    if (strcmp(string_of(root, "type"), "Sequence") != 0 || cJSON_GetArraySize(steps) != 2 ||
        strcmp(string_of(split, "type"), "Split") != 0 ||
        strcmp(string_of(bytes, "type"), "ByteLevel") != 0)
        return td_fail(err, TD_INVALID,
                       "pre_tokenizer is not a Sequence of Split and ByteLevel, as gpt-oss has it");
    if (strcmp(string_of(pattern, "Regex"), VOCAB_PATTERN) != 0)
        return td_fail(err, TD_INVALID,
                       "pre_tokenizer splits by another pattern than that of o200k: %.60s",
                       string_of(pattern, "Regex"));
    /* Both keep just the matches, and the pattern leaves nothing between them. */
    if (!(strcmp(behavior, "Isolated") == 0 && cJSON_IsFalse(invert)) &&
        !(strcmp(behavior, "Removed") == 0 && cJSON_IsTrue(invert)))
        return td_fail(err, TD_INVALID,
                       "pre_tokenizer's Split is \"%.20s\": expected \"Isolated\", not inverted",
                       behavior);
    if (!cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(bytes, "add_prefix_space")) ||
        !cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(bytes, "use_regex")))
        return td_fail(err, TD_INVALID,
                       "pre_tokenizer's ByteLevel must have add_prefix_space and use_regex false");
    return TD_OK;
}

static td_status check_pre_tokenizer(td_slice text, td_error *err)
{
    td_buf copy = {0};
    cJSON *root = NULL;
    td_status st;

    if (text.ptr == NULL)
        return td_fail(err, TD_INVALID, "no pre_tokenizer: expected a split by the o200k pattern");
    td_buf_add(&copy, text.ptr, text.len);
    if (copy.oom)
        st = td_fail(err, TD_NOMEM, "no memory to read pre_tokenizer");
    else
        st = td_json_parse(copy.ptr, copy.len, 16, "pre_tokenizer", &root, err);
    if (st == TD_OK)
        st = check_steps(root, err);
    cJSON_Delete(root);
    td_buf_free(&copy);
    return st;
}

static td_status read_added(json_parts *p, vocab_list *special, td_error *err)
{
    json_scan s;
    td_buf name = {0}, content = {0};
    td_status st = TD_OK;
    bool first = true;

    if (p->added_tokens.ptr == NULL)
        return TD_OK;
    scan_part(&s, p, p->added_tokens);
    json_scan_enter(&s, '[');
    while (st == TD_OK && json_scan_more(&s, ']', &first)) {
        bool first_member = true, has_id = false, has_content = false;
        uint64_t id = 0;
        td_slice other;

        json_scan_enter(&s, '{');
        while (json_scan_more(&s, '}', &first_member) && json_scan_name(&s, &name)) {
            if (strcmp(name.ptr, "id") == 0)
                has_id = json_scan_uint(&s, &id);
            else if (strcmp(name.ptr, "content") == 0)
                has_content = json_scan_string(&s, &content);
            else
                json_scan_value(&s, &other);
        }
        if (s.wanted != NULL)
            break;
        if (!has_id || !has_content || !td_utf8_valid(content.ptr, content.len, NULL))
            st =
                td_fail(err, TD_INVALID, "added_tokens[%zu] needs an id and a content", special->n);
        else
            st = vocab_list_add(special, content.ptr, content.len, id, err);
    }
    td_buf_free(&name);
    td_buf_free(&content);
    return st != TD_OK ? st : json_scan_error(&s, err);
}

static void fill_alphabet(int16_t byte_of[ALPHABET])
{
    int rest = 0;

    memset(byte_of, 0xff, ALPHABET * sizeof *byte_of);
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;

        byte_of[printable ? b : 0x100 + rest++] = (int16_t)b;
    }
    td_assert(rest == N_REST);
}

/* text in the alphabet to bytes, appended to out. */
static bool to_bytes(const int16_t byte_of[ALPHABET], const char *text, size_t n, td_buf *out)
{
    for (size_t i = 0; i < n; i++) {
        unsigned cp = (unsigned char)text[i];

        if (cp >= 0x80) {
            if (cp < 0xc2 || cp > 0xc5 || i + 1 == n || ((unsigned char)text[i + 1] & 0xc0) != 0x80)
                return false;
            cp = (cp & 0x1f) << 6 | ((unsigned char)text[++i] & 0x3f);
        }
        if (cp >= ALPHABET || byte_of[cp] < 0)
            return false;
        td_buf_byte(out, (char)byte_of[cp]);
    }
    return n > 0 && !out->oom;
}

static int compare_ids(const void *a, const void *b)
{
    uint32_t x = ((const vocab_entry *)a)->id, y = ((const vocab_entry *)b)->id;

    return (x > y) - (x < y);
}

/* Some converters list the special tokens among the ordinary ones too, which says nothing new. Any
 * other token among or above them is a mistake, for ordinary ids come first. by_id is sorted. */
static td_status check_added(const vocab_list *special, const vocab_entry *by_id, uint64_t id,
                             const td_buf *name, td_error *err)
{
    vocab_entry key = {.id = (uint32_t)id};
    const vocab_entry *e = NULL;

    if (id < VOCAB_MAX_IDS)
        e = bsearch(&key, by_id, special->n, sizeof key, compare_ids);
    if (e != NULL && e->len == name->len &&
        memcmp(special->bytes.ptr + e->offset, name->ptr, e->len) == 0)
        return TD_OK;
    return td_fail(err, TD_INVALID,
                   "token %llu, \"%.40s\", is none of the added tokens, yet has an id among theirs",
                   (unsigned long long)id, name->ptr);
}

static td_status read_vocab(json_parts *p, const int16_t byte_of[ALPHABET],
                            const vocab_list *special, vocab_list *ordinary, td_error *err)
{
    json_scan s;
    td_buf name = {0}, bytes = {0};
    uint64_t id, lowest = UINT64_MAX;
    td_status st = TD_OK;
    bool first = true;
    vocab_entry *by_id = malloc((special->n + 1) * sizeof *by_id);

    if (by_id == NULL)
        return td_fail(err, TD_NOMEM, "no memory for %zu added tokens", special->n);
    if (special->n > 0) {
        memcpy(by_id, special->entries, special->n * sizeof *by_id);
        qsort(by_id, special->n, sizeof *by_id, compare_ids);
        lowest = by_id[0].id;
    }
    scan_part(&s, p, p->vocab);
    json_scan_enter(&s, '{');
    while (st == TD_OK && json_scan_more(&s, '}', &first) && json_scan_name(&s, &name) &&
           json_scan_uint(&s, &id)) {
        td_buf_clear(&bytes);
        if (id >= lowest)
            st = check_added(special, by_id, id, &name, err);
        else if (to_bytes(byte_of, name.ptr, name.len, &bytes))
            st = vocab_list_add(ordinary, bytes.ptr, bytes.len, id, err);
        else
            st = td_fail(err, bytes.oom ? TD_NOMEM : TD_INVALID,
                         "token %llu, \"%.40s\", is not written in the byte alphabet",
                         (unsigned long long)id, name.ptr);
    }
    td_buf_free(&name);
    td_buf_free(&bytes);
    free(by_id);
    return st != TD_OK ? st : json_scan_error(&s, err);
}

static bool find_token(const vocab *v, const int16_t byte_of[ALPHABET], const char *text, size_t n,
                       td_buf *bytes, uint32_t *id)
{
    int32_t found;

    td_buf_clear(bytes);
    if (!to_bytes(byte_of, text, n, bytes))
        return false;
    found = vocab_find(v, bytes->ptr, bytes->len);
    *id = (uint32_t)found;
    return found >= 0;
}

/* ["a", "b"] or, in older files, "a b". */
static bool read_pair(json_scan *s, td_buf *left, td_buf *right)
{
    bool first = true;
    const char *space;

    if (json_scan_peek(s) == '[') {
        bool two = json_scan_enter(s, '[') && json_scan_more(s, ']', &first) &&
                   json_scan_string(s, left) && json_scan_more(s, ']', &first) &&
                   json_scan_string(s, right);

        return two && !json_scan_more(s, ']', &first) && s->wanted == NULL;
    }
    if (!json_scan_string(s, left))
        return false;
    td_buf_clear(right);
    space = memchr(left->ptr, ' ', left->len);
    if (space != NULL) {
        td_buf_str(right, space + 1);
        left->len = (size_t)(space - left->ptr);
    }
    return true;
}

static td_status read_merges(json_parts *p, const int16_t byte_of[ALPHABET], vocab *v,
                             td_error *err)
{
    json_scan s;
    td_buf left = {0}, right = {0}, bytes = {0};
    size_t cap = 0;
    td_status st = TD_OK;
    bool first = true;

    scan_part(&s, p, p->merges);
    json_scan_enter(&s, '[');
    while (st == TD_OK && json_scan_more(&s, ']', &first)) {
        vocab_merge m;

        if (!read_pair(&s, &left, &right)) {
            if (s.wanted == NULL)
                st = td_fail(err, TD_INVALID, "merge %zu is not two tokens", v->n_merges);
            break;
        }
        if (!find_token(v, byte_of, left.ptr, left.len, &bytes, &m.left) ||
            !find_token(v, byte_of, right.ptr, right.len, &bytes, &m.right)) {
            st = td_fail(err, TD_INVALID, "merge %zu is not of two tokens of the vocabulary",
                         v->n_merges);
            break;
        }
        if (v->n_merges == cap) {
            vocab_merge *grown;

            cap = cap ? 2 * cap : 4096;
            grown = realloc(v->merges, cap * sizeof *grown);
            if (grown == NULL) {
                st = td_fail(err, TD_NOMEM, "no memory for %zu merges", cap);
                break;
            }
            v->merges = grown;
        }
        v->merges[v->n_merges++] = m;
    }
    td_buf_free(&left);
    td_buf_free(&right);
    td_buf_free(&bytes);
    if (st == TD_OK)
        st = json_scan_error(&s, err);
    if (st == TD_OK && v->n_merges == 0)
        st = td_fail(err, TD_INVALID, "model.merges is empty");
    return st;
}

td_status vocab_load_json(vocab *v, const char *text, size_t n, td_error *err)
{
    json_parts p = {.file = text};
    vocab_list ordinary = {0}, special = {0};
    int16_t byte_of[ALPHABET];
    td_status st = find_parts(&p, (td_slice){text, n}, file_parts, err);

    fill_alphabet(byte_of);
    if (st == TD_OK && p.model.ptr == NULL)
        st = td_fail(err, TD_INVALID, "no \"model\": is this a tokenizer.json?");
    if (st == TD_OK)
        st = find_parts(&p, p.model, model_parts, err);
    if (st == TD_OK)
        st = check_model(&p, v, err);
    if (st == TD_OK)
        st = check_pre_tokenizer(p.pre_tokenizer, err);
    if (st == TD_OK)
        st = read_added(&p, &special, err);
    if (st == TD_OK)
        st = read_vocab(&p, byte_of, &special, &ordinary, err);
    if (st == TD_OK)
        st = vocab_build(v, &ordinary, &special, err);
    if (st == TD_OK)
        st = read_merges(&p, byte_of, v, err);
    vocab_list_fini(&ordinary);
    vocab_list_fini(&special);
    return st;
}
