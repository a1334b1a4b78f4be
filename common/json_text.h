/* json_text: JSON text looked through before cJSON makes a tree of it.
 *
 * cJSON is lenient where that would change what was said: a raw control character passes, 01 is a
 * number, and \u0000, or \u without four hex digits, silently ends the string that it stands in.
 * It also recurses for each level of nesting. Whoever hands text to cJSON asks here first. */
#ifndef TANDEM_COMMON_JSON_TEXT_H
#define TANDEM_COMMON_JSON_TEXT_H

#include <stddef.h>

typedef enum td_json_fault {
    TD_JSON_FINE,
    TD_JSON_NUL_BYTE,      /* a byte 0 in the text */
    TD_JSON_CONTROL,       /* another control character, where JSON has none */
    TD_JSON_NUL_CHARACTER, /* \u0000, which no text here may hold */
    TD_JSON_ESCAPE,        /* \u without four hex digits behind it */
    TD_JSON_NUMBER,        /* a number that is not written as JSON has it */
    TD_JSON_DEPTH,         /* more than max_depth levels */
    TD_JSON_VALUES,        /* more than max_values values */
} td_json_fault;

/* text[0..n) is UTF-8. *at is where the fault stands. What this finds fine may still be no JSON:
 * that is for the parser to say. */
td_json_fault td_json_look(const char *text, size_t n, int max_depth, size_t max_values,
                           size_t *at);

/* Where text[at] stands, as "messages[0].content"; of a name, the object that has it. "" outside
 * everything. What has no room in out[0..cap) is left out at the end. text[0..at) passed
 * td_json_look(). */
void td_json_place(const char *text, size_t at, char *out, size_t cap);

#endif
