/* gateway_client: the RPC door of a router, as a gateway comes to it. */
#ifndef TANDEM_TESTS_E2E_GATEWAY_CLIENT_H
#define TANDEM_TESTS_E2E_GATEWAY_CLIENT_H

#include "client/gateway.h"
#include "tests/e2e/cluster.h"

/* The URL that the router's log names; the test fails where there is none. */
void rpc_url(const process *router, char *out, size_t cap);

/* A connection to it, of the caller's; the test fails where there is none. */
gateway *open_gateway(const process *router);

#endif
