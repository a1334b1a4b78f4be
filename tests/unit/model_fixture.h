/* model_fixture: small random models for tests, and short ways to run them. */
#ifndef TANDEM_TESTS_MODEL_FIXTURE_H
#define TANDEM_TESTS_MODEL_FIXTURE_H

#include "common/model.h"

/* Four layers (window, full, window, full), 16 / 8 heads of 32, 8 experts of which 4, inner width
 * 256: splits in every way up to 8 ranks. YaRN stretches from 256 positions. */
extern const td_model_config fixture_config;

enum { FIXTURE_PAGES = 80 };

typedef struct fixture {
    td_model *m;
    int32_t vocab;
    uint32_t pages[4][FIXTURE_PAGES]; /* four sequences' page tables, scattered over one pool */
} fixture;

/* chunk: most tokens of a step, and what the rings are sized for. */
fixture fixture_open(int32_t tp, int32_t ep, td_kv_dtype kv, int32_t chunk, uint32_t rings);
/* The same with so many compute threads over all ranks; above, two, or one a rank. */
fixture fixture_open_threads(int32_t tp, int32_t ep, td_kv_dtype kv, int32_t chunk, uint32_t rings,
                             int32_t threads);
void fixture_close(fixture *f);

int32_t fixture_token(int32_t i); /* a deterministic prompt, endless */

/* Prefill positions from .. to of the prompt for sequence s (its pages, and ring s), in chunks.
 * logits: NULL or [to - from, vocab]. Returns the greedy token after the last. */
int32_t fixture_prefill(fixture *f, int s, int32_t from, int32_t to, int32_t chunk, float *logits);

/* One greedy decode step of sequence s. logits: NULL or [vocab]. */
int32_t fixture_decode(fixture *f, int s, int32_t pos, int32_t token, float *logits);

/* What a transfer of n positions moves from one model to another, whatever the two splits: all
 * pages of full layers, and the last window - 1 positions of window layers. */
void fixture_transfer(const fixture *from, int s, fixture *to, int t, int32_t n);

void check_ok(td_status st, const td_error *err);

#endif
