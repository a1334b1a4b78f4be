/* libevent's side of a loop, for the other files that wrap libevent: http_*.c, and nobody else. */
#ifndef TANDEM_COMMON_LOOP_INTERNAL_H
#define TANDEM_COMMON_LOOP_INTERNAL_H

#include <event2/event.h>

#include "common/loop.h"

struct event_base *td_loop_base(td_loop *loop);

#endif
