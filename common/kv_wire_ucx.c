/* kv_wire_ucx: UCX set up the one way both ends need it, and its statuses in our words.
 *
 * Settings come from our options and are applied over whatever UCX_* variables say, because a stray
 * variable in one pod would otherwise change failure behaviour there alone.
 *
 * "auto" is all that UCX has but its shared memory queues (posix, sysv). All senders of a process
 * write into one queue of the receiver; one that is killed between reserving a slot and filling it
 * blocks that queue for good, and with it every other sender. "shm" asks for them all the same, and
 * for their ERROR_HANDLING switch, without which UCX leaves them out in peer failure mode. */
#define _GNU_SOURCE /* ppoll */
#include "common/kv_wire_impl.h"

#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <ucs/config/global_opts.h>
#include <unistd.h>

td_status kv_options_init(kv_options *to, const td_kv_wire_options *from, td_error *err)
{
    const char *transport = from->transport ? from->transport : "auto";
    const char *devices = from->net_devices ? from->net_devices : "";

    if (strcmp(transport, "auto") != 0 && strcmp(transport, "shm") != 0 &&
        strcmp(transport, "tcp") != 0)
        return td_fail_param(err, "kv-transport", "is \"%s\", expected auto, shm or tcp",
                             transport);
    if (strlen(devices) >= sizeof to->net_devices)
        return td_fail_param(err, "kv-net-devices", "is longer than %zu bytes",
                             sizeof to->net_devices - 1);
    if (from->keepalive_us < 0 || from->stall_us < 0)
        return td_fail(err, TD_INVALID, "KV transfer: a time is negative");
    to->o = *from;
    snprintf(to->transport, sizeof to->transport, "%s", transport);
    snprintf(to->net_devices, sizeof to->net_devices, "%s", devices);
    to->o.transport = to->o.net_devices = NULL; /* the copies count */
    if (to->o.keepalive_us == 0)
        to->o.keepalive_us = TD_USEC_PER_SEC;
    if (to->o.min_bytes_per_s == 0)
        to->o.min_bytes_per_s = UINT64_C(100000000);
    if (to->o.stall_us == 0)
        to->o.stall_us = 500 * TD_USEC_PER_MSEC;
    return TD_OK;
}

static td_status kv_ucx_status(ucs_status_t s)
{
    switch (s) {
    case UCS_OK: return TD_OK;
    case UCS_INPROGRESS: return TD_PENDING;
    case UCS_ERR_CANCELED: return TD_CANCELED;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_EXCEEDS_LIMIT: return TD_NOMEM;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
    case UCS_ERR_BUFFER_TOO_SMALL: return TD_INVALID;
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_BUSY: return TD_BUSY;
    default: return TD_UNAVAILABLE; /* unreachable, reset, timed out, no device, ... */
    }
}

td_status kv_ucx_fail(td_error *err, ucs_status_t s, const char *fmt, ...)
{
    char what[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return td_fail(err, kv_ucx_status(s), "%s: UCX says: %s", what, ucs_status_string(s));
}

uint32_t kv_ucx_version(void)
{
    unsigned major, minor, patch;

    ucp_get_version(&major, &minor, &patch);
    return major << 16 | minor;
}

/* ------------------------------------------------------------------ context and worker */

static td_status kv_ucx_set(ucp_config_t *config, const char *name, const char *value,
                            td_error *err)
{
    ucs_status_t s = ucp_config_modify(config, name, value);

    if (s != UCS_OK)
        return kv_ucx_fail(err, s, "KV transfer: setting %s=%s", name, value);
    return TD_OK;
}

static td_status kv_ucx_configure(ucp_config_t *config, const kv_options *opt, bool cuda,
                                  td_error *err)
{
    bool shm = strcmp(opt->transport, "shm") == 0;
    const char *tls = "^posix,sysv,self";
    char keepalive[32];

    if (shm)
        tls = cuda ? "posix,sysv,cma,cuda_copy,cuda_ipc" : "posix,sysv,cma";
    else if (strcmp(opt->transport, "tcp") == 0)
        tls = cuda ? "tcp,cuda_copy" : "tcp";
    snprintf(keepalive, sizeof keepalive, "%lldus", (long long)opt->o.keepalive_us);

    const struct {
        const char *name, *value;
    } settings[] = {
        {"TLS", tls},
        {"NET_DEVICES", opt->net_devices[0] ? opt->net_devices : "all"},
        {"KEEPALIVE_INTERVAL", keepalive},
        {"MM_ERROR_HANDLING", "y"}, /* last: not for transports that have no such setting */
    };
    size_t n = sizeof settings / sizeof settings[0] - (shm ? 0 : 1);

    for (size_t i = 0; i < n; i++) {
        td_status st = kv_ucx_set(config, settings[i].name, settings[i].value, err);

        if (st != TD_OK)
            return st;
    }
    return TD_OK;
}

/* A UCX that was built without CUDA maps CUDA memory as if it were the host's, and then faults. */
static td_status kv_ucx_check_cuda(ucp_context_h context, td_error *err)
{
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    unsigned major, minor, patch;
    ucs_status_t s = ucp_context_query(context, &attr);

    if (s != UCS_OK)
        return kv_ucx_fail(err, s, "KV transfer: asking UCX for its memory types");
    if (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA))
        return TD_OK;
    ucp_get_version(&major, &minor, &patch);
    return td_fail(err, TD_UNAVAILABLE,
                   "KV transfer: UCX %u.%u.%u, which this process has loaded, has no CUDA "
                   "transports: build with ucx_ROOT set to a UCX that has (README, \"On GPUs\"), "
                   "or use --backend cpu",
                   major, minor, patch);
}

td_status kv_ucx_use_device(const kv_options *opt, const td_kv_region *r, td_error *err)
{
    if (r->memory != TD_KV_CUDA || !opt->o.use_device)
        return TD_OK;
    return opt->o.use_device(r->device, err);
}

td_status kv_ucx_open(kv_ucx *u, const kv_options *opt, const td_kv_region *r, td_error *err)
{
    ucp_config_t *config;
    bool cuda = r->memory == TD_KV_CUDA;
    td_status st = kv_ucx_use_device(opt, r, err);

    if (st != TD_OK)
        return st;
    /* UCX keeps a list of the CUDA memory that is allocated after its first context, and takes all
     * other for the host's. Without that list it asks the driver. */
    ucs_status_t s = cuda ? ucs_global_opts_set_value("MEMTYPE_CACHE", "n") : UCS_OK;
    if (s != UCS_OK)
        return kv_ucx_fail(err, s, "KV transfer: setting MEMTYPE_CACHE=n");
    s = ucp_config_read(NULL, NULL, &config);
    if (s != UCS_OK)
        return kv_ucx_fail(err, s, "KV transfer: reading the UCX configuration");
    st = kv_ucx_configure(config, opt, cuda, err);
    if (st == TD_OK) {
        ucp_params_t params = {
            .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
            .features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
            .name = "tandem-kv",
        };

        s = ucp_init(&params, config, &u->context);
        if (s != UCS_OK)
            st = kv_ucx_fail(err, s, "KV transfer: no UCX transport for kv-transport %s%s%s",
                             opt->transport, opt->net_devices[0] ? " on " : "", opt->net_devices);
    }
    ucp_config_release(config);
    if (st == TD_OK && cuda) {
        st = kv_ucx_check_cuda(u->context, err);
        if (st != TD_OK)
            ucp_cleanup(u->context);
    }
    return st;
}

void kv_ucx_close(kv_ucx *u)
{
    ucp_cleanup(u->context);
}

td_status kv_ucx_worker_open(kv_ucx *u, ucp_worker_h *out, td_error *err)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    struct epoll_event event = {.events = EPOLLIN};
    ucp_worker_h worker;
    int fd; /* UCX owns it */
    ucs_status_t s = ucp_worker_create(u->context, &params, &worker);

    if (s != UCS_OK)
        return kv_ucx_fail(err, s, "KV transfer: creating a UCX worker");
    s = ucp_worker_get_efd(worker, &fd);
    if (s != UCS_OK) {
        ucp_worker_destroy(worker);
        return kv_ucx_fail(err, s, "KV transfer: a UCX worker without wakeup");
    }
    if (epoll_ctl(u->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        ucp_worker_destroy(worker);
        return td_fail(err, TD_IO, "KV transfer: epoll: %s", strerror(errno));
    }
    *out = worker;
    return TD_OK;
}

void kv_ucx_worker_close(ucp_worker_h worker)
{
    ucp_worker_destroy(worker); /* closing its fd takes it out of the epoll set */
}

/* ------------------------------------------------------------------ sleeping and waking */

td_status kv_ucx_open_fds(kv_ucx *u, td_error *err)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = 1};

    u->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    u->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (u->epoll_fd >= 0 && u->wake_fd >= 0 &&
        epoll_ctl(u->epoll_fd, EPOLL_CTL_ADD, u->wake_fd, &event) == 0)
        return TD_OK;
    td_fail(err, TD_IO, "KV transfer: eventfd and epoll: %s", strerror(errno));
    kv_ucx_close_fds(u);
    return TD_IO;
}

void kv_ucx_close_fds(kv_ucx *u)
{
    if (u->wake_fd >= 0)
        close(u->wake_fd);
    if (u->epoll_fd >= 0)
        close(u->epoll_fd);
}

void kv_ucx_wake(const kv_ucx *u)
{
    uint64_t one = 1;
    ssize_t n;

    do /* EAGAIN: the counter is full, so the thread is already being woken */
        n = write(u->wake_fd, &one, sizeof one);
    while (n < 0 && errno == EINTR);
}

bool kv_ucx_arm(ucp_worker_h worker)
{
    static _Atomic bool told;
    ucs_status_t s = ucp_worker_arm(worker);

    /* BUSY: something came in since the last progress. Anything else is a transport that is broken:
     * then its events are looked for at every tick, and what waits for them is given up in time. */
    if (s != UCS_OK && s != UCS_ERR_BUSY && !atomic_exchange(&told, true))
        td_warn("kv_arm_failed", "reason=\"%s\"", ucs_status_string(s));
    return s == UCS_ERR_BUSY;
}

void kv_ucx_sleep(kv_ucx *u, td_usec timeout_us)
{
    struct epoll_event events[8];
    struct pollfd fd = {.fd = u->epoll_fd, .events = POLLIN};
    struct timespec ts = {.tv_sec = timeout_us / TD_USEC_PER_SEC,
                          .tv_nsec = timeout_us % TD_USEC_PER_SEC * 1000};
    int n;

    if (timeout_us != 0) /* finer than epoll_wait()'s milliseconds */
        (void)ppoll(&fd, 1, timeout_us < 0 ? NULL : &ts, NULL);
    n = epoll_wait(u->epoll_fd, events, 8, 0);

    for (int i = 0; i < n; i++) {
        uint64_t count;

        while (events[i].data.fd == 1 && read(u->wake_fd, &count, sizeof count) < 0 &&
               errno == EINTR)
            ;
    }
}

/* ------------------------------------------------------------------ memory */

ucs_memory_type_t kv_ucx_memory(td_kv_memory m)
{
    return m == TD_KV_CUDA ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
}

td_status kv_ucx_map(kv_ucx *u, const kv_options *opt, const td_kv_region *r, ucp_mem_h *out,
                     td_error *err)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = r->base,
        .length = r->bytes,
        .memory_type = kv_ucx_memory(r->memory),
    };

    td_status st = kv_ucx_use_device(opt, r, err);
    if (st != TD_OK)
        return st;
    ucs_status_t s = ucp_mem_map(u->context, &params, out);
    if (s != UCS_OK)
        return kv_ucx_fail(err, s, "KV transfer: mapping %llu bytes of %s memory",
                           (unsigned long long)r->bytes, r->memory == TD_KV_CUDA ? "CUDA" : "host");
    return TD_OK;
}

void kv_ucx_unmap(kv_ucx *u, ucp_mem_h memh)
{
    ucs_status_t s = ucp_mem_unmap(u->context, memh);

    if (s != UCS_OK)
        td_warn("kv_unmap_failed", "reason=\"%s\"", ucs_status_string(s));
}

td_status td_kv_wire_check(const td_kv_wire_options *opt, td_kv_memory memory, int32_t device,
                           td_error *err)
{
    const td_kv_region r = {.memory = memory, .device = device};
    kv_options o;
    kv_ucx u;
    td_status st = kv_options_init(&o, opt, err);

    if (st == TD_OK)
        st = kv_ucx_open(&u, &o, &r, err);
    if (st != TD_OK)
        return st;
    kv_ucx_close(&u);
    td_info("kv_ucx", "version=%u.%u memory=%s transport=%s", kv_ucx_version() >> 16,
            kv_ucx_version() & 0xffff, memory == TD_KV_CUDA ? "cuda" : "host", o.transport);
    if (memory == TD_KV_CUDA && kv_ucx_version() < (1 << 16 | 19))
        td_warn("kv_ucx_old", "what=\"before 1.19 UCX knows one GPU in a process\"");
    return TD_OK;
}

/* ------------------------------------------------------------------ what UCX chose */

/* Add a name once: "posix", then "posix+cma". */
static void kv_name_add(char name[KV_TRANSPORT_NAME], const char *tl, size_t len)
{
    size_t have = strlen(name);

    for (const char *at = name; *at; at += strcspn(at, "+"), at += *at == '+')
        if (strcspn(at, "+") == len && memcmp(at, tl, len) == 0)
            return;
    if (have + len + 2 > KV_TRANSPORT_NAME)
        return;
    snprintf(name + have, KV_TRANSPORT_NAME - have, "%s%.*s", have ? "+" : "", (int)len, tl);
}

#if UCP_API_VERSION >= UCP_VERSION(1, 15)

void kv_ucx_transport(ucp_ep_h ep, char name[KV_TRANSPORT_NAME])
{
    ucp_transport_entry_t entries[16];
    ucp_ep_attr_t attr = {
        .field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS,
        .transports = {.entries = entries, .num_entries = 16, .entry_size = sizeof entries[0]},
    };

    name[0] = '\0';
    if (ucp_ep_query(ep, &attr) == UCS_OK)
        for (unsigned i = 0; i < attr.transports.num_entries; i++)
            kv_name_add(name, entries[i].transport_name, strlen(entries[i].transport_name));
}

#else

/* Older UCX cannot be asked, but prints its lanes: "# lane[1]: 3:cma/memory.0 md[3] -> ... ". */
void kv_ucx_transport(ucp_ep_h ep, char name[KV_TRANSPORT_NAME])
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);

    name[0] = '\0';
    if (!f)
        return;
    ucp_ep_print_info(ep, f);
    if (fclose(f) == 0)
        for (const char *at = text; (at = strstr(at, "lane[")) != NULL;) {
            const char *tl = strstr(at, ": ");

            at += strlen("lane[");
            if (!tl)
                break;
            tl += 2 + strspn(tl + 2, " 0123456789");
            tl += *tl == ':';
            kv_name_add(name, tl, strcspn(tl, "/ \n"));
        }
    free(text);
}

#endif
