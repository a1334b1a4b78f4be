/* kv_notice: the wire form of a notice, and counting notices; see the header.
 *
 * Wire form, little-endian, 256 bytes:
 *   0 magic u32 | 4 version u16 | 6 flags u16 | 8 request u64 | 16 attempt u32 | 20 epoch u32
 *   24 source u32 | 28 n_sources u32 | 32 status u32 | 36 puts u32 | 40 bytes u64 | 48 first_token
 * i32 52 index u32 | 56 digest u64 | 64 stream u64 | 72 after u64 | 80 n of the top
 * log-probabilities i32, -1: none at all | 84 the first token's f32 | 88 ids i32[20] |
 * 168 log-probabilities f32[20] | 248 checksum u64 of bytes 0..247 */
#include "common/kv_notice.h"

#include "common/hash.h"

#include <inttypes.h>
#include <string.h>

enum { NOTICE_VERSION = 2, NOTICE_HAS_DIGEST = 1, NOTICE_CHECKED = 248 };
#define NOTICE_MAGIC UINT32_C(0x4e564b54) /* "TKVN" */

static void put_le(unsigned char *at, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        at[i] = (unsigned char)(v >> (8 * i));
}

static uint64_t get_le(const unsigned char *at, int n)
{
    uint64_t v = 0;

    for (int i = 0; i < n; i++)
        v |= (uint64_t)at[i] << (8 * i);
    return v;
}

static void put_float(unsigned char *at, float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    put_le(at, bits, 4);
}

static float get_float(const unsigned char *at)
{
    uint32_t bits = (uint32_t)get_le(at, 4);
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static void put_logprobs(unsigned char *at, const td_logprobs *l)
{
    put_le(at, (uint32_t)l->n, 4);
    put_float(at + 4, l->chosen);
    for (int32_t i = 0; i < l->n; i++) {
        put_le(at + 8 + 4 * i, (uint32_t)l->id[i], 4);
        put_float(at + 88 + 4 * i, l->logprob[i]);
    }
}

static void get_logprobs(const unsigned char *at, td_logprobs *l)
{
    l->n = (int32_t)get_le(at, 4);
    l->chosen = get_float(at + 4);
    for (int32_t i = 0; i < TD_TOP_LOGPROBS; i++) {
        l->id[i] = (int32_t)get_le(at + 8 + 4 * i, 4);
        l->logprob[i] = get_float(at + 88 + 4 * i);
    }
}

static uint64_t notice_checksum(const unsigned char *bytes)
{
    return td_hash_end(td_hash_bytes(TD_HASH_START, bytes, NOTICE_CHECKED));
}

void td_kv_notice_encode(const td_kv_notice *n, unsigned char out[TD_KV_NOTICE_BYTES])
{
    memset(out, 0, TD_KV_NOTICE_BYTES);
    put_le(out + 0, NOTICE_MAGIC, 4);
    put_le(out + 4, NOTICE_VERSION, 2);
    put_le(out + 6, n->has_digest ? NOTICE_HAS_DIGEST : 0, 2);
    put_le(out + 8, n->request, 8);
    put_le(out + 16, n->attempt, 4);
    put_le(out + 20, n->epoch, 4);
    put_le(out + 24, n->source_rank, 4);
    put_le(out + 28, n->n_sources, 4);
    put_le(out + 32, (uint32_t)n->status, 4);
    put_le(out + 36, n->puts, 4);
    put_le(out + 40, n->bytes, 8);
    put_le(out + 48, (uint32_t)n->first_token, 4);
    put_le(out + 52, n->index, 4);
    put_le(out + 56, n->digest, 8);
    put_le(out + 64, n->stream, 8);
    put_le(out + 72, n->after, 8);
    put_logprobs(out + 80, &n->logprobs);
    put_le(out + NOTICE_CHECKED, notice_checksum(out), 8);
}

td_status td_kv_notice_decode(const void *bytes, size_t len, td_kv_notice *out, td_error *err)
{
    const unsigned char *b = bytes;

    if (len != TD_KV_NOTICE_BYTES)
        return td_fail(err, TD_INVALID, "KV notice of %zu bytes, expected %d", len,
                       TD_KV_NOTICE_BYTES);
    if (get_le(b, 4) != NOTICE_MAGIC)
        return td_fail(err, TD_INVALID, "not a KV notice");
    if (get_le(b + 4, 2) != NOTICE_VERSION)
        return td_fail(err, TD_INVALID, "KV notice of version %u, this is %d: run the same release",
                       (unsigned)get_le(b + 4, 2), NOTICE_VERSION);
    if (get_le(b + NOTICE_CHECKED, 8) != notice_checksum(b))
        return td_fail(err, TD_INVALID, "KV notice with a wrong checksum");

    uint64_t status = get_le(b + 32, 4);
    td_kv_notice n = {
        .request = get_le(b + 8, 8),
        .attempt = (uint32_t)get_le(b + 16, 4),
        .epoch = (uint32_t)get_le(b + 20, 4),
        .source_rank = (uint32_t)get_le(b + 24, 4),
        .n_sources = (uint32_t)get_le(b + 28, 4),
        .puts = (uint32_t)get_le(b + 36, 4),
        .bytes = get_le(b + 40, 8),
        .first_token = (int32_t)get_le(b + 48, 4),
        .index = (uint32_t)get_le(b + 52, 4),
        .has_digest = get_le(b + 6, 2) & NOTICE_HAS_DIGEST,
        .digest = get_le(b + 56, 8),
        .stream = get_le(b + 64, 8),
        .after = get_le(b + 72, 8),
    };

    get_logprobs(b + 80, &n.logprobs);
    if (n.logprobs.n < -1 || n.logprobs.n > TD_TOP_LOGPROBS)
        return td_fail(err, TD_INVALID, "KV notice with %d log-probabilities", n.logprobs.n);
    if (status >= TD_STATUS_COUNT || status == TD_PENDING)
        return td_fail(err, TD_INVALID, "KV notice with status %" PRIu64, status);
    if (n.n_sources < 1 || n.n_sources > TD_KV_MAX_SOURCES || n.source_rank >= n.n_sources)
        return td_fail(err, TD_INVALID, "KV notice of source %u of %u", n.source_rank, n.n_sources);
    n.status = (td_status)status;
    *out = n;
    return TD_OK;
}

void td_kv_arrival_init(td_kv_arrival *a, uint64_t request, uint32_t attempt, uint32_t epoch,
                        uint64_t want_bytes)
{
    *a = (td_kv_arrival){
        .request = request,
        .attempt = attempt,
        .epoch = epoch,
        .want_bytes = want_bytes,
        .status = TD_OK,
        .has_digest = true,
    };
}

td_status td_kv_arrival_add(td_kv_arrival *a, const td_kv_notice *n, td_error *err)
{
    if (n->request != a->request || n->attempt != a->attempt || n->epoch != a->epoch)
        return td_fail(err, TD_INVALID,
                       "notice for request %" PRIx64 " attempt %u epoch %u, expected %" PRIx64
                       " attempt %u epoch %u",
                       n->request, n->attempt, n->epoch, a->request, a->attempt, a->epoch);
    if (n->n_sources < 1 || n->n_sources > TD_KV_MAX_SOURCES || n->source_rank >= n->n_sources ||
        (a->n_sources != 0 && n->n_sources != a->n_sources))
        return td_fail(err, TD_INVALID, "notice of source %u of %u, expected %u sources",
                       n->source_rank, n->n_sources, a->n_sources);
    uint64_t bit = UINT64_C(1) << n->source_rank;

    if (a->seen & bit)
        return td_fail(err, TD_INVALID, "a second notice of source %u", n->source_rank);

    a->n_sources = n->n_sources;
    a->seen |= bit;
    a->bytes += n->bytes;
    a->puts += n->puts;
    a->digest += n->digest;
    a->has_digest = a->has_digest && n->has_digest;
    if (n->status != TD_OK) {
        if (a->status == TD_OK)
            a->status = n->status;
        return TD_OK;
    }
    /* Every source of one push carries the same token: if not, they are not of one prefill. */
    if (a->has_token && (n->first_token != a->first_token || n->index != a->index))
        a->status = TD_INTERNAL;
    a->first_token = n->first_token;
    a->index = n->index;
    a->logprobs = n->logprobs;
    a->has_token = true;
    return TD_OK;
}

static bool arrival_all_in(const td_kv_arrival *a)
{
    return a->n_sources > 0 && (uint32_t)__builtin_popcountll(a->seen) == a->n_sources;
}

td_kv_arrival_state td_kv_arrival_state_of(const td_kv_arrival *a)
{
    if (!arrival_all_in(a))
        return TD_KV_ARRIVAL_PENDING;
    return a->status == TD_OK && a->bytes == a->want_bytes ? TD_KV_ARRIVAL_COMPLETE
                                                           : TD_KV_ARRIVAL_FAILED;
}

td_status td_kv_arrival_why(const td_kv_arrival *a, td_error *err)
{
    if (a->status == TD_INTERNAL && a->has_token)
        return td_fail(err, TD_INTERNAL, "KV sources failed or disagree about the first token");
    if (a->status != TD_OK)
        return td_fail(err, a->status, "a KV source reported %s", td_status_name(a->status));
    if (!arrival_all_in(a))
        return td_fail(err, TD_UNAVAILABLE, "%d of %u KV sources have reported",
                       __builtin_popcountll(a->seen), a->n_sources);
    return td_fail(err, TD_INTERNAL, "KV sources put %" PRIu64 " bytes, the prompt needs %" PRIu64,
                   a->bytes, a->want_bytes);
}
