/* SPDX-License-Identifier: Apache-2.0 */
/* Calls whose second phase comes later, and two of them on one buffer. A gate in front of one rank's steps delays a
 * call, so that the states between the phases can be looked at; every result is the oracle's. */
#include "ep/harness/table.h"
#include "ep/normal/normal.h"
#include "exec/cpu/create.h"
#include "oracle/unit.h"

#include <pthread.h>
#include <time.h>

enum { HELD = 1 }; /* the rank with the gate */

static const deal_choice async_choice = {.async = true}, sync_choice = {0};

/* ---- the gate ---------------------------------------------------------------------------------------------------- */

typedef struct gate {
    normal_ops ops; /* the executor's own, with the held steps in place */
    const normal_ops *own;
    executor *exec;
    expar_group *group;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t change;
    bool open;
    int sent, at_gate;  /* dispatches that were sent; that have come to their second half */
    int sent_at_notify; /* how many were, when the last notify began */
    int past;           /* ranks that have come out of a barrier */
} gate;

static gate the_gate;

static void gate_note(gate *g, int *count)
{
    pthread_mutex_lock(&g->lock);
    (*count)++;
    pthread_cond_broadcast(&g->change);
    pthread_mutex_unlock(&g->lock);
}

static expar_status counted_send(executor *self, exec_call *call, ep_dispatch_step *step)
{
    expar_status status = the_gate.own->dispatch_send(self, call, step);
    gate_note(&the_gate, &the_gate.sent);
    return status;
}

static expar_status noted_notify(executor *self, exec_call *call, ep_notify_step *step)
{
    pthread_mutex_lock(&the_gate.lock);
    the_gate.sent_at_notify = the_gate.sent;
    pthread_mutex_unlock(&the_gate.lock);
    return the_gate.own->notify(self, call, step);
}

static expar_status held_receive(executor *self, exec_call *call, ep_dispatch_step *step)
{
    gate *g = &the_gate;
    gate_note(g, &g->at_gate);
    pthread_mutex_lock(&g->lock);
    while (!g->open)
        pthread_cond_wait(&g->change, &g->lock);
    pthread_mutex_unlock(&g->lock);
    /* Where there is nothing to wait for, a step may not see that the group has failed. */
    expar_status status = sym_check(g->group->sym, "dispatch: rows");
    return status == EXPAR_OK ? g->own->dispatch_receive(self, call, step) : status;
}

static void gate_begin(void)
{
    pthread_mutex_init(&the_gate.lock, NULL);
    pthread_cond_init(&the_gate.change, NULL);
}

static void gate_end(void)
{
    pthread_cond_destroy(&the_gate.change);
    pthread_mutex_destroy(&the_gate.lock);
}

/* On the rank that has it; closed. */
static void gate_build(const table *t)
{
    gate *g = &the_gate;
    if (t->rank != HELD) return;
    g->group = t->group;
    g->exec = t->ep->base.exec;
    g->own = g->exec->normal;
    g->ops = *g->own;
    g->ops.notify = noted_notify;
    g->ops.dispatch_send = counted_send;
    g->ops.dispatch_receive = held_receive;
    g->exec->normal = &g->ops;
    g->open = false;
    g->sent = g->at_gate = g->sent_at_notify = g->past = 0;
}

static void gate_open(const table *t)
{
    if (t->rank != HELD) return;
    pthread_mutex_lock(&the_gate.lock);
    the_gate.open = true;
    pthread_cond_broadcast(&the_gate.change);
    pthread_mutex_unlock(&the_gate.lock);
}

/* Until a call has come to its second half. */
static void gate_await_call(void)
{
    pthread_mutex_lock(&the_gate.lock);
    while (the_gate.at_gate == 0)
        pthread_cond_wait(&the_gate.change, &the_gate.lock);
    pthread_mutex_unlock(&the_gate.lock);
}

static void gate_await_past(int ranks)
{
    pthread_mutex_lock(&the_gate.lock);
    while (the_gate.past < ranks)
        pthread_cond_wait(&the_gate.change, &the_gate.lock);
    pthread_mutex_unlock(&the_gate.lock);
}

static int gate_sent(void)
{
    pthread_mutex_lock(&the_gate.lock);
    int sent = the_gate.sent;
    pthread_mutex_unlock(&the_gate.lock);
    return sent;
}

static void gate_remove(const table *t)
{
    if (t->rank == HELD) the_gate.exec->normal = the_gate.own;
}

/* ---- one deal and a call with it --------------------------------------------------------------------------------- */

typedef struct trial {
    deal *deal;
    deal_move *move;
    deal_call call;
} trial;

/* All ranks draw the same. from: NULL for a first dispatch, else whose handle is used. */
static bool trial_start(trial *p, const table *t, uint64_t seed, move_kind kind, const deal_choice *choice,
                        const trial *from, expar_event *wait_event)
{
    random_source random = random_start(seed);
    *p = (trial){.deal = from ? NULL : table_deal(t, choice, &random)};
    p->move = table_move(t, from ? from->deal : p->deal, kind, choice, &random);
    const expar_ep_handle *handle = from ? from->call.result.handle : NULL;
    return deal_call_start(&p->call, t->ep, p->move, t->rank, &t->area, handle, wait_event);
}

static void trial_finish(trial *p)
{
    expar_ep_handle *handle = p->call.result.handle;
    CHECK(deal_call_finish(&p->call), "a call that was held, or came behind one");
    move_free(p->move);
    if (!p->deal) return;
    expar_ep_handle_release(handle);
    deal_free(p->deal);
}

static bool is_done(const trial *p)
{
    int done = 1;
    CHECK_OK(expar_event_query(p->call.event, &done));
    return done;
}

static void run(table_body body)
{
    table_case c = table_case_make();
    gate_begin();
    assert_true(table_run(&c, RANKS_THREADS, body, NULL));
    gate_end();
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* A fresh dispatch learns its counts on all ranks while the one before it is held, sent but not received, on one. */
static void trial_second_begins_while_first_is_held(table *t)
{
    trial first, second;
    gate_build(t);
    trial_start(&first, t, 1, MOVE_DISPATCH, &async_choice, NULL, NULL);
    if (t->rank == HELD) gate_await_call();
    trial_start(&second, t, 2, MOVE_DISPATCH, &async_choice, NULL, NULL);
    if (t->rank == HELD) {
        CHECK(!is_done(&first) && !is_done(&second), "a call is done behind a closed gate");
        CHECK(gate_sent() == 1, "%d dispatches were sent while the first was held", gate_sent());
    }
    gate_open(t);
    trial_finish(&second); /* in either order */
    trial_finish(&first);
    gate_remove(t);
}

static void test_second_begins_while_first_is_held(void **state)
{
    (void)state;
    run(trial_second_begins_while_first_is_held);
}

/* Calls that open with their advertisements are issued after one that is held before it was sent: nobody waits. */
static void trial_held_before_it_is_sent(table *t)
{
    trial first, repeat, back;
    expar_event *late = NULL;
    CHECK_OK(expar_event_create(&late));
    trial_start(&first, t, 3, MOVE_DISPATCH, &sync_choice, NULL, NULL);
    trial_start(&repeat, t, 4, MOVE_REPEAT, &async_choice, &first, t->rank == HELD ? late : NULL);
    trial_start(&back, t, 5, MOVE_COMBINE, &async_choice, &first, NULL);
    if (t->rank == HELD) CHECK(!is_done(&repeat) && !is_done(&back), "a call is done before its event");
    CHECK_OK(expar_event_signal(late));
    trial_finish(&back);
    trial_finish(&repeat);
    trial_finish(&first);
    expar_event_release(late);
}

static void test_held_before_it_is_sent(void **state)
{
    (void)state;
    run(trial_held_before_it_is_sent);
}

static void *signal_later(void *event)
{
    const struct timespec moment = {0, 20000000};
    nanosleep(&moment, NULL);
    CHECK_OK(expar_event_signal(event));
    return NULL;
}

/* A fresh dispatch opens when the one before it is sent, not while that waits for its event. */
static void trial_opens_after_the_one_before(table *t)
{
    trial first, repeat, fresh;
    pthread_t signaller;
    expar_event *late = NULL;
    CHECK_OK(expar_event_create(&late));
    trial_start(&first, t, 21, MOVE_DISPATCH, &sync_choice, NULL, NULL);
    gate_build(t);
    gate_open(t);
    trial_start(&repeat, t, 22, MOVE_REPEAT, &async_choice, &first, t->rank == HELD ? late : NULL);
    if (t->rank == HELD) CHECK(pthread_create(&signaller, NULL, signal_later, late) == 0, "no thread");
    trial_start(&fresh, t, 23, MOVE_DISPATCH, &async_choice, NULL, NULL);
    if (t->rank == HELD) {
        CHECK(the_gate.sent_at_notify == 1, "%d calls were sent when the next one opened", the_gate.sent_at_notify);
        pthread_join(signaller, NULL);
    }
    trial_finish(&fresh);
    trial_finish(&repeat);
    trial_finish(&first);
    gate_remove(t);
    expar_event_release(late);
}

static void test_opens_after_the_one_before(void **state)
{
    (void)state;
    run(trial_opens_after_the_one_before);
}

static void *open_later(void *context)
{
    const struct timespec moment = {0, 20000000};
    nanosleep(&moment, NULL);
    gate_open(context);
    return NULL;
}

/* Calls that open with their advertisements queue up after two of which the first is held: nobody waits, and they end
   in the order in which they were made. */
static void trial_any_number_after_the_first(table *t)
{
    enum { AFTER = 15 };
    trial first, second, after[AFTER];
    gate_build(t);
    trial_start(&first, t, 6, MOVE_DISPATCH, &async_choice, NULL, NULL);
    trial_start(&second, t, 7, MOVE_DISPATCH, &async_choice, NULL, NULL);
    for (int i = 0; i < AFTER; i++) {
        trial_start(&after[i], t, 30 + (uint64_t)i, i % 2 ? MOVE_COMBINE : MOVE_REPEAT, &async_choice,
                    i % 3 ? &first : &second, NULL);
        if (t->rank == HELD) CHECK(!is_done(&first), "call %d waited for the first", i + 2);
    }
    if (t->rank == HELD) CHECK(gate_sent() == 1, "%d dispatches were sent while the first was held", gate_sent());
    gate_open(t);
    for (int i = AFTER - 1; i >= 0; i--) {
        CHECK_OK(expar_event_wait(after[i].call.event));
        CHECK(is_done(&second) && (i == 0 || is_done(&after[i - 1])), "call %d came before the one before it", i + 2);
        trial_finish(&after[i]);
    }
    trial_finish(&second);
    trial_finish(&first);
    gate_remove(t);
}

static void test_any_number_after_the_first(void **state)
{
    (void)state;
    run(trial_any_number_after_the_first);
}

/* A rejection has ended when it returns. A later call begins when all earlier open calls have ended, too. Otherwise
   calls could run ahead of the records, of which there are two parities. */
static void trial_begins_after_a_rejection(table *t)
{
    trial first, third;
    pthread_t opener;
    expar_ep_combine_args bad = EXPAR_EP_COMBINE_ARGS_INIT;
    gate_build(t);
    trial_start(&first, t, 24, MOVE_DISPATCH, &async_choice, NULL, NULL);
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_combine(t->ep, &bad, NULL));
    if (t->rank == HELD) CHECK(pthread_create(&opener, NULL, open_later, t) == 0, "no thread");
    trial_start(&third, t, 25, MOVE_DISPATCH, &async_choice, NULL, NULL);
    if (t->rank == HELD) {
        CHECK(is_done(&first), "a call was begun while the one before the last was open");
        pthread_join(opener, NULL);
    }
    trial_finish(&third);
    trial_finish(&first);
    gate_remove(t);
}

static void test_begins_after_a_rejection(void **state)
{
    (void)state;
    run(trial_begins_after_a_rejection);
}

/* One that waits comes after both, and rejections in between are told in their order. */
static void trial_rejected_between(table *t)
{
    trial first, back;
    expar_ep_combine_args bad = EXPAR_EP_COMBINE_ARGS_INIT;
    gate_build(t);
    trial_start(&first, t, 9, MOVE_DISPATCH, &async_choice, NULL, NULL);
    if (t->rank == HELD) gate_await_call();
    CHECK_STATUS(EXPAR_ERR_NULL, expar_ep_combine(t->ep, &bad, NULL));
    CHECK_TEXT("expar_ep_combine", "handle is NULL");
    gate_open(t);
    trial_start(&back, t, 10, MOVE_COMBINE, &sync_choice, &first, NULL);
    if (t->rank == HELD) CHECK(is_done(&first), "a call that waits returned before the one in front of it ended");
    trial_finish(&back);
    trial_finish(&first);
    gate_remove(t);
}

static void test_rejected_between(void **state)
{
    (void)state;
    run(trial_rejected_between);
}

/* ---- a handle's row map ------------------------------------------------------------------------------------------ */

static const deal_choice expert_major_choice = {.async = true, .expert_major = true};

/* A repeat with topk_idx, expert-major, which rank 0 refuses where that is said. */
static void trial_start_expert_major(trial *p, const table *t, uint64_t seed, const trial *from,
                                     move_rejection rejection)
{
    random_source random = random_start(seed);
    *p = (trial){.move = table_move(t, from->deal, MOVE_REPEAT, &expert_major_choice, &random)};
    p->move->form.with_topk = true;
    p->move->form.rejection = rejection;
    CHECK(deal_call_start(&p->call, t->ep, p->move, t->rank, &t->area, from->call.result.handle, NULL),
          "an expert-major repeat");
}

/* Two have begun when the first, which was to fill the handle's map, is refused: the second fills it, and a combine
   finds it. */
static void trial_map_after_a_rejection(table *t)
{
    trial first, rejected, second, back;
    trial_start(&first, t, 26, MOVE_DISPATCH, &sync_choice, NULL, NULL);
    if (t->rank == 0) CHECK_OK(expar_group_barrier(t->group));
    trial_start_expert_major(&rejected, t, 27, &first, REJECTION_EARLY);
    trial_start_expert_major(&second, t, 28, &first, REJECTION_NONE);
    if (t->rank != 0) CHECK_OK(expar_group_barrier(t->group));
    trial_finish(&rejected);
    trial_finish(&second);
    trial_start(&back, t, 29, MOVE_COMBINE, &expert_major_choice, &first, NULL);
    trial_finish(&back);
    trial_finish(&first);
}

static void test_map_after_a_rejection(void **state)
{
    (void)state;
    run(trial_map_after_a_rejection);
}

/* The group fails between the phases. The held call, whose rows would have come by the queue, ends with that. The one
   after it, never sent, says that the buffer is poisoned. */
static void fail_between_the_halves(table *t)
{
    static const deal_choice queued = {.async = true, .path = EXPAR_EP_PATH_QUEUE};
    trial first, second;
    gate_build(t);
    trial_start(&first, t, 11, MOVE_DISPATCH, &queued, NULL, NULL);
    trial_start(&second, t, 12, MOVE_DISPATCH, &queued, NULL, NULL);
    CHECK_OK(expar_barrier_all(t->group)); /* all have begun the second */
    gate_note(&the_gate, &the_gate.past);
    if (t->rank == HELD) {
        gate_await_call();
        gate_await_past(t->group->size); /* an abort would end the barrier of the others */
        CHECK_OK(expar_group_abort(t->group));
        gate_open(t);
        CHECK_STATUS(EXPAR_ERR_ABORTED, expar_event_wait(first.call.event));
        CHECK_TEXT("expar_ep_dispatch on rank 1: dispatch: rows");
        CHECK_STATUS(EXPAR_ERR_ABORTED, expar_event_wait(second.call.event));
        CHECK_TEXT("expar_ep_dispatch", "the buffer is poisoned");
        CHECK(gate_sent() == 1, "a call was sent on a poisoned buffer");
    } else {
        CHECK_STATUS(EXPAR_ERR_PEER, expar_event_wait(second.call.event));
    }
    trial *trials[] = {&second, &first};
    for (int i = 0; i < 2; i++) {
        expar_event_release(trials[i]->call.event);
        deal_dispatch_clean(&trials[i]->call);
        move_free(trials[i]->move);
        expar_ep_handle_release(trials[i]->call.result.handle);
        deal_free(trials[i]->deal);
    }
}

/* Without a table, which would want to be cleared by all. */
static void trial_failure_between_the_halves(expar_group *group, void *shared)
{
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = 5;
    config.max_row_bytes = 64;
    config.max_topk = 3;
    config.max_experts = 6;
    table t = {.group = group, .rank = group->rank, .what = shared};
    if (!CHECK_OK(expar_ep_create(group, &config, &t.ep))) return;
    fail_between_the_halves(&t);
    CHECK_OK(expar_ep_destroy(t.ep));
}

static void test_failure_between_the_halves(void **state)
{
    (void)state;
    table_case c = table_case_make();
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = c.plan.num_ranks};
    gate_begin();
    assert_true(ranks_run(&ranks, trial_failure_between_the_halves, &c));
    gate_end();
}

/* ---- longer than the time-out ------------------------------------------------------------------------------------ */

enum { SLOW_TOKENS = 60, SLOW_TIMEOUT_MS = 1500 };

static void nap(void *context)
{
    (void)context;
    const struct timespec moment = {0, 20000000};
    nanosleep(&moment, NULL);
}

/* Rows by a ring of one slot take rank 1 longer than the time-out. Rank 0 rejects the next call at once. It waits for
   rank 1, which comes to it in time, for its rows move. */
static void trial_slow_rows(expar_group *group, void *shared)
{
    (void)shared;
    static _Alignas(16) float x[2][SLOW_TOKENS][16], rows[2][2 * SLOW_TOKENS][16], y[2][SLOW_TOKENS][16];
    static int32_t idx[SLOW_TOKENS]; /* all to rank 0 */
    const int32_t rank = group->rank;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = SLOW_TOKENS;
    config.max_row_bytes = sizeof x[0][0];
    config.max_topk = 1;
    config.max_experts = 2;
    config.ring_slots = config.num_channels = config.num_threads = 1;
    expar_ep *ep = NULL;
    if (!CHECK_OK(expar_ep_create(group, &config, &ep))) return;
    if (rank == 1) executor_cpu_delay(ep->base.exec, nap, NULL);
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_dispatch_result came = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.x = expar_tensor_2d(x[rank], EXPAR_F32, SLOW_TOKENS, 16);
    args.topk_idx = expar_tensor_2d(idx, EXPAR_I32, SLOW_TOKENS, 1);
    args.num_experts = 2;
    args.path = EXPAR_EP_PATH_QUEUE;
    args.async_finish = 1;
    CHECK_OK(expar_ep_dispatch(ep, &args, &came));
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    expar_ep_combine_args back = EXPAR_EP_COMBINE_ARGS_INIT;
    back.handle = came.handle;
    back.x = expar_tensor_2d(rows[rank], EXPAR_F32, came.recv_x.shape[0], 16);
    back.out_y = expar_tensor_2d(y[rank], EXPAR_F32, SLOW_TOKENS, 16);
    back.async_finish = 1;
    if (rank == 0) back.path = (expar_ep_path)9;
    CHECK_STATUS(rank == 0 ? EXPAR_ERR_ARGUMENT : EXPAR_OK, expar_ep_combine(ep, &back, &done));
    CHECK_OK(expar_event_wait(came.event));
    if (done.event) CHECK_STATUS(EXPAR_ERR_REMOTE, expar_event_wait(done.event));
    if (rank == 1) executor_cpu_delay(ep->base.exec, NULL, NULL); /* rank 0's refused call may still be told */
    expar_event_release(done.event);
    expar_event_release(came.event);
    expar_ep_handle_release(came.handle);
    expar_ep_output_release(came.output);
    CHECK_OK(expar_ep_destroy(ep));
}

static void test_slow_rows_beside_an_open_call(void **state)
{
    (void)state;
    const ranks_plan ranks = {.kind = RANKS_THREADS, .size = 2, .timeout_ms = SLOW_TIMEOUT_MS};
    assert_true(ranks_run(&ranks, trial_slow_rows, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_second_begins_while_first_is_held),
        cmocka_unit_test(test_held_before_it_is_sent),
        cmocka_unit_test(test_opens_after_the_one_before),
        cmocka_unit_test(test_any_number_after_the_first),
        cmocka_unit_test(test_begins_after_a_rejection),
        cmocka_unit_test(test_rejected_between),
        cmocka_unit_test(test_map_after_a_rejection),
        cmocka_unit_test(test_failure_between_the_halves),
        cmocka_unit_test(test_slow_rows_beside_an_open_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
