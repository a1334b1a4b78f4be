/* grammar_random: random schemas, and texts that are or are not valid for them, told from the
 * schema's own tree and not from any grammar. */
#ifndef TANDEM_TESTS_GRAMMAR_RANDOM_H
#define TANDEM_TESTS_GRAMMAR_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"

typedef struct random_schema random_schema;

/* Equal seeds give equal schemas on every machine. */
random_schema *random_schema_create(uint64_t seed);
void random_schema_free(random_schema *s);

/* Its text. */
void random_schema_write(random_schema *s, td_buf *out);

/* A valid text, if there is any. False: it became too long, and is cut. */
bool random_schema_valid(random_schema *s, td_buf *out);

/* A text that is JSON, mostly, and not valid at one place. False: there is no place where it could
 * be told to be wrong. */
bool random_schema_invalid(random_schema *s, td_buf *out);

uint32_t random_schema_below(random_schema *s, uint32_t n);

#endif
