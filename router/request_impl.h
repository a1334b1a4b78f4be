/* The inside of a request, shared by request.c (its phases) and request_output.c (its tokens). */
#ifndef TANDEM_ROUTER_REQUEST_IMPL_H
#define TANDEM_ROUTER_REQUEST_IMPL_H

#include <uthash.h>

#include "proto/tandem.pb-c.h"
#include "router/content_logprobs.h"
#include "router/router.h"
#include "router/stop_strings.h"
#include "router/utf8_stream.h"

enum { REQUEST_LABEL_BYTES = 132 };

typedef enum request_phase {
    RQ_RENDER,  /* conversation -> tokens, on the pool */
    RQ_ADMIT,   /* a place within the router's bounds */
    RQ_PLACE,   /* a decode and a prefill worker */
    RQ_RESERVE, /* pages on the decode worker */
    RQ_PREFILL, /* the prompt is read, its KV pushed, the first token sampled */
    RQ_STREAM,  /* the decode worker sends tokens */
    RQ_DONE,
} request_phase;

/* What the answers to one question share. It goes with the last of them. */
typedef struct request_group {
    generation asked; /* each request's g is a shallow copy: none changes what it points to */
    uint32_t n, refs; /* choices; their requests that have memory still, and whoever looks */
    bool dismissed;   /* all but one of them: see request_group_dismiss() */
    request *members[GENERATION_MAX_CHOICES]; /* by choice; NULL: has left */
} request_group;

struct request {
    router *r;
    uint64_t id;
    char label[REQUEST_LABEL_BYTES];
    int64_t created_s;
    answer answer;
    void *user;
    request_group *group;
    uint32_t choice;
    bool dismissed; /* nobody hears of it any more; it is canceled at the loop's next turn */
    generation g;   /* the group's */
    request_phase phase;
    bool gone; /* ended; here only until the pool gives it back */

    render_job render;
    bool rendering, rendered;
    td_tokens prompt; /* as rendered */
    uint32_t max_tokens;
    uint64_t seed;
    uint64_t admitted_tokens;
    bool admitted;

    /* The current attempt. */
    uint32_t attempt;
    uint32_t attempt_max; /* tokens that it may give */
    char decode[REGISTRY_ID_BYTES], prefill[REGISTRY_ID_BYTES];
    uint64_t decode_incarnation, prefill_incarnation;
    workers_call *call;   /* a Reserve or Prefill on its way */
    uint8_t *destination; /* packed KvDestination, owned */
    size_t n_destination;
    bool waits;             /* in router.waiting */
    bool reserved;          /* the decode worker holds pages, as far as we know */
    bool prefill_sent;      /* a source may write into them */
    bool transferred;       /* it has said that it is done */
    td_usec reserve_sent;   /* when this attempt asked for its pages */
    td_usec place_deadline; /* of the present wait for workers; 0: not waiting */
    uint32_t retries_left;
    char avoid_decode[REGISTRY_ID_BYTES], avoid_prefill[REGISTRY_ID_BYTES];
    td_usec deadline; /* of the present phase; TD_USEC_NEVER */

    /* The answer so far: every token that was given out. */
    td_tokens out;
    harmony_parser *parser;
    stop_strings *stops;
    content_logprobs logprobs;
    utf8_stream raw_utf8; /* of a raw answer, which has no parser */
    td_buf raw_text;
    uint64_t raw_tokens; /* of it, that are text */
    bool started;        /* on_start was called */
    bool stop_string_hit;
    bool in_output; /* inside a callback of the answer: a cancel must wait */
    bool cancel_wanted;
    const char *cancel_why; /* a literal */

    request_times times;
    request_usage usage;
    uint32_t retry_s;

    struct request *prev, *next; /* utlist: router.waiting */
    UT_hash_handle hh;           /* router.by_id */
};

/* request.c: the order of events, and the three ways out. After any of them q may be gone. */
void request_advance(request *q);
void request_finish(request *q, harmony_end end);
void request_end_in_error(request *q, const td_error *err);
/* An attempt has failed: another one, within the budget, or the end. */
void request_fail(request *q, const td_error *err, bool decode_at_fault, bool prefill_at_fault);
/* A worker's status as ours: its INVALID is not the client's mistake, its CANCELED not our wish. */
td_status request_blame(td_status worker_said);

/* request_group.c */

/* A group of g->n without members yet. *g is moved, on failure too. */
TD_MUST_CHECK td_status request_group_create(generation *g, request_group **out, td_error *err);
void request_group_join(request_group *s, request *q, uint32_t choice);
void request_group_leave(request *q); /* it has ended; its memory may still be there */
void request_group_drop(request_group *s);
/* Of one question's answers the first is rendered for all. */
void request_group_rendered(request *q);
/* Whether another answer to q's question is with workers: then q waits for its room, however long.
 */
bool request_group_runs(const request *q);
/* Take q's siblings from their answer and have them canceled soon: not now, since whoever has just
 * called q may be on its way through all requests, or all calls. */
void request_group_dismiss(request *q, const char *why);

/* request_attempt.c */
td_status request_step_place(request *q, td_error *err);
td_status request_step_reserve(request *q, td_error *err);
td_status request_step_prefill(request *q, td_error *err);
void request_release(request *q); /* give back what the attempt holds on workers */
void request_stop_waiting(request *q);

/* What has become of a request after some of its output. */
typedef enum output_state {
    OUTPUT_MORE,
    OUTPUT_STOP,        /* the model has ended its answer */
    OUTPUT_STOP_STRING, /* a stop string is complete */
    OUTPUT_LENGTH,      /* max_tokens reached */
    OUTPUT_GONE,        /* canceled from within a callback */
} output_state;

/* Parser and stop strings, once the prompt is rendered. */
TD_MUST_CHECK td_status request_output_open(request *q, td_error *err);
void request_output_close(request *q);

/* Take n tokens whose first has number `index`; logprobs has n_logprobs. What is there already is
 * skipped. TD_INTERNAL: a token in between is missing, or logprobs that were asked for. */
TD_MUST_CHECK td_status request_output_tokens(request *q, uint32_t index, const int32_t *tokens,
                                              size_t n, Tandem__TokenLogprobs *const *logprobs,
                                              size_t n_logprobs, output_state *state,
                                              td_error *err);

/* Flush what was held back and say how it ended; the finish reason for on_finish. */
const char *request_output_finish(request *q, harmony_end end);

#endif
