/* SPDX-License-Identifier: Apache-2.0 */
/* Events by themselves; tests/ep/call/test_ep_async.c has them with calls. */
#include "ep/harness/check.h"
#include "exec/event.h"
#include "oracle/unit.h"
#include <pthread.h>

static void test_an_event_happens_once(void **state)
{
    (void)state;
    expar_event *event = NULL;
    int done = 7;
    assert_int_equal(expar_event_create(&event), EXPAR_OK);
    assert_int_equal(expar_event_query(event, &done), EXPAR_OK);
    assert_int_equal(done, 0);
    assert_int_equal(expar_event_signal(event), EXPAR_OK);
    assert_int_equal(expar_event_query(event, &done), EXPAR_OK);
    assert_int_equal(done, 1);
    assert_int_equal(expar_event_wait(event), EXPAR_OK);
    assert_int_equal(expar_event_wait(event), EXPAR_OK);
    check_begin(0);
    CHECK_STATUS(EXPAR_ERR_STATE, expar_event_signal(event));
    CHECK_TEXT("expar_event_signal", "already");
    expar_event_release(event);
    assert_int_equal(check_failures(), 0);
}

static void test_events_of_nothing(void **state)
{
    (void)state;
    expar_event *event = NULL;
    int done;
    check_begin(0);
    CHECK_STATUS(EXPAR_ERR_NULL, expar_event_create(NULL));
    CHECK_TEXT("expar_event_create", "event");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_event_signal(NULL));
    CHECK_TEXT("expar_event_signal", "event");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_event_wait(NULL));
    CHECK_TEXT("expar_event_wait", "event");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_event_query(NULL, &done));
    CHECK_TEXT("expar_event_query", "event is NULL");
    CHECK_OK(expar_event_create(&event));
    CHECK_STATUS(EXPAR_ERR_NULL, expar_event_query(event, NULL));
    CHECK_TEXT("expar_event_query", "done is NULL");
    expar_event_release(event);
    expar_event_release(NULL);
    assert_int_equal(check_failures(), 0);
}

static void test_an_event_lives_as_long_as_its_references(void **state)
{
    (void)state;
    expar_event *event = NULL;
    check_begin(0);
    CHECK_STATUS(EXPAR_ERR_NULL, expar_event_retain(NULL));
    CHECK_TEXT("expar_event_retain: event is NULL");
    CHECK_OK(expar_event_create(&event));
    CHECK_OK(expar_event_retain(event));
    expar_event_release(event);
    CHECK_OK(expar_event_signal(event));
    CHECK_OK(expar_event_wait(event));
    expar_event_release(event);
    CHECK_STATUS(EXPAR_ERR_HANDLE, expar_event_retain(event));
    CHECK_TEXT("expar_event_retain: event ", "it has been released as often as retained");
    assert_int_equal(check_failures(), 0);
}

/* Without a GPU: there is no stream, and what waits for an event is the thread. */
static void test_streams_that_are_not_there(void **state)
{
    (void)state;
    expar_event *event = NULL;
    int done = 7;
    check_begin(0);
    CHECK_STATUS(EXPAR_ERR_NULL, expar_event_record(NULL, NULL));
    CHECK_TEXT("expar_event_record", "event is NULL");
    CHECK_STATUS(EXPAR_ERR_NULL, expar_event_stream_wait(NULL, NULL));
    CHECK_TEXT("expar_event_stream_wait", "event is NULL");
    CHECK_OK(expar_event_record(NULL, &event));
    CHECK_OK(expar_event_query(event, &done));
    assert_int_equal(done, 1);
    CHECK_OK(expar_event_wait(event));
    CHECK_OK(expar_event_stream_wait(event, NULL));
    expar_event_release(event);
    CHECK_OK(expar_event_create(&event));
    CHECK_OK(expar_event_signal(event));
    CHECK_OK(expar_event_stream_wait(event, NULL));
    expar_event_release(event);
    assert_int_equal(check_failures(), 0);
}

typedef struct waiter {
    pthread_t thread;
    expar_event *event;
    const int *word; /* written before the signal */
    int seen;
} waiter;

static void *wait_and_read(void *argument)
{
    waiter *self = argument;
    if (expar_event_wait(self->event) == EXPAR_OK) self->seen = *self->word;
    return NULL;
}

/* All waiters see the writes before the signal. Nothing else orders the threads. */
static void test_a_signal_publishes(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        waiter waiters[3] = {0};
        expar_event *event = NULL;
        int word = 0;
        assert_int_equal(expar_event_create(&event), EXPAR_OK);
        for (int i = 0; i < 3; i++) {
            waiters[i] = (waiter){.event = event, .word = &word};
            assert_int_equal(pthread_create(&waiters[i].thread, NULL, wait_and_read, &waiters[i]), 0);
        }
        word = 5 + round;
        assert_int_equal(expar_event_signal(event), EXPAR_OK);
        for (int i = 0; i < 3; i++) {
            pthread_join(waiters[i].thread, NULL);
            assert_int_equal(waiters[i].seen, 5 + round);
        }
        expar_event_release(event);
    }
}

/* The event of a call. It ends with the call's status and text, only the call can end it; it lives as long as anybody
   holds it. */
static void test_an_event_of_a_call(void **state)
{
    (void)state;
    check_begin(0);
    for (int held_twice = 0; held_twice < 2; held_twice++) {
        expar_event *event = NULL;
        CHECK_OK(event_create_for_call(&event));
        CHECK_STATUS(EXPAR_ERR_STATE, expar_event_signal(event));
        CHECK_TEXT("expar_event_signal", "belongs to a call");
        error_set(EXPAR_ERR_PEER, "rank 3 is gone");
        if (held_twice) event_retain(event);
        event_finish(event, EXPAR_ERR_PEER);
        error_set(EXPAR_ERR_NULL, "something else");
        CHECK_STATUS(EXPAR_ERR_PEER, expar_event_wait(event));
        CHECK_TEXT("rank 3 is gone");
        expar_event_release(event);
        if (held_twice) expar_event_release(event);
    }
    assert_int_equal(check_failures(), 0);
}

typedef struct watch {
    expar_event *event;
    int looks, drops;
} watch;

/* Finds the third time that the call will never end. */
static void look(void *context)
{
    watch *self = context;
    if (++self->looks == 3) event_finish(self->event, error_set(EXPAR_ERR_CUDA, "the GPU is lost"));
}

static void dropped(void *context)
{
    ((watch *)context)->drops++;
}

/* A thread that waits, or asks again and again, has another one look after it. */
static void test_an_event_whose_call_is_lost(void **state)
{
    (void)state;
    check_begin(0);
    for (int asked = 0; asked < 2; asked++) {
        watch w = {0};
        int done = 0;
        CHECK_OK(event_create_for_call(&w.event));
        event_keep(w.event, &(event_keeper){.look = look, .drop = dropped, .context = &w});
        while (asked && !done)
            CHECK_OK(expar_event_query(w.event, &done));
        CHECK_STATUS(EXPAR_ERR_CUDA, expar_event_wait(w.event));
        CHECK_TEXT("the GPU is lost");
        CHECK(w.looks == 3 && w.drops == 0, "%d looks, %d drops", w.looks, w.drops);
        expar_event_release(w.event);
        CHECK(w.drops == 1, "%d drops", w.drops);
    }
    assert_int_equal(check_failures(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_event_happens_once),
        cmocka_unit_test(test_events_of_nothing),
        cmocka_unit_test(test_an_event_lives_as_long_as_its_references),
        cmocka_unit_test(test_streams_that_are_not_there),
        cmocka_unit_test(test_a_signal_publishes),
        cmocka_unit_test(test_an_event_of_a_call),
        cmocka_unit_test(test_an_event_whose_call_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
