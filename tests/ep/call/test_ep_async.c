/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that finish by themselves, and calls that wait for events. */
#include "ep/harness/table.h"
#include "oracle/unit.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const deal_choice sync_choice = {0};
static const deal_choice async_choice = {.async = true};

static void nap(void)
{
    const struct timespec moment = {0, 20000000};
    nanosleep(&moment, NULL);
}

/* ---- helpers for ranks ------------------------------------------------------------------------------------------- */

static void run(const table_case *what, table_body body, void *shared)
{
    assert_true(table_run(what, RANKS_THREADS, body, shared));
}

static void run_plain(table_body body)
{
    table_case c = table_case_make();
    run(&c, body, NULL);
}

/* For one more buffer that the table's traffic fits. */
static expar_ep_config another_config(void)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = 5;
    config.max_row_bytes = 64;
    config.max_topk = 3;
    config.max_experts = 6;
    return config;
}

/* One deal with moves for a body to make; freed together. */
#define MOVES 6
typedef struct hand {
    table *table;
    random_source random;
    deal *deal;
    expar_ep_handle *handle;
    deal_move *moves[MOVES];
    deal_call calls[MOVES];
    int count;
} hand;

static hand hand_make(table *t, uint64_t seed, const deal_choice *first)
{
    hand h = {.table = t, .random = random_start(seed)};
    h.deal = table_deal(t, first, &h.random);
    return h;
}

static bool hand_start(hand *h, expar_ep *ep, move_kind kind, const deal_choice *choice, expar_event *wait_event)
{
    deal_move *m = table_move(h->table, h->deal, kind, choice, &h->random);
    deal_call *call = &h->calls[h->count];
    h->moves[h->count++] = m;
    bool right = deal_call_start(call, ep, m, h->table->rank, &h->table->area, h->handle, wait_event);
    if (kind == MOVE_DISPATCH) h->handle = call->result.handle;
    return right;
}

static bool hand_finish(hand *h)
{
    bool right = true;
    for (int i = 0; i < h->count; i++) {
        right &= deal_call_finish(&h->calls[i]);
        move_free(h->moves[i]);
    }
    expar_ep_handle_release(h->handle);
    deal_free(h->deal);
    return right;
}

/* ---- calls in flight --------------------------------------------------------------------------------------------- */

/* Two buffers, two calls on each issued before any is waited for. */
static void trial_in_flight(table *t)
{
    expar_ep_config config = another_config();
    table other = *t;
    config.ring_slots = 1;
    if (!CHECK_OK(expar_ep_create(t->group, &config, &other.ep))) return;
    hand here = hand_make(t, 1, &async_choice), there = hand_make(&other, 2, &async_choice);
    for (move_kind kind = MOVE_DISPATCH; kind <= MOVE_COMBINE; kind++) {
        hand_start(&here, t->ep, kind, &async_choice, NULL);
        hand_start(&there, other.ep, kind, &async_choice, NULL);
    }
    hand_finish(&there);
    hand_finish(&here);
    CHECK_OK(expar_ep_destroy(other.ep));
}

static void test_in_flight_on_two_buffers(void **state)
{
    (void)state;
    run_plain(trial_in_flight);
}

/* The next call waits for the one before by itself. */
static void trial_followed_at_once(table *t)
{
    for (int round = 0; round < 10; round++) {
        hand h = hand_make(t, 10 + (uint64_t)round, &async_choice);
        hand_start(&h, t->ep, MOVE_DISPATCH, &async_choice, NULL);
        hand_start(&h, t->ep, MOVE_COMBINE, &sync_choice, NULL);
        hand_start(&h, t->ep, MOVE_REPEAT, &async_choice, NULL);
        hand_start(&h, t->ep, MOVE_REPEAT, &sync_choice, NULL);
        hand_start(&h, t->ep, MOVE_COMBINE, &async_choice, NULL);
        hand_start(&h, t->ep, MOVE_COMBINE, &sync_choice, NULL);
        hand_finish(&h);
    }
}

static void test_followed_at_once_by_a_call_that_waits(void **state)
{
    (void)state;
    run_plain(trial_followed_at_once);
}

/* The caller gives handle, output, event and at last the buffer back while the call that fills and uses them runs. */
static void give_back_in_flight(table *t, expar_ep *ep)
{
    hand h = hand_make(t, 30, &async_choice);
    expar_event *late = NULL;
    CHECK_OK(expar_event_create(&late));
    hand_start(&h, ep, MOVE_DISPATCH, &async_choice, NULL);
    hand_start(&h, ep, MOVE_REPEAT, &async_choice, late);
    expar_ep_handle_release(h.handle);
    h.handle = NULL;
    deal_call *running = &h.calls[1];
    expar_ep_output_release(running->result.output);
    running->result.output = NULL;
    expar_event_release(running->event);
    running->event = NULL;
    running->issued = false; /* nothing is left to look at */
    CHECK(deal_call_finish(&h.calls[0]), "the first dispatch, released in flight of the second");
    h.calls[0].started = h.calls[0].issued = false;
    CHECK_OK(expar_event_signal(late));
    expar_event_release(late);
    CHECK_OK(expar_ep_destroy(ep)); /* waits for what runs */
    deal_dispatch_clean(running);
    for (int i = 0; i < h.count; i++)
        move_free(h.moves[i]);
    deal_free(h.deal);
}

static void trial_given_back(table *t)
{
    expar_ep_config config = another_config();
    for (int round = 0; round < 10 && !check_failures(); round++) {
        expar_ep *ep = NULL;
        if (CHECK_OK(expar_ep_create(t->group, &config, &ep))) give_back_in_flight(t, ep);
    }
}

static void test_given_back_while_in_flight(void **state)
{
    (void)state;
    run_plain(trial_given_back);
}

/* An event that is not done until every rank has called. */
static void trial_query(table *t)
{
    pthread_barrier_t *all_here = t->shared;
    hand h = hand_make(t, 50, &sync_choice);
    int done = 1;
    hand_start(&h, t->ep, MOVE_DISPATCH, &sync_choice, NULL);
    if (t->rank != 0) pthread_barrier_wait(all_here);
    hand_start(&h, t->ep, MOVE_COMBINE, &async_choice, NULL);
    if (t->rank == 0) {
        CHECK_OK(expar_event_query(h.calls[1].event, &done));
        CHECK(done == 0, "a combine is done on one rank before the others called it");
        CHECK_STATUS(EXPAR_ERR_STATE, expar_event_signal(h.calls[1].event));
        CHECK_TEXT("expar_event_signal", "belongs to a call");
        pthread_barrier_wait(all_here);
    }
    hand_finish(&h);
}

static void test_query_before_and_after(void **state)
{
    (void)state;
    table_case c = table_case_make();
    pthread_barrier_t all_here;
    pthread_barrier_init(&all_here, NULL, (unsigned)c.plan.num_ranks);
    run(&c, trial_query, &all_here);
    pthread_barrier_destroy(&all_here);
}

/* ---- calls that wait for an event -------------------------------------------------------------------------------- */

typedef struct signaller {
    pthread_t thread;
    expar_event *event;
    void *to;
    const void *from;
    size_t bytes;
} signaller;

/* Fills the arguments' memory late, then says so. */
static void *fill_late(void *argument)
{
    signaller *self = argument;
    nap();
    memcpy(self->to, self->from, self->bytes);
    expar_event_signal(self->event);
    return NULL;
}

/* x is wrong until the event: a call that read it earlier would carry the wrong bytes. */
static void dispatch_late(table *t, hand *h, bool repeat, bool async)
{
    random_source random = random_start(99);
    deal_choice choice = {.async = async};
    deal_move *m = table_move(t, h->deal, repeat ? MOVE_REPEAT : MOVE_DISPATCH, &choice, &random);
    const oracle_input *input = &m->inputs[t->rank];
    size_t bytes = (size_t)input->num_tokens * 32;
    void *right = traffic_alloc(bytes, 1);
    memcpy(right, input->x, bytes);
    signaller s = {.from = right, .bytes = bytes};
    CHECK_OK(expar_event_create(&s.event));
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.x = expar_tensor_2d(traffic_alloc(bytes, 1), EXPAR_BF16, input->num_tokens, 16);
    if (repeat) {
        args.handle = h->handle;
    } else {
        args.num_experts = h->deal->job.num_experts;
        args.topk_idx = expar_tensor_2d((void *)(uintptr_t)input->topk_idx, EXPAR_I64, input->num_tokens, 3);
    }
    args.wait_event = s.event;
    args.async_finish = async;
    s.to = args.x.data;
    pthread_create(&s.thread, NULL, fill_late, &s);
    if (CHECK_OK(expar_ep_dispatch(t->ep, &args, &result))) {
        if (async) CHECK_OK(expar_event_wait(result.event));
        void *expected = traffic_alloc((size_t)oracle_num_received(&m->job, t->rank), 32);
        oracle_dispatch(&m->job, t->rank, expected, NULL, NULL);
        CHECK(memcmp(result.recv_x.data, expected, (size_t)result.num_recv_tokens * 32) == 0,
              "x was read before the event (%s, %s)", repeat ? "repeat" : "first", async ? "async" : "sync");
        free(expected);
    }
    pthread_join(s.thread, NULL);
    expar_event_release(result.event);
    expar_event_release(s.event);
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
    free(args.x.data);
    free(right);
    move_free(m);
}

static void combine_late(table *t, hand *h, bool async)
{
    random_source random = random_start(98);
    deal_choice choice = {.async = async};
    deal_move *m = table_move(t, h->deal, MOVE_COMBINE, &choice, &random);
    int64_t rows = move_num_x_rows(m, t->rank), tokens = m->inputs[t->rank].num_tokens;
    signaller s = {.from = m->x[t->rank], .bytes = (size_t)rows * 32};
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    CHECK_OK(expar_event_create(&s.event));
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = expar_tensor_2d(s.to = traffic_alloc((size_t)rows, 32), EXPAR_BF16, rows, 16);
    args.out_y = expar_tensor_2d(traffic_alloc((size_t)tokens, 32), EXPAR_BF16, tokens, 16);
    args.handle = h->handle;
    args.wait_event = s.event;
    args.async_finish = async;
    pthread_create(&s.thread, NULL, fill_late, &s);
    if (CHECK_OK(expar_ep_combine(t->ep, &args, &done))) {
        if (async) CHECK_OK(expar_event_wait(done.event));
        void *expected = traffic_alloc((size_t)tokens, 32);
        oracle_combine(&m->job, t->rank, (const void *const *)m->x, expected);
        CHECK(memcmp(args.out_y.data, expected, (size_t)tokens * 32) == 0, "x was read before the event (%s)",
              async ? "async" : "sync");
        free(expected);
    }
    pthread_join(s.thread, NULL);
    expar_event_release(done.event);
    expar_event_release(s.event);
    free(args.x.data);
    free(args.out_y.data);
    move_free(m);
}

static void trial_late(table *t)
{
    hand h = hand_make(t, 60, &sync_choice);
    hand_start(&h, t->ep, MOVE_DISPATCH, &sync_choice, NULL);
    for (int i = 0; i < 4; i++)
        dispatch_late(t, &h, i & 1, i & 2);
    combine_late(t, &h, false);
    combine_late(t, &h, true);
    hand_finish(&h);
}

static void test_signalled_late_from_another_thread(void **state)
{
    (void)state;
    run_plain(trial_late);
}

/* A combine that waits for bad; its event, or NULL. */
static expar_status combine_after(table *t, const hand *h, const deal_move *m, expar_event *bad, expar_event **event)
{
    int64_t rows = move_num_x_rows(m, t->rank), tokens = m->inputs[t->rank].num_tokens;
    expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
    args.x = expar_tensor_2d(m->x[t->rank], EXPAR_BF16, rows, 16);
    args.out_y = expar_tensor_2d(t->area.out, EXPAR_BF16, tokens, 16);
    args.handle = h->handle;
    args.wait_event = bad;
    args.async_finish = m->choices[t->rank].async;
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    expar_status status = expar_ep_combine(t->ep, &args, &done);
    *event = done.event;
    return status;
}

static expar_status dispatch_after(table *t, const hand *h, const deal_move *m, expar_event *bad,
                                   expar_ep_dispatch_result *result)
{
    const oracle_input *input = &m->inputs[t->rank];
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    args.x = expar_tensor_2d((void *)(uintptr_t)input->x, EXPAR_BF16, input->num_tokens, 16);
    args.wait_event = bad;
    args.async_finish = m->choices[t->rank].async;
    args.num_experts = h->deal->job.num_experts;
    if (m->form.kind == MOVE_REPEAT)
        args.handle = h->handle;
    else
        args.topk_idx = expar_tensor_2d((void *)(uintptr_t)input->topk_idx, EXPAR_I64, input->num_tokens, 3);
    return expar_ep_dispatch(t->ep, &args, result);
}

/* Rank 1's call waits for an event that ended badly. It is told so, the others hear of it; then all goes on. */
static void reject_by_event(table *t, hand *h, move_kind kind, bool async)
{
    random_source random = random_start(70);
    bool mine = t->rank == 1;
    deal_choice choice = {.async = async};
    deal_move *m = table_move(t, h->deal, kind, &choice, &random);
    expar_event *bad = mine ? table_failed_event() : NULL, *event = NULL;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_status got =
        kind == MOVE_COMBINE ? combine_after(t, h, m, bad, &event) : dispatch_after(t, h, m, bad, &result);
    if (kind != MOVE_COMBINE) event = result.event;
    bool at_once = kind == MOVE_DISPATCH || (mine && EVENTS_HOLD_UP_THE_CALLER);
    if (async && !at_once) {
        CHECK_STATUS(EXPAR_OK, got);
        got = expar_event_wait(event);
    }
    CHECK_STATUS(mine ? EXPAR_ERR_STATE : EXPAR_ERR_REMOTE, got);
    if (mine)
        CHECK_TEXT("wait_event ended with an error", "three of five");
    else
        CHECK_TEXT("rank 1", "EXPAR_ERR_STATE", "wait_event");
    expar_event_release(event);
    expar_event_release(bad);
    expar_ep_output_release(result.output);
    move_free(m);
}

static void trial_failed_event(table *t)
{
    hand h = hand_make(t, 61, &sync_choice);
    hand_start(&h, t->ep, MOVE_DISPATCH, &sync_choice, NULL);
    for (int i = 0; i < 6; i++)
        reject_by_event(t, &h, (move_kind)(i % 3), i >= 3);
    hand_start(&h, t->ep, MOVE_REPEAT, &sync_choice, NULL);
    hand_start(&h, t->ep, MOVE_COMBINE, &async_choice, NULL);
    hand_finish(&h);
}

static void test_wait_event_of_a_failed_call(void **state)
{
    (void)state;
    run_plain(trial_failed_event);
}

/* ---- endings ----------------------------------------------------------------------------------------------------- */

/* Dropped rows are told by the event alone; result is there all the same, and the next call goes on. */
static void trial_dropped(table *t)
{
    deal_choice short_of_one = {.async = true, .worst = WORST_ONE_SHORT};
    hand h = hand_make(t, 62, &short_of_one);
    hand_start(&h, t->ep, MOVE_DISPATCH, &short_of_one, NULL);
    if (oracle_num_received(&h.deal->job, t->rank) > 1) {
        CHECK_STATUS(EXPAR_ERR_DROPPED, expar_event_wait(h.calls[0].event));
        CHECK_TEXT("expar_ep_dispatch", "1 ", "rows were dropped: num_worst_tokens is");
        CHECK(h.calls[0].result.num_dropped_tokens == (COUNTS_ARE_SHOWN ? 1 : 0), "%lld rows were dropped",
              (long long)h.calls[0].result.num_dropped_tokens);
    }
    hand_start(&h, t->ep, MOVE_COMBINE, &async_choice, NULL);
    hand_finish(&h);
}

static void test_dropped_rows_end_the_event(void **state)
{
    (void)state;
    run_plain(trial_dropped);
}

/* Ranks whose combine is in flight; written by each, once. */
static _Atomic int32_t in_flight;

/* A group that fails ends calls in flight, and poisons their buffer: rank 0 aborts and leaves; rank 1 never calls. */
static void trial_abort(table *t)
{
    hand h = hand_make(t, 63, &sync_choice);
    expar_status ends = t->rank == 0 ? EXPAR_ERR_ABORTED : EXPAR_ERR_PEER;
    hand_start(&h, t->ep, MOVE_DISPATCH, &sync_choice, NULL);
    if (t->rank != 1 && hand_start(&h, t->ep, MOVE_COMBINE, &async_choice, NULL)) {
        atomic_fetch_add(&in_flight, 1);
        while (t->rank == 0 && atomic_load(&in_flight) < 2)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if (t->rank == 0) expar_group_abort(t->group);
        CHECK_STATUS(ends, expar_event_wait(h.calls[1].event));
        CHECK_TEXT("expar_ep_combine");
        if (t->rank == 2) CHECK_TEXT("rank 0");
        expar_ep_combine_args args = EXPAR_EP_COMBINE_ARGS_INIT;
        CHECK_STATUS(ends, expar_ep_combine(t->ep, &args, NULL));
        CHECK_TEXT("poisoned");
        expar_event_release(h.calls[1].event);
        h.calls[1].event = NULL;
        h.calls[1].issued = false;
    }
    hand_finish(&h);
}

static void trial_abort_body(expar_group *group, void *shared)
{
    const table_case *what = shared;
    table t = {.group = group, .rank = expar_group_rank(group), .what = what};
    expar_ep_config config = another_config();
    if (!CHECK_OK(expar_ep_create(group, &config, &t.ep))) return;
    trial_abort(&t);
    CHECK_OK(expar_ep_destroy(t.ep));
}

static void test_an_abort_ends_calls_in_flight(void **state)
{
    (void)state;
    table_case c = table_case_make();
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = c.plan.num_ranks};
    atomic_store(&in_flight, 0);
    assert_true(ranks_run(&plan, trial_abort_body, &c));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_flight_on_two_buffers),
        cmocka_unit_test(test_followed_at_once_by_a_call_that_waits),
        cmocka_unit_test(test_given_back_while_in_flight),
        cmocka_unit_test(test_query_before_and_after),
        cmocka_unit_test(test_signalled_late_from_another_thread),
        cmocka_unit_test(test_wait_event_of_a_failed_call),
        cmocka_unit_test(test_dropped_rows_end_the_event),
        cmocka_unit_test(test_an_abort_ends_calls_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
