/* Opening: index -> every file mapped and checked -> every role bound to a tensor of the expected
 * type and shape. A slot (layer, role) is a view; with the original layout the q, k and v slots are
 * row ranges of one stacked tensor. Nothing changes after open but the hints to the kernel about
 * pages, which are atomic flags. */
#include "common/checkpoint.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/checkpoint_impl.h"
#include "common/checkpoint_index.h"
#include "common/hash.h"
#include "common/json_file.h"
#include "common/log.h"
#include "common/safetensors.h"

enum { NAME_CAP = 128, READ_AHEAD_MIN = 1 << 20, SAMPLE_BYTES = 64 };

/* How a role is called, in messages and in the two layouts (after the layer's prefix). */
static const struct {
    const char *name, *hf, *original;
} roles[TD_W_COUNT] = {
    [TD_W_EMBED] = {"embed", "model.embed_tokens.weight", "embedding.weight"},
    [TD_W_FINAL_NORM] = {"final_norm", "model.norm.weight", "norm.scale"},
    [TD_W_UNEMBED] = {"unembed", "lm_head.weight", "unembedding.weight"},
    [TD_W_ATTN_NORM] = {"attn_norm", "input_layernorm.weight", "attn.norm.scale"},
    [TD_W_Q] = {"q", "self_attn.q_proj.weight", "attn.qkv.weight"},
    [TD_W_Q_BIAS] = {"q_bias", "self_attn.q_proj.bias", "attn.qkv.bias"},
    [TD_W_K] = {"k", "self_attn.k_proj.weight", "attn.qkv.weight"},
    [TD_W_K_BIAS] = {"k_bias", "self_attn.k_proj.bias", "attn.qkv.bias"},
    [TD_W_V] = {"v", "self_attn.v_proj.weight", "attn.qkv.weight"},
    [TD_W_V_BIAS] = {"v_bias", "self_attn.v_proj.bias", "attn.qkv.bias"},
    [TD_W_O] = {"o", "self_attn.o_proj.weight", "attn.out.weight"},
    [TD_W_O_BIAS] = {"o_bias", "self_attn.o_proj.bias", "attn.out.bias"},
    [TD_W_SINKS] = {"sinks", "self_attn.sinks", "attn.sinks"},
    [TD_W_MLP_NORM] = {"mlp_norm", "post_attention_layernorm.weight", "mlp.norm.scale"},
    [TD_W_ROUTER] = {"router", "mlp.router.weight", "mlp.gate.weight"},
    [TD_W_ROUTER_BIAS] = {"router_bias", "mlp.router.bias", "mlp.gate.bias"},
    [TD_W_GATE_UP_BLOCKS] = {"gate_up_blocks", "mlp.experts.gate_up_proj_blocks",
                             "mlp.mlp1_weight.blocks"},
    [TD_W_GATE_UP_SCALES] = {"gate_up_scales", "mlp.experts.gate_up_proj_scales",
                             "mlp.mlp1_weight.scales"},
    [TD_W_GATE_UP_BIAS] = {"gate_up_bias", "mlp.experts.gate_up_proj_bias", "mlp.mlp1_bias"},
    [TD_W_DOWN_BLOCKS] = {"down_blocks", "mlp.experts.down_proj_blocks", "mlp.mlp2_weight.blocks"},
    [TD_W_DOWN_SCALES] = {"down_scales", "mlp.experts.down_proj_scales", "mlp.mlp2_weight.scales"},
    [TD_W_DOWN_BIAS] = {"down_bias", "mlp.experts.down_proj_bias", "mlp.mlp2_bias"},
};

static const char hf_layer[] = "model.layers.";
static const char original_layer[] = "block.";

typedef struct slot {
    td_tensor tensor;
    atomic_bool hinted; /* relaxed: only a hint to the kernel hangs on it */
} slot;

typedef struct file_checkpoint {
    td_checkpoint base;
    td_index index;
    td_safetensors **file; /* index.n_files of them */
    slot *slots;
    size_t page; /* of memory */
} file_checkpoint;

const char *td_weight_name(td_weight role)
{
    return (unsigned)role < TD_W_COUNT ? roles[role].name : "unknown";
}

static td_tensor shape(td_dtype dtype, int32_t n_dims, int64_t a, int64_t b, int64_t c, int64_t d)
{
    td_tensor t = {.dtype = dtype, .n_dims = n_dims, .dim = {a, b, c, d}};

    /* No overflow: td_model_config_check() bounds the largest product, blocks, to 2^42. */
    t.bytes = dtype == TD_F32 ? 4 : dtype == TD_BF16 ? 2 : 1;
    for (int32_t i = 0; i < n_dims; i++)
        t.bytes *= (uint64_t)t.dim[i];
    return t;
}

td_tensor td_weight_shape(const td_model_config *c, td_weight role)
{
    const int64_t D = c->hidden, I = c->inter, E = c->n_experts, V = c->vocab;
    const int64_t hq = (int64_t)c->n_q_heads * c->head_dim;
    const int64_t hk = (int64_t)c->n_kv_heads * c->head_dim;
    const int64_t half = TD_MXFP4_BLOCK / 2; /* bytes of a block's codes */

    switch (role) {
    case TD_W_EMBED:
    case TD_W_UNEMBED: return shape(TD_BF16, 2, V, D, 0, 0);
    case TD_W_FINAL_NORM:
    case TD_W_ATTN_NORM:
    case TD_W_MLP_NORM:
    case TD_W_O_BIAS: return shape(TD_BF16, 1, D, 0, 0, 0);
    case TD_W_Q: return shape(TD_BF16, 2, hq, D, 0, 0);
    case TD_W_Q_BIAS: return shape(TD_BF16, 1, hq, 0, 0, 0);
    case TD_W_K:
    case TD_W_V: return shape(TD_BF16, 2, hk, D, 0, 0);
    case TD_W_K_BIAS:
    case TD_W_V_BIAS: return shape(TD_BF16, 1, hk, 0, 0, 0);
    case TD_W_O: return shape(TD_BF16, 2, D, hq, 0, 0);
    case TD_W_SINKS: return shape(TD_BF16, 1, c->n_q_heads, 0, 0, 0);
    case TD_W_ROUTER: return shape(TD_BF16, 2, E, D, 0, 0);
    case TD_W_ROUTER_BIAS: return shape(TD_BF16, 1, E, 0, 0, 0);
    case TD_W_GATE_UP_BLOCKS: return shape(TD_U8, 4, E, 2 * I, D / TD_MXFP4_BLOCK, half);
    case TD_W_GATE_UP_SCALES: return shape(TD_U8, 3, E, 2 * I, D / TD_MXFP4_BLOCK, 0);
    case TD_W_GATE_UP_BIAS: return shape(TD_BF16, 2, E, 2 * I, 0, 0);
    case TD_W_DOWN_BLOCKS: return shape(TD_U8, 4, E, D, I / TD_MXFP4_BLOCK, half);
    case TD_W_DOWN_SCALES: return shape(TD_U8, 3, E, D, I / TD_MXFP4_BLOCK, 0);
    case TD_W_DOWN_BIAS: return shape(TD_BF16, 2, E, D, 0, 0);
    case TD_W_COUNT: break;
    }
    td_assert(!"a role of td_weight");
    return (td_tensor){0};
}

uint64_t td_weight_total_bytes(const td_model_config *c)
{
    uint64_t all = 0;

    for (int r = 0; r < TD_W_COUNT; r++)
        all += td_weight_shape(c, (td_weight)r).bytes *
               (td_weight_is_global((td_weight)r) ? 1 : (uint64_t)c->n_layers);
    return all;
}

static const char *tensor_name(bool original, td_weight role, int32_t layer, char *buf)
{
    const char *suffix = original ? roles[role].original : roles[role].hf;

    if (td_weight_is_global(role))
        snprintf(buf, NAME_CAP, "%s", suffix);
    else
        snprintf(buf, NAME_CAP, "%s%d.%s", original ? original_layer : hf_layer, layer, suffix);
    return buf;
}

static const char *dtype_name(td_dtype t)
{
    return t == TD_F32 ? "F32" : t == TD_BF16 ? "BF16" : "U8";
}

/* The tensor of this name in the file that the index gives it to (or in the only file). */
static const td_st_tensor *lookup(const file_checkpoint *c, const char *name, size_t *file)
{
    const td_index_entry *e = td_index_find(&c->index, name);

    if (c->index.n_entries > 0 && e == NULL)
        return NULL;
    *file = e == NULL ? 0 : e->file;
    return td_safetensors_find(c->file[*file], name);
}

/* A needed tensor is nowhere: say what kind of folder this looks like instead. */
static td_status missing(const file_checkpoint *c, const char *dir, td_weight role, int32_t layer,
                         const char *name, td_error *err)
{
    const td_model_config *cfg = &c->base.cfg;
    const char *where = c->index.n_entries > 0 ? "model.safetensors.index.json" : c->index.file[0];
    char other[NAME_CAP];
    size_t file = 0;

    if (lookup(c, tensor_name(!cfg->original_layout, role, layer, other), &file) != NULL)
        return td_fail(err, TD_INVALID,
                       "%s/%s: no tensor %s: config.json has the keys of the %s layout, the "
                       "tensors the names of the other; copy both from one folder",
                       td_path_tail(dir), where, name,
                       cfg->original_layout ? "original" : "Hugging Face");
    if (role == TD_W_GATE_UP_BLOCKS && !cfg->original_layout) {
        snprintf(other, sizeof other, "%s%d.mlp.experts.gate_up_proj", hf_layer, layer);
        if (lookup(c, other, &file) != NULL)
            return td_fail(err, TD_INVALID,
                           "%s/%s: no tensor %s, but %s: a dequantised copy; expected the MXFP4 "
                           "checkpoint as published",
                           td_path_tail(dir), where, name, other);
    }
    return td_fail(err, TD_INVALID,
                   "%s/%s: no tensor %s, which config.json (num_hidden_layers %d) needs: the copy "
                   "looks incomplete; copy it again",
                   td_path_tail(dir), where, name, cfg->n_layers);
}

/* The rows of role in what is stored: all of them, or its part of the stacked q, k, v. */
static td_tensor stored_shape(const td_model_config *cfg, td_weight role, int64_t *first_row)
{
    td_tensor want = td_weight_shape(cfg, role);
    const int64_t hq = (int64_t)cfg->n_q_heads * cfg->head_dim;
    const int64_t hk = (int64_t)cfg->n_kv_heads * cfg->head_dim;

    *first_row = 0;
    if (!cfg->original_layout || role < TD_W_Q || role > TD_W_V_BIAS)
        return want;
    *first_row = role == TD_W_Q || role == TD_W_Q_BIAS   ? 0
                 : role == TD_W_K || role == TD_W_K_BIAS ? hq
                                                         : hq + hk;
    want.bytes = want.bytes / (uint64_t)want.dim[0] * (uint64_t)(hq + 2 * hk);
    want.dim[0] = hq + 2 * hk;
    return want;
}

static td_status bind_one(file_checkpoint *c, const char *dir, td_weight role, int32_t layer,
                          td_error *err)
{
    char name[NAME_CAP], wanted[96], found[192];
    int64_t first_row;
    td_tensor view = td_weight_shape(&c->base.cfg, role);
    td_tensor stored = stored_shape(&c->base.cfg, role, &first_row);
    const td_st_tensor *t;
    size_t file = 0;

    t = lookup(c, tensor_name(c->base.cfg.original_layout, role, layer, name), &file);
    if (t == NULL)
        return missing(c, dir, role, layer, name, err);
    if (strcmp(t->dtype, dtype_name(stored.dtype)) != 0 || t->n_dims != stored.n_dims ||
        memcmp(t->dim, stored.dim, sizeof *t->dim * (size_t)t->n_dims) != 0)
        return td_fail(
            err, TD_INVALID,
            "%s/%s: tensor %s: expected %s from config.json, found %s: the files are of "
            "two models; copy all of them from one folder",
            td_path_tail(dir), c->index.file[file], name,
            td_st_show(dtype_name(stored.dtype), stored.dim, stored.n_dims, wanted, sizeof wanted),
            td_st_show(t->dtype, t->dim, t->n_dims, found, sizeof found));
    td_assert(t->end - t->begin == stored.bytes);
    view.data =
        (const char *)t->data + stored.bytes / (uint64_t)stored.dim[0] * (uint64_t)first_row;
    c->slots[td_weight_slot(role, layer)].tensor = view;
    return TD_OK;
}

static td_status bind_all(file_checkpoint *c, const char *dir, td_error *err)
{
    for (int32_t layer = 0; layer < c->base.cfg.n_layers; layer++) {
        for (int r = 0; r < TD_W_COUNT; r++) {
            td_status st;

            if (td_weight_is_global((td_weight)r) && layer > 0)
                continue;
            st = bind_one(c, dir, (td_weight)r, layer, err);
            if (st != TD_OK)
                return st;
        }
    }
    return TD_OK;
}

/* A tensor of a layer that config.json does not count would mean a model cut short without a word.
 * Other strangers are harmless, and are counted. */
static td_status check_strangers(const file_checkpoint *c, const char *dir, td_error *err)
{
    const td_model_config *cfg = &c->base.cfg;
    const char *prefix = cfg->original_layout ? original_layer : hf_layer;
    size_t all = 0;
    size_t known = (size_t)cfg->n_layers * (cfg->original_layout ? 15 : 19) + 3;

    for (size_t f = 0; f < c->index.n_files; f++) {
        size_t n = td_safetensors_count(c->file[f]);

        all += n;
        for (size_t i = 0; i < n; i++) {
            const char *name = td_safetensors_at(c->file[f], i)->name;
            char *end;
            long layer;

            if (strncmp(name, prefix, strlen(prefix)) != 0)
                continue;
            layer = strtol(name + strlen(prefix), &end, 10);
            if (*end == '.' && layer >= cfg->n_layers)
                return td_fail(err, TD_INVALID,
                               "%s/%s: tensor %.128s: config.json says num_hidden_layers %d, so "
                               "expected layers 0 to %d: the files are of two models; copy all of "
                               "them from one folder",
                               td_path_tail(dir), c->index.file[f], name, cfg->n_layers,
                               cfg->n_layers - 1);
        }
    }
    if (all > known)
        td_debug("checkpoint_extra_tensors", "dir=\"%s\" unused=%zu", td_path_tail(dir),
                 all - known);
    return TD_OK;
}

/* Every line of the index must be true, also those about tensors that nobody needs. */
static td_status check_index(const file_checkpoint *c, const char *dir, td_error *err)
{
    for (size_t i = 0; i < c->index.n_entries; i++) {
        const td_index_entry *e = &c->index.entry[i];

        if (td_safetensors_find(c->file[e->file], e->tensor) == NULL)
            return td_fail(err, TD_INVALID,
                           "%s/%s: has no tensor %.128s, which model.safetensors.index.json places "
                           "there: files of two copies are mixed; copy it again",
                           td_path_tail(dir), e->file_name, e->tensor);
    }
    return TD_OK;
}

static td_status open_files(file_checkpoint *c, const char *dir, td_error *err)
{
    char path[4096 + 512];

    c->file = calloc(c->index.n_files, sizeof *c->file);
    c->slots = calloc(td_weight_slots(&c->base.cfg), sizeof *c->slots);
    if (c->file == NULL || c->slots == NULL)
        return td_fail(err, TD_NOMEM, "%s: no memory for %zu files", td_path_tail(dir),
                       c->index.n_files);
    for (size_t f = 0; f < c->index.n_files; f++) {
        td_status st;

        snprintf(path, sizeof path, "%s/%s", dir, c->index.file[f]);
        st = td_safetensors_open(path, &c->file[f], err);
        if (st != TD_OK)
            return st;
    }
    return TD_OK;
}

/* Names, shapes and file sizes tell models apart; a few bytes from the middle of every tensor also
 * tell a fine-tuned copy from its origin, at the price of one page each. */
static uint64_t identity(const file_checkpoint *c)
{
    const td_model_config *cfg = &c->base.cfg;
    uint64_t h = td_hash_u64(TD_HASH_START, c->index.n_files);
    char name[NAME_CAP];

    for (size_t f = 0; f < c->index.n_files; f++)
        h = td_hash_u64(h, td_safetensors_file_bytes(c->file[f]));
    for (int32_t layer = 0; layer < cfg->n_layers; layer++) {
        for (int r = 0; r < TD_W_COUNT; r++) {
            td_weight role = (td_weight)r;
            const td_tensor *t = &c->slots[td_weight_slot(role, layer)].tensor;
            uint64_t n = t->bytes < SAMPLE_BYTES ? t->bytes : SAMPLE_BYTES;

            if (td_weight_is_global(role) && layer > 0)
                continue;
            h = td_hash_str(h, tensor_name(cfg->original_layout, role, layer, name));
            for (int32_t i = 0; i < t->n_dims; i++)
                h = td_hash_u64(h, (uint64_t)t->dim[i]);
            h = td_hash_bytes(h, (const char *)t->data + (t->bytes - n) / 2, n);
        }
    }
    return td_hash_end(h);
}

static td_status files_get(td_checkpoint *base, td_weight role, int32_t layer, td_tensor *out,
                           td_error *err)
{
    file_checkpoint *c = (file_checkpoint *)base;
    slot *s = &c->slots[td_weight_slot(role, layer)];

    (void)err;
    *out = s->tensor;
    /* Whoever asks is about to read all of it: let the disk start now and in large pieces, instead
     * of page by page under the reader. */
    if (out->bytes >= READ_AHEAD_MIN &&
        !atomic_exchange_explicit(&s->hinted, true, memory_order_relaxed)) {
        uintptr_t from = (uintptr_t)out->data & ~(uintptr_t)(c->page - 1);

        (void)madvise((void *)from, (uintptr_t)out->data + out->bytes - from, MADV_WILLNEED);
    }
    return TD_OK;
}

static void files_release(td_checkpoint *base, td_weight role, int32_t layer)
{
    file_checkpoint *c = (file_checkpoint *)base;
    slot *s = &c->slots[td_weight_slot(role, layer)];
    /* Inwards to whole pages: the ones at the edges are shared with the neighbours. */
    uintptr_t from = ((uintptr_t)s->tensor.data + c->page - 1) & ~(uintptr_t)(c->page - 1);
    uintptr_t to = ((uintptr_t)s->tensor.data + s->tensor.bytes) & ~(uintptr_t)(c->page - 1);

    atomic_store_explicit(&s->hinted, false, memory_order_relaxed);
    if (to > from)
        (void)madvise((void *)from, to - from, MADV_DONTNEED);
}

static void files_close(td_checkpoint *base)
{
    file_checkpoint *c = (file_checkpoint *)base;

    for (size_t f = 0; c->file != NULL && f < c->index.n_files; f++)
        td_safetensors_close(c->file[f]);
    free(c->file);
    free(c->slots);
    td_index_free(&c->index);
    free(c);
}

td_status td_checkpoint_open(const char *dir, const td_model_config *cfg, td_checkpoint **out,
                             td_error *err)
{
    file_checkpoint *c;
    td_status st = td_model_config_check(cfg, "model config", err);

    if (st != TD_OK)
        return st;
    c = calloc(1, sizeof *c);
    if (c == NULL)
        return td_fail(err, TD_NOMEM, "%s: no memory for a checkpoint", td_path_tail(dir));
    c->base = (td_checkpoint){
        .cfg = *cfg, .get = files_get, .release = files_release, .close = files_close};
    c->base.bytes = td_weight_total_bytes(cfg);
    c->page = (size_t)sysconf(_SC_PAGESIZE);
    st = td_index_read(dir, &c->index, err);
    if (st == TD_OK)
        st = open_files(c, dir, err);
    if (st == TD_OK)
        st = check_index(c, dir, err);
    if (st == TD_OK)
        st = bind_all(c, dir, err);
    if (st == TD_OK)
        st = check_strangers(c, dir, err);
    if (st != TD_OK) {
        files_close(&c->base);
        return st;
    }
    if (c->index.total_size > 0 && c->index.total_size != (double)c->base.bytes)
        td_debug("checkpoint_total_size", "dir=\"%s\" index=%.0f tensors=%" PRIu64,
                 td_path_tail(dir), c->index.total_size, c->base.bytes);
    c->base.hash = identity(c);
    *out = &c->base;
    return TD_OK;
}

td_status td_checkpoint_get(td_checkpoint *c, td_weight role, int32_t layer, td_tensor *out,
                            td_error *err)
{
    td_assert((unsigned)role < TD_W_COUNT);
    td_assert(td_weight_is_global(role) || (layer >= 0 && layer < c->cfg.n_layers));
    return c->get(c, role, layer, out, err);
}

void td_checkpoint_release(td_checkpoint *c, td_weight role, int32_t layer)
{
    td_assert((unsigned)role < TD_W_COUNT);
    td_assert(td_weight_is_global(role) || (layer >= 0 && layer < c->cfg.n_layers));
    c->release(c, role, layer);
}

uint64_t td_checkpoint_hash(const td_checkpoint *c)
{
    return c->hash;
}

uint64_t td_checkpoint_bytes(const td_checkpoint *c)
{
    return c->bytes;
}

void td_checkpoint_close(td_checkpoint *c)
{
    if (c != NULL)
        c->close(c);
}
