/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers without limits, whose records and rings grow with the forms of their calls; "processes": on process ranks;
 * "nodes": on thread ranks that are a node each. */
#include "ep/harness/options_script.h"
#include "ep/harness/stage.h"
#include "ep/normal/normal.h"
#include "exec/cpu/normal/cpu.h"
#include "mem/store.h"
#include "oracle/unit.h"

#include <expar/interrupt.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RANKS            3
#define MOVES_PER_SCRIPT 24
#define SCRIPT_ROUNDS    480

static ranks_kind kind;
static int32_t ranks_per_node; /* 0: all */

/* ---- forms by hand ----------------------------------------------------------------------------------------------- */

enum { SHORT, LONGER, WIDER, FORMS };

/* Rows of 32 bytes; of 1 KiB; more experts and more slots a token. */
static traffic_forms forms_make(void)
{
    static const int64_t num_tokens[RANKS] = {12, 0, 7};
    static const int32_t hidden[FORMS] = {16, 512, 16}, topk[FORMS] = {2, 2, 20}, experts[FORMS] = {6, 6, 60};
    random_source random = random_start(5);
    traffic_forms f = {0};
    for (int i = 0; i < FORMS; i++) {
        const traffic_plan plan = {.num_ranks = RANKS,
                                   .ranks_per_node = ranks_per_node,
                                   .hidden = hidden[i],
                                   .topk = topk[i],
                                   .num_experts = experts[i],
                                   .with_weights = true,
                                   .num_tokens = num_tokens};
        traffic_forms_add(&f, &plan, &random);
    }
    return f;
}

static stage_plan plan_without_limits(const traffic_forms *f)
{
    stage_plan plan = stage_plan_for(f->traffic[LONGER], kind);
    plan.config = (expar_ep_config)EXPAR_EP_CONFIG_INIT;
    plan.config.ranks_per_node = ranks_per_node;
    plan.area_bytes *= 4;
    return plan;
}

static void run(stage_body body)
{
    traffic_forms f = forms_make();
    const stage_plan plan = plan_without_limits(&f);
    const bool passed = stage_run(&plan, body, &f);
    traffic_forms_free(&f);
    assert_true(passed);
}

static void round_of(stage *s, const traffic_forms *f, int form)
{
    stage_round_trip(s, f->traffic[form], f->answers[form], EXPAR_EP_PATH_QUEUE);
    stage_round_trip(s, f->traffic[form], f->answers[form], EXPAR_EP_PATH_AUTO);
}

static void check_growths(const stage *s, uint64_t expected)
{
    CHECK(s->ep->growths == expected, "%llu growths, expected %llu", (unsigned long long)s->ep->growths,
          (unsigned long long)expected);
}

/* A form that is new grows them once, the combine of it and all that come later do not. */
static void grow_once(stage *s, void *shared)
{
    const traffic_forms *f = shared;
    check_growths(s, 0);
    for (int again = 0; again < 3; again++)
        for (int form = 0; form < FORMS; form++) {
            round_of(s, f, form);
            check_growths(s, again ? FORMS : (uint64_t)form + 1);
        }
}

static void test_one_growth_for_each_form(void **state)
{
    (void)state;
    run(grow_once);
}

/* Dispatches a form; returns how that ended. */
static expar_status dispatch_form(stage *s, const traffic_forms *f, int form, expar_ep_dispatch_result *result)
{
    const trial_choice plain = {0};
    expar_ep_dispatch_args args = trial_dispatch_args(f->traffic[form], s->rank, &plain, &s->area, NULL);
    *result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_status status = expar_ep_dispatch(s->ep, &args, result);
    trial_dispatch_args_free(&args);
    return status;
}

/* Neither form is there yet: the ranks differ, and nothing grows. Then rank 2's form is. */
static void grow_apart(stage *s, void *shared)
{
    const traffic_forms *f = shared;
    expar_ep_dispatch_result result;
    for (int known = 0; known < 2; known++) {
        CHECK_STATUS(EXPAR_ERR_MISMATCH, dispatch_form(s, f, s->rank == 1 ? LONGER : SHORT, &result));
        CHECK_TEXT("expar_ep_dispatch", "hidden size is 512 on rank 1 and 16 on rank 0");
        check_growths(s, (uint64_t)known);
        round_of(s, f, SHORT);
    }
    round_of(s, f, LONGER);
    check_growths(s, 2);
}

static void test_growth_of_forms_that_differ(void **state)
{
    (void)state;
    run(grow_apart);
}

/* All hear of one rank's rejection, in place of growing. */
static void grow_rejected(stage *s, void *shared)
{
    const traffic_forms *f = shared;
    expar_ep_dispatch_result result;
    round_of(s, f, SHORT);
    const trial_choice plain = {0};
    expar_ep_dispatch_args args = trial_dispatch_args(f->traffic[WIDER], s->rank, &plain, &s->area, NULL);
    if (s->rank == 2) args.num_experts = 61;
    result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    CHECK_STATUS(s->rank == 2 ? EXPAR_ERR_ARGUMENT : EXPAR_ERR_REMOTE, expar_ep_dispatch(s->ep, &args, &result));
    CHECK_TEXT("num_experts is 61");
    trial_dispatch_args_free(&args);
    check_growths(s, 1);
    round_of(s, f, WIDER);
    check_growths(s, 2);
}

static void test_growth_that_a_rank_rejects(void **state)
{
    (void)state;
    run(grow_rejected);
}

/* Rank 1 refuses when all have grown: its own output is too small, which it knows by the counts of the call's second
   opening alone. All are told, the larger records stay, and what was told is not told again. */
static void reject_after_growth(stage *s, void *shared)
{
    const traffic_forms *f = shared;
    const trial_choice short_of_one = {.place = PLACE_PRIVATE, .spare_rows = -1}, plain = {0};
    void *own_out = NULL;
    for (int form = 0; form < FORMS; form++) {
        expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
        const trial_choice *choice = s->rank == 1 ? &short_of_one : &plain;
        expar_ep_dispatch_args args = trial_dispatch_args(f->traffic[form], s->rank, choice, &s->area, &own_out);
        CHECK_STATUS(s->rank == 1 ? EXPAR_ERR_BUFFER_SIZE : EXPAR_ERR_REMOTE, expar_ep_dispatch(s->ep, &args, &result));
        CHECK_TEXT("expar_ep_dispatch", "out_x", s->rank == 1 ? "rows" : "rank 1");
        trial_dispatch_args_free(&args);
        free(own_out);
        own_out = NULL;
        check_growths(s, (uint64_t)form + 1);
        round_of(s, f, form);
        check_growths(s, (uint64_t)form + 1);
    }
}

static void test_rejection_after_growth(void **state)
{
    (void)state;
    run(reject_after_growth);
}

static expar_status no_fill(void *context, uint64_t offset, uint64_t bytes)
{
    (void)context, (void)offset;
    return error_set(EXPAR_ERR_MEMORY, "no %llu bytes, says the test", (unsigned long long)bytes);
}

/* Rank 1 has no memory for it: all are told, what there was is as before, and the next call works. */
static void grow_without_memory(stage *s, void *shared)
{
    const traffic_forms *f = shared;
    expar_ep_dispatch_result result;
    trial_arrival before;
    const trial_choice plain = {0};
    round_of(s, f, SHORT);
    trial_dispatch(s->ep, f->traffic[SHORT], s->rank, &plain, &s->area, NULL, &before);
    mem_store *store = s->group->sym->store;
    const mem_source source = store->source;
    mem_block *rest = NULL;
    if (s->rank == 1) {
        store->source.fill = no_fill;
        /* The memory that is there already is used up. */
        while (mem_pool_take(s->ep->base.exec->pool, MEM_POOL_LARGE_BYTES / 8, &rest) == EXPAR_OK)
            mem_block_retain(rest);
    }
    expar_status status = dispatch_form(s, f, LONGER, &result);
    if (s->rank == 1) {
        CHECK_STATUS(EXPAR_ERR_MEMORY, status);
        CHECK_TEXT("expar_ep_dispatch", "records and rings for rows of 1024 bytes", "says the test");
    } else {
        CHECK_STATUS(EXPAR_ERR_REMOTE, status);
        CHECK_TEXT("expar_ep_dispatch", "rank 1", "EXPAR_ERR_MEMORY", "says the test");
    }
    check_growths(s, 1);
    trial_check_arrival(&before, s->rank);
    trial_release(&before, false);
    round_of(s, f, SHORT);
    store->source = source;
    round_of(s, f, LONGER);
    check_growths(s, 2);
}

static void test_growth_without_memory(void **state)
{
    (void)state;
    run(grow_without_memory);
}

/* ---- growth and calls that finish by themselves ------------------------------------------------------------------ */

/* Ranks may be threads: whose waits are to end is a matter of the thread. */
static _Thread_local bool stops;

static int stop(void *context)
{
    (void)context;
    return stops;
}

/* Rows of zeros with the handle of an arrival of another form; a rank with an event comes after it. */
typedef struct queued_combine {
    expar_ep_combine_args args;
    expar_event *event;
    size_t y_bytes;
} queued_combine;

static void make_combine(const stage *s, const trial_arrival *before, int64_t hidden, expar_event *after,
                         queued_combine *out)
{
    const int64_t rows = before->result.num_recv_tokens, tokens = before->traffic->inputs[s->rank].num_tokens;
    *out = (queued_combine){.args = EXPAR_EP_COMBINE_ARGS_INIT, .y_bytes = (size_t)(tokens * hidden) * 2};
    out->args.x = expar_tensor_2d(traffic_alloc((size_t)(rows * hidden), 2), EXPAR_BF16, rows, hidden);
    out->args.out_y = expar_tensor_2d(traffic_alloc((size_t)(tokens * hidden), 2), EXPAR_BF16, tokens, hidden);
    memset(out->args.x.data, 0, (size_t)(rows * hidden) * 2);
    memset(out->args.out_y.data, 0xff, out->y_bytes);
    out->args.handle = before->handle;
    out->args.wait_event = after;
    out->args.async_finish = true;
}

static expar_status queue_combine(stage *s, const trial_arrival *before, int64_t hidden, expar_event *after,
                                  queued_combine *out)
{
    make_combine(s, before, hidden, after, out);
    expar_ep_combine_result done = EXPAR_EP_COMBINE_RESULT_INIT;
    expar_status status = expar_ep_combine(s->ep, &out->args, &done);
    out->event = done.event;
    return status;
}

static void queued_free(queued_combine *one)
{
    expar_event_release(one->event);
    free(one->args.x.data);
    free(one->args.out_y.data);
}

static void queued_finish(queued_combine *one)
{
    const uint8_t *y = one->args.out_y.data;
    CHECK_OK(expar_event_wait(one->event));
    for (size_t i = 0; i < one->y_bytes; i++)
        if (!CHECK(y[i] == 0, "byte %zu of y is %02x", i, y[i])) break;
    queued_free(one);
}

/* A call that would grow them after two that wait: nobody has heard of it. */
static void be_interrupted(stage *s, const traffic_forms *f, const trial_arrival *before)
{
    const uint32_t epoch = (uint32_t)s->ep->base.calls;
    expar_ep_dispatch_result result;
    queued_combine wide;
    make_combine(s, before, 512, NULL, &wide);
    wide.args.async_finish = false;
    stops = true;
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, dispatch_form(s, f, LONGER, &result));
    CHECK_TEXT("expar_ep_dispatch", "the call before: interrupted");
    CHECK_STATUS(EXPAR_ERR_INTERRUPTED, expar_ep_combine(s->ep, &wide.args, NULL));
    CHECK_TEXT("expar_ep_combine", "the call before: interrupted");
    stops = false;
    CHECK((uint32_t)s->ep->base.calls == epoch, "the next call is %u, not %u", (uint32_t)s->ep->base.calls, epoch);
    queued_free(&wide);
    check_growths(s, 1);
}

/* It can be made again, the calls before it go on, and the other ranks notice nothing. */
static void grow_interrupted(stage *s, void *shared)
{
    const traffic_forms *f = shared;
    const trial_choice plain = {0};
    trial_arrival before;
    queued_combine calls[2];
    expar_event *late = NULL;
    trial_dispatch(s->ep, f->traffic[SHORT], s->rank, &plain, &s->area, NULL, &before);
    if (s->rank == 0) CHECK_OK(expar_event_create(&late));
    for (int i = 0; i < 2; i++)
        CHECK_OK(queue_combine(s, &before, 16, late, &calls[i]));
    if (s->rank == 0) {
        be_interrupted(s, f, &before);
        CHECK_OK(expar_event_signal(late));
    }
    round_of(s, f, LONGER);
    check_growths(s, 2);
    for (int i = 0; i < 2; i++)
        queued_finish(&calls[i]);
    expar_event_release(late);
    trial_release(&before, false);
    round_of(s, f, SHORT);
    check_growths(s, 2);
}

static void test_growth_that_is_interrupted_after_queued_calls(void **state)
{
    (void)state;
    run(grow_interrupted);
}

/* The buffer's own thread makes them larger, which waits for no event. */
static void await_growths(const stage *s, uint64_t expected)
{
    const struct timespec moment = {0, 1000000};
    const int64_t deadline_ns = clock_ns() + INT64_C(60000000000);
    while (atomic_load_explicit(&s->ep->growths, memory_order_acquire) < expected && clock_ns() < deadline_ns)
        nanosleep(&moment, NULL);
    check_growths(s, expected);
}

/* However many calls have begun: old records are there until the headers of a later one have come, as rank 0 has none
   while its calls wait for their event. */
static void grow_and_queue(stage *s, void *shared)
{
    enum { CALLS = 8 };
    const traffic_forms *f = shared;
    const cpu_executor *exec = (const cpu_executor *)s->ep->base.exec;
    const trial_choice plain = {0};
    trial_arrival before;
    queued_combine calls[CALLS];
    expar_event *late = NULL;
    trial_dispatch(s->ep, f->traffic[SHORT], s->rank, &plain, &s->area, NULL, &before);
    if (s->rank == 0) CHECK_OK(expar_event_create(&late));
    for (int i = 0; i < CALLS; i++)
        CHECK_OK(queue_combine(s, &before, 512, late, &calls[i]));
    await_growths(s, 2);
    if (s->rank == 0) {
        CHECK(exec->old_records != NULL, "old records were given back while others may write to them");
        CHECK_OK(expar_event_signal(late));
    }
    for (int i = 0; i < CALLS; i++)
        queued_finish(&calls[i]);
    CHECK(exec->old_records == NULL, "old records have not been given back");
    expar_event_release(late);
    trial_release(&before, false);
    round_of(s, f, SHORT);
}

static void test_old_records_after_queued_calls(void **state)
{
    (void)state;
    run(grow_and_queue);
}

/* ---- failures and limits ----------------------------------------------------------------------------------------- */

/* Memory that has grown may still be written to by peers of a group that has failed: it stays as long as the group
   does. */
static void grow_and_abort(expar_group *group, void *shared)
{
    const traffic_forms *f = shared;
    const trial_choice plain = {0};
    const expar_ep_config config = EXPAR_EP_CONFIG_INIT;
    stage s = {.group = group, .rank = expar_group_rank(group)};
    trial_arrival arrival;
    if (!CHECK_OK(expar_ep_create(group, &config, &s.ep))) return;
    trial_dispatch(s.ep, f->traffic[SHORT], s.rank, &plain, NULL, NULL, &arrival);
    trial_release(&arrival, false);
    trial_dispatch(s.ep, f->traffic[LONGER], s.rank, &plain, NULL, NULL, &arrival);
    check_growths(&s, 2);
    /* Nobody's dispatch is under way after it; the barrier itself may meet the first abort. */
    (void)expar_barrier_all(group);
    CHECK_OK(expar_group_abort(group));
    CHECK_OK(expar_ep_destroy(s.ep));
    CHECK(group->sym->stranded != NULL, "records of a failed group were given back");
    trial_check_arrival(&arrival, s.rank);
    trial_release(&arrival, false);
}

static void test_growth_before_the_group_fails(void **state)
{
    (void)state;
    traffic_forms f = forms_make();
    const ranks_plan plan = {.kind = kind, .size = RANKS, .ranks_per_node = ranks_per_node};
    const bool passed = ranks_run(&plan, grow_and_abort, &f);
    traffic_forms_free(&f);
    assert_true(passed);
}

/* A limit that is given is checked, beside those that are not. */
static void heed_limits(stage *s, void *shared)
{
    const traffic_forms *f = shared;
    expar_ep_dispatch_result result;
    CHECK_STATUS(EXPAR_ERR_LIMIT, dispatch_form(s, f, LONGER, &result));
    CHECK_TEXT("x has rows of 512 elements", "(config.max_row_bytes)");
    round_of(s, f, SHORT);
    round_of(s, f, WIDER);
}

static void test_limits_that_are_given(void **state)
{
    (void)state;
    traffic_forms f = forms_make();
    stage_plan plan = plan_without_limits(&f);
    plan.config.max_row_bytes = 32;
    const bool passed = stage_run(&plan, heed_limits, &f);
    traffic_forms_free(&f);
    assert_true(passed);
}

/* So many that a count of them might not fit. */
static void route_too_many_slots(stage *s, void *shared)
{
    const traffic_forms *f = shared;
    const bool wrong = s->rank == 1;
    int32_t idx = 0;
    expar_ep_route_args args = EXPAR_EP_ROUTE_ARGS_INIT;
    expar_ep_route_result result = EXPAR_EP_ROUTE_RESULT_INIT;
    args.topk_idx = expar_tensor_2d(&idx, EXPAR_I32, wrong ? 1 << 22 : 1, wrong ? 128 : 1);
    args.num_experts = 6;
    CHECK_STATUS(wrong ? EXPAR_ERR_SHAPE : EXPAR_ERR_REMOTE, expar_ep_route(s->ep, &args, &result));
    CHECK_TEXT("rank 1", "topk_idx has 4194304 tokens of 128 slots; expected at most 357913941 slots in all");
    round_of(s, f, SHORT);
}

static void test_slots_that_cannot_be_counted(void **state)
{
    (void)state;
    run(route_too_many_slots);
}

/* ---- all options together ---------------------------------------------------------------------------------------- */

/* Two buffers, calls of many forms, several open at a time. Across nodes test_ep_nodes has them. */
static void test_scripts(void **state)
{
    (void)state;
    if (ranks_per_node) return;
    const int64_t rounds = random_test_rounds(SCRIPT_ROUNDS);
    uint64_t seed = random_test_seed("without limits");
    for (int64_t done = 0; done < rounds; done += MOVES_PER_SCRIPT) {
        options_script s = options_script_make(seed++, kind, 0, MOVES_PER_SCRIPT);
        s.unlimited = true;
        assert_true(options_script_run(&s));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_growth_for_each_form),
        cmocka_unit_test(test_growth_of_forms_that_differ),
        cmocka_unit_test(test_growth_that_a_rank_rejects),
        cmocka_unit_test(test_rejection_after_growth),
        cmocka_unit_test(test_growth_without_memory),
        cmocka_unit_test(test_growth_before_the_group_fails),
        cmocka_unit_test(test_limits_that_are_given),
        cmocka_unit_test(test_slots_that_cannot_be_counted),
        cmocka_unit_test(test_scripts),
        cmocka_unit_test(test_growth_that_is_interrupted_after_queued_calls),
        cmocka_unit_test(test_old_records_after_queued_calls),
    };
    kind = stage_kind(argc, argv);
    ranks_per_node = argc > 1 && strcmp(argv[1], "nodes") == 0;
    routing_recorded();
    expar_interrupt_set(stop, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
