/* loop: timers, posts from other threads, watches, signals, the stop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/loop.h"

typedef struct trace {
    td_loop *loop;
    td_timer *timer[3];
    int order[8], n;
    td_usec due, fired;
} trace;

static int setup(void **state)
{
    trace *t = calloc(1, sizeof *t);

    *state = t;
    return td_loop_create(&t->loop, NULL) == TD_OK ? 0 : -1;
}

static int teardown(void **state)
{
    trace *t = *state;

    for (size_t i = 0; i < 3; i++)
        td_timer_free(t->timer[i]);
    td_loop_free(t->loop);
    free(t);
    return 0;
}

static void on_first(void *arg)
{
    trace *t = arg;

    t->order[t->n++] = 1;
    t->fired = td_now_us();
    td_timer_in(t->timer[1], 0);
}

static void on_second(void *arg)
{
    trace *t = arg;

    t->order[t->n++] = 2;
    td_loop_stop(t->loop);
}

static void on_never(void *arg)
{
    trace *t = arg;

    t->order[t->n++] = 3;
}

static void test_loop_timers_fire_in_order_and_never_early(void **state)
{
    trace *t = *state;

    t->timer[0] = td_timer_create(t->loop, on_first, t);
    t->timer[1] = td_timer_create(t->loop, on_second, t);
    t->timer[2] = td_timer_create(t->loop, on_never, t);
    t->due = td_now_us() + 5000;
    td_timer_in(t->timer[1], 3600 * TD_USEC_PER_SEC); /* replaced by on_first */
    td_timer_at(t->timer[0], t->due);
    td_timer_in(t->timer[2], 0);
    td_timer_stop(t->timer[2]);
    td_timer_in(t->timer[2], 1000);
    td_timer_at(t->timer[2], TD_USEC_NEVER);
    assert_int_equal(td_loop_run(t->loop, NULL), TD_OK);
    assert_int_equal(t->n, 2);
    assert_int_equal(t->order[0], 1);
    assert_int_equal(t->order[1], 2);
    assert_true(t->fired >= t->due);
}

static void free_me(void *arg)
{
    trace *t = arg;

    td_timer_free(t->timer[0]);
    t->timer[0] = NULL;
    td_loop_stop(t->loop);
}

static void test_loop_timer_may_free_itself(void **state)
{
    trace *t = *state;

    t->timer[0] = td_timer_create(t->loop, free_me, t);
    td_timer_in(t->timer[0], 0);
    assert_int_equal(td_loop_run(t->loop, NULL), TD_OK);
}

enum { N_THREADS = 4, N_POSTS = 5000 };

typedef struct poster {
    td_loop *loop;
    pthread_t thread;
    int next;          /* the loop's: what must come next from this thread */
    _Atomic int *left; /* posts that have not been called yet, of all threads */
    td_loop_task task; /* "look at me", posted after each item */
    _Atomic int items; /* made by the thread, seen by the task */
    int looks;
} poster;

typedef struct item {
    poster *from;
    int number;
} item;

static void on_item(void *arg)
{
    item *it = arg;
    poster *p = it->from;

    assert_true(td_loop_here(p->loop));
    assert_int_equal(it->number, p->next); /* one thread's posts keep their order */
    p->next++;
    free(it);
    if (atomic_fetch_sub(p->left, 1) == 1)
        td_loop_stop(p->loop);
}

static void on_look(void *arg)
{
    poster *p = arg;

    p->looks++;
}

static void *post_many(void *arg)
{
    poster *p = arg;

    for (int i = 0; i < N_POSTS; i++) {
        item *it = malloc(sizeof *it);

        *it = (item){p, i};
        atomic_fetch_add(&p->items, 1);
        assert_true(td_loop_post_task(p->loop, &p->task));
        assert_true(td_loop_post(p->loop, on_item, it));
    }
    return NULL;
}

static void test_loop_posts_from_threads_all_arrive_in_order(void **state)
{
    trace *t = *state;
    _Atomic int left = N_THREADS * N_POSTS;
    poster posters[N_THREADS] = {0};

    for (int i = 0; i < N_THREADS; i++) {
        posters[i].loop = t->loop;
        posters[i].left = &left;
        posters[i].task = (td_loop_task){.fn = on_look, .arg = &posters[i]};
        assert_int_equal(pthread_create(&posters[i].thread, NULL, post_many, &posters[i]), 0);
    }
    assert_int_equal(td_loop_run(t->loop, NULL), TD_OK);
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(posters[i].thread, NULL);
        assert_int_equal(posters[i].next, N_POSTS);
        assert_in_range(posters[i].looks, 1, N_POSTS); /* a queued task is not queued again */
    }
}

static void count(void *arg)
{
    ++*(int *)arg;
}

static void test_loop_stop_before_run_counts_and_later_posts_are_refused(void **state)
{
    trace *t = *state;
    td_loop_task task = {.fn = count, .arg = &t->n};

    assert_true(td_loop_post(t->loop, count, &t->n));
    assert_true(td_loop_post_task(t->loop, &task));
    td_loop_stop(t->loop);
    assert_false(td_loop_post(t->loop, count, &t->n));
    assert_false(td_loop_post_task(t->loop, &(td_loop_task){.fn = count, .arg = &t->n}));
    assert_int_equal(td_loop_run(t->loop, NULL), TD_OK);
    assert_int_equal(t->n, 2);
    assert_false(task.queued);
}

static void test_loop_free_drops_what_was_never_called(void **state)
{
    td_loop *loop;
    int n = 0;
    td_loop_task task = {.fn = count, .arg = &n};

    (void)state;
    assert_int_equal(td_loop_create(&loop, NULL), TD_OK);
    assert_true(td_loop_post(loop, count, &n)); /* its memory is the loop's: no leak */
    assert_true(td_loop_post_task(loop, &task));
    td_loop_free(loop);
    td_loop_free(NULL);
    assert_int_equal(n, 0);
}

typedef struct piped {
    trace *t;
    int fd;
    td_watch *watch;
    char got[8];
} piped;

static void on_readable(void *arg, unsigned ready)
{
    piped *p = arg;

    assert_int_equal(ready, TD_READABLE);
    if (read(p->fd, p->got, sizeof p->got - 1) == 0) { /* the writer has gone: EOF shows too */
        td_watch_free(p->watch);
        p->watch = NULL;
        td_loop_stop(p->t->loop);
    }
}

static void close_fd(void *arg)
{
    close(*(int *)arg);
}

static void test_loop_watch_tells_of_bytes_and_of_the_end(void **state)
{
    trace *t = *state;
    piped p = {.t = t};
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    p.fd = ends[0];
    p.watch = td_watch_create(t->loop, ends[0], TD_READABLE, on_readable, &p);
    assert_non_null(p.watch);
    assert_int_equal(write(ends[1], "abc", 3), 3);
    t->timer[0] = td_timer_create(t->loop, close_fd, &ends[1]);
    td_timer_in(t->timer[0], 1000);
    assert_int_equal(td_loop_run(t->loop, NULL), TD_OK);
    assert_string_equal(p.got, "abc");
    close(ends[0]);
}

static void raise_term(void *arg)
{
    (void)arg;
    raise(SIGTERM);
}

static void test_loop_signal_reaches_the_loop(void **state)
{
    trace *t = *state;

    assert_int_equal(td_loop_on_signal(t->loop, SIGTERM, on_second, t, NULL), TD_OK);
    assert_true(td_loop_post(t->loop, raise_term, NULL));
    assert_int_equal(td_loop_run(t->loop, NULL), TD_OK);
    assert_int_equal(t->order[0], 2);
}

/* Under the loop's handler there must not be the default, which ends the process. */
static void test_loop_signal_after_the_loop_is_harmless(void **state)
{
    trace t = {0};

    (void)state;
    assert_int_equal(td_loop_create(&t.loop, NULL), TD_OK);
    assert_int_equal(td_loop_on_signal(t.loop, SIGINT, on_second, &t, NULL), TD_OK);
    td_loop_free(t.loop);
    raise(SIGINT);
    assert_int_equal(t.order[0], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_loop_timers_fire_in_order_and_never_early, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_loop_timer_may_free_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(test_loop_posts_from_threads_all_arrive_in_order, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_loop_stop_before_run_counts_and_later_posts_are_refused, setup, teardown),
        cmocka_unit_test(test_loop_free_drops_what_was_never_called),
        cmocka_unit_test_setup_teardown(test_loop_watch_tells_of_bytes_and_of_the_end, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_loop_signal_reaches_the_loop, setup, teardown),
        cmocka_unit_test(test_loop_signal_after_the_loop_is_harmless),
    };

    return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
