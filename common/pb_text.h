/* pb_text: a text as a bytes field of a message. */
#ifndef TANDEM_COMMON_PB_TEXT_H
#define TANDEM_COMMON_PB_TEXT_H

#include <stdint.h>
#include <string.h>

#include <protobuf-c/protobuf-c.h>

/* Without its NUL, and not copied: s lives until the message has been packed, and is not written
 * to. */
static inline ProtobufCBinaryData td_pb_text(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
}

#endif
