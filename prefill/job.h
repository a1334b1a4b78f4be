/* job: one prompt on its way through a prefill worker, and the list of those that are here.
 *
 *   QUEUED -> COMPUTING -> PUSHING -> gone
 *
 * What is canceled or fails anywhere goes to PUSHING as well, since the decode side waits for a
 * notice.
 *
 * Owned by the engine's thread. */
#ifndef TANDEM_PREFILL_JOB_H
#define TANDEM_PREFILL_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include <uthash.h>

#include "common/attempts.h"
#include "common/clock.h"
#include "common/kv_pool.h"
#include "common/kv_push.h"
#include "common/status.h"
#include "proto/tandem.pb-c.h"

enum { JOB_MAX_EXTENTS = 64, JOB_ID_BYTES = 96 };

typedef enum job_state { JOB_QUEUED, JOB_COMPUTING, JOB_PUSHING } job_state;

typedef struct job {
    uint64_t request; /* with attempt: the key */
    uint64_t attempt;
    int32_t link;
    job_state state;
    bool canceled;

    int32_t *tokens;
    int32_t n_tokens;
    uint32_t max_tokens; /* wanted, the first one included */
    uint32_t index;      /* number of the first token within the answer */
    td_generation generation;

    /* The destination, as the decode worker gave it. */
    char worker_id[JOB_ID_BYTES];
    uint64_t incarnation;
    uint32_t epoch;
    char *descriptor;
    size_t descriptor_len;
    int32_t dst_tp;
    uint32_t dst_n_pages, dst_n_rings, dst_ring_pages, dst_ring;
    td_kv_extent *dst_ext;
    size_t dst_n_ext;
    td_usec lease_deadline;

    /* This side's pages, held from COMPUTING to the end of the push. */
    bool has_pages;
    td_kv_extent ext[JOB_MAX_EXTENTS];
    size_t n_ext;
    uint32_t *pages;
    uint32_t n_pages;
    uint32_t ring;
    td_kv_push *push;
    td_logprobs logprobs; /* of the first token, where they are asked for */
    int32_t from, to;     /* positions of the chunk being computed; read by the layer hook */

    td_usec queued_at, started_at, computed_at;

    struct job *prev, *next; /* utlist */
    UT_hash_handle hh;
} job;

/* Check m and copy what it says. vocab and max_prompt bound what is accepted. The lease counts from
 * received, when the message reached this process. TD_INVALID names what is wrong; TD_NOMEM. */
TD_MUST_CHECK td_status job_create(const Tandem__Prefill *m, int32_t link, int32_t vocab,
                                   uint32_t max_prompt, td_usec received, job **out, td_error *err);
void job_free(job *j); /* holds no pages any more; NULL is fine */

typedef struct jobs jobs;

/* An empty list. TD_NOMEM. */
TD_MUST_CHECK td_status jobs_create(jobs **out, td_error *err);
void jobs_free(jobs *q); /* with all that is left */

/* At the end of the queue. The job is the list's from here on. */
void jobs_add(jobs *q, job *j);
job *jobs_find(jobs *q, uint64_t request, uint32_t attempt); /* NULL: not here */
/* Whether this attempt was here lately and is over: a repeated message must not run it again. */
bool jobs_was_here(const jobs *q, uint64_t request, uint32_t attempt);
void jobs_remember(jobs *q, uint64_t request, uint32_t attempt); /* as over */

job *jobs_first_queued(jobs *q);          /* the oldest; NULL: none waits */
job *jobs_of_link(jobs *q, int32_t link); /* the first not canceled; link < 0: of any */
void jobs_set_state(jobs *q, job *j, job_state s);
void jobs_remove(jobs *q, job *j); /* remembers it as over, frees it */

typedef struct jobs_counts {
    uint32_t queued, computing, pushing;
    uint64_t tokens; /* of queued and computing ones */
} jobs_counts;
jobs_counts jobs_count(const jobs *q);

#endif
