/* harmony_writer: one message after another as events of a sink.
 *
 * Knows what is open and what has been sent: puts bytes together to characters, joins messages of
 * a kind with a line feed, numbers the calls, turns blank arguments into "{}". What a message is
 * and when it ends is the parser's to say. */
#ifndef TANDEM_ROUTER_HARMONY_WRITER_H
#define TANDEM_ROUTER_HARMONY_WRITER_H

#include "router/harmony_parse.h"
#include "router/utf8_stream.h"

/* Kind of the open message; one for nobody is swallowed. */
typedef enum harmony_route {
    HARMONY_TO_REASONING = HARMONY_REASONING,
    HARMONY_TO_CONTENT = HARMONY_CONTENT,
    HARMONY_TO_CALL = HARMONY_CALL,
    HARMONY_TO_NOBODY,
} harmony_route;

/* Zero-initialise, then set sink, user and stats. */
typedef struct harmony_writer {
    harmony_sink sink;
    void *user;
    harmony_stats *stats;
    harmony_route route; /* of the open message */
    size_t call;         /* index of the open call */
    bool wrote;          /* the open message has sent text */
    td_buf blank;        /* white space at the start of arguments */
    utf8_stream utf8;
    td_buf scratch;
    bool oom;
} harmony_writer;

/* `name` is that of the function, for a call. */
void harmony_writer_open(harmony_writer *w, harmony_route to, td_slice name);
/* Bytes of the open message, which may end inside a character. */
void harmony_writer_bytes(harmony_writer *w, td_slice bytes);
/* An id without a piece: one U+FFFD, after what was waiting. */
void harmony_writer_unknown(harmony_writer *w);
void harmony_writer_close(harmony_writer *w, bool complete);
void harmony_writer_fini(harmony_writer *w);

#endif
