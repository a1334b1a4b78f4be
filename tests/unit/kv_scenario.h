/* kv_scenario: a model, two workers and a few requests with scattered pages, all derived from a few
 * numbers, so that two processes given the same numbers agree on every byte. Used by the tests of
 * the KV transfer. */
#ifndef TANDEM_TESTS_KV_SCENARIO_H
#define TANDEM_TESTS_KV_SCENARIO_H

#include "common/kv_plan.h"

enum { KV_POISON = 0xa5, KV_MAX_REQUESTS = 64 };

typedef struct kv_scenario {
    char transport[8];
    uint64_t seed;
    int32_t n_layers, n_kv_heads, head_dim, window;
    int32_t all_windowed; /* else every second layer is */
    int32_t f32;
    int32_t src_tp, dst_tp;
    int32_t n_requests;
    int32_t min_tokens, max_tokens; /* per prompt, drawn from the seed */
    int32_t chunk;                  /* of prefill */
    int32_t cuda;                   /* both regions are CUDA memory */
    int32_t src_device, dst_device; /* of all ranks of a side */
    /* Options of the wire. */
    int32_t method; /* td_kv_method */
    int32_t verify;
    uint32_t fail_put_number;
    int64_t stall_us;
} kv_scenario;

typedef struct kv_request {
    int32_t n_tokens;
    uint32_t *src_pages, *dst_pages;
    uint32_t n_pages;
    td_kv_extent *dst_extents; /* dst_pages as extents, one page longer: room for tokens to come */
    size_t n_extents;
    uint32_t src_ring, dst_ring;
} kv_request;

typedef struct kv_world {
    kv_scenario s;
    td_kv_geometry src, dst;
    kv_request req[KV_MAX_REQUESTS];
} kv_world;

void kv_world_init(kv_world *w, const kv_scenario *s);
void kv_world_free(kv_world *w);

td_kv_place kv_world_src(const kv_world *w, int i);
td_kv_place kv_world_dst(const kv_world *w, int i);

/* One rank's region, malloc'ed: poison, and on the source side every request's keys and values. */
unsigned char *kv_world_src_region(const kv_world *w, int32_t rank);
unsigned char *kv_world_dst_region(const kv_world *w);

typedef enum kv_expect {
    KV_ABSENT,  /* nothing of this request may be there */
    KV_LANDED,  /* all of it must be */
    KV_PARTIAL, /* each byte is either untouched or right */
} kv_expect;

/* Compare all destination ranks' regions with what must be there, byte by byte. Returns the number
 * of wrong bytes, and says on stderr where the first one is. */
size_t kv_world_check(const kv_world *w, unsigned char *const *regions, const kv_expect *expect);

uint64_t kv_random(uint64_t *state);
int32_t kv_random_in(uint64_t *state, int32_t lo, int32_t hi); /* both included */

#endif
