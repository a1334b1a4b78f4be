/* api_keys: who may ask. A file of keys, one a line; blank lines and lines that begin with '#' say
 * nothing. Only hashes of the keys are held, and a comparison takes the same time whatever is
 * presented. The loop's thread. */
#ifndef TANDEM_ROUTER_API_KEYS_H
#define TANDEM_ROUTER_API_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/status.h"

enum {
    API_KEY_MIN_BYTES = 16,
    API_KEY_MAX_BYTES = 512,
    API_KEYS_MAX = 10000,
    API_KEY_OWNER = 65, /* bytes of a key's hash as text, with its NUL */
};

typedef struct api_keys api_keys;

/* Read a file that is the keys' from then on. TD_IO: it cannot be read; TD_INVALID: a line of it is
 * no key (errors give its number, never the line), or there is none at all. */
TD_MUST_CHECK td_status api_keys_open(const char *path, api_keys **out, td_error *err);
void api_keys_free(api_keys *k); /* NULL is fine */

/* Read the file again. On failure the keys are as they were. */
TD_MUST_CHECK td_status api_keys_reload(api_keys *k, td_error *err);
/* Whether the file is another one, or was written to, since it was read last; an unreadable one is
 * not. A file that could not be taken is not reported again until it changes again. */
bool api_keys_changed(api_keys *k);

size_t api_keys_count(const api_keys *k);

/* The value of an Authorization header ("Bearer KEY"); NULL: there was none. owner: the key's hash,
 * which says whose something is, where the key is one of ours; may be NULL. */
bool api_keys_admit(const api_keys *k, const char *authorization, char owner[API_KEY_OWNER]);

#endif
