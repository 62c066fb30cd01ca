/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of two nodes is killed, or stopped, before and inside the phases of calls. All others learn who it was,
 * those on its node and rail as well as unrelated ones. A rank that goes on soon was only late. With the argument "all"
 * it happens in every phase to every rank; each is sender, forwarder and receiver. A pattern of tests may follow that
 * argument, or "day". EXPAR_TEST_ROUNDS sets the number of kills at random moments.
 *
 * tests/gpu runs the same on GPUs, where the CPU's executor inside the buffer's carries calls out. */
#include "exec/cpu/nodes/rails.h"
#include "faults/fault.h"
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define RANKS        4
#define RANDOM_KILLS 2

#define SILENCE_MS 700

#ifdef MIRROR_RENAMES
#define ON_GPUS true
#else
#define ON_GPUS false
#endif

static uint64_t seed;
static int64_t rounds;
static bool all; /* phases and ranks */

static fault_plan plan_at(fault_place place, int32_t victim, expar_ep_path path)
{
    return (fault_plan){.size = RANKS,
                        .victim = victim,
                        .ranks_per_node = 2,
                        .place = place,
                        .by_itself = true,
                        .round = 2,
                        .held_back = -1,
                        .signal = SIGKILL,
                        .path = path};
}

static void test_before_a_dispatch(void **state)
{
    (void)state;
    const fault_plan plan = plan_at(FAULT_DISPATCHES, 1, EXPAR_EP_PATH_AUTO);
    assert_true(fault_run(&plan));
}

static void test_before_a_combine(void **state)
{
    (void)state;
    const fault_plan plan = plan_at(FAULT_COMBINES, 2, EXPAR_EP_PATH_QUEUE);
    assert_true(fault_run(&plan));
}

/* One rank is held back, so that the victim is inside the call when it dies: one of its node, of its rail, or
   neither. */
static void kill_inside(fault_place place, int32_t held_back)
{
    fault_plan plan = plan_at(place, 0, held_back == 3 ? EXPAR_EP_PATH_AUTO : EXPAR_EP_PATH_QUEUE);
    plan.by_itself = false;
    plan.held_back = held_back;
    assert_true(fault_run(&plan));
}

static void test_inside_a_dispatch(void **state)
{
    (void)state;
    kill_inside(FAULT_DISPATCHES, 1);
    kill_inside(FAULT_DISPATCHES, 3);
}

static void test_inside_a_combine(void **state)
{
    (void)state;
    kill_inside(FAULT_COMBINES, 1);
    kill_inside(FAULT_COMBINES, 2);
}

/* ---- phases ------------------------------------------------------------------------------------------------------ */

static int64_t is_set(const cpu_executor *cpu, uint64_t offset, uint32_t epoch)
{
    const _Atomic uint64_t *flag = cpu_at(cpu, cpu->sym->rank, offset);
    return ep_word_value(atomic_load(flag), epoch) == 1;
}

/* Its header has gone to all. */
static int64_t opened(const cpu_executor *cpu, uint32_t epoch)
{
    return is_set(cpu, ep_header_at(&cpu->space, RANKS, epoch, cpu->sym->rank), epoch);
}

/* It has forwarded what came by its rail. */
static int64_t handed_on(const cpu_executor *cpu, uint32_t epoch)
{
    return is_set(cpu, ep_header_at(&cpu->space, RANKS, epoch, (cpu->sym->rank + RANKS / 2) % RANKS), epoch);
}

/* It has told all that it has what it wants. */
static int64_t closed(const cpu_executor *cpu, uint32_t epoch)
{
    return is_set(cpu, ep_completion_at(&cpu->space, RANKS, epoch, cpu->sym->rank), epoch);
}

/* The same, and the flag of its rail's rank has come, which it has not passed on. Holds the rank until that comes, for
   a second at most. */
static int64_t owes_a_flag(const cpu_executor *cpu, uint32_t epoch)
{
    const struct timespec step = {0, 1000000};
    const int32_t source = (cpu->sym->rank + RANKS / 2) % RANKS;
    if (!closed(cpu, epoch) || is_set(cpu, ep_completion_at(&cpu->space, RANKS, epoch, source), epoch)) return 0;
    for (int i = 0; i < 1000 && !rail_done_is_here(cpu, epoch, source); i++)
        nanosleep(&step, NULL);
    return rail_done_is_here(cpu, epoch, source);
}

typedef struct moved {
    int64_t chunks_sent, slots_read, chunks_read, rows_put, rows_taken;
} moved;

static moved all_moved(const cpu_executor *cpu)
{
    moved sum = {0};
    for (int32_t i = 0; i < 2 * cpu->shape.channels; i++) {
        sum.chunks_sent += cpu->rails->rings[i].chunks_put;
        sum.slots_read += cpu->rails->rings[i].taken;
        sum.chunks_read += cpu->rails->rings[i].chunks_taken;
    }
    for (int32_t i = 0; i < RANKS * cpu->shape.channels; i++) {
        sum.rows_put += cpu->rings[i].put;
        sum.rows_taken += cpu->rings[i].taken;
    }
    return sum;
}

/* Sender of a dispatch, forwarder of a combine: a chunk is full, and its put comes next. */
static int64_t sent_a_chunk(const cpu_executor *cpu, uint32_t epoch)
{
    (void)epoch;
    return all_moved(cpu).chunks_sent;
}

/* The put of a chunk with its tail has been posted. */
static int64_t posted_a_chunk(const cpu_executor *cpu, uint32_t epoch)
{
    (void)epoch;
    return all_moved(cpu).chunks_sent > 1;
}

/* Forwarder of a dispatch, source of a combine: where a head goes, it comes next. */
static int64_t read_a_slot(const cpu_executor *cpu, uint32_t epoch)
{
    (void)epoch;
    return all_moved(cpu).slots_read;
}

/* The heads of earlier chunks have been posted. */
static int64_t returned_a_place(const cpu_executor *cpu, uint32_t epoch)
{
    (void)epoch;
    return all_moved(cpu).chunks_read > 1;
}

/* Forwarder of a dispatch, or provider of a combine, inside the node. */
static int64_t put_a_row(const cpu_executor *cpu, uint32_t epoch)
{
    (void)epoch;
    return all_moved(cpu).rows_put;
}

/* Receiver of a dispatch, forwarder of a combine. */
static int64_t took_a_row(const cpu_executor *cpu, uint32_t epoch)
{
    (void)epoch;
    return all_moved(cpu).rows_taken;
}

static int64_t (*const phases[])(const cpu_executor *cpu, uint32_t epoch) = {
    opened, handed_on, sent_a_chunk, posted_a_chunk, read_a_slot, returned_a_place, put_a_row, took_a_row, closed};
#define PHASES ((int32_t)(sizeof phases / sizeof *phases))

static fault_plan plan_inside(int32_t phase, fault_place place, int32_t victim)
{
    fault_plan plan = plan_at(place, victim, EXPAR_EP_PATH_QUEUE);
    plan.inside = phases[phase];
    return plan;
}

/* Plans that differ in the phase, and in turn in call and victim. By day there is one of each phase, or one of each
   call. */
typedef enum by_day { EACH_PHASE, EACH_CALL } by_day;

static bool is_due(by_day day, int32_t phase, int32_t victim, bool combine)
{
    if (all) return true;
    if (day == EACH_PHASE) return victim == (phase + 1) % RANKS && combine == (phase % 2 == 1);
    return phases[phase] == (combine ? posted_a_chunk : sent_a_chunk) && victim == (combine ? 0 : 1);
}

static void trial_phases(fault_plan model, by_day day)
{
    fault_plan plans[FAULT_MOST_AT_ONCE];
    int32_t count = 0;
    for (int32_t i = 0; i < PHASES * 2 * RANKS; i++) {
        const int32_t phase = i % PHASES, victim = i / PHASES % RANKS, combine = i / PHASES / RANKS;
        if (!is_due(day, phase, victim, combine)) continue;
        plans[count] = model;
        plans[count].inside = phases[phase];
        plans[count].victim = victim;
        plans[count++].place = combine ? FAULT_COMBINES : FAULT_DISPATCHES;
        if (count < FAULT_MOST_AT_ONCE) continue;
        assert_true(fault_run_all(plans, count));
        count = 0;
    }
    if (count > 0) assert_true(fault_run_all(plans, count));
}

static void test_killed_in_a_phase(void **state)
{
    (void)state;
    trial_phases(plan_inside(0, FAULT_DISPATCHES, 0), EACH_PHASE);
}

static void test_late_in_a_phase(void **state)
{
    (void)state;
    fault_plan model = plan_inside(0, FAULT_DISPATCHES, 0);
    model.signal = SIGSTOP;
    model.late = true;
    trial_phases(model, EACH_CALL);
}

static void test_stopped_in_a_phase(void **state)
{
    (void)state;
    fault_plan model = plan_inside(0, FAULT_DISPATCHES, 0);
    model.signal = SIGSTOP;
    model.timeout_ms = SILENCE_MS;
    trial_phases(model, EACH_CALL);
    model.wake = true;
    if (all) trial_phases(model, EACH_CALL);
}

/* The rank beside it has all flags but the one that this one does not pass on. */
static void test_stopped_before_it_passes_on(void **state)
{
    (void)state;
    if (!all && !ON_GPUS) skip();
    fault_plan plan = plan_inside(0, FAULT_DISPATCHES, 1);
    plan.inside = owes_a_flag;
    plan.any_round = true;
    plan.signal = SIGSTOP;
    plan.timeout_ms = SILENCE_MS;
    assert_true(fault_run(&plan));
}

/* A forwarder and a source whose rows go back one by one. */
static void test_in_one_order(void **state)
{
    (void)state;
    fault_plan plans[] = {plan_inside(0, FAULT_COMBINES, 1), plan_inside(0, FAULT_COMBINES, 2)};
    plans[0].nodes = plans[1].nodes = EXPAR_EP_NODES_SUM_ONE_ORDER;
    plans[0].inside = sent_a_chunk;
    plans[1].inside = read_a_slot;
    assert_true(fault_run_all(plans, 2));
    for (int32_t i = 0; i < 2; i++) {
        plans[i].signal = SIGSTOP;
        plans[i].late = true;
    }
    assert_true(fault_run_all(plans, 2));
}

/* ---- random moments ---------------------------------------------------------------------------------------------- */

/* From somewhere in a round on. */
static void test_at_any_moment(void **state)
{
    (void)state;
    random_source random = random_start(seed);
    for (int64_t i = 0; i < rounds; i++) {
        fault_plan plan = plan_at(FAULT_DISPATCHES, (int32_t)random_between(&random, 0, RANKS - 1), EXPAR_EP_PATH_AUTO);
        plan.by_itself = false;
        plan.in_passing = true;
        plan.delay_us = random_between(&random, 0, 4000);
        if (random_once_in(&random, 2)) plan.path = EXPAR_EP_PATH_QUEUE;
        if (fault_run(&plan)) continue;
        fprintf(stderr, "kill %" PRId64 " of seed %" PRIu64 " went wrong\n", i, seed);
        assert_true(false);
    }
}

/* Survivors are in other calls, or in other parts of one: they find out one after another, by themselves or because of
   those who have left. */
static void test_stopped_at_any_moment(void **state)
{
    (void)state;
    random_source random = random_start(seed + 1);
    fault_plan plans[FAULT_MOST_AT_ONCE];
    for (int64_t i = 0; i < rounds; i++) {
        for (int32_t k = 0; k < FAULT_MOST_AT_ONCE; k++) {
            plans[k] = plan_at(FAULT_DISPATCHES, (int32_t)random_between(&random, 0, RANKS - 1), EXPAR_EP_PATH_AUTO);
            plans[k].by_itself = false;
            plans[k].in_passing = true;
            plans[k].signal = SIGSTOP;
            plans[k].group_timeout_ms = SILENCE_MS;
            plans[k].delay_us = random_between(&random, 0, 4000);
            plans[k].ends_at_once = random_once_in(&random, 2);
            if (random_once_in(&random, 2)) plans[k].path = EXPAR_EP_PATH_QUEUE;
        }
        if (fault_run_all(plans, FAULT_MOST_AT_ONCE)) continue;
        fprintf(stderr, "stop %" PRId64 " of seed %" PRIu64 " went wrong\n", i, seed);
        assert_true(false);
    }
}

int main(int argc, char **argv)
{
    all = argc > 1 && strcmp(argv[1], "all") == 0;
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    seed = random_test_seed("kills across nodes");
    rounds = random_test_rounds(RANDOM_KILLS);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before_a_dispatch),           cmocka_unit_test(test_before_a_combine),
        cmocka_unit_test(test_inside_a_dispatch),           cmocka_unit_test(test_inside_a_combine),
        cmocka_unit_test(test_killed_in_a_phase),           cmocka_unit_test(test_late_in_a_phase),
        cmocka_unit_test(test_stopped_in_a_phase),          cmocka_unit_test(test_in_one_order),
        cmocka_unit_test(test_stopped_before_it_passes_on), cmocka_unit_test(test_at_any_moment),
        cmocka_unit_test(test_stopped_at_any_moment)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
