/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that is held in the middle of a call is masked by the others, and goes on when they have. Its writes then
 * disturb nothing. In these histories the model of the protocol fails where slots do not move, move at once, or go back
 * to where another masked rank still may write.
 *
 * Calls of the others are started, then ended by their hooks. In the phase of the case, between both, they mask the
 * victim as soon as it is held at its step. In a later combine, between both, they let it go and await the end of its
 * call. With a second victim that one is held and masked in the combine of round SECOND, and let go last of all. */
#include "ep/harness/check.h"
#include "ep/harness/stage.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/masked.h"
#include "ep/low_latency/reach.h"
#include "ep/low_latency/trial.h"
#include "oracle/unit.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static ranks_kind kind;

enum { MOST_RANKS = 4, FATAL = 2, SECOND = 4, ROUNDS = 9, CLEANED = 2, MOST_NAPS = 60000 };

/* Each dispatch and combine has two: its send and its receive. */
typedef enum phase { SENDS_THERE, RECEIVES_THERE, SENDS_BACK, RECEIVES_BACK, PHASES } phase;
static const char *const phase_names[] = {"dispatch: send", "dispatch: receive", "combine: send", "combine: receive"};

typedef struct late_case {
    int32_t victim;
    phase phase;
    int32_t step;
    int32_t release; /* the round in which it is let go */
    bool second;
    bool rejected; /* the first of the others rejects its combine of round FATAL, so that its slot is not read */
} late_case;

/* A victim's; in memory that all ranks share. Written by it, but for `released`; read by the others. */
typedef struct late_note {
    _Atomic int32_t held, released, ended;
} late_note;

typedef struct late_show {
    late_case what;
    int32_t ranks;
    const masked_traffic *const *rounds; /* [ROUNDS] */
    late_note *notes;                    /* [2] */
    _Atomic int32_t *arrived;            /* [ROUNDS] of the others, in the combine of the round, after their sends */
} late_show;

typedef struct late_seat {
    const late_show *show;
    expar_ll *ll;
    int32_t rank, round;
    int32_t number; /* of a victim: 0 or 1; else -1 */
    int32_t steps_left;
} late_seat;

/* ---- holding ----------------------------------------------------------------------------------------------------- */

/* Until it is set; not for ever, where the library is wrong. */
static bool await_flag(const _Atomic int32_t *flag, int32_t least)
{
    const struct timespec moment = {0, 1000000};
    for (int i = 0; i < MOST_NAPS && atomic_load(flag) < least; i++)
        nanosleep(&moment, NULL);
    return CHECK(atomic_load(flag) >= least, "a rank does not come");
}

static void stay_held(const late_seat *seat)
{
    late_note *note = &seat->show->notes[seat->number];
    atomic_store(&note->held, 1);
    await_flag(&note->released, 1);
}

static void hold_in_time(void *context)
{
    late_seat *seat = context;
    if (--seat->steps_left == 0) stay_held(seat);
}

/* Whether the victim is held in this phase. */
static bool is_held_in(const late_seat *seat, int32_t number, phase now)
{
    const late_case *what = &seat->show->what;
    if (number == 0) return seat->round == FATAL && now == what->phase;
    return what->second && number == 1 && seat->round == SECOND && now == SENDS_BACK;
}

static void enter_phase(late_seat *seat, phase now)
{
    if (seat->number < 0 || !is_held_in(seat, seat->number, now)) return;
    seat->steps_left = seat->show->what.step;
    hold_install(seat->ll, hold_in_time, seat);
}

static void leave_phase(late_seat *seat, phase now)
{
    if (seat->number < 0 || !is_held_in(seat, seat->number, now)) return;
    hold_install(seat->ll, NULL, NULL);
    if (seat->steps_left > 0) stay_held(seat);
    atomic_store(&seat->show->notes[seat->number].ended, 1);
}

/* ---- between a call's start and its end -------------------------------------------------------------------------- */

/* A rank that is not held masks the victim that is, in either phase of the call; now: its send. */
static bool mask_held(const late_seat *seat, phase now)
{
    const masked_traffic *m = seat->show->rounds[0];
    const int32_t victims[] = {m->victim, m->second};
    bool well = true;
    for (int32_t i = 0; i < 2 && well; i++) {
        if (seat->rank == victims[i] || (i == 1 && seat->rank == m->victim)) continue;
        if (!is_held_in(seat, i, now) && !is_held_in(seat, i, now + 1)) continue;
        well = await_flag(&seat->show->notes[i].held, 1) && CHECK_OK(expar_ll_mask_set(seat->ll, victims[i], 1));
    }
    return well;
}

/* All of the others have sent: what a victim writes from now on would lie over their rows. */
static bool let_go(const late_seat *seat)
{
    const late_show *show = seat->show;
    const int32_t held = show->what.second && seat->round > SECOND ? 2 : 1;
    const int32_t number = seat->round == ROUNDS - 1 && show->what.second ? 1 : 0;
    if (seat->round != show->what.release && (number == 0 || seat->round != ROUNDS - 1)) return true;
    atomic_fetch_add(&show->arrived[seat->round], 1);
    if (!await_flag(&show->arrived[seat->round], show->ranks - held)) return false;
    atomic_store(&show->notes[number].released, 1);
    return await_flag(&show->notes[number].ended, 1);
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

static bool is_rejected(const late_seat *seat, phase now)
{
    return seat->show->what.rejected && seat->round == FATAL && now == SENDS_BACK;
}

static bool rejects(const late_seat *seat, phase now)
{
    return is_rejected(seat, now) && seat->rank == (seat->show->what.victim == 0 ? 1 : 0);
}

/* A victim may have masked who refuses before it looks. */
static bool check_end(const late_seat *seat, phase now, expar_status status)
{
    if (!is_rejected(seat, now) || (seat->number == 0 && status == EXPAR_OK)) return CHECK_OK(status);
    return CHECK_STATUS(EXPAR_ERR_REMOTE, status);
}

static bool trial_call(late_seat *seat, lowlat_call *call, phase now, bool checked)
{
    if (rejects(seat, now)) {
        call->back_args.sum = (expar_ll_sum)7;
        return CHECK_STATUS(EXPAR_ERR_ARGUMENT, lowlat_start(call)) && mask_held(seat, now);
    }
    enter_phase(seat, now);
    bool well = CHECK_OK(lowlat_start(call));
    leave_phase(seat, now);
    well = well && mask_held(seat, now);
    if (seat->number < 0 && now == SENDS_BACK) well = well && let_go(seat);
    enter_phase(seat, now + 1);
    well = well && check_end(seat, now, lowlat_end(call));
    leave_phase(seat, now + 1);
    return well && (!checked || is_rejected(seat, now) || lowlat_is_right(call));
}

/* there: the view of the dispatch; back: of the sums, of rows in the dispatch's layout. checked: both must be right. */
static bool trial_round(late_seat *seat, masked_view there_view, masked_view back_view, bool checked)
{
    const masked_traffic *m = seat->show->rounds[seat->round];
    const lowlat_choice hooked = {.hook = true};
    lowlat_call there, back;
    lowlat_prepare_dispatch(&there, seat->ll, m->there[there_view], seat->rank, &hooked);
    bool well = trial_call(seat, &there, SENDS_THERE, checked);
    if (well) {
        lowlat_prepare_combine(&back, seat->ll, m->there[there_view], m->back[there_view], seat->rank, &hooked,
                               there.there.handle);
        back.answers = m->back[back_view];
        well = trial_call(seat, &back, SENDS_BACK, checked);
        lowlat_clean(&back);
    }
    lowlat_clean(&there);
    seat->round++;
    return CHECK(well, "round %d", (int)seat->round - 1);
}

static bool trial_others(late_seat *seat)
{
    const late_case *what = &seat->show->what;
    bool well = true;
    while (seat->round < ROUNDS && well) {
        const bool before = what->phase >= SENDS_BACK;
        masked_view there = MASKED_VICTIM, back = MASKED_VICTIM;
        if (seat->round < FATAL) there = back = MASKED_NOBODY;
        if (seat->round == FATAL && before) there = MASKED_NOBODY;
        if (what->second && seat->round >= SECOND) back = MASKED_BOTH;
        if (what->second && seat->round > SECOND) there = MASKED_BOTH;
        well = trial_round(seat, there, back, true);
    }
    return well;
}

/* Up to the round in which it is held; then to its end, and alone. */
static bool trial_victim(late_seat *seat)
{
    const int32_t fatal = seat->number == 0 ? FATAL : SECOND;
    bool well = true;
    while (seat->round < fatal && well) {
        const masked_view view = seat->round < FATAL ? MASKED_NOBODY : MASKED_VICTIM;
        const bool part = seat->round == FATAL && seat->show->what.phase >= SENDS_BACK;
        well = trial_round(seat, part ? MASKED_NOBODY : view, view, true);
    }
    well = well && trial_round(seat, MASKED_NOBODY, MASKED_NOBODY, false);
    while (seat->round < fatal + 3 && well)
        well = trial_round(seat, MASKED_OTHERS, MASKED_OTHERS, seat->number == 0);
    return well;
}

static void trial_rank(expar_group *group, void *shared)
{
    const late_show *show = shared;
    late_seat seat = {.show = show, .rank = expar_group_rank(group), .number = -1};
    const lowlat_plan plan = {.max_tokens = 12, .hidden = 128, .topk = 4, .num_experts = 3 * show->ranks};
    const expar_ll_config config = masked_config(&plan);
    if (!CHECK_OK(masked_create(group, &config, &seat.ll))) return;
    if (seat.rank == show->rounds[0]->victim) seat.number = 0;
    if (show->what.second && seat.rank == show->rounds[0]->second) seat.number = 1;
    bool well = seat.number < 0 ? trial_others(&seat) : trial_victim(&seat);
    well = well && CHECK_OK(expar_ll_mask_clean(seat.ll));
    /* No phase of these is a case's. */
    seat.round = 0;
    while (seat.round < CLEANED && well)
        well = trial_round(&seat, MASKED_NOBODY, MASKED_NOBODY, true);
    if (well) CHECK_OK(expar_ll_destroy(seat.ll));
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

static bool trial_case(const late_case *what, int32_t ranks, masked_traffic *const *rounds)
{
    const ranks_plan plan = {.kind = kind,
                             .size = ranks,
                             .ranks_per_node = reach_ranks_per_node(ranks),
                             .heap_bytes = (size_t)32 << 20,
                             .late_limit_ms = 30000};
    const size_t bytes = 4096;
    late_note *notes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (notes == MAP_FAILED) abort();
    late_show show = {.what = *what,
                      .ranks = ranks,
                      .rounds = (const masked_traffic *const *)rounds,
                      .notes = notes,
                      .arrived = (_Atomic int32_t *)(notes + 2)};
    const bool passed = ranks_run(&plan, trial_rank, &show);
    munmap(notes, bytes);
    if (!passed)
        fprintf(stderr, "rank %d of %d held in %s, step %d, let go in round %d\n", (int)what->victim, (int)ranks,
                phase_names[what->phase], (int)what->step, (int)what->release);
    return passed;
}

static void trial_cases(late_case what, int32_t ranks, const int32_t *steps, int32_t num_steps)
{
    masked_traffic *rounds[ROUNDS];
    int64_t tokens[MOST_RANKS];
    random_source random = random_start((uint64_t)(what.victim * 4 + ranks));
    lowlat_plan plan = masked_plan(ranks, tokens, &random);
    for (int i = 0; i < ROUNDS; i++)
        rounds[i] = masked_traffic_make(&plan, what.victim, EXPAR_LL_SUM_EXACT, random_bits(&random));
    bool passed = true;
    for (int32_t i = 0; i < num_steps && passed; i++) {
        what.step = steps[i];
        if (!what.second) what.release = FATAL + 1 + i % 4;
        passed = trial_case(&what, ranks, rounds);
    }
    for (int i = 0; i < ROUNDS; i++)
        masked_traffic_free(rounds[i]);
    assert_true(passed);
}

/* Before the first word, among the words of headers, and before many a row; and after all. */
static const int32_t all_steps[] = {1, 2, 6, 9, 12, 13, 14, 15, 16, 18, 21, 24, 28, 33, 40, 48, 60, 1000};
#define NUM_STEPS (int32_t)(sizeof all_steps / sizeof *all_steps)

static void test_one(void **state)
{
    (void)state;
    for (int i = 0; i < PHASES; i++)
        for (int32_t victim = 0; victim < 3; victim++)
            trial_cases((late_case){.victim = victim, .phase = (phase)i}, 3, all_steps, NUM_STEPS);
}

/* A slot that was not read has no acknowledgement to move with: its next message header tells where it lies. */
static void test_unread(void **state)
{
    (void)state;
    for (int32_t victim = 0; victim < 3; victim++)
        trial_cases((late_case){.victim = victim, .phase = SENDS_BACK, .rejected = true}, 3, all_steps, NUM_STEPS);
}

/* The first is let go when its old places would serve again, were there only two regions. */
static void test_two(void **state)
{
    (void)state;
    for (int32_t victim = 0; victim < 4; victim++)
        trial_cases((late_case){.victim = victim, .phase = SENDS_BACK, .second = true, .release = SECOND + 2}, 4,
                    all_steps, NUM_STEPS);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one), cmocka_unit_test(test_unread),
                                       cmocka_unit_test(test_two)};
    kind = stage_kind(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
