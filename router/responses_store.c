/* A table, and a list in the order of arrival, which is that of expiry too. */
#include "router/responses_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <uthash.h>
#include <utlist.h>

typedef struct entry {
    char *id;
    char owner[RESPONSES_MAX_OWNER + 1];
    td_buf object, items;
    size_t bytes, own;
    td_usec until;
    struct entry *prev, *next;
    UT_hash_handle hh;
} entry;

struct responses_store {
    entry *table, *oldest;
    size_t bytes, max_bytes;
    td_usec ttl;
    td_gauge *gauge; /* of bytes, or NULL */
};

td_status responses_store_create(size_t max_bytes, td_usec ttl, td_gauge *gauge,
                                 responses_store **out, td_error *err)
{
    responses_store *s = calloc(1, sizeof *s);

    if (s == NULL)
        return td_fail(err, TD_NOMEM, "no memory for stored responses");
    s->max_bytes = max_bytes;
    s->ttl = ttl;
    s->gauge = gauge;
    *out = s;
    return TD_OK;
}

static void count(responses_store *s, size_t bytes)
{
    s->bytes = bytes;
    if (s->gauge != NULL)
        td_gauge_set(s->gauge, (double)bytes);
}

static void drop(responses_store *s, entry *e)
{
    HASH_DEL(s->table, e);
    DL_DELETE(s->oldest, e);
    count(s, s->bytes - e->bytes);
    td_buf_free(&e->object);
    td_buf_free(&e->items);
    free(e->id);
    free(e);
}

void responses_store_free(responses_store *s)
{
    if (s == NULL)
        return;
    while (s->oldest != NULL)
        drop(s, s->oldest);
    free(s);
}

static void drop_expired(responses_store *s, td_usec now)
{
    while (s->oldest != NULL && s->oldest->until <= now)
        drop(s, s->oldest);
}

void responses_store_add(responses_store *s, const char *owner, const char *id, td_buf *object,
                         td_buf *items, size_t own, td_usec now)
{
    size_t bytes = sizeof(entry) + strlen(id) + 1 + object->cap + items->cap;
    entry *e = bytes <= s->max_bytes ? calloc(1, sizeof *e) : NULL;

    drop_expired(s, now);
    if (e != NULL)
        e->id = strdup(id);
    if (e == NULL || e->id == NULL || object->oom || items->oom) {
        if (e != NULL)
            free(e->id);
        free(e);
        td_buf_free(object);
        td_buf_free(items);
        return;
    }
    while (s->oldest != NULL && s->bytes + bytes > s->max_bytes)
        drop(s, s->oldest);
    snprintf(e->owner, sizeof e->owner, "%s", owner);
    e->object = *object;
    e->items = *items;
    e->own = own;
    e->bytes = bytes;
    e->until = now + s->ttl;
    *object = *items = (td_buf){0};
    HASH_ADD_KEYPTR(hh, s->table, e->id, strlen(e->id), e);
    DL_APPEND(s->oldest, e);
    count(s, s->bytes + bytes);
}

static entry *find(responses_store *s, const char *owner, td_slice id, td_usec now)
{
    entry *e;

    drop_expired(s, now);
    HASH_FIND(hh, s->table, id.ptr, id.len, e);
    return e != NULL && strcmp(e->owner, owner) == 0 ? e : NULL;
}

bool responses_store_find(responses_store *s, const char *owner, td_slice id, td_usec now,
                          td_slice *object, td_slice *items)
{
    const entry *e = find(s, owner, id, now);

    if (e == NULL)
        return false;
    if (object != NULL)
        *object = (td_slice){e->object.ptr, e->object.len};
    if (items != NULL)
        *items = (td_slice){e->items.ptr, e->items.len};
    return true;
}

bool responses_store_find_own(responses_store *s, const char *owner, td_slice id, td_usec now,
                              td_slice *items)
{
    const entry *e = find(s, owner, id, now);

    if (e == NULL)
        return false;
    *items = (td_slice){e->items.ptr + e->own, e->items.len - e->own};
    return true;
}

bool responses_store_remove(responses_store *s, const char *owner, td_slice id, td_usec now)
{
    entry *e = find(s, owner, id, now);

    if (e != NULL)
        drop(s, e);
    return e != NULL;
}

size_t responses_store_bytes(const responses_store *s)
{
    return s->bytes;
}
