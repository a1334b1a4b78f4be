/* signals: SIGTERM and SIGINT as a call on an ordinary thread.
 *
 * td_signals_start() first thing in main(), before any thread: it blocks both signals everywhere
 * and waits for them on a thread of its own. The first one calls fn(user, signo), which asks for a
 * drain; the second one ends the process at once with status 128 + signo. */
#ifndef TANDEM_COMMON_SIGNALS_H
#define TANDEM_COMMON_SIGNALS_H

#include "common/status.h"

TD_MUST_CHECK td_status td_signals_start(void (*fn)(void *user, int signo), void *user,
                                         td_error *err);

#endif
