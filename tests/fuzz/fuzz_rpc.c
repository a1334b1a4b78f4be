/* Any bytes as each of the messages that cross between processes; all others are parts of these.
 * The first byte picks one. What unpacks must pack, unpack and pack again to the same bytes; and
 * the route of a request is found in any bytes, or not. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/pb_arena.h"
#include "common/rpc_link.h"
#include "proto/tandem.pb-c.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const ProtobufCMessageDescriptor *const types[] = {
    &tandem__worker_message__descriptor, &tandem__worker_request__descriptor,
    &tandem__worker_reply__descriptor,   &tandem__gateway_request__descriptor,
    &tandem__gateway_reply__descriptor,  &tandem__gateway_events__descriptor,
};

static void strip(ProtobufCMessage *msg);

static void strip_field(ProtobufCMessage *msg, const ProtobufCFieldDescriptor *f)
{
    const uint8_t *base = (const uint8_t *)msg;
    const void *member = base + f->offset, *quantifier = base + f->quantifier_offset;

    if (f->type != PROTOBUF_C_TYPE_MESSAGE)
        return;
    if (f->label == PROTOBUF_C_LABEL_REPEATED) {
        for (size_t i = 0; i < *(const size_t *)quantifier; i++)
            strip((*(ProtobufCMessage *const *const *)member)[i]);
    } else if (!(f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) ||
               *(const uint32_t *)quantifier == f->id) {
        strip(*(ProtobufCMessage *const *)member);
    }
}

/* Without the fields that are not known here: protobuf-c takes some, as number 0, that it does not
 * take again after packing them. */
static void strip(ProtobufCMessage *msg)
{
    if (msg == NULL)
        return;
    msg->n_unknown_fields = 0;
    for (unsigned i = 0; i < msg->descriptor->n_fields; i++)
        strip_field(msg, &msg->descriptor->fields[i]);
}

static uint8_t *pack(const void *msg, size_t *n)
{
    uint8_t *bytes;

    *n = protobuf_c_message_get_packed_size(msg);
    bytes = malloc(*n + 1);
    td_assert(bytes != NULL);
    td_assert(protobuf_c_message_pack(msg, bytes) == *n);
    return bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const ProtobufCMessageDescriptor *type;
    td_pb_arena first, second;
    td_error err = {0};
    uint8_t *bytes;
    size_t route;
    void *msg;

    if (size == 0)
        return 0;
    type = types[data[0] % (sizeof types / sizeof types[0])];
    data++;
    size--;
    route = rpc_route_bytes(data, size);
    td_assert(route <= size && route <= RPC_MAX_ROUTE && route % 4 == 0);

    bytes = malloc(size + 1); /* at the end of its block, so that reading past it is seen */
    td_assert(bytes != NULL);
    if (size > 0)
        memcpy(bytes + 1, data, size);
    td_pb_arena_init(&first);
    td_pb_arena_init(&second);
    msg = td_pb_unpack(&first, type, bytes + 1, size, &err);
    free(bytes); /* nothing of the message may point into it */
    td_assert(first.used <= TD_PB_MAX);
    if (msg == NULL) {
        td_assert(err.code == TD_INVALID || err.code == TD_TOOLARGE);
    } else {
        size_t n, n_again;
        uint8_t *again;

        strip(msg);
        bytes = pack(msg, &n);
        msg = td_pb_unpack(&second, type, bytes, n, &err);
        td_assert(msg != NULL || err.code == TD_TOOLARGE);
        if (msg != NULL) {
            again = pack(msg, &n_again);
            td_assert(n_again == n && memcmp(bytes, again, n) == 0);
            free(again);
        }
        free(bytes);
    }
    td_pb_arena_fini(&first);
    td_pb_arena_fini(&second);
    return 0;
}
