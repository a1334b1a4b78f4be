/* rpc_api: the router's port for an API gateway: the same requests as over HTTP, by protobuf over
 * NNG.
 *
 *   gateway  REQ   Hello, Generate, Cancel, Ping  ->  REP   router
 *   gateway  PULL  <-  PUSH  Events{seq, many pieces of many answers}
 *
 * One message of events a gateway and turn of the loop, so their number grows with decode steps and
 * not with streams. A gateway that stops answering or is silent too long is gone, and its streams
 * are canceled. On the loop's thread; NNG's threads only post. */
#ifndef TANDEM_ROUTER_RPC_API_H
#define TANDEM_ROUTER_RPC_API_H

#include "router/router.h"

typedef struct rpc_api rpc_api;

/* Listen on the router's --rpc-listen. TD_INVALID, TD_IO, TD_NOMEM. */
TD_MUST_CHECK td_status rpc_api_create(router *r, rpc_api **out, td_error *err);

/* Cancels what is still running. Before the router is freed; NULL is fine. */
void rpc_api_free(rpc_api *a);

#endif
