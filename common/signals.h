/* signals: SIGTERM, SIGINT and SIGHUP as calls on an ordinary thread.
 *
 * td_signals_start() first thing in main(), before any thread: it blocks them everywhere and waits
 * for them on a thread of its own, which calls fn(user, signo) for each, one at a time, until the
 * process ends. A SIGHUP that was ignored when the process started (nohup) stays ignored. */
#ifndef TANDEM_COMMON_SIGNALS_H
#define TANDEM_COMMON_SIGNALS_H

#include <stdbool.h>

#include "common/clock.h"
#include "common/status.h"

/* fn must not block for long: the next signal waits for it. TD_NOMEM: no thread. */
TD_MUST_CHECK td_status td_signals_start(void (*fn)(void *user, int signo), void *user,
                                         td_error *err);

typedef enum td_wish {
    TD_WISH_NEW,   /* to end, in good order */
    TD_WISH_SAME,  /* the one just before it said that */
    TD_WISH_AGAIN, /* and at once */
} td_wish;

/* What a signal to end says that comes now; *asked_at is when the first one came, 0 before it.
 * Another within 0.2 s of that is the same wish: timeout(1) sends its own to the program and then
 * to the whole group, a terminal's comes to supervisor and program alike.
 * Who calls from several threads holds a lock. */
td_wish td_signal_wish(td_usec *asked_at, td_usec now);

/* Whether whoever started the process wants it to live on when its terminal goes. */
bool td_signals_hangup_ignored(void);

#endif
