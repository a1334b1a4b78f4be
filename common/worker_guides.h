/* worker_guides: the vocabulary for guides, read on a thread of its own while the weights load. */
#ifndef TANDEM_COMMON_WORKER_GUIDES_H
#define TANDEM_COMMON_WORKER_GUIDES_H

#include "common/guide.h"
#include "common/status.h"

typedef struct td_guides_loading td_guides_loading;

/* folder: the checkpoint's; copied. TD_NOMEM. */
TD_MUST_CHECK td_status td_guides_load(const char *folder, td_guides_loading **out, td_error *err);

/* Wait for it and end it. The guides are the caller's; NULL: there are none, and the log says why
 * (a worker without them serves everything else). l may be NULL. */
td_guides *td_guides_loaded(td_guides_loading *l);

#endif
