/* ops: which backends this build has. */
#include "kernels/ops.h"

#include <string.h>

#ifdef TANDEM_HAS_CUDA
extern const td_ops td_ops_cuda;
#endif

td_status td_ops_find(const char *name, const td_ops **out, td_error *err)
{
    static const td_ops *const backends[] = {
        &td_ops_cpu,
#ifdef TANDEM_HAS_CUDA
        &td_ops_cuda,
#endif
    };

    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (strcmp(backends[i]->name, name) == 0) {
            *out = backends[i];
            return TD_OK;
        }
#ifdef TANDEM_HAS_CUDA
    return td_fail(err, TD_INVALID, "backend \"%s\" is unknown: use cpu or cuda", name);
#else
    return td_fail(err, TD_INVALID, "backend \"%s\" is not in this build: use cpu", name);
#endif
}
