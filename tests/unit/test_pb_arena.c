/* pb_arena: a message unpacks, reuse costs nothing, hostile bytes fail and leave nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/pb_arena.h"
#include "common/pb_pack.h"
#include "proto/tandem.pb-c.h"

static const ProtobufCMessageDescriptor *const worker_message = &tandem__worker_message__descriptor;

/* n_events events of one token, as a decode step sends them. *n is their packed size; for free().
 */
static uint8_t *pack_events(size_t n_events, size_t *n)
{
    Tandem__TokenEvent *events = calloc(n_events, sizeof *events);
    Tandem__TokenEvent **list = calloc(n_events, sizeof *list);
    Tandem__WorkerMessage msg = TANDEM__WORKER_MESSAGE__INIT;
    int32_t token = 7;
    uint8_t *bytes;

    assert_true(events != NULL && list != NULL);
    for (size_t i = 0; i < n_events; i++) {
        events[i] = (Tandem__TokenEvent)TANDEM__TOKEN_EVENT__INIT;
        events[i].request = 1000 + i;
        events[i].index = (uint32_t)i % 100;
        events[i].n_tokens = 1;
        events[i].tokens = &token;
        list[i] = &events[i];
    }
    msg.seq = 5;
    msg.n_tokens = n_events;
    msg.tokens = list;
    bytes = td_pb_pack(&msg.base, n);
    assert_non_null(bytes);
    free(events);
    free(list);
    return bytes;
}

static void test_pb_arena_unpacks_small_and_large_steps(void **state)
{
    static const size_t sizes[] = {1, 8, 512, 4096, 3};
    td_pb_arena a;
    td_error err = {0};

    (void)state;
    td_pb_arena_init(&a);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n;
        uint8_t *bytes = pack_events(sizes[i], &n);
        Tandem__WorkerMessage *msg = td_pb_unpack(&a, worker_message, bytes, n, &err);

        free(bytes); /* the message must not point into it */
        if (msg == NULL)
            fail_msg("%zu events: %s", sizes[i], err.text);
        assert_int_equal(msg->seq, 5);
        assert_int_equal(msg->n_tokens, sizes[i]);
        assert_int_equal(msg->tokens[sizes[i] - 1]->request, 1000 + sizes[i] - 1);
        assert_int_equal(msg->tokens[sizes[i] - 1]->tokens[0], 7);
    }
    td_pb_arena_fini(&a);
    td_pb_arena_fini(&a);
}

static void test_pb_arena_unpacks_nothing_as_the_default_message(void **state)
{
    td_pb_arena a;
    td_error err = {0};
    Tandem__WorkerReply *reply;

    (void)state;
    td_pb_arena_init(&a);
    reply = td_pb_unpack(&a, &tandem__worker_reply__descriptor, NULL, 0, &err);
    assert_non_null(reply);
    assert_int_equal(reply->status, TD_OK);
    td_pb_arena_fini(&a);
}

static void test_pb_arena_bounds_what_a_message_may_become(void **state)
{
    enum { BYTES = 1 << 20 };
    uint8_t *bytes = malloc(BYTES);
    td_pb_arena a;
    td_error err = {0};
    size_t n;

    (void)state;
    assert_non_null(bytes);
    for (size_t i = 0; i < BYTES; i += 2) { /* field 5, length 0: half a million empty events */
        bytes[i] = 5 << 3 | 2;
        bytes[i + 1] = 0;
    }
    td_pb_arena_init(&a);
    assert_null(td_pb_unpack(&a, worker_message, bytes, BYTES, &err));
    assert_int_equal(err.code, TD_TOOLARGE);
    assert_non_null(strstr(err.text, "1048576"));
    free(bytes);

    bytes = pack_events(8, &n); /* and goes on as if nothing had been */
    assert_non_null(td_pb_unpack(&a, worker_message, bytes, n, &err));
    free(bytes);
    td_pb_arena_fini(&a);
}

/* Cut anywhere, or with any byte changed, a message unpacks or is refused; sanitizers watch. */
static void test_pb_arena_survives_damage(void **state)
{
    td_pb_arena a;
    size_t n, refused = 0;
    uint8_t *bytes = pack_events(3, &n);

    (void)state;
    td_pb_arena_init(&a);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *exact = malloc(cut + 1); /* so that a read past the cut is seen */
        td_error err = {0};

        assert_non_null(exact);
        memcpy(exact + 1, bytes, cut);
        if (td_pb_unpack(&a, worker_message, exact + 1, cut, &err) == NULL) {
            assert_int_equal(err.code, TD_INVALID);
            refused++;
        }
        free(exact);
    }
    assert_true(refused > n / 2);
    for (size_t at = 0; at < n; at++) {
        for (int flip = 1; flip < 256; flip++) {
            td_error err = {0};
            void *msg;

            bytes[at] ^= (uint8_t)flip;
            msg = td_pb_unpack(&a, worker_message, bytes, n, &err);
            assert_true(msg != NULL || err.code == TD_INVALID || err.code == TD_TOOLARGE);
            bytes[at] ^= (uint8_t)flip;
        }
    }
    free(bytes);
    td_pb_arena_fini(&a);
}

/* protobuf-c unpacks nested messages by recursion without a limit, so that a message that could
 * hold itself would be a stack overflow for whoever sends one. */
static int depth_of(const ProtobufCMessageDescriptor *type, int left)
{
    int deepest = 0;

    assert_true(left > 0);
    for (unsigned i = 0; i < type->n_fields; i++) {
        if (type->fields[i].type == PROTOBUF_C_TYPE_MESSAGE) {
            int depth = depth_of(type->fields[i].descriptor, left - 1);

            deepest = depth > deepest ? depth : deepest;
        }
    }
    return deepest + 1;
}

static void test_pb_arena_no_message_can_hold_itself(void **state)
{
    (void)state;
    assert_in_range(depth_of(worker_message, 8), 2, 8);
    assert_in_range(depth_of(&tandem__worker_request__descriptor, 8), 2, 8);
    assert_in_range(depth_of(&tandem__worker_reply__descriptor, 8), 2, 8);
    assert_in_range(depth_of(&tandem__gateway_request__descriptor, 8), 2, 8);
    assert_in_range(depth_of(&tandem__gateway_reply__descriptor, 8), 2, 8);
    assert_in_range(depth_of(&tandem__gateway_events__descriptor, 8), 2, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pb_arena_unpacks_small_and_large_steps),
        cmocka_unit_test(test_pb_arena_unpacks_nothing_as_the_default_message),
        cmocka_unit_test(test_pb_arena_bounds_what_a_message_may_become),
        cmocka_unit_test(test_pb_arena_survives_damage),
        cmocka_unit_test(test_pb_arena_no_message_can_hold_itself),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
