/* kv_process: see the header. A child is this same program started again (not a bare fork, because
 * UCX may have started threads), so its code is at hand wherever the test is. */
#include "tests/unit/kv_process.h"

#include "common/kv_push.h"
#include "common/kv_wire.h"
#include "common/log.h"
#include "tests/unit/kv_memory.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void send_msg(int fd, const kv_msg *m)
{
    size_t n = offsetof(kv_msg, bytes) + m->len;

    while (send(fd, m, n, MSG_NOSIGNAL) < 0 && errno == EINTR)
        ;
}

static bool recv_msg(int fd, kv_msg *m)
{
    ssize_t n;

    do
        n = recv(fd, m, sizeof *m, 0);
    while (n < 0 && errno == EINTR);
    return n >= (ssize_t)offsetof(kv_msg, bytes);
}

static void child_fail(int fd, const td_error *err)
{
    kv_msg m = {.kind = KV_M_FAILED, .status = (int32_t)err->code};

    snprintf(m.text, sizeof m.text, "%s", err->text);
    send_msg(fd, &m);
    exit(0);
}

static td_kv_wire_options child_options(const kv_scenario *s)
{
    return (td_kv_wire_options){
        .transport = s->transport[0] ? s->transport : NULL,
        .method = (td_kv_method)s->method,
        .verify = s->verify != 0,
        .fail_put_number = s->fail_put_number,
        .stall_us = s->stall_us,
        .use_device = s->cuda ? kv_memory_use_device : NULL,
    };
}

/* ------------------------------------------------------------------ the sink's process */

typedef struct sink_child {
    int fd;
    kv_world w;
    kv_memory memory;
} sink_child;

static void sink_on_notice(void *user, const td_kv_notice *n)
{
    kv_msg m = {.kind = KV_M_NOTICE, .request = (int32_t)n->request, .notice = *n};

    send_msg(((sink_child *)user)->fd, &m);
}

static void sink_answer(sink_child *c, td_kv_sink *sink, kv_msg *m)
{
    kv_expect expect[KV_MAX_REQUESTS];

    td_kv_sink_settle(sink); /* what the sink's thread has written happens before we read it */
    kv_memory_read(&c->memory);
    if (m->kind == KV_M_CHECK) {
        for (int i = 0; i < c->w.s.n_requests; i++)
            expect[i] = (kv_expect)m->bytes[i];
        m->number = (int64_t)kv_world_check(&c->w, c->memory.host, expect);
    } else if (m->kind == KV_M_DIGEST) {
        td_kv_place p = kv_world_dst(&c->w, m->request);
        uint64_t sum = 0;

        for (int32_t r = 0; r < c->w.dst.tp; r++)
            for (int32_t l = 0; l < c->w.dst.n_layers; l++)
                sum += td_kv_digest(&p, r, c->memory.host[r], c->w.req[m->request].n_tokens, l, 0,
                                    c->w.req[m->request].n_tokens);
        m->number = (int64_t)sum;
    }
    m->len = 0;
    send_msg(c->fd, m);
}

static void sink_child_main(int fd, const kv_scenario *s)
{
    sink_child c = {.fd = fd};
    td_kv_region regions[TD_KV_MAX_RANKS];
    td_kv_wire_options opt = child_options(s);
    td_kv_sink *sink;
    td_error err = {0};
    kv_msg m = {0};

    kv_world_init(&c.w, s);
    kv_memory_open(&c.memory, s->cuda != 0, s->dst_device, c.w.dst.region_bytes);
    for (int32_t r = 0; r < c.w.dst.tp; r++)
        regions[r] = kv_memory_add(&c.memory, kv_world_dst_region(&c.w));
    if (td_kv_sink_open(&opt, td_kv_wire_hash(&c.w.dst), regions, c.w.dst.tp, sink_on_notice, &c,
                        &sink, &err) != TD_OK)
        child_fail(fd, &err);
    td_slice d = td_kv_sink_descriptor(sink);
    m.kind = KV_M_DESC;
    m.len = (uint32_t)d.len;
    td_assert(d.len <= sizeof m.bytes);
    memcpy(m.bytes, d.ptr, d.len);
    send_msg(fd, &m);
    while (recv_msg(fd, &m) && m.kind != KV_M_QUIT)
        sink_answer(&c, sink, &m);
    td_kv_sink_close(sink);
    kv_memory_close(&c.memory);
    kv_world_free(&c.w);
}

/* ------------------------------------------------------------------ the sources' process */

typedef struct source_child source_child;

typedef struct source_push {
    source_child *c;
    int32_t request;
    td_kv_push *push;
    atomic_int done;
} source_push;

struct source_child {
    int fd;
    kv_world w;
    kv_memory memory;
    td_kv_source *sources[TD_KV_MAX_RANKS];
    char descriptor[4096];
    size_t descriptor_len;
    uint64_t incarnation;
    source_push pushes[KV_MAX_REQUESTS];
};

static void source_on_done(void *user, const td_kv_push_result *r)
{
    source_push *p = user;
    kv_msg m = {
        .kind = atomic_fetch_add(&p->done, 1) == 0 ? KV_M_DONE : KV_M_DUPLICATE_DONE,
        .request = p->request,
        .status = (int32_t)r->status,
        .number = (int64_t)r->bytes,
        .count = r->puts,
    };

    if (r->first_put_us > r->last_flush_us && r->last_flush_us != 0)
        m.kind = KV_M_FAILED; /* a flush before the first put */
    snprintf(m.transport, sizeof m.transport, "%s", r->transport);
    snprintf(m.text, sizeof m.text, "%s", r->text);
    send_msg(p->c->fd, &m);
}

static void source_open_push(source_child *c, const kv_msg *m)
{
    const kv_request *q = &c->w.req[m->request];
    source_push *p = &c->pushes[m->request];
    td_error err = {0};
    td_kv_push_params a = {
        .request = (uint64_t)m->request,
        .attempt = KV_TEST_ATTEMPT,
        .n_tokens = q->n_tokens,
        .pages = q->src_pages,
        .n_pages = q->n_pages,
        .ring = q->src_ring,
        .worker_id = TD_SLICE("decode-0"),
        .incarnation = c->incarnation,
        .epoch = KV_TEST_EPOCH + (uint32_t)m->request,
        .descriptor = {c->descriptor, c->descriptor_len},
        .dst_tp = c->w.dst.tp,
        .dst_n_pages = c->w.dst.n_pages,
        .dst_n_rings = c->w.dst.n_rings,
        .dst_ring_pages = c->w.dst.ring_pages,
        .dst_extents = q->dst_extents,
        .dst_n_extents = q->n_extents,
        .dst_ring = q->dst_ring,
        .lease_deadline = m->number < 0 ? TD_USEC_NEVER : td_now_us() + m->number,
        .on_done = source_on_done,
        .user = p,
    };

    p->c = c;
    p->request = m->request;
    if (td_kv_push_open(c->sources, c->w.src.tp, &a, &p->push, &err) != TD_OK)
        child_fail(c->fd, &err);
}

static void source_push_layers(source_child *c, const kv_msg *m)
{
    int32_t n = c->w.req[m->request].n_tokens;

    for (int32_t from = 0, to; from < n; from = to) {
        to = from + c->w.s.chunk < n ? from + c->w.s.chunk : n;
        for (int32_t layer = m->from; layer < m->to; layer++)
            for (int32_t rank = 0; rank < c->w.src.tp; rank++)
                td_kv_push_layer(c->pushes[m->request].push, rank, layer, from, to, NULL);
    }
}

static void source_obey(source_child *c, const kv_msg *m)
{
    switch ((kv_msg_kind)m->kind) {
    case KV_M_DEST:
        memcpy(c->descriptor, m->bytes, m->len);
        c->descriptor_len = m->len;
        c->incarnation = (uint64_t)m->number;
        break;
    case KV_M_OPEN: source_open_push(c, m); break;
    case KV_M_LAYERS: source_push_layers(c, m); break;
    case KV_M_FINISH:
        td_kv_push_finish(c->pushes[m->request].push, (td_status)m->status,
                          KV_TEST_TOKEN + m->request, 0, NULL);
        break;
    case KV_M_CANCEL: td_kv_push_cancel(c->pushes[m->request].push); break;
    default: td_assert(!"a message that a source knows");
    }
}

static void source_child_main(int fd, const kv_scenario *s)
{
    static source_child c;
    td_kv_wire_options opt = child_options(s);
    td_error err = {0};
    kv_msg m = {.kind = KV_M_READY};

    c.fd = fd;
    kv_world_init(&c.w, s);
    kv_memory_open(&c.memory, s->cuda != 0, s->src_device, c.w.src.region_bytes);
    for (int32_t r = 0; r < c.w.src.tp; r++) {
        td_kv_region region = kv_memory_add(&c.memory, kv_world_src_region(&c.w, r));

        if (td_kv_source_open(&opt, &c.w.src, r, &region, &c.sources[r], &err) != TD_OK)
            child_fail(fd, &err);
    }
    send_msg(fd, &m);
    while (recv_msg(fd, &m) && m.kind != KV_M_QUIT)
        source_obey(&c, &m);
    for (int32_t r = 0; r < c.w.src.tp; r++)
        td_kv_source_close(c.sources[r]);
    for (int i = 0; i < s->n_requests; i++)
        td_kv_push_free(c.pushes[i].push);
    kv_memory_close(&c.memory);
    kv_world_free(&c.w);
}

/* ------------------------------------------------------------------ starting and driving */

void kv_process_main_if_child(int argc, char **argv)
{
    kv_scenario s;

    if (argc != 3)
        return;
    int fd = atoi(argv[2]);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that dies leaves nobody behind */
    td_log_init(argv[1], getenv("KV_TEST_LOG") ? TD_LOG_DEBUG : TD_LOG_ERROR);
    if (recv(fd, &s, sizeof s, 0) != sizeof s)
        exit(1);
    if (strcmp(argv[1], "sink") == 0)
        sink_child_main(fd, &s);
    else
        source_child_main(fd, &s);
    exit(0);
}

kv_process kv_process_start(const char *role, const kv_scenario *s)
{
    kv_process p;
    int fds[2];
    char number[16];

    td_assert(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds) == 0);
    snprintf(number, sizeof number, "%d", fds[1]);
    p.fd = fds[0];
    p.pid = fork();
    td_assert(p.pid >= 0);
    if (p.pid == 0) {
        close(fds[0]);
        execl("/proc/self/exe", "kv_process", role, number, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    td_assert(send(p.fd, s, sizeof *s, MSG_NOSIGNAL) == sizeof *s);
    return p;
}

void kv_process_send(const kv_process *p, const kv_msg *m)
{
    send_msg(p->fd, m);
}

bool kv_process_recv(const kv_process *p, kv_msg *m)
{
    return recv_msg(p->fd, m);
}

int kv_process_wait(kv_process *p, td_usec deadline)
{
    int status;
    struct pollfd fd = {.fd = p->fd, .events = 0}; /* hang-up: the process has let go of it */
    td_usec left = deadline - td_now_us();

    if (poll(&fd, 1, left > 0 ? (int)(left / TD_USEC_PER_MSEC) : 0) <= 0)
        kill(p->pid, SIGKILL);
    while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
        ;
    close(p->fd);
    p->fd = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
