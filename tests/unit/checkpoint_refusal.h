/* checkpoint_refusal: a folder of three files for each test to damage, and a look at what opening
 * it says then. */
#ifndef TANDEM_TESTS_UNIT_CHECKPOINT_REFUSAL_H
#define TANDEM_TESTS_UNIT_CHECKPOINT_REFUSAL_H

#include "tests/unit/tiny_checkpoint.h"

#define AGAIN "copy it again"
#define INDEX "model.safetensors.index.json"
#define SHARD_0 "model-00000-of-00002.safetensors"
#define SHARD_1 "model-00001-of-00002.safetensors"
#define SHARD_2 "model-00002-of-00002.safetensors"

/* A test whose *state is an intact Hugging Face folder of three files, on disk: a tiny_model. */
#define REFUSAL_CASE(f) cmocka_unit_test_setup_teardown(f, refusal_set_up, refusal_tear_down)
int refusal_set_up(void **state);
int refusal_tear_down(void **state);

/* Open it, and close it where that went well. */
td_status open_dir(const tiny_model *m, td_error *err);

/* Opening it is `status`, and says where it is and each of the texts. */
#define EXPECT(m, status, ...) \
    expect_refusal(m, status, (const char *const[]){m->dir, __VA_ARGS__, NULL})
void expect_refusal(const tiny_model *m, td_status status, const char *const *expected);

void remove_file(const tiny_model *m, const char *file);

#endif
