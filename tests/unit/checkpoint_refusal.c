#include "tests/unit/checkpoint_refusal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

td_status open_dir(const tiny_model *m, td_error *err)
{
    td_checkpoint *c = NULL;
    td_status st = td_checkpoint_open(m->dir, &m->cfg, &c, err);

    if (st == TD_OK)
        td_checkpoint_close(c);
    else
        assert_null(c);
    return st;
}

void expect_refusal(const tiny_model *m, td_status status, const char *const *expected)
{
    td_error err = {0};
    td_status st = open_dir(m, &err);

    if (st != status)
        fail_msg("%s, not %s: %s", td_status_name(st), td_status_name(status), err.text);
    for (; *expected != NULL; expected++)
        if (strstr(err.text, *expected) == NULL)
            fail_msg("no \"%s\" in: %s", *expected, err.text);
}

int refusal_set_up(void **state)
{
    tiny_model *m = malloc(sizeof *m);

    assert_non_null(m);
    tiny_make(m, false, 3);
    tiny_write(m);
    *state = m;
    return 0;
}

int refusal_tear_down(void **state)
{
    tiny_free(*state);
    free(*state);
    return 0;
}

void remove_file(const tiny_model *m, const char *file)
{
    char path[512];

    tiny_path(m, file, path, sizeof path);
    assert_int_equal(unlink(path), 0);
}
