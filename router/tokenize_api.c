/* A job belongs to the router's list until the pool has given it back, also when its client has
 * gone: a thread may be reading it. */
#include "router/tokenize_api.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "router/chat_answer.h"
#include "router/tokenize_body.h"

/* Bodies that wait for a thread or have one, in largest bodies: more are refused, or a burst of
 * long texts would fill the memory while two threads work on them. */
enum { MAX_LARGEST = 8 };

typedef struct tokenize_job {
    render_job work;
    router *r;
    td_http_request *req; /* NULL: the client has gone */
    td_status (*fn)(const char *body, size_t n, const tokenize_facts *f, const harmony *h,
                    td_buf *out, td_error *err);
    tokenize_facts facts;
    char date[16];
    char model[REGISTRY_NAME_BYTES];
    td_buf body; /* a copy: the request's goes with its client */
    td_buf out;
    struct tokenize_job *prev, *next;
} tokenize_job;

static void free_job(tokenize_job *j)
{
    td_buf_free(&j->body);
    td_buf_free(&j->out);
    free(j);
}

static tokenize_job *job_of(render_job *work)
{
    return (tokenize_job *)((char *)work - offsetof(tokenize_job, work));
}

static void run(render_job *work, const harmony *h)
{
    tokenize_job *j = job_of(work);

    work->status = j->fn(j->body.ptr, j->body.len, &j->facts, h, &j->out, &work->err);
}

static void on_close(td_http_request *req, void *arg)
{
    (void)req;
    ((tokenize_job *)arg)->req = NULL;
}

static void on_done(render_job *work)
{
    tokenize_job *j = job_of(work);

    DL_DELETE(j->r->tokenizing, j);
    j->r->n_tokenizing--;
    j->r->tokenizing_bytes -= j->body.len;
    if (j->req != NULL) {
        td_http_request_on_close(j->req, NULL, NULL);
        if (work->status != TD_OK)
            chat_answer_error(j->req, &work->err, 0);
        else
            td_http_reply(j->req, 200, "application/json", j->out.ptr, j->out.len, NULL);
    }
    free_job(j);
}

static tokenize_job *make_job(const td_http_request *req)
{
    td_slice body = td_http_request_body(req);
    tokenize_job *j = calloc(1, sizeof *j);

    if (j == NULL)
        return NULL;
    td_buf_add(&j->body, body.ptr, body.len);
    td_buf_byte(&j->body, '\0'); /* for the reader of JSON; not of the body */
    if (j->body.oom) {
        free_job(j);
        return NULL;
    }
    j->body.len--;
    return j;
}

static void start(router *r, td_http_request *req,
                  td_status (*fn)(const char *, size_t, const tokenize_facts *, const harmony *,
                                  td_buf *, td_error *))
{
    const registry_model *m = registry_model_of(workers_registry(r->workers));
    tokenize_job *j;
    td_error err = {0};

    if (r->n_tokenizing >= r->admission.max_requests ||
        r->tokenizing_bytes + td_http_request_body(req).len > MAX_LARGEST * r->cfg->max_body) {
        td_fail(&err, TD_BUSY, "the server is full: %u texts of %zu bytes are with its tokenizers",
                r->n_tokenizing, r->tokenizing_bytes);
        chat_answer_error(req, &err, 1);
        return;
    }
    j = make_job(req);
    if (j == NULL) {
        td_fail(&err, TD_NOMEM, "no memory for the request");
        chat_answer_error(req, &err, 1);
        return;
    }
    j->r = r;
    j->req = req;
    j->fn = fn;
    memcpy(j->model, m->name, sizeof j->model);
    j->facts = (tokenize_facts){
        .defaults = router_defaults(r, j->date),
        .model = j->model,
        .max_model_len = m->known ? m->max_positions : 0,
    };
    j->work.work = run;
    j->work.done = on_done;
    DL_APPEND(r->tokenizing, j);
    r->n_tokenizing++;
    r->tokenizing_bytes += j->body.len;
    td_http_request_on_close(req, on_close, j);
    render_pool_submit(r->pool, &j->work);
}

void tokenize_start(router *r, td_http_request *req)
{
    start(r, req, tokenize_text);
}

void detokenize_start(router *r, td_http_request *req)
{
    start(r, req, tokenize_back);
}

void tokenize_free_all(router *r)
{
    tokenize_job *j, *next;

    DL_FOREACH_SAFE(r->tokenizing, j, next)
    {
        DL_DELETE(r->tokenizing, j);
        free_job(j);
    }
    r->n_tokenizing = 0;
    r->tokenizing_bytes = 0;
}
