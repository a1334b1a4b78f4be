#include "tests/e2e/gateway_client.h"

void rpc_url(const process *router, char *out, size_t cap)
{
    process_log_word(router, "rpc_listening url=", out, cap);
}

gateway *open_gateway(const process *router)
{
    char url[160];
    gateway *g;
    td_error err = {0};

    rpc_url(router, url, sizeof url);
    if (gateway_open(&(gateway_options){.router = url}, &g, &err) != TD_OK)
        fail_msg("%s", err.text);
    return g;
}
