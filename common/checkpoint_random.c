/* Random weights with the interface of files, for demos, benches and tests of machines that have no
 * checkpoint. An element is a hash of (seed, role, layer, its place), so any part of a tensor can
 * be made by anyone at any time and is the same; there is no generator whose state would have to be
 * walked. 32-bit hashes, because compilers turn those into vector code for any x86-64.
 *
 * Magnitudes: a matrix has standard deviation 1/sqrt(inputs), so a normed input gives outputs of
 * size 1; every sublayer then adds about 1 to the residual, and 36 layers stay below 100. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/checkpoint_impl.h"
#include "common/hash.h"
#include "common/mxfp4.h"

enum {
    CHUNK_WORDS = 1 << 14,
    CHUNK_BYTES = CHUNK_WORDS * 4,
    ALIGN = 64,
    MAX_MAKERS = 8,
    CHUNKS_PER_MAKER = 64, /* 4 MiB: below it a thread costs more than it saves */
};

typedef enum slot_state { EMPTY, MAKING, READY } slot_state;

typedef struct random_slot {
    void *data;
    slot_state state;
} random_slot;

typedef struct random_checkpoint {
    td_checkpoint base;
    uint64_t seed;
    pthread_mutex_t lock;   /* guards the slots; not held while a tensor is being made */
    pthread_cond_t changed; /* a slot left MAKING */
    random_slot *slots;
} random_checkpoint;

/* A key for each chunk of a tensor, so that 32-bit places never wrap into each other. */
static uint64_t chunk_key(uint64_t tensor_key, uint64_t chunk)
{
    return td_hash_end(tensor_key + chunk * UINT64_C(0x9e3779b97f4a7c15));
}

static inline uint32_t hash32(uint32_t i, uint32_t k1, uint32_t k2)
{
    uint32_t x = i * UINT32_C(0x9e3779b9) + k1;

    x = (x ^ (x >> 16)) * UINT32_C(0x7feb352d) + k2;
    x = (x ^ (x >> 15)) * UINT32_C(0x846ca68b);
    return x ^ (x >> 16);
}

/* Every fill makes one whole chunk: loops of a fixed length vectorise. The last chunk of a tensor
 * goes through a spare array. */
static void fill_words(uint32_t *restrict out, uint64_t key)
{
    const uint32_t k1 = (uint32_t)key, k2 = (uint32_t)(key >> 32);

    for (uint32_t i = 0; i < CHUNK_WORDS; i++)
        out[i] = hash32(i, k1, k2);
}

/* To bf16, nearest even. Never near NaN or infinity here. */
static inline uint16_t bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/* Two elements a word: mean + half_width * [-1, 1). */
static void fill_bf16(uint16_t *restrict out, uint64_t key, float mean, float half_width)
{
    const uint32_t k1 = (uint32_t)key, k2 = (uint32_t)(key >> 32);
    const float step = half_width / 32768.0f;

    for (uint32_t i = 0; i < CHUNK_WORDS; i++) {
        uint32_t w = hash32(i, k1, k2);

        out[2 * i] = bf16(mean + step * (float)((int32_t)(w & 0xffff) - 32768));
        out[2 * i + 1] = bf16(mean + step * (float)((int32_t)(w >> 16) - 32768));
    }
}

/* Four scale bytes a word: top, or one or two below it. */
static void fill_scales(uint8_t *restrict out, uint64_t key, uint8_t top)
{
    const uint32_t k1 = (uint32_t)key, k2 = (uint32_t)(key >> 32);

    for (uint32_t i = 0; i < CHUNK_WORDS; i++) {
        uint32_t w = hash32(i, k1, k2);

        for (int j = 0; j < 4; j++) { /* 0, 1, 1, 2: the sum of two bits */
            uint32_t two = (w >> (8 * j)) & 3;

            out[4 * i + (uint32_t)j] = (uint8_t)(top - (two & 1) - (two >> 1));
        }
    }
}

typedef struct recipe {
    enum { AS_BF16, AS_CODES, AS_SCALES } kind;
    float mean, half_width;
    uint8_t top_scale;
} recipe;

/* Uniform over [-a, a) has standard deviation a / sqrt(3). */
static recipe spread(float mean, double deviation)
{
    return (recipe){.kind = AS_BF16, .mean = mean, .half_width = (float)(deviation * sqrt(3.0))};
}

/* Codes drawn evenly have root mean square sqrt(8.5625); with scales of top, top - 1 (twice as
 * often) and top - 2, 0.625 of it. */
static recipe scales_for(int32_t inputs)
{
    double want = 1.0 / (sqrt((double)inputs) * sqrt(8.5625) * 0.625);

    return (recipe){.kind = AS_SCALES, .top_scale = td_e8m0_of_exponent((int)lround(log2(want)))};
}

static recipe recipe_of(const td_model_config *c, td_weight role)
{
    switch (role) {
    case TD_W_FINAL_NORM:
    case TD_W_ATTN_NORM:
    case TD_W_MLP_NORM: return spread(1.0f, 0.1);
    case TD_W_EMBED: return spread(0, 1);
    case TD_W_Q:
    case TD_W_K:
    case TD_W_V:
    case TD_W_UNEMBED: return spread(0, 1 / sqrt(c->hidden));
    case TD_W_O: return spread(0, 1 / sqrt((double)c->n_q_heads * c->head_dim));
    case TD_W_ROUTER: return spread(0, 2 / sqrt(c->hidden)); /* wider: fewer near-ties */
    case TD_W_SINKS: return spread(0, 1);
    case TD_W_Q_BIAS:
    case TD_W_K_BIAS:
    case TD_W_V_BIAS:
    case TD_W_O_BIAS:
    case TD_W_ROUTER_BIAS:
    case TD_W_GATE_UP_BIAS:
    case TD_W_DOWN_BIAS: return spread(0, 0.05);
    case TD_W_GATE_UP_BLOCKS:
    case TD_W_DOWN_BLOCKS: return (recipe){.kind = AS_CODES};
    case TD_W_GATE_UP_SCALES: return scales_for(c->hidden);
    case TD_W_DOWN_SCALES: return scales_for(c->inter);
    case TD_W_COUNT: break;
    }
    td_assert(!"a role of td_weight");
    return (recipe){0};
}

static void fill_chunk(const recipe *r, uint64_t key, void *out)
{
    if (r->kind == AS_BF16)
        fill_bf16(out, key, r->mean, r->half_width);
    else if (r->kind == AS_SCALES)
        fill_scales(out, key, r->top_scale);
    else
        fill_words(out, key); /* every nibble is a code */
}

/* Whole chunks first, first + step, ... of a tensor: one maker's share. */
typedef struct share {
    recipe recipe;
    uint64_t key, first, step, end;
    char *data;
} share;

static void *fill_share(void *arg)
{
    const share *s = arg;

    for (uint64_t i = s->first; i < s->end; i += s->step)
        fill_chunk(&s->recipe, chunk_key(s->key, i), s->data + i * CHUNK_BYTES);
    return NULL;
}

/* All whole chunks, by as many threads as are worth it; the caller's is one of them. */
static void fill_whole(const recipe *r, uint64_t key, uint64_t n_chunks, char *data)
{
    const long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t thread[MAX_MAKERS];
    share s[MAX_MAKERS];
    uint64_t n = n_chunks / CHUNKS_PER_MAKER;
    uint64_t started;

    n = n > MAX_MAKERS ? MAX_MAKERS : n;
    n = n_cpus >= 1 && n > (uint64_t)n_cpus ? (uint64_t)n_cpus : n;
    n = n < 1 ? 1 : n;
    for (uint64_t i = 0; i < n; i++)
        s[i] = (share){*r, key, i, n, n_chunks, data};
    for (started = 1; started < n; started++)
        if (pthread_create(&thread[started], NULL, fill_share, &s[started]) != 0)
            break;
    fill_share(&s[0]);
    for (uint64_t i = started; i < n; i++) /* those that got no thread */
        fill_share(&s[i]);
    for (uint64_t i = 1; i < started; i++)
        pthread_join(thread[i], NULL);
}

/* NULL: no memory. */
static void *make(const random_checkpoint *c, td_weight role, int32_t layer, uint64_t bytes)
{
    const recipe r = recipe_of(&c->base.cfg, role);
    const uint64_t key = td_hash_end(td_hash_u64(
        td_hash_u64(td_hash_u64(TD_HASH_START, c->seed), (uint64_t)role), (uint64_t)layer));
    const uint64_t whole = bytes / CHUNK_BYTES;
    char *data = aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN);
    char *spare = bytes % CHUNK_BYTES == 0 ? NULL : aligned_alloc(ALIGN, CHUNK_BYTES);

    if (data == NULL || (spare == NULL && bytes % CHUNK_BYTES != 0)) {
        free(data);
        free(spare);
        return NULL;
    }
    fill_whole(&r, key, whole, data);
    if (spare != NULL) {
        fill_chunk(&r, chunk_key(key, whole), spare);
        memcpy(data + whole * CHUNK_BYTES, spare, bytes % CHUNK_BYTES);
    }
    free(spare);
    return data;
}

static td_status random_get(td_checkpoint *base, td_weight role, int32_t layer, td_tensor *out,
                            td_error *err)
{
    random_checkpoint *c = (random_checkpoint *)base;
    random_slot *s = &c->slots[td_weight_slot(role, layer)];
    td_tensor t = td_weight_shape(&base->cfg, role);

    pthread_mutex_lock(&c->lock);
    while (s->state == MAKING)
        pthread_cond_wait(&c->changed, &c->lock);
    if (s->state == EMPTY) {
        void *data;

        s->state = MAKING;
        pthread_mutex_unlock(&c->lock);
        data = make(c, role, td_weight_is_global(role) ? 0 : layer, t.bytes);
        pthread_mutex_lock(&c->lock);
        s->data = data;
        s->state = data == NULL ? EMPTY : READY;
        pthread_cond_broadcast(&c->changed);
    }
    t.data = s->data;
    pthread_mutex_unlock(&c->lock);
    if (t.data == NULL)
        return td_fail(err, TD_NOMEM, "random weights: no memory for %s of layer %d, %llu bytes",
                       td_weight_name(role), layer, (unsigned long long)t.bytes);
    *out = t;
    return TD_OK;
}

static void random_release(td_checkpoint *base, td_weight role, int32_t layer)
{
    random_checkpoint *c = (random_checkpoint *)base;
    random_slot *s = &c->slots[td_weight_slot(role, layer)];

    pthread_mutex_lock(&c->lock);
    if (s->state == READY) { /* MAKING: someone else is about to get it */
        free(s->data);
        *s = (random_slot){NULL, EMPTY};
    }
    pthread_mutex_unlock(&c->lock);
}

static void random_close(td_checkpoint *base)
{
    random_checkpoint *c = (random_checkpoint *)base;

    for (size_t i = 0; i < td_weight_slots(&base->cfg); i++)
        free(c->slots[i].data);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c->slots);
    free(c);
}

td_status td_checkpoint_random(const td_model_config *cfg, uint64_t seed, td_checkpoint **out,
                               td_error *err)
{
    random_checkpoint *c;
    td_status st = td_model_config_check(cfg, "model config", err);

    if (st != TD_OK)
        return st;
    c = calloc(1, sizeof *c);
    if (c != NULL)
        c->slots = calloc(td_weight_slots(cfg), sizeof *c->slots);
    if (c == NULL || c->slots == NULL) {
        free(c);
        return td_fail(err, TD_NOMEM, "random weights: no memory for their table");
    }
    c->base = (td_checkpoint){
        .cfg = *cfg, .get = random_get, .release = random_release, .close = random_close};
    c->base.bytes = td_weight_total_bytes(cfg);
    c->base.hash = td_hash_end(td_hash_u64(
        td_hash_str(td_hash_u64(TD_HASH_START, td_model_config_hash(cfg)), "random"), seed));
    c->seed = seed;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    *out = &c->base;
    return TD_OK;
}
