/* kv_pair: see the header. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/hash.h"
#include "tests/unit/kv_pair.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kv_scenario scenario(const char *transport, int32_t src_tp, int32_t dst_tp)
{
    kv_scenario s = {
        .seed = td_hash_str(TD_HASH_START, transport) + (uint64_t)(src_tp * 16 + dst_tp),
        .n_layers = 4,
        .n_kv_heads = 4,
        .head_dim = 16,
        .window = 100,
        .src_tp = src_tp,
        .dst_tp = dst_tp,
        .n_requests = 3,
        .min_tokens = 1,
        .max_tokens = 700,
        .chunk = 192,
        .stall_us = 20 * TD_USEC_PER_SEC,
    };

    snprintf(s.transport, sizeof s.transport, "%s", transport);
    return s;
}

/* ------------------------------------------------------------------ driving a pair */

static void pair_count_notice(pair *p, const td_kv_notice *n)
{
    td_error err = {0};
    int i = (int)n->request;

    assert_in_range(i, 0, p->s.n_requests - 1);
    if (td_kv_arrival_add(&p->arrival[i], n, &err) != TD_OK)
        fail_msg("request %d: %s", i, err.text);
    p->notices[i]++;
    p->n_notices++;
}

static void pair_take(pair *p, const kv_msg *m)
{
    switch ((kv_msg_kind)m->kind) {
    case KV_M_READY: p->source_ready = true; break;
    case KV_M_DESC:
        p->sink_ready = true;
        p->descriptor = *m;
        break;
    case KV_M_NOTICE: pair_count_notice(p, &m->notice); break;
    case KV_M_DONE:
        p->done[m->request] = *m;
        p->has_done[m->request] = true;
        break;
    case KV_M_CHECK:
    case KV_M_DIGEST:
    case KV_M_SETTLE:
        p->answer = *m;
        p->has_answer = true;
        break;
    default: fail_msg("message %d: %s", m->kind, m->text);
    }
}

/* Take messages until *what is true (or a count reaches n). */
void pair_wait_count(pair *p, const int *count, int n, const bool *flag, const char *what)
{
    td_usec deadline = td_now_us() + PATIENCE_US;

    while (count ? *count < n : !*flag) {
        kv_process *procs[2] = {&p->sink, &p->source};
        struct pollfd fds[2] = {{p->sink.fd, POLLIN, 0}, {p->source.fd, POLLIN, 0}};
        td_usec left = deadline - td_now_us();
        kv_msg m;

        if (left <= 0)
            fail_msg("no %s", what);
        poll(fds, 2, (int)(left / TD_USEC_PER_MSEC) + 1);
        for (int i = 0; i < 2; i++) {
            if (!fds[i].revents)
                continue;
            if (!kv_process_recv(procs[i], &m))
                fail_msg("the %s ended (%d) while waiting for %s", i ? "source" : "sink",
                         kv_process_wait(procs[i], td_now_us() + PATIENCE_US), what);
            pair_take(p, &m);
        }
    }
}

void pair_wait(pair *p, const bool *flag, const char *what)
{
    pair_wait_count(p, NULL, 0, flag, what);
}

void pair_start_sink(pair *p)
{
    p->sink_ready = false;
    p->sink = kv_process_start("sink", &p->s);
    pair_wait(p, &p->sink_ready, "sink");
}

/* Tell the source where the sink is. */
void pair_tell_destination(pair *p)
{
    kv_msg m = p->descriptor;

    m.kind = KV_M_DEST;
    m.number = p->sink.pid; /* a new life of the decode worker has a new incarnation */
    kv_process_send(&p->source, &m);
}

void pair_start_source(pair *p)
{
    p->source_ready = false;
    p->source = kv_process_start("source", &p->s);
    pair_wait(p, &p->source_ready, "source");
}

pair *pair_start(const kv_scenario *s)
{
    pair *p = calloc(1, sizeof *p);

    p->s = *s;
    p->sink.fd = p->source.fd = -1;
    kv_world_init(&p->w, s);
    for (int i = 0; i < s->n_requests; i++)
        td_kv_arrival_init(&p->arrival[i], (uint64_t)i, KV_TEST_ATTEMPT,
                           KV_TEST_EPOCH + (uint32_t)i,
                           td_kv_transfer_bytes(&p->w.src, p->w.req[i].n_tokens));
    pair_start_source(p);
    pair_start_sink(p);
    pair_tell_destination(p);
    return p;
}

void quit(kv_process *proc)
{
    kv_msg m = {.kind = KV_M_QUIT};

    if (proc->fd < 0)
        return;
    kv_process_send(proc, &m);
    /* Whatever it still says is of no interest; its exit code is: sanitizers report through it. */
    while (kv_process_recv(proc, &m))
        ;
    assert_int_equal(kv_process_wait(proc, td_now_us() + PATIENCE_US), 0);
}

void pair_stop(pair *p)
{
    quit(&p->source);
    quit(&p->sink);
    kv_world_free(&p->w);
    free(p);
}

void kill_process(kv_process *proc)
{
    kill(proc->pid, SIGKILL);
    assert_int_equal(kv_process_wait(proc, td_now_us() + PATIENCE_US), -SIGKILL);
}

void push_open(pair *p, int i, int64_t lease_us)
{
    kv_msg m = {.kind = KV_M_OPEN, .request = i, .number = lease_us};

    kv_process_send(&p->source, &m);
}

void push_layers(pair *p, int i, int from, int to)
{
    kv_msg m = {.kind = KV_M_LAYERS, .request = i, .from = from, .to = to};

    kv_process_send(&p->source, &m);
}

void push_finish(pair *p, int i, td_status status)
{
    kv_msg m = {.kind = KV_M_FINISH, .request = i, .status = (int32_t)status};

    kv_process_send(&p->source, &m);
}

void push_cancel(pair *p, int i)
{
    kv_msg m = {.kind = KV_M_CANCEL, .request = i};

    kv_process_send(&p->source, &m);
}

void push_whole(pair *p, int i)
{
    push_open(p, i, -1);
    push_layers(p, i, 0, p->s.n_layers);
    push_finish(p, i, TD_OK);
}

void wait_done(pair *p, int i, td_status status)
{
    pair_wait(p, &p->has_done[i], "on_done");
    if (p->done[i].status != (int32_t)status)
        fail_msg("request %d ended with %s (%s), expected %s", i,
                 td_status_name((td_status)p->done[i].status), p->done[i].text,
                 td_status_name(status));
}

void wait_notices(pair *p, int i)
{
    pair_wait_count(p, &p->notices[i], p->s.src_tp, NULL, "notices");
}

void wait_complete(pair *p, int i)
{
    wait_done(p, i, TD_OK);
    wait_notices(p, i);
    assert_int_equal(td_kv_arrival_state_of(&p->arrival[i]), TD_KV_ARRIVAL_COMPLETE);
    assert_int_equal(p->arrival[i].first_token, KV_TEST_TOKEN + i);
    assert_int_equal(p->arrival[i].bytes, p->done[i].number);
    assert_int_equal(p->arrival[i].puts, p->done[i].count);
}

int64_t ask_sink(pair *p, kv_msg m)
{
    p->has_answer = false;
    kv_process_send(&p->sink, &m);
    pair_wait(p, &p->has_answer, "answer");
    return p->answer.number;
}

void check_memory(pair *p, const kv_expect *states)
{
    kv_msg m = {.kind = KV_M_CHECK, .len = (uint32_t)p->s.n_requests};

    for (int i = 0; i < p->s.n_requests; i++)
        m.bytes[i] = (unsigned char)states[i];
    assert_int_equal(ask_sink(p, m), 0);
}

void transfer_all(const kv_scenario *s, const char *expect_transport)
{
    pair *p = pair_start(s);
    kv_expect all[KV_MAX_REQUESTS];

    for (int i = 0; i < s->n_requests; i++) {
        push_whole(p, i);
        all[i] = KV_LANDED;
    }
    for (int i = 0; i < s->n_requests; i++) {
        wait_complete(p, i);
        assert_non_null(strstr(p->done[i].transport, expect_transport));
    }
    check_memory(p, all);
    pair_stop(p);
}
