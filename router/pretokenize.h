/* pretokenize: cuts text into the pieces of the o200k pattern.
 *
 * The reference is a regular expression of seven alternatives (see VOCAB_PATTERN). Engines
 * backtrack on it, and some overflow their stack on a million equal letters, so this is a scanner
 * written by hand: it looks at each character a small fixed number of times, keeps no state, and
 * never fails. A property test holds it against PCRE2. */
#ifndef TANDEM_ROUTER_PRETOKENIZE_H
#define TANDEM_ROUTER_PRETOKENIZE_H

#include <stddef.h>

/* End of the piece that starts at text[i]. text[0..n) must be valid UTF-8 and i < n the start of a
 * character; the result is in (i, n] and the start of a character again, or n. */
size_t pretokenize_next(const char *text, size_t n, size_t i);

#endif
