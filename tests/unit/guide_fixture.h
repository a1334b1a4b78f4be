/* guide_fixture: requests as clients write them, guides made of them, and answers drawn from a
 * guide's masks. The vocabulary is that of tests/data/harmony. A test program's one thread. */
#ifndef TANDEM_TESTS_UNIT_GUIDE_FIXTURE_H
#define TANDEM_TESTS_UNIT_GUIDE_FIXTURE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/guide.h"
#include "router/generation.h"

#define FOLDER "tests/data/harmony"
#define SCHEMA \
    "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\"},\"w\":{\"enum\":[\"a\"," \
    "\"bc\"]}}," \
    "\"required\":[\"n\",\"w\"],\"additionalProperties\":false}"
#define FORMAT \
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"pair\"," \
    "\"schema\":" SCHEMA "}}"
#define TOOL(name, strict) \
    "{\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"strict\":" strict \
    ",\"parameters\":" SCHEMA "}}"
#define TOOLS "\"tools\":[" TOOL("get", "true") "," TOOL("get_time", "false") "]"

/* Set by guide_set_up(). */
extern td_guides *guides;
extern int32_t n_ids; /* of the vocabulary */

int guide_set_up(void **state);    /* cmocka group setup */
int guide_tear_down(void **state); /* group teardown */

/* `members` beside a question and the beginning of an answer; must be fine. *g is the caller's, to
 * generation_free(). */
void guide_parse(const char *members, generation *g);

/* g's guide after the tokens of `answer`; the caller's, to td_guide_free(). */
td_guide *guide_open_at(const generation *g, const td_tokens *answer);

bool in_mask(const uint32_t *mask, int32_t id);

/* An answer of tokens drawn from the masks; now and then the guide is made again from the tokens so
 * far and must have the same mask. The caller's, to td_tokens_free(). */
td_tokens guide_walk(const generation *g, uint64_t seed);

#endif
