/* kv_wire: bytes on the wire. The descriptor is a sink's address. Little-endian:
 *
 *   magic u32 | version u16 | zero u16 | wire_hash u64 | ucx_version u32 | n_ranks u32
 *   per rank: base u64 | bytes u64 | memory u32 | rkey_len u32
 *   address_len u32 | address | every rank's rkey | checksum u64 of all before it
 *
 * UCX takes an address and a key without their lengths and trusts what is inside, so the checksum
 * is what keeps a damaged descriptor away from it. */
#include "common/kv_wire_impl.h"

#include "common/hash.h"

#include <string.h>

enum { DESCRIPTOR_VERSION = 1, DESCRIPTOR_MAX_PART = 64 << 10 };
#define DESCRIPTOR_MAGIC UINT32_C(0x44564b54) /* "TKVD" */
#define DATA_MAGIC UINT32_C(0x42564b54)       /* "TKVB" */

static void write_le(td_buf *out, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        td_buf_byte(out, (char)(v >> (8 * i)));
}

static uint64_t checksum(const void *bytes, size_t n)
{
    return td_hash_end(td_hash_bytes(TD_HASH_START, bytes, n));
}

void kv_descriptor_write(td_buf *out, const td_kv_descriptor *d)
{
    size_t start = out->len;

    write_le(out, DESCRIPTOR_MAGIC, 4);
    write_le(out, DESCRIPTOR_VERSION, 2);
    write_le(out, 0, 2);
    write_le(out, d->wire_hash, 8);
    write_le(out, d->ucx_version, 4);
    write_le(out, (uint64_t)d->n_ranks, 4);
    for (int32_t i = 0; i < d->n_ranks; i++) {
        write_le(out, d->rank[i].base, 8);
        write_le(out, d->rank[i].bytes, 8);
        write_le(out, (uint64_t)d->rank[i].memory, 4);
        write_le(out, d->rank[i].rkey.len, 4);
    }
    write_le(out, d->address.len, 4);
    td_buf_add(out, d->address.ptr, d->address.len);
    for (int32_t i = 0; i < d->n_ranks; i++)
        td_buf_add(out, d->rank[i].rkey.ptr, d->rank[i].rkey.len);
    if (!out->oom)
        write_le(out, checksum(out->ptr + start, out->len - start), 8);
}

/* Bytes not yet read. A read past the end sets cut and gives zeros, checked where it matters. */
typedef struct reader {
    const unsigned char *at;
    size_t left;
    bool cut;
} reader;

static uint64_t read_le(reader *r, size_t n)
{
    uint64_t v = 0;

    if (r->left < n) {
        r->cut = true;
        return 0;
    }
    for (size_t i = 0; i < n; i++)
        v |= (uint64_t)r->at[i] << (8 * i);
    r->at += n;
    r->left -= n;
    return v;
}

static td_slice read_part(reader *r, size_t n)
{
    td_slice part = {(const char *)r->at, n};

    if (r->left < n) {
        r->cut = true;
        return (td_slice){0};
    }
    r->at += n;
    r->left -= n;
    return part;
}

static td_status descriptor_read_rank(reader *r, int32_t i, struct td_kv_remote *rank,
                                      uint32_t *rkey_len, td_error *err)
{
    rank->base = read_le(r, 8);
    rank->bytes = read_le(r, 8);
    uint64_t memory = read_le(r, 4);
    *rkey_len = (uint32_t)read_le(r, 4);

    if (r->cut)
        return td_fail(err, TD_INVALID, "KV descriptor: cut short in rank %d", i);
    if (memory != TD_KV_HOST && memory != TD_KV_CUDA)
        return td_fail(err, TD_INVALID, "KV descriptor: rank %d has memory of kind %u", i,
                       (unsigned)memory);
    if (rank->bytes == 0 || rank->base + rank->bytes < rank->base)
        return td_fail(err, TD_INVALID, "KV descriptor: rank %d has no such address range", i);
    if (*rkey_len == 0 || *rkey_len > DESCRIPTOR_MAX_PART)
        return td_fail(err, TD_INVALID, "KV descriptor: rank %d has a key of %u bytes", i,
                       *rkey_len);
    rank->memory = (td_kv_memory)memory;
    return TD_OK;
}

td_status td_kv_descriptor_parse(td_slice bytes, td_kv_descriptor *out, td_error *err)
{
    reader r = {(const unsigned char *)bytes.ptr, bytes.len, false};
    td_kv_descriptor d = {0};
    uint32_t rkey_len[TD_KV_MAX_RANKS];

    if (bytes.len < 8 + 8)
        return td_fail(err, TD_INVALID, "KV descriptor: only %zu bytes", bytes.len);
    if (read_le(&r, 4) != DESCRIPTOR_MAGIC)
        return td_fail(err, TD_INVALID, "KV descriptor: it is not one");
    unsigned version = (unsigned)read_le(&r, 2);
    if (version != DESCRIPTOR_VERSION)
        return td_fail(
            err, TD_INVALID,
            "KV descriptor: version %u, this is %d: run the same release on both workers", version,
            DESCRIPTOR_VERSION);

    reader tail = {(const unsigned char *)bytes.ptr + bytes.len - 8, 8, false};
    if (read_le(&tail, 8) != checksum(bytes.ptr, bytes.len - 8))
        return td_fail(err, TD_INVALID, "KV descriptor: wrong checksum");
    r.left -= 8;

    (void)read_le(&r, 2);
    d.wire_hash = read_le(&r, 8);
    d.ucx_version = (uint32_t)read_le(&r, 4);
    uint64_t n_ranks = read_le(&r, 4);
    if (r.cut || n_ranks < 1 || n_ranks > TD_KV_MAX_RANKS)
        return td_fail(err, TD_INVALID, "KV descriptor: %u ranks, expected 1 to %d",
                       (unsigned)n_ranks, TD_KV_MAX_RANKS);
    d.n_ranks = (int32_t)n_ranks;
    for (int32_t i = 0; i < d.n_ranks; i++) {
        td_status st = descriptor_read_rank(&r, i, &d.rank[i], &rkey_len[i], err);
        if (st != TD_OK)
            return st;
    }
    uint64_t address_len = read_le(&r, 4);
    if (r.cut || address_len == 0 || address_len > DESCRIPTOR_MAX_PART)
        return td_fail(err, TD_INVALID, "KV descriptor: an address of %u bytes",
                       (unsigned)address_len);
    d.address = read_part(&r, address_len);
    for (int32_t i = 0; i < d.n_ranks; i++)
        d.rank[i].rkey = read_part(&r, rkey_len[i]);
    if (r.cut || r.left != 0)
        return td_fail(err, TD_INVALID, "KV descriptor: %zu bytes do not add up", bytes.len);
    *out = d;
    return TD_OK;
}

/* ------------------------------------------------------------------ data messages
 *
 *   magic u32 | len u32 | stream u64 | offset u64 | rank u32 | zero u32 | checksum u64 */

static void data_put(unsigned char *at, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        at[i] = (unsigned char)(v >> (8 * i));
}

void kv_data_encode(const kv_data *d, unsigned char out[KV_DATA_HEADER_BYTES])
{
    data_put(out, DATA_MAGIC, 4);
    data_put(out + 4, d->len, 4);
    data_put(out + 8, d->stream, 8);
    data_put(out + 16, d->offset, 8);
    data_put(out + 24, d->rank, 4);
    data_put(out + 28, 0, 4);
    data_put(out + 32, checksum(out, 32), 8);
}

td_status kv_data_decode(const void *bytes, size_t n, kv_data *out, td_error *err)
{
    reader r = {bytes, n, false};

    if (n != KV_DATA_HEADER_BYTES || read_le(&r, 4) != DATA_MAGIC)
        return td_fail(err, TD_INVALID, "not a KV data message");
    out->len = (uint32_t)read_le(&r, 4);
    out->stream = read_le(&r, 8);
    out->offset = read_le(&r, 8);
    out->rank = (uint32_t)read_le(&r, 4);
    (void)read_le(&r, 4);
    if (read_le(&r, 8) != checksum(bytes, 32))
        return td_fail(err, TD_INVALID, "KV data message with a wrong checksum");
    return TD_OK;
}

td_status kv_ucx_version_check(uint32_t ours, uint32_t theirs, td_error *err)
{
    const uint32_t compatible_from = 1 << 16 | 16; /* UCX's wire is versioned since 1.16 */

    if (ours == theirs || (ours >= compatible_from && theirs >= compatible_from))
        return TD_OK;
    return td_fail(err, TD_INVALID,
                   "the decode worker runs UCX %u.%u, this prefill worker %u.%u: use one version, "
                   "or at least 1.16 on both",
                   theirs >> 16, theirs & 0xffff, ours >> 16, ours & 0xffff);
}
