/* A worker is known by its id and told apart from its former lives by its incarnation. The table is
 * a plain array: a router has tens of workers, placement walks all of them anyway, and a snapshot
 * for it is then the array itself. */
#include "router/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/protocol.h"

enum { MISSED_HEARTBEATS = 4, HEARTBEAT_DEFAULT_MS = 500, HEARTBEAT_MAX_MS = 60000 };

/* How long the end of a worker may be known later than the beginning of its next life. */
#define TWIN_GRACE TD_USEC_PER_SEC

struct registry {
    worker_view *workers;
    size_t n, cap;
    int32_t vocab;
    uint64_t sends;   /* messages that gave a worker something to do */
    worker_view twin; /* the last of REGISTRY_TWIN; never one of the workers */
    registry_model model;
};

td_status registry_create(int32_t vocab, registry **out, td_error *err)
{
    registry *r = calloc(1, sizeof *r);

    if (r == NULL)
        return td_fail(err, TD_NOMEM, "registry: no memory");
    r->vocab = vocab;
    *out = r;
    return TD_OK;
}

void registry_free(registry *r)
{
    if (r == NULL)
        return;
    free(r->workers);
    free(r);
}

static worker_view *find(const registry *r, const char *id)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->workers[i].id, id) == 0)
            return &r->workers[i];
    return NULL;
}

const worker_view *registry_find(const registry *r, const char *id)
{
    return find(r, id);
}

const worker_view *registry_view(const registry *r, size_t *n)
{
    *n = r->n;
    return r->workers;
}

const registry_model *registry_model_of(const registry *r)
{
    return &r->model;
}

/* Copy bytes from the wire as a C string. false: empty, too long, or with a byte that would spoil a
 * log line or a URL. */
static bool take_text(ProtobufCBinaryData from, char *to, size_t cap)
{
    if (from.len == 0 || from.len >= cap)
        return false;
    for (size_t i = 0; i < from.len; i++)
        if (from.data[i] <= 0x20 || from.data[i] >= 0x7f)
            return false;
    memcpy(to, from.data, from.len);
    to[from.len] = '\0';
    return true;
}

/* Why this report does not fit what the router serves, or true. */
static bool report_fits(registry *r, const Tandem__WorkerReport *rep, char *why, size_t cap)
{
    const Tandem__ModelIdentity *m = rep->model;
    registry_model *k = &r->model;

    if (rep->major == 0) {
        snprintf(
            why, cap,
            "the worker speaks a protocol older than 1.2, which this router needs: upgrade it");
        return false;
    }
    if (rep->major != TD_PROTOCOL_MAJOR || rep->minor < TD_WORKER_MINOR_MIN) {
        snprintf(why, cap,
                 "the worker speaks protocol %u.%u, this router %d.%d (workers from %d.%d)",
                 rep->major, rep->minor, TD_PROTOCOL_MAJOR, TD_PROTOCOL_MINOR, TD_PROTOCOL_MAJOR,
                 TD_WORKER_MINOR_MIN);
        return false;
    }
    if (m == NULL || m->name.len == 0 || m->name.len >= sizeof k->name) {
        snprintf(why, cap, "the registration carries no model identity");
        return false;
    }
    if (r->vocab > 0 && m->vocab < r->vocab) {
        snprintf(why, cap,
                 "the worker's model has %d vocabulary rows, the router's tokenizer %d ids",
                 m->vocab, r->vocab);
        return false;
    }
    if (!k->known) {
        memcpy(k->name, m->name.data, m->name.len);
        k->name[m->name.len] = '\0';
        k->config_hash = m->config_hash;
        k->checkpoint_hash = m->checkpoint_hash;
        k->kv_wire_hash = m->kv_wire_hash;
        k->vocab = m->vocab;
        k->max_positions = m->max_positions;
        k->known = true;
        return true;
    }
    if (m->name.len != strlen(k->name) || memcmp(m->name.data, k->name, m->name.len) != 0) {
        snprintf(why, cap, "the worker serves \"%.*s\", this router \"%s\"", (int)m->name.len,
                 (const char *)m->name.data, k->name);
        return false;
    }
    if (m->config_hash != k->config_hash || m->checkpoint_hash != k->checkpoint_hash) {
        snprintf(why, cap,
                 "other weights than the workers before it: config %016llx checkpoint %016llx, "
                 "expected %016llx %016llx",
                 (unsigned long long)m->config_hash, (unsigned long long)m->checkpoint_hash,
                 (unsigned long long)k->config_hash, (unsigned long long)k->checkpoint_hash);
        return false;
    }
    if (m->kv_wire_hash != k->kv_wire_hash) {
        snprintf(why, cap,
                 "another KV format (page size, dtype, heads, or GPU memory): %016llx, expected "
                 "%016llx; start all workers with the same --kv-dtype and --backend",
                 (unsigned long long)m->kv_wire_hash, (unsigned long long)k->kv_wire_hash);
        return false;
    }
    return true;
}

/* The last worker of the old model has gone: the next one may bring another. */
static void forget_model_if_empty(registry *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->workers[i].state != WORKER_REFUSED)
            return;
    r->model = (registry_model){0};
}

static td_status add(registry *r, const char *id, worker_view **out, td_error *err)
{
    if (r->n == r->cap) {
        size_t cap = r->cap ? r->cap * 2 : 16;
        worker_view *p = realloc(r->workers, cap * sizeof *p);

        if (p == NULL)
            return td_fail(err, TD_NOMEM, "registry: no memory for %zu workers", cap);
        r->workers = p;
        r->cap = cap;
    }
    *out = &r->workers[r->n++];
    memset(*out, 0, sizeof **out);
    snprintf((*out)->id, sizeof(*out)->id, "%s", id);
    return TD_OK;
}

static void take_load(worker_view *w, const Tandem__WorkerReport *rep)
{
    w->pages_total = rep->pages_total;
    w->pages_free = rep->pages_free;
    w->rings_total = rep->rings_total;
    w->rings_free = rep->rings_free;
    w->max_batch = rep->max_batch;
    w->running = rep->running;
    w->reserved = rep->reserved;
    w->queued_requests = rep->queued_requests;
    w->queued_tokens = rep->queued_tokens;
    w->max_prompt_tokens = rep->max_prompt_tokens;
    w->guides = rep->guides;
    w->sent_pages = w->sent_requests = 0;
    w->sent_tokens = 0;
}

static worker_state state_of(Tandem__WorkerState s)
{
    return s == TANDEM__WORKER_STATE__STATE_READY      ? WORKER_READY
           : s == TANDEM__WORKER_STATE__STATE_DRAINING ? WORKER_DRAINING
                                                       : WORKER_LOADING;
}

/* A report under the id of w, which is alive and another process. */
static void refuse_twin(registry *r, worker_view *w, const Tandem__WorkerMessage *msg,
                        const char *url, td_usec now, worker_view **view, registry_change *change)
{
    worker_view *t = &r->twin;

    *view = NULL;
    if (w->twin_at == 0)
        w->twin_at = now;
    if (now - w->twin_at < TWIN_GRACE)
        return;
    *t = (worker_view){.incarnation = msg->incarnation,
                       .role = (worker_role)msg->report->role,
                       .state = WORKER_REFUSED,
                       .link = msg->report->link};
    memcpy(t->id, w->id, sizeof t->id);
    snprintf(t->rpc_url, sizeof t->rpc_url, "%s", url);
    snprintf(t->refused, sizeof t->refused,
             "the worker at %.120s has the same id and is alive: give each its own --worker-id",
             w->rpc_url);
    *view = t;
    *change = REGISTRY_TWIN;
}

static td_status take_report(registry *r, const char *id, const Tandem__WorkerMessage *msg,
                             td_usec now, worker_view **view, registry_change *change,
                             td_error *err)
{
    const Tandem__WorkerReport *rep = msg->report;
    char url[REGISTRY_URL_BYTES];
    worker_view *w = find(r, id);
    uint32_t beat_ms = rep->heartbeat_ms ? rep->heartbeat_ms : HEARTBEAT_DEFAULT_MS;
    td_status st;

    if (rep->role != TANDEM__ROLE__ROLE_PREFILL && rep->role != TANDEM__ROLE__ROLE_DECODE)
        return td_fail(err, TD_INVALID, "worker %s reports an unknown role %d", id, (int)rep->role);
    if (!take_text(rep->rpc_url, url, sizeof url))
        return td_fail(err, TD_INVALID, "worker %s reports no usable RPC URL", id);
    if (beat_ms > HEARTBEAT_MAX_MS)
        beat_ms = HEARTBEAT_MAX_MS;

    if (w != NULL && w->incarnation != msg->incarnation && now <= w->deadline) {
        refuse_twin(r, w, msg, url, now, view, change);
        return TD_OK;
    }
    if (w == NULL || w->incarnation != msg->incarnation) {
        bool restarted = w != NULL;

        if (w == NULL && (st = add(r, id, &w, err)) != TD_OK)
            return st;
        *w = (worker_view){.incarnation = msg->incarnation};
        snprintf(w->id, sizeof w->id, "%s", id);
        w->role = (worker_role)rep->role;
        w->link = rep->link;
        w->tp = (uint32_t)rep->tp;
        w->ep = (uint32_t)rep->ep;
        memcpy(w->rpc_url, url, sizeof url);
        w->last_seq = msg->seq;
        w->state =
            WORKER_REFUSED; /* until shown to fit: forget_model_if_empty() must not count it */
        forget_model_if_empty(r);
        if (report_fits(r, rep, w->refused, sizeof w->refused)) {
            w->state = state_of(rep->state);
            *change = restarted ? REGISTRY_RESTARTED : REGISTRY_JOINED;
        } else {
            *change = REGISTRY_REFUSED;
        }
    } else if (w->state == WORKER_REFUSED) {
        /* What it did not fit may have gone since. */
        if (report_fits(r, rep, w->refused, sizeof w->refused)) {
            w->state = state_of(rep->state);
            *change = REGISTRY_JOINED;
        }
    } else if (w->state != state_of(rep->state)) {
        w->state = state_of(rep->state);
        if (*change == REGISTRY_NONE)
            *change = REGISTRY_STATE;
    }
    take_load(w, rep);
    w->last_seen = now;
    w->deadline = now + (td_usec)beat_ms * MISSED_HEARTBEATS * TD_USEC_PER_MSEC;
    *view = w;
    return TD_OK;
}

td_status registry_message(registry *r, const Tandem__WorkerMessage *msg, td_usec now,
                           const worker_view **view, registry_change *change, td_error *err)
{
    char id[REGISTRY_ID_BYTES];
    worker_view *w;
    td_status st;

    *view = NULL;
    *change = REGISTRY_NONE;
    if (!take_text(msg->worker_id, id, sizeof id))
        return td_fail(err, TD_INVALID, "a worker's message has no usable worker id");
    w = find(r, id);
    if (w != NULL && w->incarnation == msg->incarnation) {
        if (msg->seq != w->last_seq + 1)
            *change = REGISTRY_GAP;
        w->last_seq = msg->seq;
    } else if (msg->report == NULL) {
        return TD_OK; /* events of one that has been given up and does not know it yet */
    }
    if (msg->report != NULL && (st = take_report(r, id, msg, now, &w, change, err)) != TD_OK)
        return st;
    *view = w; /* also the twin that take_report() made of it, or NULL */
    return TD_OK;
}

bool registry_greeted(registry *r, const char *id, uint64_t incarnation)
{
    worker_view *w = find(r, id);

    if (w == NULL || w->incarnation != incarnation)
        return false;
    w->greeted = true;
    return true;
}

void registry_sent_reserve(registry *r, const char *id, uint32_t pages)
{
    worker_view *w = find(r, id);

    if (w != NULL) {
        w->last_sent = ++r->sends;
        w->sent_pages += pages;
        w->sent_requests++;
    }
}

void registry_sent_prefill(registry *r, const char *id, uint32_t tokens)
{
    worker_view *w = find(r, id);

    if (w != NULL) {
        w->last_sent = ++r->sends;
        w->sent_tokens += tokens;
    }
}

bool registry_remove(registry *r, const char *id)
{
    worker_view *w = find(r, id);

    if (w == NULL)
        return false;
    *w = r->workers[--r->n];
    forget_model_if_empty(r);
    return true;
}

const worker_view *registry_expired(const registry *r, td_usec now)
{
    for (size_t i = 0; i < r->n; i++)
        if (now > r->workers[i].deadline)
            return &r->workers[i];
    return NULL;
}

bool registry_can_serve(const registry *r, const char **why)
{
    bool role[3] = {false, false, false};

    for (size_t i = 0; i < r->n; i++)
        if (r->workers[i].state == WORKER_READY && r->workers[i].greeted)
            role[r->workers[i].role] = true;
    if (why != NULL)
        *why = role[WORKER_PREFILL] && role[WORKER_DECODE] ? "ready"
               : role[WORKER_PREFILL]                      ? "no decode worker is ready"
               : role[WORKER_DECODE]                       ? "no prefill worker is ready"
                                     : "no prefill and no decode worker is ready";
    return role[WORKER_PREFILL] && role[WORKER_DECODE];
}
