/* SPDX-License-Identifier: Apache-2.0 */
/* Cleans in which ranks come to different ends if decisions are taken over in steps alone, or views tell no attempts.
 * They are the histories of the model (tests/models/clean.pml), step by step.
 *
 * Three ranks hold each other back between two steps of the agreement, by what each has told whom. One of them gives
 * another up in the midst, by a late limit that is short for as long as that takes. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/masked.h"
#include "ep/low_latency/trial.h"
#include "group/group.h"
#include "oracle/unit.h"
#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* LOOKS: steps of a rank by which it has seen what others had told it before. */
enum { RANKS = 3, VICTIM = 1, ROUNDS = 2, LOOKS = 60, MOST_NAPS = 60000 };
#define LATE_LIMIT_MS 30000

typedef struct clean_show clean_show;

/* Places that no word of the agreement tells of. Written by one rank each, read by the others. */
typedef struct clean_notes {
    _Atomic int32_t reached;      /* 1: the rank that is left out, or slow, is at its place */
    _Atomic int32_t looks[RANKS]; /* steps of each rank since the slow one has told it its decision */
} clean_notes;

typedef struct clean_seat {
    const clean_show *show;
    expar_group *group;
    expar_ll *ll;
    int32_t rank;
    bool passed_first, passed_second, passed_third; /* places at which a history holds this rank once */
} clean_seat;

struct clean_show {
    masked_traffic *rounds[ROUNDS];
    void (*holds[RANKS])(void *seat); /* between any two steps */
    bool apart;                       /* there is a clean before that of all, after which rank 1 is alone */
    uint32_t slow_until; /* of a rank that is slow: the step of the others' second clean at which it goes on */
    clean_notes *notes;
};

/* ---- where ranks are --------------------------------------------------------------------------------------------- */

/* The source has told the rank `at` that it is at this step of the attempt, and no further. */
static bool is_at(const clean_seat *seat, int32_t at, int32_t source, uint32_t attempt, uint32_t step)
{
    const hold_stage stage = hold_clean_stage(seat->ll, at, source);
    return stage.attempt == attempt && stage.step == step;
}

static bool has_reached(const clean_seat *seat)
{
    return atomic_load(&seat->show->notes->reached) == 1;
}

static bool has_decided(const clean_seat *seat, int32_t source)
{
    return hold_clean_decided(seat->ll, source, source) != 0;
}

/* Until it holds; not for ever, where the library is wrong. */
static void stay_until(const clean_seat *seat, bool (*holds)(const clean_seat *seat), const char *what)
{
    const struct timespec moment = {0, 1000000};
    for (int i = 0; i < MOST_NAPS && !holds(seat); i++)
        nanosleep(&moment, NULL);
    CHECK(holds(seat), "%s", what);
}

/* For which its next looks at whom it awaits do not give that one up. */
static void set_patience(const clean_seat *seat, int64_t limit_ms)
{
    seat->group->boot->late_limit_ms = limit_ms;
}

/* ---- left out, and yet decided with ------------------------------------------------------------------------------ */

/* Rank 1 gives rank 0 up, and leaves it out of its next view. Rank 2 has not seen that yet, and decides for all three;
   rank 1 takes this over. Rank 0, left out by rank 1, has then begun a new attempt. */

static bool others_step_on(const clean_seat *seat)
{
    return is_at(seat, 0, 1, 1, 3);
}

static bool second_decides(const clean_seat *seat)
{
    return has_decided(seat, 2);
}

/* Rank 0: comes, and says whom it sees only when rank 1 has left it out; it is left out then, and rank 2 decides. It
   does not give the others up before they do so. */
static void hold_left_out(void *context)
{
    clean_seat *seat = context;
    if (!seat->passed_first && is_at(seat, 2, 0, 1, 1)) {
        seat->passed_first = true;
        stay_until(seat, others_step_on, "rank 1 leaves nobody out");
    }
    if (!seat->passed_second && is_at(seat, 2, 0, 1, 2)) {
        seat->passed_second = true;
        atomic_store(&seat->show->notes->reached, 1);
        stay_until(seat, second_decides, "rank 2 decides nothing");
        set_patience(seat, 3 * LATE_LIMIT_MS);
    }
}

/* Rank 1: gives rank 0 up once rank 2 has said whom it sees, and does not tell rank 2 before that has decided. */
static void hold_leaver_out(void *context)
{
    clean_seat *seat = context;
    if (!seat->passed_first && is_at(seat, 2, 1, 1, 2) && is_at(seat, 1, 2, 1, 2)) {
        seat->passed_first = true;
        set_patience(seat, 1);
    }
    if (!seat->passed_second && is_at(seat, 0, 1, 1, 3)) {
        seat->passed_second = true;
        set_patience(seat, LATE_LIMIT_MS);
        stay_until(seat, second_decides, "rank 2 decides nothing");
    }
}

/* Rank 2: looks at views when rank 0 has said its own, and knows that it is left out. */
static void hold_decider(void *context)
{
    clean_seat *seat = context;
    if (seat->passed_first || !is_at(seat, 2, 0, 1, 2)) return;
    seat->passed_first = true;
    stay_until(seat, has_reached, "rank 0 is not left out");
}

/* ---- slow, with a decision of the clean before ------------------------------------------------------------------- */

/* Rank 0 gives rank 1 up. Rank 1 has seen all three views before, decides for all, and is stopped before it tells
   anybody. Rank 0 and rank 2 decide without it, and come to a second clean. They find rank 1 there, as it seems. */

static bool views_are_told(const clean_seat *seat)
{
    return is_at(seat, 1, 0, 1, 2) && is_at(seat, 1, 2, 1, 2) && is_at(seat, 0, 0, 1, 3);
}

static bool is_in_second(const clean_seat *seat, int32_t rank)
{
    const hold_stage stage = hold_clean_stage(seat->ll, rank, rank);
    return (stage.attempt == 2 && stage.step >= seat->show->slow_until) ||
           hold_clean_decided(seat->ll, rank, rank) >= 2;
}

static bool others_are_in_second(const clean_seat *seat)
{
    return is_in_second(seat, 0) && is_in_second(seat, 2);
}

static bool first_leaves_out(const clean_seat *seat)
{
    return is_at(seat, 2, 0, 1, 3);
}

static bool others_have_looked(const clean_seat *seat)
{
    const clean_notes *notes = seat->show->notes;
    return atomic_load(&notes->looks[0]) >= LOOKS && atomic_load(&notes->looks[2]) >= LOOKS;
}

static bool slow_tells(const clean_seat *seat)
{
    return hold_clean_decided(seat->ll, seat->rank, VICTIM) == 1;
}

/* Rank 1 says whom it sees when it is given up. It says what it has decided when the others are in their second clean,
   and goes on when they have seen that. */
static void hold_slow(void *context)
{
    clean_seat *seat = context;
    if (!seat->passed_first && is_at(seat, 2, 1, 1, 1)) {
        seat->passed_first = true;
        stay_until(seat, views_are_told, "rank 0 does not go on without rank 1");
    }
    if (!seat->passed_second && is_at(seat, 2, 1, 1, 2)) {
        seat->passed_second = true;
        atomic_store(&seat->show->notes->reached, 1);
        stay_until(seat, others_are_in_second, "the others are in no second clean");
    }
    if (!seat->passed_third && hold_clean_decided(seat->ll, 2, VICTIM) == 1) {
        seat->passed_third = true;
        stay_until(seat, others_have_looked, "the others do not go on");
    }
}

/* For a rank that comes to its second clean: it sees the decision of rank 1 before it says whom it sees, where rank 1
   goes on so soon. */
static void hold_in_second(const clean_seat *seat)
{
    if (seat->show->slow_until == 1 && is_at(seat, seat->rank, seat->rank, 2, 1))
        stay_until(seat, slow_tells, "rank 1 tells no decision");
    if (slow_tells(seat)) atomic_fetch_add(&seat->show->notes->looks[seat->rank], 1);
}

/* Rank 0: gives rank 1 up once rank 2 has said whom it sees, and does not tell rank 1 before that has decided. */
static void hold_loser(void *context)
{
    clean_seat *seat = context;
    if (!seat->passed_first && is_at(seat, 2, 0, 1, 2) && is_at(seat, 0, 2, 1, 2)) {
        seat->passed_first = true;
        set_patience(seat, 1);
    }
    if (!seat->passed_second && is_at(seat, 0, 0, 1, 3)) {
        seat->passed_second = true;
        set_patience(seat, LATE_LIMIT_MS);
        stay_until(seat, has_reached, "rank 1 has not decided");
    }
    hold_in_second(seat);
}

/* Rank 2: looks at views when that of rank 0 is without rank 1. */
static void hold_follower(void *context)
{
    clean_seat *seat = context;
    if (!seat->passed_first && is_at(seat, 1, 2, 1, 2)) {
        seat->passed_first = true;
        stay_until(seat, first_leaves_out, "rank 0 leaves nobody out");
    }
    hold_in_second(seat);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static bool check_masks(expar_ll *ll, const uint8_t *wanted)
{
    int32_t got[RANKS] = {0};
    const expar_tensor status = expar_tensor_1d(got, EXPAR_I32, RANKS);
    bool right = CHECK_OK(expar_ll_mask_query(ll, &status, NULL));
    for (int32_t r = 0; r < RANKS && right; r++)
        right = CHECK(got[r] == wanted[r], "rank %d is %d", (int)r, (int)got[r]);
    return right;
}

/* A clean, by which these are masked, and calls of a view. */
static bool trial_clean(const clean_seat *seat, masked_view masked, masked_view calls, int32_t round)
{
    const masked_traffic *m = seat->show->rounds[round];
    const lowlat_choice plain = {0};
    return CHECK_OK(expar_ll_mask_clean(seat->ll)) && check_masks(seat->ll, m->masks + masked * RANKS) &&
           lowlat_round_trip(seat->ll, m->there[calls], &m->back[calls], 1, seat->rank, &plain);
}

/* Rank 1 takes itself for one of all after its first clean, and finds in its calls that it is alone. */
static bool trial_apart(const clean_seat *seat)
{
    return seat->rank == VICTIM ? trial_clean(seat, MASKED_NOBODY, MASKED_OTHERS, 0)
                                : trial_clean(seat, MASKED_VICTIM, MASKED_VICTIM, 0);
}

static void trial_rank(expar_group *group, void *shared)
{
    const clean_show *show = shared;
    clean_seat seat = {.show = show, .group = group, .rank = expar_group_rank(group)};
    const lowlat_plan plan = {.max_tokens = 12, .hidden = 128, .topk = 4, .num_experts = 3 * RANKS};
    const expar_ll_config config = masked_config(&plan);
    if (!CHECK_OK(masked_create(group, &config, &seat.ll))) return;
    hold_install(seat.ll, show->holds[seat.rank], &seat);
    bool well = !show->apart || trial_apart(&seat);
    well = well && trial_clean(&seat, MASKED_NOBODY, MASKED_NOBODY, 1);
    if (well) CHECK_OK(expar_ll_destroy(seat.ll));
}

static void run_show(clean_show *show)
{
    const ranks_plan ranks = {
        .kind = RANKS_THREADS, .size = RANKS, .heap_bytes = (size_t)16 << 20, .late_limit_ms = LATE_LIMIT_MS};
    clean_notes notes = {0};
    int64_t tokens[RANKS];
    random_source random = random_start(31);
    const lowlat_plan plan = masked_plan(RANKS, tokens, &random);
    for (int i = 0; i < ROUNDS; i++)
        show->rounds[i] = masked_traffic_make(&plan, VICTIM, EXPAR_LL_SUM_EXACT, random_bits(&random));
    show->notes = &notes;
    const bool passed = ranks_run(&ranks, trial_rank, show);
    for (int i = 0; i < ROUNDS; i++)
        masked_traffic_free(show->rounds[i]);
    assert_true(passed);
}

/* ---- histories --------------------------------------------------------------------------------------------------- */

static void test_left_out(void **state)
{
    clean_show show = {.holds = {hold_left_out, hold_leaver_out, hold_decider}};
    (void)state;
    run_show(&show);
}

/* The others have compared their views with that of its old attempt, before it tells what it has decided. */
static void test_slow(void **state)
{
    clean_show show = {.holds = {hold_loser, hold_slow, hold_follower}, .apart = true, .slow_until = 3};
    (void)state;
    run_show(&show);
}

/* It tells that first. */
static void test_slow_decision(void **state)
{
    clean_show show = {.holds = {hold_loser, hold_slow, hold_follower}, .apart = true, .slow_until = 1};
    (void)state;
    run_show(&show);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_left_out), cmocka_unit_test(test_slow),
                                       cmocka_unit_test(test_slow_decision)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
