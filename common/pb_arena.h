/* pb_arena: memory of one unpacked protobuf message, with a hard bound.
 *
 * protobuf-c unpacks a megabyte of hostile bytes into 56 of structures, one malloc each. Here they
 * come from chunks that are given back together, and never more than TD_PB_FACTOR times the message
 * plus TD_PB_SLACK, or TD_PB_MAX: past that the unpack fails. A message lives until the next
 * td_pb_unpack() or td_pb_arena_fini() of its arena, and is never freed by itself.
 *
 * An arena belongs to one thread at a time. */
#ifndef TANDEM_COMMON_PB_ARENA_H
#define TANDEM_COMMON_PB_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include <protobuf-c/protobuf-c.h>

#include "common/status.h"

#define TD_PB_FACTOR ((size_t)16) /* a step of 4096 one-token events, 16 bytes each, needs 11 */
#define TD_PB_SLACK ((size_t)64 << 10)
#define TD_PB_MAX ((size_t)64 << 20)

typedef struct td_pb_chunk td_pb_chunk;

/* Fields are pb_arena.c's. Allocates nothing until it is used. */
typedef struct td_pb_arena {
    ProtobufCAllocator allocator;
    td_pb_chunk *chunks;  /* the first is the one in use */
    size_t used, cap;     /* bytes handed out for this message, and the bound */
    bool over, no_memory; /* an allocation was refused for the bound; by malloc */
} td_pb_arena;

void td_pb_arena_init(td_pb_arena *a);
void td_pb_arena_fini(td_pb_arena *a); /* zeroed memory, and again, is fine */

/* Unpack n bytes (NULL is fine when n is 0) into the arena; what it held before is gone. Returns
 * the message, of the C type that belongs to `type`, or NULL with err set. TD_INVALID: not such a
 * message; TD_TOOLARGE: over the bound; TD_NOMEM. */
TD_MUST_CHECK void *td_pb_unpack(td_pb_arena *a, const ProtobufCMessageDescriptor *type,
                                 const void *bytes, size_t n, td_error *err);

#endif
