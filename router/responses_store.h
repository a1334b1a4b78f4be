/* responses_store: finished responses, for a while, by id: so that a client may look one up, or go
 * on from it by previous_response_id. Bounded in bytes: the oldest make room, and none outlives its
 * time; memory of those whose time is over comes back with the next use. Each has an owner, to
 * anybody else there is no such response. In this process only: another router knows nothing of
 * them.
 *
 * One thread at a time; time is passed in. */
#ifndef TANDEM_ROUTER_RESPONSES_STORE_H
#define TANDEM_ROUTER_RESPONSES_STORE_H

#include "common/buf.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/status.h"

typedef struct responses_store responses_store;

enum { RESPONSES_MAX_OWNER = 64 };

/* gauge follows the bytes; NULL: none. TD_NOMEM. *out is set on success only. */
TD_MUST_CHECK td_status responses_store_create(size_t max_bytes, td_usec ttl, td_gauge *gauge,
                                               responses_store **out, td_error *err);
void responses_store_free(responses_store *s); /* NULL is fine */

/* Keep a response under its id, which is new. owner: up to 64 characters, "" is one too. object and
 * items are moved, and freed where there is no room for them or no memory. object: the response as
 * JSON; items: the conversation that it ends, as JSON with commas between; own: where in it the
 * response's own begin. */
void responses_store_add(responses_store *s, const char *owner, const char *id, td_buf *object,
                         td_buf *items, size_t own, td_usec now);

/* What is kept under an id, until the next call; each of object and items may be NULL. */
bool responses_store_find(responses_store *s, const char *owner, td_slice id, td_usec now,
                          td_slice *object, td_slice *items);

/* The same of a response's own items alone. */
bool responses_store_find_own(responses_store *s, const char *owner, td_slice id, td_usec now,
                              td_slice *items);

/* False: there is none. */
bool responses_store_remove(responses_store *s, const char *owner, td_slice id, td_usec now);

size_t responses_store_bytes(const responses_store *s);

#endif
