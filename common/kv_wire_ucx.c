/* kv_wire_ucx: UCX set up the one way both ends need it, and its statuses in our words.
 *
 * Settings come from our options and are applied over whatever UCX_* variables say, because a stray
 * variable in one pod would otherwise change failure behaviour there alone. Shared memory
 * transports need their ERROR_HANDLING switch, or UCX leaves them out without a word in peer
 * failure mode. */
#include "common/kv_wire_impl.h"

#include "common/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
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
    const char *tls = "all";
    char keepalive[32];

    if (strcmp(opt->transport, "shm") == 0)
        tls = cuda ? "posix,sysv,cma,self,cuda_copy,cuda_ipc" : "posix,sysv,cma,self";
    else if (strcmp(opt->transport, "tcp") == 0)
        tls = cuda ? "tcp,self,cuda_copy" : "tcp,self";
    snprintf(keepalive, sizeof keepalive, "%lldus", (long long)opt->o.keepalive_us);

    const struct {
        const char *name, *value;
    } settings[] = {
        {"TLS", tls},
        {"NET_DEVICES", opt->net_devices[0] ? opt->net_devices : "all"},
        {"KEEPALIVE_INTERVAL", keepalive},
        {"POSIX_ERROR_HANDLING", "y"},
        {"SYSV_ERROR_HANDLING", "y"},
    };
    bool shm = strcmp(opt->transport, "tcp") != 0;

    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        /* UCX warns about settings of transports that it does not open. */
        if (strstr(settings[i].name, "ERROR_HANDLING") && !shm)
            continue;
        td_status st = kv_ucx_set(config, settings[i].name, settings[i].value, err);
        if (st != TD_OK)
            return st;
    }
    return TD_OK;
}

static td_status kv_ucx_open_context(kv_ucx *u, const kv_options *opt, bool cuda, td_error *err)
{
    ucp_config_t *config;
    ucs_status_t s = ucp_config_read(NULL, NULL, &config);

    if (s != UCS_OK)
        return kv_ucx_fail(err, s, "KV transfer: reading the UCX configuration");
    td_status st = kv_ucx_configure(config, opt, cuda, err);
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
    return st;
}

td_status kv_ucx_open(kv_ucx *u, const kv_options *opt, bool cuda, td_error *err)
{
    td_status st = kv_ucx_open_context(u, opt, cuda, err);
    if (st != TD_OK)
        return st;

    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    ucs_status_t s = ucp_worker_create(u->context, &params, &u->worker);
    if (s != UCS_OK) {
        st = kv_ucx_fail(err, s, "KV transfer: creating a UCX worker");
        goto close_context;
    }
    s = ucp_worker_get_efd(u->worker, &u->ucx_fd);
    if (s != UCS_OK) {
        st = kv_ucx_fail(err, s, "KV transfer: a UCX worker without wakeup");
        goto close_worker;
    }
    return TD_OK;

close_worker:
    ucp_worker_destroy(u->worker);
close_context:
    ucp_cleanup(u->context);
    return st;
}

void kv_ucx_close(kv_ucx *u)
{
    ucp_worker_destroy(u->worker);
    ucp_cleanup(u->context);
}

/* ------------------------------------------------------------------ sleeping and waking */

td_status kv_ucx_open_wake(kv_ucx *u, td_error *err)
{
    u->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (u->wake_fd < 0)
        return td_fail(err, TD_IO, "KV transfer: eventfd: %s", strerror(errno));
    return TD_OK;
}

void kv_ucx_close_wake(kv_ucx *u)
{
    close(u->wake_fd);
}

void kv_ucx_wake(const kv_ucx *u)
{
    uint64_t one = 1;
    ssize_t n;

    do /* EAGAIN: the counter is full, so the thread is already being woken */
        n = write(u->wake_fd, &one, sizeof one);
    while (n < 0 && errno == EINTR);
}

void kv_ucx_sleep(kv_ucx *u, int timeout_ms)
{
    struct pollfd fds[2] = {
        {.fd = u->wake_fd, .events = POLLIN},
        {.fd = u->ucx_fd, .events = POLLIN},
    };
    ucs_status_t s = ucp_worker_arm(u->worker);

    if (s == UCS_ERR_BUSY)
        timeout_ms = 0; /* something came in since the last progress; still look at wake_fd */
    if (poll(fds, 2, timeout_ms) > 0 && fds[0].revents) {
        uint64_t count;

        while (read(u->wake_fd, &count, sizeof count) < 0 && errno == EINTR)
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

    if (opt->o.use_device)
        opt->o.use_device(r->device);
    ucs_status_t s = ucp_mem_map(u->context, &params, out);
    if (s != UCS_OK)
        return kv_ucx_fail(err, s, "KV transfer: mapping %llu bytes of %s memory",
                           (unsigned long long)r->bytes, r->memory == TD_KV_CUDA ? "CUDA" : "host");
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
