/* vocab_o200k: the vocabulary from OpenAI's own file. */
#ifndef TANDEM_ROUTER_VOCAB_O200K_H
#define TANDEM_ROUTER_VOCAB_O200K_H

#include "common/vocab.h"

/* o200k_base.tiktoken, with the special tokens of o200k_harmony. Any other file is refused
 * (TD_INVALID). *v and errors as for vocab_load_json(). */
TD_MUST_CHECK td_status vocab_load_o200k(vocab *v, const char *text, size_t n, td_error *err);

#endif
