/* SPDX-License-Identifier: Apache-2.0 */
/* Any number of calls that finish by themselves, after one that one rank delays by its wait_event. They return at once,
 * come in the order in which they were made, and give the same results as if each is waited for. */
#include "ep/harness/stage.h"
#include "ep/harness/table.h"
#include "ep/normal/normal.h"
#include "oracle/unit.h"

#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

enum { HELD = 1, MOST = 17 };

static ranks_kind kind;

/* ---- a queue of calls -------------------------------------------------------------------------------------------- */

/* One routing, and calls with it; the first of them waits for `late` on the rank that holds it back. */
typedef struct queue {
    table *t;
    expar_ep *ep;
    random_source random;
    deal *deal;
    expar_ep_handle *handle;
    expar_event *late;
    deal_move *moves[MOST];
    deal_call calls[MOST];
    int count;
} queue;

static queue queue_make(table *t, expar_ep *ep, uint64_t seed)
{
    deal_call first;
    const deal_choice choice = {.expert_major = t->what->choice.expert_major};
    queue q = {.t = t, .ep = ep, .random = random_start(seed)};
    q.deal = table_deal(t, &choice, &q.random);
    deal_move *m = table_move(t, q.deal, MOVE_DISPATCH, &choice, &q.random);
    deal_call_start(&first, ep, m, t->rank, &t->area, NULL, NULL);
    q.handle = first.result.handle;
    CHECK(deal_call_finish(&first), "the dispatch that makes the handle");
    CHECK_OK(expar_event_create(&q.late));
    move_free(m);
    return q;
}

static deal_call *queue_add(queue *q, move_kind move, expar_ep_path path, move_rejection rejection)
{
    const deal_choice choice = {.async = true, .path = path, .expert_major = q->t->what->choice.expert_major};
    deal_call *call = &q->calls[q->count];
    deal_move *m = table_move(q->t, q->deal, move, &choice, &q->random);
    m->form.rejection = rejection;
    m->form.refuser = HELD;
    CHECK(deal_call_start(call, q->ep, m, q->t->rank, &q->t->area, q->handle,
                          q->count == 0 && q->t->rank == HELD ? q->late : NULL),
          "call %d of a queue", q->count);
    q->moves[q->count++] = m;
    return call;
}

/* Repeats and combines, by both paths in turn. */
static void queue_fill(queue *q, int count)
{
    static const expar_ep_path paths[] = {EXPAR_EP_PATH_AUTO, EXPAR_EP_PATH_QUEUE, EXPAR_EP_PATH_AUTO};
    for (int i = 0; i < count; i++)
        queue_add(q, i % 2 ? MOVE_COMBINE : MOVE_REPEAT, paths[i % 3], REJECTION_NONE);
}

static bool queue_is_done(const queue *q, int i)
{
    int done = 1;
    CHECK_OK(expar_event_query(q->calls[i].event, &done));
    return done;
}

static void queue_release(const queue *q)
{
    CHECK_OK(expar_event_signal(q->late));
}

/* The last one first: then all have ended. */
static void queue_end(queue *q)
{
    for (int i = q->count - 1; i >= 0; i--) {
        if (i == q->count - 1 && q->calls[i].event) CHECK_OK(expar_event_wait(q->calls[i].event));
        if (q->calls[i].event) CHECK(queue_is_done(q, i), "call %d of %d is not done before the last", i, q->count);
        CHECK(deal_call_finish(&q->calls[i]), "call %d of %d", i, q->count);
        move_free(q->moves[i]);
    }
    expar_ep_handle_release(q->handle);
    expar_event_release(q->late);
    deal_free(q->deal);
}

static void run(table_body body)
{
    table_case c = table_case_make();
    assert_true(table_run(&c, kind, body, NULL));
}

/* ---- they queue -------------------------------------------------------------------------------------------------- */

/* Asks for them all, as long as it is asked to. */
typedef struct asker {
    pthread_t thread;
    const queue *q;
    atomic_bool ends; /* by who made it (relaxed: joining orders the rest) */
} asker;

static void *ask_all(void *argument)
{
    asker *self = argument;
    while (!atomic_load_explicit(&self->ends, memory_order_relaxed)) {
        bool after = false;
        for (int i = self->q->count - 1; i >= 0; i--) {
            const bool done = queue_is_done(self->q, i);
            CHECK(done || !after, "call %d is not done, but one behind it is", i);
            after = after || done;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return NULL;
}

static void look_meanwhile(const queue *q)
{
    expar_ep_stats stats = EXPAR_EP_STATS_INIT;
    for (int i = 0; i < q->count; i++)
        CHECK(!queue_is_done(q, i), "call %d of %d is done while the first is held", i, q->count);
    CHECK_OK(expar_ep_trim(q->ep));
    CHECK_OK(expar_ep_get_stats(q->ep, &stats));
    CHECK_OK(expar_ep_query(q->ep));
    CHECK_OK(expar_group_barrier(q->t->group));
}

static void trial_queue(table *t, int count)
{
    queue q = queue_make(t, t->ep, 100 + (uint64_t)count);
    asker asks = {.q = &q};
    queue_fill(&q, count);
    look_meanwhile(&q);
    CHECK(pthread_create(&asks.thread, NULL, ask_all, &asks) == 0, "no thread");
    queue_release(&q);
    CHECK_OK(expar_event_wait(q.calls[count - 1].event));
    atomic_store_explicit(&asks.ends, true, memory_order_relaxed);
    pthread_join(asks.thread, NULL);
    queue_end(&q);
}

static void trial_numbers(table *t)
{
    static const int counts[] = {1, 2, 3, MOST};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        trial_queue(t, counts[i]);
}

static void test_any_number_queues(void **state)
{
    (void)state;
    run(trial_numbers);
}

static void test_any_number_by_expert(void **state)
{
    (void)state;
    table_case c = table_case_make();
    c.choice.expert_major = true;
    assert_true(table_run(&c, kind, trial_numbers, NULL));
}

/* One of a mixture; its handle is of a fresh dispatch before it, or its own. */
typedef struct mixed {
    deal *deal; /* NULL: not fresh */
    deal_move *move;
    deal_call call;
} mixed;

/* All ranks draw the same. */
static void mixed_start(mixed *all, int i, const table *t, random_source *random)
{
    static const deal_choice choices[] = {
        {.async = true}, {.async = true, .path = EXPAR_EP_PATH_QUEUE}, {.async = true, .worst = WORST_LARGER}};
    const deal_choice *choice = &choices[random_between(random, 0, 2)];
    int from = (int)random_between(random, 0, MOST);
    while (from < i && !all[from].deal)
        from++;
    const bool fresh = from >= i;
    const move_kind move = fresh ? MOVE_DISPATCH : random_once_in(random, 2) ? MOVE_REPEAT : MOVE_COMBINE;
    all[i] = (mixed){.deal = fresh ? table_deal(t, choice, random) : NULL};
    all[i].move = table_move(t, fresh ? all[i].deal : all[from].deal, move, choice, random);
    CHECK(deal_call_start(&all[i].call, t->ep, all[i].move, t->rank, &t->area,
                          fresh ? NULL : all[from].call.result.handle, NULL),
          "call %d of a mixture", i);
}

/* Fresh dispatches among them, which wait until all before them are on their way; none is waited for before all have
   been made. */
static void trial_mixture(table *t)
{
    random_source random = random_start(170);
    for (int round = 0; round < 10; round++) {
        mixed all[MOST];
        expar_ep_handle *handles[MOST];
        for (int i = 0; i < MOST; i++)
            mixed_start(all, i, t, &random);
        for (int i = MOST - 1; i >= 0; i--) {
            handles[i] = all[i].call.result.handle;
            CHECK(deal_call_finish(&all[i].call), "call %d of a mixture", i);
            move_free(all[i].move);
        }
        for (int i = 0; i < MOST; i++) {
            if (all[i].deal) expar_ep_handle_release(handles[i]);
            deal_free(all[i].deal);
        }
    }
}

static void test_all_kinds_mixed(void **state)
{
    (void)state;
    run(trial_mixture);
}

/* A call that waits comes after all. */
static void trial_waiting_after(table *t)
{
    static const deal_choice sync = {0};
    queue q = queue_make(t, t->ep, 120);
    queue_fill(&q, 7);
    deal_call last;
    deal_move *m = table_move(t, q.deal, MOVE_COMBINE, &sync, &q.random);
    queue_release(&q);
    CHECK(deal_call_make(&last, t->ep, m, t->rank, &t->area, q.handle), "a call that waits, behind a queue");
    for (int i = 0; i < q.count; i++)
        CHECK(queue_is_done(&q, i), "a call that waits came before call %d", i);
    move_free(m);
    queue_end(&q);
}

static void test_a_call_that_waits_comes_after_all(void **state)
{
    (void)state;
    run(trial_waiting_after);
}

/* ---- what goes wrong --------------------------------------------------------------------------------------------- */

/* A rank rejects calls in the middle of its queue: it is told at once, the others at their events, and later calls go
   well. */
static void trial_rejected(table *t)
{
    queue q = queue_make(t, t->ep, 130);
    queue_add(&q, MOVE_REPEAT, EXPAR_EP_PATH_AUTO, REJECTION_NONE);
    queue_add(&q, MOVE_COMBINE, EXPAR_EP_PATH_AUTO, REJECTION_EARLY);
    queue_add(&q, MOVE_COMBINE, EXPAR_EP_PATH_QUEUE, REJECTION_NONE);
    queue_add(&q, MOVE_REPEAT, EXPAR_EP_PATH_AUTO, REJECTION_EARLY);
    queue_add(&q, MOVE_REPEAT, EXPAR_EP_PATH_AUTO, REJECTION_NONE);
    CHECK(t->rank != HELD || !queue_is_done(&q, 0), "the first is done");
    queue_release(&q);
    queue_end(&q);
}

static void test_rejections_in_a_queue(void **state)
{
    (void)state;
    run(trial_rejected);
}

/* ---- the buffer's end -------------------------------------------------------------------------------------------- */

static expar_ep *another_buffer(const table *t)
{
    expar_ep *ep = NULL;
    expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    config.max_tokens = 5;
    config.max_row_bytes = 64;
    config.max_topk = 3;
    config.max_experts = 6;
    CHECK_OK(expar_ep_create(t->group, &config, &ep));
    return ep;
}

static void *release_later(void *context)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    queue_release(context);
    return NULL;
}

/* Destroy waits for them all. */
static void trial_destroyed(table *t)
{
    pthread_t releaser;
    expar_ep *ep = another_buffer(t);
    queue q = queue_make(t, ep, 140);
    queue_fill(&q, 6);
    CHECK(pthread_create(&releaser, NULL, release_later, &q) == 0, "no thread");
    CHECK_OK(expar_ep_destroy(ep));
    for (int i = 0; i < q.count; i++)
        CHECK(queue_is_done(&q, i), "the buffer went before call %d", i);
    pthread_join(releaser, NULL);
    queue_end(&q);
}

static void test_destroy_waits_for_a_queue(void **state)
{
    (void)state;
    run(trial_destroyed);
}

/* Abandon waits for none; they come to their end all the same. */
static void trial_abandoned(table *t)
{
    expar_ep *ep = another_buffer(t);
    queue q = queue_make(t, ep, 150);
    queue_fill(&q, 6);
    CHECK_OK(expar_ep_abandon(ep));
    CHECK(!queue_is_done(&q, 0), "abandon waited for a call");
    CHECK_OK(expar_group_barrier(t->group));
    queue_release(&q);
    queue_end(&q);
}

static void test_abandon_leaves_a_queue(void **state)
{
    (void)state;
    run(trial_abandoned);
}

/* ---- a group that fails ------------------------------------------------------------------------------------------ */

/* Frees what is left of calls that ended badly. */
static void queue_drop(queue *q)
{
    for (int i = 0; i < q->count; i++) {
        expar_event_release(q->calls[i].event);
        if (q->moves[i]->form.kind == MOVE_COMBINE)
            deal_combine_clean(&q->calls[i]);
        else
            deal_dispatch_clean(&q->calls[i]);
        move_free(q->moves[i]);
    }
    expar_ep_handle_release(q->handle);
    expar_event_release(q->late);
    deal_free(q->deal);
}

/* In memory that processes share. */
typedef struct failing {
    table_case what;
    _Atomic int32_t past;  /* ranks that have come out of the barrier; by each, once */
    _Atomic int32_t ended; /* ranks whose first call has ended; by each, once */
} failing;

static void await_ranks(_Atomic int32_t *counter, int32_t ranks)
{
    while (atomic_load(counter) < ranks)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Every one of them ends with the report. */
static void trial_failed(expar_group *group, void *shared)
{
    failing *f = shared;
    table t = {.group = group, .rank = group->rank, .what = &f->what};
    t.ep = another_buffer(&t);
    queue q = queue_make(&t, t.ep, 160);
    queue_fill(&q, 6);
    CHECK_OK(expar_barrier_all(group));
    atomic_fetch_add(&f->past, 1);
    if (t.rank == HELD) {
        await_ranks(&f->past, group->size); /* an abort would end the barrier of the others */
        CHECK_OK(expar_group_abort(group));
        await_ranks(&f->ended, group->size - 1);
        queue_release(&q);
    } else {
        CHECK_STATUS(EXPAR_ERR_PEER, expar_event_wait(q.calls[0].event));
        atomic_fetch_add(&f->ended, 1);
    }
    for (int i = 0; i < q.count; i++) {
        CHECK_STATUS(t.rank == HELD ? EXPAR_ERR_ABORTED : EXPAR_ERR_PEER, expar_event_wait(q.calls[i].event));
        if (i > 0) CHECK_TEXT("on rank", "the buffer is poisoned");
    }
    queue_drop(&q);
    CHECK_OK(expar_ep_destroy(t.ep));
}

static void test_each_ends_with_the_report(void **state)
{
    (void)state;
    failing *f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(f != MAP_FAILED);
    f->what = table_case_make();
    const ranks_plan ranks = {.kind = kind, .size = f->what.plan.num_ranks};
    const bool passed = ranks_run(&ranks, trial_failed, f);
    munmap(f, sizeof *f);
    assert_true(passed);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_number_queues),      cmocka_unit_test(test_any_number_by_expert),
        cmocka_unit_test(test_all_kinds_mixed),        cmocka_unit_test(test_a_call_that_waits_comes_after_all),
        cmocka_unit_test(test_rejections_in_a_queue),  cmocka_unit_test(test_destroy_waits_for_a_queue),
        cmocka_unit_test(test_abandon_leaves_a_queue), cmocka_unit_test(test_each_ends_with_the_report),
    };
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
