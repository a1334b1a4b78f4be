/* kv_process: a sink or a source in a process of its own, driven by messages over a socket. The
 * test itself never touches UCX, so that it can kill, freeze and restart either side. */
#ifndef TANDEM_TESTS_KV_PROCESS_H
#define TANDEM_TESTS_KV_PROCESS_H

#include "common/clock.h"
#include "common/kv_notice.h"
#include "tests/unit/kv_scenario.h"

#include <stdbool.h>
#include <sys/types.h>

typedef enum kv_msg_kind {
    KV_M_READY,  /* from both: opened */
    KV_M_FAILED, /* from both: could not open; text says why */
    KV_M_QUIT,   /* to both: close everything and exit 0 */
    /* to a source */
    KV_M_DEST,   /* what follows is a descriptor; number is the incarnation */
    KV_M_OPEN,   /* push `request`; number: lease in microseconds from now, < 0 for none */
    KV_M_LAYERS, /* push layers [from, to) of it, chunk by chunk */
    KV_M_FINISH, /* with `status` */
    KV_M_CANCEL,
    KV_M_DONE, /* from it: on_done of `request`; number: bytes, count: puts */
    KV_M_DUPLICATE_DONE,
    /* to a sink */
    KV_M_CHECK,  /* expect[] in bytes; answered with number: wrong bytes */
    KV_M_DIGEST, /* of `request`; answered with number */
    KV_M_SETTLE,
    KV_M_DESC,   /* from it: what follows is its descriptor */
    KV_M_NOTICE, /* from it */
} kv_msg_kind;

typedef struct kv_msg {
    int32_t kind, request, from, to, status;
    uint32_t count;
    int64_t number;
    td_kv_notice notice;
    char transport[64];
    char text[512];
    uint32_t len; /* of bytes */
    unsigned char bytes[4096];
} kv_msg;

enum { KV_TEST_EPOCH = 900, KV_TEST_ATTEMPT = 2, KV_TEST_TOKEN = 4242 };

/* Run as a child when the command line says so; does not return then. */
void kv_process_main_if_child(int argc, char **argv);

typedef struct kv_process {
    pid_t pid;
    int fd;
} kv_process;

/* Start this program again as a "source" or a "sink" and send it the scenario. */
kv_process kv_process_start(const char *role, const kv_scenario *s);
void kv_process_send(const kv_process *p, const kv_msg *m);
bool kv_process_recv(const kv_process *p, kv_msg *m); /* false: the process is gone */

/* Wait for it to end; its exit code, or minus the signal. Kills it past the deadline. */
int kv_process_wait(kv_process *p, td_usec deadline);

#endif
