/* graph_backend: the CPU's backend with graphs, which keep each step's arguments and run them
 * again. What a graph cannot hold ends the test when it comes while one is captured. One rank at a
 * time. */
#ifndef TANDEM_TESTS_UNIT_GRAPH_BACKEND_H
#define TANDEM_TESTS_UNIT_GRAPH_BACKEND_H

#include "kernels/ops.h"

typedef struct graph_counts {
    int captured, launched, alive;
    int refuse_captures; /* set it, and graphs cannot be made */
} graph_counts;

extern graph_counts graph_seen; /* since the last ops_with_graphs() */

td_ops ops_with_graphs(void);

#endif
