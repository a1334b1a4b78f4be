/* harmony_header: what a message header says, read leniently.
 *
 * A header is what stands between <|start|> and <|message|>: the author, a recipient, a channel, a
 * content type. Models write it in two orders, glue words together, repeat parts or leave them out.
 * It is collected as text cut into parts at the control tokens, and read once, at its end. */
#ifndef TANDEM_ROUTER_HARMONY_HEADER_H
#define TANDEM_ROUTER_HARMONY_HEADER_H

#include "common/buf.h"
#include "router/harmony_parse.h"

typedef enum harmony_part {
    HARMONY_PART_ROLE,      /* from the beginning */
    HARMONY_PART_CHANNEL,   /* after <|channel|> */
    HARMONY_PART_CONSTRAIN, /* after <|constrain|> */
} harmony_part;

/* Collected so far. Zero-initialise. */
typedef struct harmony_header {
    td_buf text;       /* bytes of all parts; need not be valid UTF-8 */
    td_tokens marks;   /* pairs: where a part begins in text, which harmony_part */
    bool role_open;    /* the author is still to come: the first word names it */
    uint64_t text_ids; /* ids that added text */
} harmony_header;

void harmony_header_clear(harmony_header *hd, bool role_open);
void harmony_header_mark(harmony_header *hd, harmony_part part);
void harmony_header_free(harmony_header *hd);

typedef enum harmony_channel {
    HARMONY_NO_CHANNEL, /* none, or none that is known */
    HARMONY_ANALYSIS,
    HARMONY_COMMENTARY,
    HARMONY_FINAL,
} harmony_channel;

/* A known channel that text begins with, in any case; *len is the length of its name. */
harmony_channel harmony_channel_prefix(td_slice text, size_t *len);

/* Whether text, in any case, is the beginning of a known channel, or nothing. */
bool harmony_channel_begins(td_slice text);

typedef enum harmony_author {
    HARMONY_AUTHOR_ASSISTANT, /* also when it is missing or no known role */
    HARMONY_AUTHOR_TOOL,
    HARMONY_AUTHOR_OTHER, /* user, system, developer */
} harmony_author;

typedef enum harmony_target {
    HARMONY_TARGET_NONE,
    HARMONY_TARGET_UNKNOWN,  /* neither a function nor a built-in tool */
    HARMONY_TARGET_BUILTIN,  /* browser, python: nobody runs them here */
    HARMONY_TARGET_FUNCTION, /* "functions." something, or a declared tool */
} harmony_target;

/* Slices lie in the header's text. */
typedef struct harmony_heading {
    harmony_author author;
    harmony_channel channel;
    harmony_target target;
    bool declared; /* the target is a tool that the request declared */
    td_slice name; /* of the target, without "functions." */
    td_slice body; /* harmony_header_read_body() only: what is not header, trimmed */
} harmony_heading;

/* Names of the declared tools, without "functions.". */
typedef struct harmony_names {
    const td_slice *ptr;
    size_t n;
} harmony_names;

/* Read a header that <|message|> ended. Each oddity adds to repairs[HARMONY_REPAIR_...]. */
harmony_heading harmony_header_read(const harmony_header *hd, const harmony_names *names,
                                    uint32_t *repairs);

/* Read a header that ended without <|message|>: from the first word of its last part that is no
 * header, the rest is content, byte for byte. */
harmony_heading harmony_header_read_body(const harmony_header *hd, const harmony_names *names,
                                         uint32_t *repairs);

#endif
