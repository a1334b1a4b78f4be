/* harmony_recipient: whom a message is for, from a word that the model wrote. */
#ifndef TANDEM_ROUTER_HARMONY_RECIPIENT_H
#define TANDEM_ROUTER_HARMONY_RECIPIENT_H

#include "router/harmony_header.h"

typedef struct harmony_recipient {
    harmony_target target; /* NONE: the word names nobody, or the assistant, the user, all */
    bool declared;
    bool odd;      /* the name had to be cut out of the word */
    td_slice name; /* [a-zA-Z0-9_.-], without "functions." */
    size_t used;   /* bytes of the word up to the end of what can be a name */
} harmony_recipient;

/* `word` is what follows "to=". A declared tool wins over what the word says exactly: a content
 * type glued to its end ("shelljson") is taken off when that gives one. */
harmony_recipient harmony_recipient_read(td_slice word, const harmony_names *names);

/* Whether `word` is one of the declared names. */
bool harmony_names_have(const harmony_names *names, td_slice word);

/* Words, compared without regard to ASCII case. */
bool harmony_word_is(td_slice word, const char *lower);
bool harmony_word_begins(td_slice word, const char *lower);

#endif
