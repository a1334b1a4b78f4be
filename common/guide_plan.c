/* What a request allows, made ready: every header that may come, spelled out and sorted, so that a
 * place in a header is a range of them; and a grammar for each content that is held to one.
 *
 * Models write a header in a few ways: the recipient before or after the channel, the type of the
 * content left out, plain, or behind <|constrain|>. All are allowed, as they all mean the same. */
#include "common/guide_impl.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/pb_pack.h"

/* Where headers are put while they are made. Without memory it counts and stores nothing. */
typedef struct builder {
    guide_symbol *symbols;
    size_t n_symbols, begin;
    guide_header *list;
    uint32_t n;
} builder;

static void add_symbol(builder *b, guide_symbol s)
{
    if (b->symbols != NULL)
        b->symbols[b->n_symbols] = s;
    b->n_symbols++;
}

static void add_bytes(builder *b, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        add_symbol(b, ((const uint8_t *)bytes)[i]);
}

static void add_text(builder *b, const char *text)
{
    add_bytes(b, text, strlen(text));
}

static void end_header(builder *b, int32_t to)
{
    add_symbol(b, GUIDE_MESSAGE);
    if (b->list != NULL)
        b->list[b->n] =
            (guide_header){b->symbols + b->begin, (uint32_t)(b->n_symbols - b->begin), to};
    b->n++;
    b->begin = b->n_symbols;
}

enum { TYPES = 4 };

static void add_type(builder *b, int which)
{
    switch (which) {
    case 0: break;
    case 1: add_text(b, " json"); break;
    case 2: add_text(b, " "); /* fall through */
    case 3:
        add_symbol(b, GUIDE_CONSTRAIN);
        add_text(b, "json");
        break;
    }
}

static void add_channel(builder *b, const char *name)
{
    add_symbol(b, GUIDE_CHANNEL);
    add_text(b, name);
}

static void add_recipient(builder *b, ProtobufCBinaryData name)
{
    add_text(b, " to=functions.");
    add_bytes(b, name.data, name.len);
}

static void add_headers(builder *b, const Tandem__Guide *m)
{
    add_channel(b, "analysis");
    end_header(b, GUIDE_TO_ANALYSIS);
    if (m->preamble) {
        add_channel(b, "commentary");
        end_header(b, GUIDE_TO_PREAMBLE);
    }
    for (int type = 0; m->final && type < (m->json ? TYPES : 1); type++) {
        add_channel(b, "final");
        add_type(b, type);
        end_header(b, GUIDE_TO_FINAL);
    }
    for (size_t i = 0; i < m->n_functions; i++) {
        for (int type = 0; type < TYPES; type++) {
            add_recipient(b, m->functions[i]->name);
            add_channel(b, "commentary");
            add_type(b, type);
            end_header(b, (int32_t)i);
            add_channel(b, "commentary");
            add_recipient(b, m->functions[i]->name);
            add_type(b, type);
            end_header(b, (int32_t)i);
        }
    }
}

static int by_symbols(const void *pa, const void *pb)
{
    const guide_header *a = pa, *b = pb;
    uint32_t n = a->n < b->n ? a->n : b->n;

    for (uint32_t i = 0; i < n; i++)
        if (a->symbols[i] != b->symbols[i])
            return a->symbols[i] < b->symbols[i] ? -1 : 1;
    if (a->n != b->n)
        return a->n < b->n ? -1 : 1;
    return (a->to > b->to) - (a->to < b->to); /* of two functions with a name, the first is meant */
}

static td_status make_headers(guide_plan *p, const Tandem__Guide *m, td_error *err)
{
    builder count = {0}, b;

    add_headers(&count, m);
    p->symbols = malloc(count.n_symbols * sizeof *p->symbols);
    p->all.list = malloc(count.n * sizeof *p->all.list);
    p->after_analysis.list = malloc(count.n * sizeof *p->after_analysis.list);
    if (p->symbols == NULL || p->all.list == NULL || p->after_analysis.list == NULL)
        return td_fail(err, TD_NOMEM, "no memory for %u headers", count.n);
    b = (builder){.symbols = p->symbols, .list = p->all.list};
    add_headers(&b, m);
    p->all.n = b.n;
    qsort(p->all.list, p->all.n, sizeof *p->all.list, by_symbols);
    for (uint32_t i = 0; i < p->all.n; i++)
        if (p->all.list[i].to != GUIDE_TO_ANALYSIS)
            p->after_analysis.list[p->after_analysis.n++] = p->all.list[i];
    return TD_OK;
}

static bool name_ok(ProtobufCBinaryData name)
{
    for (size_t i = 0; i < name.len; i++)
        if (name.data[i] <= ' ' || name.data[i] >= 0x7f || name.data[i] == '<')
            return false;
    return name.len > 0 && name.len <= TD_GUIDE_MAX_NAME;
}

/* What can be wrong before a schema is looked at. */
static td_status check(const Tandem__Guide *m, td_error *err)
{
    size_t bytes = m->schema.len;

    if (!m->final && m->n_functions == 0)
        return td_fail(err, TD_INVALID,
                       "a guide that lets no answer end: neither a final answer "
                       "nor a call may come");
    if (m->begun && (!m->final || m->json))
        return td_fail(err, TD_INVALID, "a final answer that has begun must be free");
    if (!m->json && m->schema.len > 0)
        return td_fail(err, TD_INVALID, "a schema for an answer that is not JSON");
    if (m->n_functions > TD_GUIDE_MAX_FUNCTIONS)
        return td_fail(err, TD_INVALID, "%zu functions, at most %d are possible", m->n_functions,
                       TD_GUIDE_MAX_FUNCTIONS);
    for (size_t i = 0; i < m->n_functions; i++) {
        if (!name_ok(m->functions[i]->name))
            return td_fail(err, TD_INVALID, "function %zu has a name that no header can hold", i);
        bytes += m->functions[i]->schema.len;
    }
    if (bytes > TD_GUIDE_MAX_BYTES)
        return td_fail(err, TD_INVALID, "schemas of %zu bytes, at most %d are possible", bytes,
                       TD_GUIDE_MAX_BYTES);
    return TD_OK;
}

static td_status from_schema(guide_plan *p, ProtobufCBinaryData schema, td_grammar **out,
                             td_error *err)
{
    td_status st = td_grammar_from_schema((const char *)schema.data, schema.len, out, err);

    if (st != TD_OK)
        return st;
    p->n_states += td_grammar_states(*out);
    return p->n_states <= TD_GUIDE_MAX_STATES
               ? TD_OK
               : td_fail(err, TD_INVALID, "the schemas together need more than %d states",
                         TD_GUIDE_MAX_STATES);
}

static td_status make_grammars(guide_plan *p, const Tandem__Guide *m, td_error *err)
{
    bool object = m->json && m->schema.len == 0;
    td_status st = TD_OK;

    p->schemas = calloc(m->n_functions + 1, sizeof *p->schemas);
    if (p->schemas == NULL)
        return td_fail(err, TD_NOMEM, "no memory for %zu functions", m->n_functions);
    p->n_functions = (int32_t)m->n_functions;
    if (m->json && !object)
        st = from_schema(p, m->schema, &p->final, err);
    for (size_t i = 0; st == TD_OK && i < m->n_functions; i++) {
        if (m->functions[i]->schema.len > 0)
            st = from_schema(p, m->functions[i]->schema, &p->schemas[i], err);
        else
            object = true;
    }
    if (st == TD_OK && object)
        st = td_grammar_any_object(&p->object, err);
    return st;
}

static td_status make_plan(const Tandem__Guide *m, guide_plan **out, td_error *err)
{
    guide_plan *p = calloc(1, sizeof *p);
    td_status st = p ? check(m, err) : td_fail(err, TD_NOMEM, "no memory for a guide");

    if (st == TD_OK)
        st = make_headers(p, m, err);
    if (st == TD_OK)
        st = make_grammars(p, m, err);
    if (st != TD_OK) {
        guide_plan_free(p);
        return st;
    }
    p->begun = m->begun;
    p->json = m->json;
    *out = p;
    return TD_OK;
}

void guide_plan_free(guide_plan *p)
{
    if (p == NULL)
        return;
    for (int32_t i = 0; i < p->n_functions; i++)
        td_grammar_free(p->schemas[i]);
    free(p->schemas);
    td_grammar_free(p->final);
    td_grammar_free(p->object);
    free(p->symbols);
    free(p->all.list);
    free(p->after_analysis.list);
    free(p->key);
    free(p);
}

/* ---- the cache ---- */

/* Under the lock. */
static guide_plan *find_cached(td_guides *g, uint64_t hash, const uint8_t *key, size_t n)
{
    for (size_t i = 0; i < GUIDE_CACHE; i++) {
        guide_plan *p = g->cache[i];

        if (p != NULL && p->hash == hash && p->n_key == n && memcmp(p->key, key, n) == 0)
            return p;
    }
    return NULL;
}

/* Under the lock. What guides still hold is freed by the last of them; idle: of those that none
 * holds. False: there is none. */
static bool drop_oldest(td_guides *g, bool idle)
{
    size_t at = GUIDE_CACHE;
    guide_plan *p;

    for (size_t i = 0; i < GUIDE_CACHE; i++)
        if (g->cache[i] != NULL && (!idle || g->cache[i]->refs == 1) &&
            (at == GUIDE_CACHE || g->cache[i]->used < g->cache[at]->used))
            at = i;
    if (at == GUIDE_CACHE)
        return false;
    p = g->cache[at];
    g->cache[at] = NULL;
    g->n_cached--;
    g->n_states -= p->n_states;
    if (--p->refs == 0)
        guide_plan_free(p);
    return true;
}

/* Under the lock. Masks are made as answers need them, so this is looked at with every request. */
static void make_room(td_guides *g)
{
    while (td_grammar_mask_bytes() > g->most_mask_bytes && drop_oldest(g, true)) {
    }
}

/* Under the lock. */
static void put_cached(td_guides *g, guide_plan *p)
{
    size_t at = 0;

    while (g->n_cached == GUIDE_CACHE ||
           (g->n_cached > 0 && g->n_states + p->n_states > GUIDE_CACHE_STATES))
        if (!drop_oldest(g, false))
            break;
    while (g->cache[at] != NULL)
        at++;
    g->cache[at] = p;
    g->n_cached++;
    g->n_states += p->n_states;
    p->refs++;
}

td_status guide_plan_get(td_guides *g, const Tandem__Guide *m, guide_plan **out, td_error *err)
{
    size_t n;
    uint8_t *key = td_pb_pack(&m->base, &n);
    guide_plan *p, *made = NULL;
    uint64_t hash;
    td_status st;

    if (key == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a guide of %zu bytes", n);
    hash = XXH3_64bits(key, n);
    pthread_mutex_lock(&g->lock);
    p = find_cached(g, hash, key, n);
    if (p != NULL) {
        p->refs++;
        p->used = ++g->clock;
    }
    make_room(g);
    pthread_mutex_unlock(&g->lock);
    if (p != NULL) {
        free(key);
        *out = p;
        return TD_OK;
    }
    st = make_plan(m, &made, err); /* not under the lock: it may take a while */
    if (st != TD_OK) {
        free(key);
        return st;
    }
    made->key = key;
    made->n_key = n;
    made->hash = hash;
    made->refs = 1;
    pthread_mutex_lock(&g->lock);
    made->used = ++g->clock;
    if (n <= GUIDE_CACHE_KEY_BYTES && find_cached(g, hash, key, n) == NULL) {
        put_cached(g, made);
        guide_ahead_add(g, made);
    }
    pthread_mutex_unlock(&g->lock);
    *out = made;
    return TD_OK;
}

void guide_plan_put(td_guides *g, guide_plan *p)
{
    bool last;

    if (p == NULL)
        return;
    pthread_mutex_lock(&g->lock);
    last = --p->refs == 0;
    pthread_mutex_unlock(&g->lock);
    if (last)
        guide_plan_free(p);
}
