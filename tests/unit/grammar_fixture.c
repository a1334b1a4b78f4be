#include "tests/unit/grammar_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

td_grammar *compile(const char *schema)
{
    td_grammar *g = NULL;
    td_error err = {0};

    if (td_grammar_from_schema(schema, strlen(schema), &g, &err) != TD_OK)
        fail_msg("%s\n  %s", schema, err.text);
    return g;
}

bool matches(const td_grammar *g, const char *text)
{
    td_matcher *m = NULL;
    td_error err;
    bool ok = true;

    assert_int_equal(td_matcher_create(g, NULL, &m, &err), TD_OK);
    for (const char *c = text; *c != '\0' && ok; c++)
        ok = td_matcher_accept(m, (const uint8_t *)c, 1);
    ok = ok && td_matcher_may_end(m);
    td_matcher_free(m);
    return ok;
}
