/* json_file: small JSON files of a model folder, read whole and parsed strictly.
 *
 * cJSON alone is lenient in ways that would let a damaged file pass: text after the document, raw
 * control characters, \u0000 that silently cuts a string, nesting up to 1,000. Here those are
 * refused, with the byte where it went wrong. Duplicate keys are kept by cJSON; td_json_key()
 * refuses them at the moment someone asks for the key. */
#ifndef TANDEM_COMMON_JSON_FILE_H
#define TANDEM_COMMON_JSON_FILE_H

#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "common/buf.h"
#include "common/status.h"

/* The end of path, at most 200 bytes, so that a long folder name never pushes the reason out of an
 * error's text. Points into path. */
const char *td_path_tail(const char *path);

/* Open for reading, regular files only. TD_NOTFOUND: nothing there; TD_IO: a folder, a device, or
 * unreadable. *fd is the caller's. */
TD_MUST_CHECK td_status td_file_open(const char *path, int *fd, uint64_t *bytes, td_error *err);

/* Read a whole file of at most max bytes into out, which starts empty and is the caller's to free
 * either way. As td_file_open(), and TD_TOOLARGE. */
TD_MUST_CHECK td_status td_file_read(const char *path, size_t max, td_buf *out, td_error *err);

/* Parse len bytes; text[len] must be NUL. what names the text in messages. The root must be an
 * object; nesting past max_depth is refused. *out is the caller's, to cJSON_Delete(). */
TD_MUST_CHECK td_status td_json_parse(const char *text, size_t len, int max_depth, const char *what,
                                      cJSON **out, td_error *err);

/* The value of key, NULL if absent. TD_INVALID if the object has it twice. */
TD_MUST_CHECK td_status td_json_key(const cJSON *object, const char *key, const char *what,
                                    const cJSON **out, td_error *err);

/* Whether item is a number without a fraction in [lo, hi]; numbers are doubles, so bounds past
 * 2^53 - 1 are cut to it. *out is set on success only. */
bool td_json_int(const cJSON *item, int64_t lo, int64_t hi, int64_t *out);

/* item as compact JSON in buf, cut to fit; "nothing" for NULL. Returns buf. */
const char *td_json_show(const cJSON *item, char *buf, size_t cap);

#endif
