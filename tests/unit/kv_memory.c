#include "tests/unit/kv_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(td_status st, const td_error *err)
{
    if (st == TD_OK)
        return;
    fprintf(stderr, "kv_memory: %s\n", err->text);
    exit(1);
}

bool kv_memory_has_cuda(void)
{
    const td_ops *ops;
    uint64_t left, all;

    return td_ops_find("cuda", &ops, NULL) == TD_OK &&
           ops->dev_memory(0, &left, &all, NULL) == TD_OK;
}

void kv_memory_open(kv_memory *m, bool cuda, int32_t device, uint64_t bytes)
{
    td_error err = {0};

    memset(m, 0, sizeof *m);
    m->bytes = bytes;
    m->device = device;
    if (!cuda)
        return;
    must(td_ops_find("cuda", &m->ops, &err), &err);
    must(m->ops->dev_open(&(td_dev_options){.index = device, .threads = 1}, &m->dev, &err), &err);
    must(m->ops->dev_bind(m->dev, &err), &err);
}

static void copy_in(kv_memory *m, int32_t i)
{
    td_stream *s = m->ops->dev_stream(m->dev);
    td_error err = {0};

    must(m->ops->copy_in(s, m->buf[i].ptr, m->host[i], m->bytes, &err), &err);
    must(m->ops->sync(s, &err), &err);
}

td_kv_region kv_memory_add(kv_memory *m, unsigned char *host)
{
    int32_t i = m->n++;
    td_error err = {0};

    m->host[i] = host;
    if (!m->ops)
        return (td_kv_region){.base = host, .bytes = m->bytes};
    must(m->ops->alloc(m->dev, m->bytes, &m->buf[i], &err), &err);
    copy_in(m, i);
    return (td_kv_region){
        .base = m->buf[i].ptr, .bytes = m->bytes, .memory = TD_KV_CUDA, .device = m->device};
}

void kv_memory_read(kv_memory *m)
{
    td_error err = {0};

    for (int32_t i = 0; m->ops && i < m->n; i++)
        must(m->ops->copy_out(m->ops->dev_stream(m->dev), m->host[i], m->bytes, m->buf[i].ptr,
                              m->bytes, m->bytes, 1, &err),
             &err);
    if (m->ops)
        must(m->ops->sync(m->ops->dev_stream(m->dev), &err), &err);
}

void kv_memory_close(kv_memory *m)
{
    for (int32_t i = 0; i < m->n; i++) {
        if (m->ops)
            m->ops->release(&m->buf[i]);
        free(m->host[i]);
    }
    if (m->ops)
        m->ops->dev_close(m->dev);
}

td_status kv_memory_use_device(int32_t device, td_error *err)
{
    const td_ops *ops;
    td_status st = td_ops_find("cuda", &ops, err);

    return st == TD_OK ? ops->dev_use(device, err) : st;
}
