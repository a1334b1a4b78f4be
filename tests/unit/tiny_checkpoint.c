#include "tests/unit/tiny_checkpoint.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"

#define NEED(cond) ((cond) ? (void)0 : need_failed(#cond, __LINE__))

static void need_failed(const char *what, int line)
{
    fprintf(stderr, "tiny_checkpoint.c:%d: %s failed\n", line, what);
    abort();
}

static const char hf_config[] =
    "{\n"
    "  \"architectures\": [\"GptOssForCausalLM\"],\n"
    "  \"attention_bias\": true,\n"
    "  \"eos_token_id\": 5,\n"
    "  \"experts_per_token\": 2,\n"
    "  \"head_dim\": 16,\n"
    "  \"hidden_act\": \"silu\",\n"
    "  \"hidden_size\": 64,\n"
    "  \"initial_context_length\": 128,\n"
    "  \"intermediate_size\": 32,\n"
    "  \"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\"],\n"
    "  \"max_position_embeddings\": 4096,\n"
    "  \"model_type\": \"gpt_oss\",\n"
    "  \"num_attention_heads\": 4,\n"
    "  \"num_experts_per_tok\": 2,\n"
    "  \"num_hidden_layers\": 3,\n"
    "  \"num_key_value_heads\": 2,\n"
    "  \"num_local_experts\": 4,\n"
    "  \"quantization_config\": {\"quant_method\": \"mxfp4\"},\n"
    "  \"rms_norm_eps\": 1e-05,\n"
    "  \"rope_scaling\": {\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"factor\": 32.0,\n"
    "    \"original_max_position_embeddings\": 128, \"rope_type\": \"yarn\", \"truncate\": "
    "false},\n"
    "  \"rope_theta\": 150000,\n"
    "  \"sliding_window\": 8,\n"
    "  \"swiglu_limit\": 7.0,\n"
    "  \"tie_word_embeddings\": false,\n"
    "  \"vocab_size\": 97\n"
    "}\n";

static const char original_config[] =
    "{\"num_hidden_layers\": 3, \"num_experts\": 4, \"experts_per_token\": 2, \"vocab_size\": 97, "
    "\"hidden_size\": 64, \"intermediate_size\": 32, \"swiglu_limit\": 7.0, \"head_dim\": 16, "
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"sliding_window\": 8, "
    "\"initial_context_length\": 128, \"rope_theta\": 150000, \"rope_scaling_factor\": 32.0, "
    "\"rope_ntk_alpha\": 1, \"rope_ntk_beta\": 32}";

static const char generation[] = "{\"eos_token_id\": [7, 5], \"bos_token_id\": 1}";

/* Spelled out again on purpose: the names in checkpoint.c are what is being tested. */
static const struct {
    td_weight role;
    const char *hf, *original;
} names[] = {
    {TD_W_EMBED, "model.embed_tokens.weight", "embedding.weight"},
    {TD_W_FINAL_NORM, "model.norm.weight", "norm.scale"},
    {TD_W_UNEMBED, "lm_head.weight", "unembedding.weight"},
    {TD_W_ATTN_NORM, "model.layers.%d.input_layernorm.weight", "block.%d.attn.norm.scale"},
    {TD_W_Q, "model.layers.%d.self_attn.q_proj.weight", "block.%d.attn.qkv.weight"},
    {TD_W_Q_BIAS, "model.layers.%d.self_attn.q_proj.bias", "block.%d.attn.qkv.bias"},
    {TD_W_K, "model.layers.%d.self_attn.k_proj.weight", NULL},
    {TD_W_K_BIAS, "model.layers.%d.self_attn.k_proj.bias", NULL},
    {TD_W_V, "model.layers.%d.self_attn.v_proj.weight", NULL},
    {TD_W_V_BIAS, "model.layers.%d.self_attn.v_proj.bias", NULL},
    {TD_W_O, "model.layers.%d.self_attn.o_proj.weight", "block.%d.attn.out.weight"},
    {TD_W_O_BIAS, "model.layers.%d.self_attn.o_proj.bias", "block.%d.attn.out.bias"},
    {TD_W_SINKS, "model.layers.%d.self_attn.sinks", "block.%d.attn.sinks"},
    {TD_W_MLP_NORM, "model.layers.%d.post_attention_layernorm.weight", "block.%d.mlp.norm.scale"},
    {TD_W_ROUTER, "model.layers.%d.mlp.router.weight", "block.%d.mlp.gate.weight"},
    {TD_W_ROUTER_BIAS, "model.layers.%d.mlp.router.bias", "block.%d.mlp.gate.bias"},
    {TD_W_GATE_UP_BLOCKS, "model.layers.%d.mlp.experts.gate_up_proj_blocks",
     "block.%d.mlp.mlp1_weight.blocks"},
    {TD_W_GATE_UP_SCALES, "model.layers.%d.mlp.experts.gate_up_proj_scales",
     "block.%d.mlp.mlp1_weight.scales"},
    {TD_W_GATE_UP_BIAS, "model.layers.%d.mlp.experts.gate_up_proj_bias", "block.%d.mlp.mlp1_bias"},
    {TD_W_DOWN_BLOCKS, "model.layers.%d.mlp.experts.down_proj_blocks",
     "block.%d.mlp.mlp2_weight.blocks"},
    {TD_W_DOWN_SCALES, "model.layers.%d.mlp.experts.down_proj_scales",
     "block.%d.mlp.mlp2_weight.scales"},
    {TD_W_DOWN_BIAS, "model.layers.%d.mlp.experts.down_proj_bias", "block.%d.mlp.mlp2_bias"},
};

tiny_tensor *tiny_add(tiny_model *m, const char *name, const char *dtype, int n_dims,
                      const int64_t *dim, size_t bytes)
{
    tiny_tensor *t;

    m->tensor = realloc(m->tensor, (m->n_tensors + 1) * sizeof *m->tensor);
    NEED(m->tensor != NULL);
    t = &m->tensor[m->n_tensors++];
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->dtype = dtype;
    t->n_dims = n_dims;
    memcpy(t->dim, dim, (size_t)n_dims * sizeof *dim);
    t->data = calloc(1, bytes + 1);
    NEED(t->data != NULL);
    t->bytes = bytes;
    return t;
}

static void add_weight(tiny_model *m, td_weight role, const char *format, int layer)
{
    /* The stacked tensor of the original layout is q, k and v after one another. */
    const bool stacked = m->cfg.original_layout && (role == TD_W_Q || role == TD_W_Q_BIAS);
    const int n_parts = stacked ? 3 : 1;
    char name[128];
    td_tensor part[3];
    size_t bytes = 0, at = 0;
    tiny_tensor *t;

    for (int i = 0; i < n_parts; i++) {
        NEED(td_checkpoint_get(m->weights, (td_weight)(role + 2 * i), layer, &part[i], NULL) ==
             TD_OK);
        bytes += part[i].bytes;
        if (i > 0)
            part[0].dim[0] += part[i].dim[0];
    }
    snprintf(name, sizeof name, format, layer);
    t = tiny_add(m, name, part[0].dtype == TD_BF16 ? "BF16" : "U8", part[0].n_dims, part[0].dim,
                 bytes);
    for (int i = 0; i < n_parts; i++) {
        memcpy(t->data + at, part[i].data, part[i].bytes);
        at += part[i].bytes;
    }
}

void tiny_make(tiny_model *m, bool original_layout, int n_shards)
{
    const char *tmp = getenv("TMPDIR");
    td_error err = {0};

    memset(m, 0, sizeof *m);
    snprintf(m->dir, sizeof m->dir, "%.40s/td-tiny-XXXXXX", tmp == NULL ? "/tmp" : tmp);
    NEED(mkdtemp(m->dir) != NULL);
    m->config = strdup(original_layout ? original_config : hf_config);
    m->generation = original_layout ? NULL : strdup(generation);
    m->n_shards = n_shards;
    m->metadata = true;
    NEED(m->config != NULL);
    NEED(td_model_config_parse(m->config, strlen(m->config), NULL, 0, "tiny", &m->cfg, &err) ==
         TD_OK);
    NEED(td_checkpoint_random(&m->cfg, 1, &m->weights, &err) == TD_OK);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *format = original_layout ? names[i].original : names[i].hf;
        int n_layers = names[i].role <= TD_W_UNEMBED ? 1 : m->cfg.n_layers;

        for (int l = 0; format != NULL && l < n_layers; l++)
            add_weight(m, names[i].role, format, l);
    }
    /* Spread so that the tensors of a layer, and blocks and scales, sit in different files. */
    for (size_t i = 0; i < m->n_tensors; i++)
        m->tensor[i].shard = (int)(i % (size_t)n_shards);
}

tiny_tensor *tiny_find(tiny_model *m, const char *name)
{
    for (size_t i = 0; i < m->n_tensors; i++)
        if (strcmp(m->tensor[i].name, name) == 0)
            return &m->tensor[i];
    fprintf(stderr, "tiny_find: no %s\n", name);
    abort();
}

void tiny_remove(tiny_model *m, const char *name)
{
    tiny_tensor *t = tiny_find(m, name);

    free(t->data);
    memmove(t, t + 1, (size_t)(m->tensor + m->n_tensors - (t + 1)) * sizeof *t);
    m->n_tensors--;
}

void tiny_replace(char **text, const char *from, const char *to)
{
    char *at = strstr(*text, from);
    td_buf b = {0};

    if (at == NULL || strstr(at + 1, from) != NULL) {
        fprintf(stderr, "tiny_replace: not exactly one \"%s\"\n", from);
        abort();
    }
    td_buf_add(&b, *text, (size_t)(at - *text));
    td_buf_str(&b, to);
    td_buf_str(&b, at + strlen(from));
    NEED(!b.oom);
    free(*text);
    *text = b.ptr;
}

void tiny_file_name(const tiny_model *m, int shard, char *buf, size_t cap)
{
    if (m->n_shards == 1)
        snprintf(buf, cap, "model.safetensors");
    else
        snprintf(buf, cap, "model-%05d-of-%05d.safetensors", shard, m->n_shards - 1);
}

void tiny_path(const tiny_model *m, const char *file, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s/%s", m->dir, file);
}

void tiny_put(const tiny_model *m, const char *file, const void *bytes, size_t n)
{
    char path[512];
    FILE *f;

    tiny_path(m, file, path, sizeof path);
    f = fopen(path, "wb");
    NEED(f != NULL);
    NEED(fwrite(bytes, 1, n, f) == n);
    NEED(fclose(f) == 0);
}

char *tiny_get(const tiny_model *m, const char *file, size_t *n)
{
    char path[512], chunk[4096];
    td_buf b = {0};
    size_t got;
    FILE *f;

    tiny_path(m, file, path, sizeof path);
    f = fopen(path, "rb");
    NEED(f != NULL);
    while ((got = fread(chunk, 1, sizeof chunk, f)) > 0)
        td_buf_add(&b, chunk, got);
    fclose(f);
    NEED(!b.oom && b.ptr != NULL);
    *n = b.len;
    return b.ptr;
}

static void add_header(td_buf *b, const char *header, size_t len)
{
    for (int i = 0; i < 8; i++)
        td_buf_byte(b, (char)((uint64_t)len >> (8 * i)));
    td_buf_add(b, header, len);
}

static void write_shard(const tiny_model *m, int shard)
{
    td_buf header = {0}, file = {0};
    char name[64];
    size_t at = 0;

    td_buf_str(&header, m->metadata ? "{\"__metadata__\": {\"format\": \"pt\"}" : "{");
    for (size_t i = 0; i < m->n_tensors; i++) {
        const tiny_tensor *t = &m->tensor[i];

        if (t->shard != shard)
            continue;
        td_buf_fmt(&header, "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [",
                   header.len > 1 ? ", " : "", t->name, t->dtype);
        for (int d = 0; d < t->n_dims; d++)
            td_buf_fmt(&header, "%s%lld", d > 0 ? ", " : "", (long long)t->dim[d]);
        td_buf_fmt(&header, "], \"data_offsets\": [%zu, %zu]}", at, at + t->bytes);
        at += t->bytes;
    }
    td_buf_byte(&header, '}');
    for (size_t i = 0; i < m->pad; i++)
        td_buf_byte(&header, ' ');
    add_header(&file, header.ptr, header.len);
    for (size_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i].shard == shard)
            td_buf_add(&file, m->tensor[i].data, m->tensor[i].bytes);
    NEED(!header.oom && !file.oom);
    tiny_file_name(m, shard, name, sizeof name);
    tiny_put(m, name, file.ptr, file.len);
    td_buf_free(&header);
    td_buf_free(&file);
}

static void write_index(const tiny_model *m)
{
    char name[64];
    size_t total = 0;
    td_buf b = {0};

    for (size_t i = 0; i < m->n_tensors; i++)
        total += m->tensor[i].bytes;
    td_buf_fmt(&b, "{\"metadata\": {\"total_size\": %zu}, \"weight_map\": {", total);
    for (size_t i = 0; i < m->n_tensors; i++) {
        tiny_file_name(m, m->tensor[i].shard, name, sizeof name);
        td_buf_fmt(&b, "%s\"%s\": \"%s\"", i > 0 ? ",\n" : "\n", m->tensor[i].name, name);
    }
    td_buf_str(&b, "}}");
    NEED(!b.oom);
    tiny_put(m, "model.safetensors.index.json", b.ptr, b.len);
    td_buf_free(&b);
}

void tiny_write(tiny_model *m)
{
    tiny_put(m, "config.json", m->config, strlen(m->config));
    if (m->generation != NULL)
        tiny_put(m, "generation_config.json", m->generation, strlen(m->generation));
    for (int s = 0; s < m->n_shards; s++)
        write_shard(m, s);
    if (m->n_shards > 1)
        write_index(m);
}

void tiny_edit_header(const tiny_model *m, const char *file, const char *from, const char *to)
{
    size_t n, len = 0;
    char *bytes = tiny_get(m, file, &n);
    char *header;
    td_buf b = {0};

    for (int i = 0; i < 8; i++)
        len |= (size_t)(unsigned char)bytes[i] << (8 * i);
    header = strndup(bytes + 8, len);
    NEED(header != NULL);
    tiny_replace(&header, from, to);
    add_header(&b, header, strlen(header));
    td_buf_add(&b, bytes + 8 + len, n - 8 - len);
    NEED(!b.oom);
    tiny_put(m, file, b.ptr, b.len);
    td_buf_free(&b);
    free(header);
    free(bytes);
}

void tiny_edit_text(const tiny_model *m, const char *file, const char *from, const char *to)
{
    size_t n;
    char *text = tiny_get(m, file, &n);

    tiny_replace(&text, from, to);
    tiny_put(m, file, text, strlen(text));
    free(text);
}

static void remove_folder(const char *dir)
{
    char path[512];
    struct dirent *e;
    DIR *d = opendir(dir);

    NEED(d != NULL);
    while ((e = readdir(d)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%.200s/%s", dir, e->d_name);
        if (unlink(path) != 0)
            remove_folder(path);
    }
    closedir(d);
    NEED(rmdir(dir) == 0);
}

void tiny_free(tiny_model *m)
{
    remove_folder(m->dir);
    for (size_t i = 0; i < m->n_tensors; i++)
        free(m->tensor[i].data);
    free(m->tensor);
    free(m->config);
    free(m->generation);
    td_checkpoint_close(m->weights);
    memset(m, 0, sizeof *m);
}
