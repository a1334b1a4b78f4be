#include "tests/ops/backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

void check_ok(td_status st, const td_error *err)
{
    if (st != TD_OK)
        fail_msg("%s: %s", td_status_name(st), err->text);
}

const char *backend(void)
{
    const char *name = getenv("TANDEM_TEST_BACKEND");

    return name != NULL ? name : "cpu";
}

const td_ops *backend_ops(void)
{
    static const td_ops *found; /* opening a GPU takes seconds */
    const td_ops *ops;
    td_dev *dev = NULL;
    td_error err = {0};

    if (found != NULL)
        return found;
    if (td_ops_find(backend(), &ops, &err) != TD_OK ||
        ops->dev_open(&(td_dev_options){.threads = 1}, &dev, &err) != TD_OK) {
        print_message("[  SKIPPED ] backend %s: %s\n", backend(), err.text);
        return NULL;
    }
    ops->dev_close(dev);
    return found = ops;
}
