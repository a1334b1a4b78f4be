/* json_escapes: what an escape in a client's JSON may say that no text can hold. */
#ifndef TANDEM_ROUTER_JSON_ESCAPES_H
#define TANDEM_ROUTER_JSON_ESCAPES_H

#include <stddef.h>

#include "common/buf.h"

/* Half a surrogate pair is what is left of a character that a client has cut; it stands for U+FFFD,
 * as in every decoder that does not refuse it. Returns how many escapes of that kind the strings of
 * a body have; when there are any, *out gets the body with each of them replaced, of equal length
 * and NUL-terminated. `body` need not be valid JSON. Lost memory shows in out->oom. */
size_t json_mend_surrogates(const char *body, size_t n, td_buf *out);

#endif
