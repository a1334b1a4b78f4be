/* mailbox: how other threads hand work to the thread that owns a structure.
 *
 * Many threads post fixed-size messages (a struct, or a pointer to one); one consumer takes them in
 * batches. Messages of one thread keep their order. A post copies the message, so nothing of the
 * poster's is referenced afterwards, except what the message points to: that is the consumer's once
 * the post returned TD_OK, and still the poster's after any other status.
 *
 * The mailbox's fd is readable exactly while there is something to take or the mailbox is closed,
 * so an event loop watches the fd (level-triggered) and a plain thread calls td_mailbox_wait(). */
#ifndef TANDEM_COMMON_MAILBOX_H
#define TANDEM_COMMON_MAILBOX_H

#include <stddef.h>

#include "common/clock.h"
#include "common/status.h"

typedef struct td_mailbox td_mailbox;

/* Releases what an untaken message points to. Called by td_mailbox_free() only. */
typedef void (*td_mailbox_drop_fn)(void *user, void *msg);

/* Messages of msg_bytes each, at most max_messages waiting (0: as many as memory holds). drop may
 * be NULL. *out is the caller's, to td_mailbox_free(). TD_NOMEM, TD_IO (no file descriptor). */
TD_MUST_CHECK td_status td_mailbox_create(size_t msg_bytes, size_t max_messages,
                                          td_mailbox_drop_fn drop, void *user, td_mailbox **out,
                                          td_error *err);

/* NULL is fine. Drops what was not taken. No thread may be in, or later enter, a call on it. */
void td_mailbox_free(td_mailbox *m);

/* Copy one message in. From any thread; never waits for the consumer. TD_NOMEM; TD_BUSY:
 * max_messages wait already; TD_CANCELED: closed. */
TD_MUST_CHECK td_status td_mailbox_post(td_mailbox *m, const void *msg);

/* Move at most cap messages, oldest first, into out[0..cap); returns how many. Never waits. Only
 * the consumer. A loop that takes until 0 may never end while others post: take one batch a turn.
 */
size_t td_mailbox_take(td_mailbox *m, void *out, size_t cap);

/* Wait until there is something to take: TD_OK. TD_CANCELED: closed and empty, nothing will come.
 * TD_DEADLINE: nothing by then (td_now_us() clock; TD_USEC_NEVER waits on). Only the consumer. */
TD_MUST_CHECK td_status td_mailbox_wait(td_mailbox *m, td_usec deadline);

/* To poll for reading. Owned by the mailbox; never read from it. */
int td_mailbox_fd(const td_mailbox *m);

/* Refuse posts from here on, and wake the consumer, which may still take what waits. From any
 * thread; again is fine. */
void td_mailbox_close(td_mailbox *m);

#endif
