/* backend: which backend a test is of, and its being there. */
#ifndef TANDEM_TESTS_OPS_BACKEND_H
#define TANDEM_TESTS_OPS_BACKEND_H

#include "kernels/ops.h"

#define TINY "models/tandem-tiny"

enum {
    BACKEND_NOT_RUN = 77, /* ctest's SKIP_RETURN_CODE */
    START = 2024,         /* <|start|> of tandem-tiny: a message begins */
};

const char *backend(void); /* TANDEM_TEST_BACKEND; "cpu" if unset */

/* Its steps. NULL, with the reason printed: its first device is not in this machine. */
const td_ops *backend_ops(void);

void check_ok(td_status st, const td_error *err); /* fails the test with the error's text */

#endif
