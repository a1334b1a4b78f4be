/* harmony_parser_impl: what a parser is made of. Only harmony_parse.c (its states) and
 * harmony_parser.c (its beginning and end) may know. */
#ifndef TANDEM_ROUTER_HARMONY_PARSER_IMPL_H
#define TANDEM_ROUTER_HARMONY_PARSER_IMPL_H

#include "router/harmony_header.h"
#include "router/harmony_parse.h"
#include "router/harmony_recipient.h"
#include "router/harmony_writer.h"

typedef enum state {
    ST_BETWEEN,
    ST_HEADER,
    ST_CONTENT,
    ST_DONE,
} state;

/* How the header that is being collected began. */
typedef enum origin {
    FROM_PROMPT, /* the prompt's <|start|>assistant */
    FROM_START,  /* a <|start|> of the model */
    FROM_TEXT,   /* text where a <|start|> was due */
    FROM_MARKER, /* <|channel|> or <|message|> where a <|start|> was due */
} origin;

struct harmony_parser {
    const harmony *h;
    harmony_ids ids;
    harmony_writer out;
    chat text; /* owns the names */
    td_slice *name_list;
    harmony_names names;
    td_tokens prime; /* fed before the first id: what the prompt already fixed */

    state state;
    origin origin;
    harmony_header header;

    bool after_analysis; /* the last message was reasoning */
    bool marker_waits;   /* a <|channel|> came inside content... */
    td_buf waiting;      /* ...and this text after it */
    td_buf bare;         /* text of a message that had no header at all */
    uint64_t bare_ids;   /* the ids that made it */

    harmony_stats stats;
    bool primed, finished, oom;
};

/* Start to collect a header. */
static inline void begin_header(harmony_parser *p, origin from)
{
    harmony_header_clear(&p->header, from == FROM_START);
    p->origin = from;
    p->state = ST_HEADER;
}

#endif
