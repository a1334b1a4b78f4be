/* grammar_fixture: grammars of schemas, and whether a text is one of theirs. */
#ifndef TANDEM_TESTS_UNIT_GRAMMAR_FIXTURE_H
#define TANDEM_TESTS_UNIT_GRAMMAR_FIXTURE_H

#include "common/grammar.h"

/* Must be supported. The caller's, to td_grammar_free(). */
td_grammar *compile(const char *schema);

/* Whether text is whole in g, one byte at a time. */
bool matches(const td_grammar *g, const char *text);

#endif
