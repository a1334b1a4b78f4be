/* tokenizer: text to token ids and back, byte for byte as the model's reference does it.
 *
 * Byte-pair encoding over pieces cut by the o200k pattern. The vocabulary comes from the checkpoint
 * (tokenizer.json) or from OpenAI's o200k_base.tiktoken; ids are never assumed, special tokens are
 * found by name.
 *
 * Ordinary text never yields a special token: control tokens enter a prompt as ids only, which is
 * what keeps a caller's text from forging a role. A tokenizer is immutable once open; every
 * function here may be called from any thread at once. Encoding is linear in time, does not
 * recurse, and needs a bit of scratch for each byte of the longest piece. */
#ifndef TANDEM_ROUTER_TOKENIZER_H
#define TANDEM_ROUTER_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"

typedef struct tokenizer tokenizer; /* opaque: only tokenizer.c knows its fields */

/* path: a folder with tokenizer.json in it, a tokenizer.json, or o200k_base.tiktoken (recognised by
 * its suffix; checked by its SHA-256; the special tokens of o200k_harmony are then added).
 * *out is set on success only and is the caller's, to tokenizer_close(). TD_IO: the file cannot be
 * read. TD_INVALID: it is not a vocabulary that can be used exactly, and why. TD_NOMEM. */
TD_MUST_CHECK td_status tokenizer_open(const char *path, tokenizer **out, td_error *err);

/* NULL is fine. No other thread may still use it. */
void tokenizer_close(tokenizer *t);

/* Append the ids of text[0..n) to out. Text that spells a special token is text. Each maximal
 * invalid part of UTF-8 counts as U+FFFD; NUL is a character like others. On failure out is as it
 * was. TD_TOOLARGE: n is over some 700 MB. TD_NOMEM. */
TD_MUST_CHECK td_status tokenizer_encode(const tokenizer *t, const char *text, size_t n,
                                         td_tokens *out, td_error *err);

/* As tokenizer_encode(), but names of special tokens become their ids. For trusted templates and
 * tests: never for a caller's text. */
TD_MUST_CHECK td_status tokenizer_encode_special(const tokenizer *t, const char *text, size_t n,
                                                 td_tokens *out, td_error *err);

/* Id of a special token by its full name, such as "<|start|>"; -1 when there is none. */
int32_t tokenizer_special(const tokenizer *t, const char *name);

/* Any id may be asked for, also a negative one. */
bool tokenizer_is_special(const tokenizer *t, int32_t id);

/* The raw bytes of one token (of a special token: its name), often not whole characters. The slice
 * lives as long as t. False, with *out empty, for an id that has no piece; any id may be given. */
bool tokenizer_bytes(const tokenizer *t, int32_t id, td_slice *out);

/* 1 + the highest id. Ids below it may still have no piece. */
int32_t tokenizer_vocab(const tokenizer *t);

/* Length in bytes of the longest piece, special names included. */
size_t tokenizer_max_piece(const tokenizer *t);

/* Append the bytes of ids[0..n) to out: the exact inverse of encoding valid UTF-8. TD_INVALID: an
 * id without a piece; out is then as it was. TD_NOMEM likewise. */
TD_MUST_CHECK td_status tokenizer_decode(const tokenizer *t, const int32_t *ids, size_t n,
                                         td_buf *out, td_error *err);

#endif
