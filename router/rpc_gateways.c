/* A gateway lives from its Hello to a lost connection, too long a silence, or its next start. */
#include "router/rpc_api_impl.h"

#include <stdlib.h>

#include <utlist.h>

#include "common/log.h"
#include "common/protocol.h"

enum { URL_BYTES = 160 };

/* ---- NNG's threads ---- */

void rpc_api_report_dead(gateway *g)
{
    incoming in = {.kind = IN_DEAD, .epoch = g->epoch};

    memcpy(in.gateway_id, g->id, sizeof in.gateway_id);
    if (td_mailbox_post(g->api->mailbox, &in) != TD_OK)
        td_logerr("mailbox_full", "gateway=%s", g->id); /* its silence will be noticed instead */
}

static void on_push_dead(void *user, td_status why)
{
    (void)why;
    rpc_api_report_dead(user);
}

static void on_push_peer(void *user, bool up)
{
    if (!up)
        rpc_api_report_dead(user);
}

/* ---- the loop's thread ---- */

void rpc_api_drop_gateway(gateway *g, const char *why)
{
    rpc_api *a = g->api;
    size_t n = 0;

    while (g->streams != NULL) {
        stream *s = g->streams;

        request_cancel_choices(s->q, s->n, "gateway_gone");
        rpc_api_drop_stream(s);
        n++;
    }
    td_info("gateway_gone", "gateway=%s why=\"%s\" streams=%zu", g->id, why, n);
    DL_DELETE(a->gateways, g);
    rpc_push_close(g->push);
    td_buf_free(&g->pending);
    free(g);
}

gateway *rpc_api_find_gateway(rpc_api *a, const char *id, size_t n)
{
    gateway *g;

    DL_FOREACH(a->gateways, g)
    if (strlen(g->id) == n && memcmp(g->id, id, n) == 0)
        return g;
    return NULL;
}

gateway *rpc_api_known(rpc_api *a, ProtobufCBinaryData id)
{
    gateway *g = rpc_api_find_gateway(a, (const char *)id.data, id.len);

    if (g != NULL && g->dead)
        return NULL;
    if (g != NULL)
        g->last_seen = td_now_us();
    return g;
}

td_status rpc_api_open_gateway(rpc_api *a, const Tandem__GatewayHello *h, td_error *err)
{
    gateway *g = rpc_api_find_gateway(a, (const char *)h->gateway_id.data, h->gateway_id.len);
    char url[URL_BYTES];
    rpc_push_options po = {
        .url = url, .max_messages = 1024, .on_dead = on_push_dead, .on_peer = on_push_peer};
    td_status st;

    if (h->major != TD_PROTOCOL_MAJOR)
        return td_fail(err, TD_INVALID, "this router speaks protocol %d.%d, the gateway %u.%u",
                       TD_PROTOCOL_MAJOR, TD_PROTOCOL_MINOR, h->major, h->minor);
    if (h->gateway_id.len == 0 || h->gateway_id.len >= RPC_GATEWAY_ID_BYTES ||
        h->events_url.len == 0 || h->events_url.len >= URL_BYTES)
        return td_fail(err, TD_INVALID,
                       "hello needs a gateway_id of at most %d bytes and an "
                       "events_url of at most %d",
                       RPC_GATEWAY_ID_BYTES - 1, URL_BYTES - 1);
    for (size_t i = 0; i < h->gateway_id.len; i++)
        if (h->gateway_id.data[i] <= 0x20 || h->gateway_id.data[i] >= 0x7f)
            return td_fail(err, TD_INVALID, "gateway_id must be printable ASCII");
    if (g != NULL && g->epoch == h->epoch && !g->dead) {
        g->minor = h->minor;
        g->last_seen = td_now_us();
        return TD_OK; /* it says hello again */
    }
    if (g != NULL)
        rpc_api_drop_gateway(g, "it has started again");
    g = calloc(1, sizeof *g);
    if (g == NULL)
        return td_fail(err, TD_NOMEM, "no memory for a gateway");
    g->api = a;
    g->epoch = h->epoch;
    g->minor = h->minor;
    g->last_seen = td_now_us();
    memcpy(g->id, h->gateway_id.data, h->gateway_id.len);
    memcpy(url, h->events_url.data, h->events_url.len);
    url[h->events_url.len] = '\0';
    po.user = g;
    st = rpc_push_open(&po, &g->push, err);
    if (st != TD_OK) {
        free(g);
        return td_wrap(err, "events_url");
    }
    DL_APPEND(a->gateways, g);
    td_info("gateway_joined", "gateway=%s events=%s", g->id, url);
    return TD_OK;
}
