#include "tests/unit/graph_backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MOST_KEPT = 600 };

typedef struct copy_args {
    void *dst;
    const void *src;
    size_t dst_pitch, src_pitch, bytes, rows;
} copy_args;

typedef union any_args {
    td_embed_args embed;
    td_add_args add;
    td_attn_in_args attn_in;
    td_attn_decode_args attn_decode;
    td_attn_out_args attn_out;
    td_router_args router;
    td_experts_args experts;
    td_head_args head;
    td_sample_args sample;
    copy_args copy;
} any_args;

typedef enum kept_kind {
    EMBED,
    ADD,
    ATTN_IN,
    ATTN_DECODE,
    ATTN_OUT,
    ROUTER,
    EXPERTS,
    HEAD,
    SAMPLE,
    COPY_OUT
} kept_kind;

typedef struct kept {
    kept_kind kind;
    any_args a;
    const void *part; /* of add: the array may not live on */
} kept;

struct td_graph {
    kept k[MOST_KEPT];
    int n;
};

static td_graph *capturing; /* one rank */
graph_counts graph_seen;

static bool keep(kept_kind kind, const void *args, size_t bytes)
{
    kept *k;

    if (capturing == NULL)
        return false;
    assert_true(capturing->n < MOST_KEPT);
    k = &capturing->k[capturing->n++];
    k->kind = kind;
    memcpy(&k->a, args, bytes);
    if (kind == ADD) {
        assert_int_equal(k->a.add.n_parts, 1);
        k->part = k->a.add.part[0];
    }
    return true;
}

#define STEP(name, kind) \
    static td_status do_##name(td_stream *s, const td_##name##_args *a, td_error *err) \
    { \
        return keep(kind, a, sizeof *a) ? TD_OK : td_ops_cpu.name(s, a, err); \
    }
STEP(embed, EMBED)
STEP(add, ADD)
STEP(attn_in, ATTN_IN)
STEP(attn_decode, ATTN_DECODE)
STEP(attn_out, ATTN_OUT)
STEP(router, ROUTER)
STEP(experts, EXPERTS)
STEP(head, HEAD)
STEP(sample, SAMPLE)

static td_status do_copy_out(td_stream *s, void *dst, size_t dst_pitch, const void *src,
                             size_t src_pitch, size_t bytes, size_t rows, td_error *err)
{
    copy_args c = {dst, src, dst_pitch, src_pitch, bytes, rows};

    if (keep(COPY_OUT, &c, sizeof c))
        return TD_OK;
    return td_ops_cpu.copy_out(s, dst, dst_pitch, src, src_pitch, bytes, rows, err);
}

/* What a graph cannot hold. */
static td_status do_copy_in(td_stream *s, void *dst, const void *src, size_t bytes, td_error *err)
{
    assert_null(capturing);
    return td_ops_cpu.copy_in(s, dst, src, bytes, err);
}

static td_status do_edit(td_stream *s, const td_edit_args *a, td_error *err)
{
    assert_null(capturing);
    return td_ops_cpu.edit(s, a, err);
}

static td_status do_sync(td_stream *s, td_error *err)
{
    assert_null(capturing);
    return td_ops_cpu.sync(s, err);
}

static td_status graph_begin(td_stream *s, td_error *err)
{
    (void)s;
    (void)err;
    assert_null(capturing);
    capturing = calloc(1, sizeof *capturing);
    assert_non_null(capturing);
    return TD_OK;
}

static td_status graph_end(td_stream *s, td_graph **out, td_error *err)
{
    td_graph *g = capturing;

    (void)s;
    capturing = NULL;
    if (out != NULL && graph_seen.refuse_captures == 0) {
        *out = g;
        graph_seen.captured++;
        graph_seen.alive++;
        return TD_OK;
    }
    free(g);
    return out != NULL ? td_fail(err, TD_DEVICE, "no graphs today") : TD_OK;
}

static td_status graph_launch(td_stream *s, td_graph *g, td_error *err)
{
    td_status st = TD_OK;

    graph_seen.launched++;
    for (int i = 0; st == TD_OK && i < g->n; i++) {
        kept *k = &g->k[i];

        switch (k->kind) {
        case EMBED: st = td_ops_cpu.embed(s, &k->a.embed, err); break;
        case ADD:
            k->a.add.part = &k->part;
            st = td_ops_cpu.add(s, &k->a.add, err);
            break;
        case ATTN_IN: st = td_ops_cpu.attn_in(s, &k->a.attn_in, err); break;
        case ATTN_DECODE: st = td_ops_cpu.attn_decode(s, &k->a.attn_decode, err); break;
        case ATTN_OUT: st = td_ops_cpu.attn_out(s, &k->a.attn_out, err); break;
        case ROUTER: st = td_ops_cpu.router(s, &k->a.router, err); break;
        case EXPERTS: st = td_ops_cpu.experts(s, &k->a.experts, err); break;
        case HEAD: st = td_ops_cpu.head(s, &k->a.head, err); break;
        case SAMPLE: st = td_ops_cpu.sample(s, &k->a.sample, err); break;
        case COPY_OUT: {
            copy_args *c = &k->a.copy;
            st = td_ops_cpu.copy_out(s, c->dst, c->dst_pitch, c->src, c->src_pitch, c->bytes,
                                     c->rows, err);
            break;
        }
        }
    }
    return st;
}

static void graph_free(td_graph *g)
{
    graph_seen.alive -= g != NULL;
    free(g);
}

td_ops ops_with_graphs(void)
{
    td_ops ops = td_ops_cpu;

    ops.embed = do_embed;
    ops.add = do_add;
    ops.attn_in = do_attn_in;
    ops.attn_decode = do_attn_decode;
    ops.attn_out = do_attn_out;
    ops.router = do_router;
    ops.experts = do_experts;
    ops.head = do_head;
    ops.sample = do_sample;
    ops.copy_in = do_copy_in;
    ops.copy_out = do_copy_out;
    ops.edit = do_edit;
    ops.sync = do_sync;
    ops.graph_begin = graph_begin;
    ops.graph_end = graph_end;
    ops.graph_launch = graph_launch;
    ops.graph_free = graph_free;
    graph_seen = (graph_counts){0};
    return ops;
}
