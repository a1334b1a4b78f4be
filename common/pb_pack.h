/* pb_pack: a message as bytes. */
#ifndef TANDEM_COMMON_PB_PACK_H
#define TANDEM_COMMON_PB_PACK_H

#include <stdint.h>
#include <stdlib.h>

#include <protobuf-c/protobuf-c.h>

/* The *n bytes of m (the `base` of any message), the caller's to free(); NULL: no memory,
 * and *n is set all the same. Any thread, while nobody changes m. */
static inline uint8_t *td_pb_pack(const ProtobufCMessage *m, size_t *n)
{
    uint8_t *bytes;

    *n = protobuf_c_message_get_packed_size(m);
    bytes = malloc(*n ? *n : 1);
    if (bytes != NULL)
        protobuf_c_message_pack(m, bytes);
    return bytes;
}

#endif
