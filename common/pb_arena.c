/* A bump allocator over chunks.
 *
 * free() does nothing: protobuf-c's clean-up after a failed unpack walks half-made messages, and
 * 1.4.1 has a case in which it frees a pointer that was never set (mended in 1.5.1). Here that
 * touches nothing. One chunk is kept between messages, so that a steady stream of small messages
 * costs no malloc at all. */
#include "common/pb_arena.h"

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

#define CHUNK_BYTES ((size_t)32 << 10)
#define KEPT_BYTES ((size_t)1 << 20) /* the largest chunk worth keeping for the next message */
#define ALIGN ((size_t)16)

struct td_pb_chunk {
    td_pb_chunk *next;
    size_t cap, used;
    _Alignas(16) unsigned char bytes[];
};

static td_pb_chunk *chunk_create(size_t at_least)
{
    size_t cap = at_least > CHUNK_BYTES ? at_least : CHUNK_BYTES;
    td_pb_chunk *c = malloc(sizeof *c + cap);

    if (c == NULL)
        return NULL;
    c->next = NULL;
    c->cap = cap;
    c->used = 0;
    ASAN_POISON_MEMORY_REGION(c->bytes, c->cap);
    return c;
}

static void chunk_free(td_pb_chunk *c)
{
    ASAN_UNPOISON_MEMORY_REGION(c->bytes, c->cap);
    free(c);
}

static void *arena_alloc(void *arena, size_t n)
{
    td_pb_arena *a = arena;
    td_pb_chunk *c = a->chunks;
    unsigned char *p;
    size_t room;

    if (n > a->cap - a->used) {
        a->over = true;
        return NULL;
    }
    a->used += n;
    room = (n + ALIGN - 1) / ALIGN * ALIGN; /* n is at most TD_PB_MAX here */
    if (c == NULL || room > c->cap - c->used) {
        c = chunk_create(room);
        if (c == NULL) {
            a->no_memory = true;
            return NULL;
        }
        c->next = a->chunks;
        a->chunks = c;
    }
    p = c->bytes + c->used;
    c->used += room;
    ASAN_UNPOISON_MEMORY_REGION(p, n);
    return p;
}

static void arena_free(void *arena, void *p)
{
    (void)arena;
    (void)p;
}

void td_pb_arena_init(td_pb_arena *a)
{
    *a = (td_pb_arena){0};
}

/* Forget the last message; its memory is given back but for one chunk. */
static void arena_reset(td_pb_arena *a, size_t message_bytes)
{
    td_pb_chunk *kept = NULL, *next;

    for (td_pb_chunk *c = a->chunks; c != NULL; c = next) {
        next = c->next;
        if (kept == NULL && c->cap <= KEPT_BYTES)
            kept = c;
        else
            chunk_free(c);
    }
    if (kept != NULL) {
        kept->next = NULL;
        kept->used = 0;
        ASAN_POISON_MEMORY_REGION(kept->bytes, kept->cap);
    }
    a->allocator = (ProtobufCAllocator){arena_alloc, arena_free, a};
    a->chunks = kept;
    a->used = 0;
    a->over = a->no_memory = false;
    a->cap = message_bytes >= TD_PB_MAX / TD_PB_FACTOR ? TD_PB_MAX
                                                       : message_bytes * TD_PB_FACTOR + TD_PB_SLACK;
    if (a->cap > TD_PB_MAX)
        a->cap = TD_PB_MAX;
}

void td_pb_arena_fini(td_pb_arena *a)
{
    td_pb_chunk *next;

    for (td_pb_chunk *c = a->chunks; c != NULL; c = next) {
        next = c->next;
        chunk_free(c);
    }
    *a = (td_pb_arena){0};
}

void *td_pb_unpack(td_pb_arena *a, const ProtobufCMessageDescriptor *type, const void *bytes,
                   size_t n, td_error *err)
{
    static const unsigned char none[1];
    ProtobufCMessage *msg;

    arena_reset(a, n);
    msg = protobuf_c_message_unpack(type, &a->allocator, n, n > 0 ? bytes : none);
    if (msg != NULL)
        return msg;
    if (a->over)
        td_fail(err, TD_TOOLARGE, "%s of %zu bytes: unpacks to more than %zu bytes", type->name, n,
                a->cap);
    else if (a->no_memory)
        td_fail(err, TD_NOMEM, "%s of %zu bytes: no memory to unpack it", type->name, n);
    else
        td_fail(err, TD_INVALID, "%zu bytes are not a valid %s", n, type->name);
    return NULL;
}
