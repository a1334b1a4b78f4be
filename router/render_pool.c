#include "router/render_pool.h"

#include <pthread.h>
#include <stdlib.h>

enum { MAX_THREADS = 64 };

struct render_pool {
    td_loop *loop;
    const harmony *harmony;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    render_job *first, **last; /* lock */
    bool stop;                 /* lock */
    pthread_t threads[MAX_THREADS];
    int32_t n_threads;
};

static void finish(void *arg)
{
    render_job *job = arg;

    job->done(job);
}

static void *render_main(void *arg)
{
    render_pool *p = arg;

    for (;;) {
        render_job *job;

        pthread_mutex_lock(&p->lock);
        while (p->first == NULL && !p->stop)
            pthread_cond_wait(&p->wake, &p->lock);
        if (p->stop) {
            pthread_mutex_unlock(&p->lock);
            return NULL;
        }
        job = p->first;
        p->first = job->next;
        if (p->first == NULL)
            p->last = &p->first;
        pthread_mutex_unlock(&p->lock);

        if (job->work != NULL)
            job->work(job, p->harmony);
        else
            job->status = generation_render(job->generation, p->harmony, &job->prompt, &job->err);
        job->task = (td_loop_task){.fn = finish, .arg = job};
        if (!td_loop_post_task(p->loop, &job->task))
            return NULL; /* the loop has stopped: nobody waits for this or any other job */
    }
}

td_status render_pool_create(td_loop *loop, const harmony *h, int32_t n_threads, render_pool **out,
                             td_error *err)
{
    render_pool *p = calloc(1, sizeof *p);

    if (p == NULL)
        return td_fail(err, TD_NOMEM, "render pool: no memory");
    p->loop = loop;
    p->harmony = h;
    p->last = &p->first;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (; p->n_threads < n_threads && p->n_threads < MAX_THREADS; p->n_threads++) {
        if (pthread_create(&p->threads[p->n_threads], NULL, render_main, p) != 0) {
            render_pool_free(p);
            return td_fail(err, TD_NOMEM, "render pool: no thread");
        }
    }
    *out = p;
    return TD_OK;
}

void render_pool_free(render_pool *p)
{
    if (p == NULL)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int32_t i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void render_pool_submit(render_pool *p, render_job *job)
{
    job->pool = p;
    job->next = NULL;
    job->status = TD_OK;
    pthread_mutex_lock(&p->lock);
    *p->last = job;
    p->last = &job->next;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
}
