/* SPDX-License-Identifier: Apache-2.0 */
/* Regions of slots, of which there are four. Ranks that live are masked one by one, each after calls of both slots
 * without the one before. They know one each, and with the fourth such rank there is none that nobody might write to. A
 * set is rejected then. A wait, or a clean, that would have to go on without that rank fails, and the others go on
 * without the rank that has failed. A rank that is back after a clean keeps no region, nor does one that has left. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/masked.h"
#include "ep/low_latency/trial.h"
#include "group/group.h"
#include "oracle/unit.h"
#include <stdatomic.h>
#include <time.h>

/* Rank 0 masks ranks 1, 2 and 3 apart, and has no region for the loss of LOST. */
enum { RANKS = 6, APART = 3, LOST = 4, TURNS = 3, ROUNDS = 4, MOST_NAPS = 60000 };
#define LATE_LIMIT_MS 90000

typedef struct region_show {
    masked_traffic *rounds[ROUNDS];
    lowlat_plan plan;
    int64_t tokens[RANKS];
    _Atomic int32_t ended; /* 1: the last rank goes on without rank 0. By it, for all */
} region_show;

typedef struct region_seat {
    region_show *show;
    expar_group *group;
    expar_ll *ll;
    int32_t rank;
    int32_t cleaners[RANKS]; /* who comes to the clean; there are num_cleaners of them */
    int32_t num_cleaners;
} region_seat;

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* A dispatch and a combine of which nothing but their ends is looked at: the ranks' masks differ. */
static bool trial_through(const region_seat *seat, int32_t round)
{
    const masked_traffic *m = seat->show->rounds[round];
    const lowlat_choice plain = {0};
    lowlat_call there, back;
    lowlat_prepare_dispatch(&there, seat->ll, m->there[MASKED_NOBODY], seat->rank, &plain);
    bool good = CHECK_OK(lowlat_start(&there));
    if (good) {
        lowlat_prepare_combine(&back, seat->ll, m->there[MASKED_NOBODY], m->back[MASKED_NOBODY], seat->rank, &plain,
                               there.there.handle);
        good = CHECK_OK(lowlat_start(&back));
        lowlat_clean(&back);
    }
    lowlat_clean(&there);
    return good;
}

static bool trial_all(const region_seat *seat, int32_t round)
{
    const masked_traffic *m = seat->show->rounds[round];
    const lowlat_choice plain = {0};
    return lowlat_round_trip(seat->ll, m->there[MASKED_NOBODY], &m->back[MASKED_NOBODY], 1, seat->rank, &plain);
}

static bool mask_apart(const region_seat *seat)
{
    bool good = true;
    for (int32_t other = 1; other <= APART && good; other++) {
        if (seat->rank == 0) good = CHECK_OK(expar_ll_mask_set(seat->ll, other, 1));
        good = good && trial_through(seat, 0) && trial_through(seat, 1) && CHECK_OK(expar_group_barrier(seat->group));
    }
    return good;
}

static void run_show(ranks_body body)
{
    region_show show = {.ended = 0};
    const ranks_plan ranks = {
        .kind = RANKS_THREADS, .size = RANKS, .heap_bytes = (size_t)16 << 20, .late_limit_ms = LATE_LIMIT_MS};
    random_source random = random_start(61);
    show.plan = masked_plan(RANKS, show.tokens, &random);
    for (int i = 0; i < ROUNDS; i++)
        show.rounds[i] = masked_traffic_make(&show.plan, LOST, EXPAR_LL_SUM_EXACT, random_bits(&random));
    const bool passed = ranks_run(&ranks, body, &show);
    for (int i = 0; i < ROUNDS; i++)
        masked_traffic_free(show.rounds[i]);
    assert_true(passed);
}

static bool region_seat_take(region_seat *seat, expar_group *group, region_show *show)
{
    const expar_ll_config config = masked_config(&show->plan);
    *seat = (region_seat){.show = show, .group = group, .rank = expar_group_rank(group)};
    return CHECK_OK(masked_create(group, &config, &seat->ll));
}

/* ---- a set ------------------------------------------------------------------------------------------------------- */

/* Those that are masked together know one region. */
static bool mask_together(const region_seat *seat)
{
    bool good = true;
    for (int32_t other = 1; other < RANKS && good && seat->rank == 0; other++)
        good = CHECK_OK(expar_ll_mask_set(seat->ll, other, 1));
    return good && CHECK_OK(expar_ll_mask_clean(seat->ll)) && trial_all(seat, 3);
}

static void trial_turns(expar_group *group, void *shared)
{
    region_seat seat;
    if (!region_seat_take(&seat, group, shared)) return;
    bool good = true;
    for (int turn = 0; turn < TURNS && good; turn++) {
        good = mask_apart(&seat);
        if (good && seat.rank == 0) {
            good = CHECK_STATUS(EXPAR_ERR_LIMIT, expar_ll_mask_set(seat.ll, LOST, 1));
            CHECK_TEXT("rank 4", "4 regions");
        }
        good = good && trial_through(&seat, 2) && CHECK_OK(expar_group_barrier(group)) &&
               CHECK_OK(expar_ll_mask_clean(seat.ll)) && trial_all(&seat, 2);
    }
    good = good && mask_together(&seat);
    if (good) CHECK_OK(expar_ll_destroy(seat.ll));
}

static void test_turns(void **state)
{
    (void)state;
    run_show(trial_turns);
}

/* ---- ranks that leave -------------------------------------------------------------------------------------------- */

static bool trial_leaver(const region_seat *seat, int32_t leaver)
{
    if (seat->rank == leaver) return CHECK_OK(expar_ll_abandon(seat->ll));
    return (leaver % 2 == 1 || CHECK_OK(expar_ll_mask_clean(seat->ll))) && trial_through(seat, 0) &&
           trial_through(seat, 1);
}

/* One after the other, each after calls of both slots without the one before, and every other time after a clean. */
static void trial_leavers(expar_group *group, void *shared)
{
    region_seat seat;
    if (!region_seat_take(&seat, group, shared)) return;
    const int32_t last = seat.rank == 0 ? RANKS : seat.rank;
    bool good = true;
    for (int32_t turn = 1; turn <= last && good; turn++)
        good = trial_leaver(&seat, turn % RANKS);
    CHECK_OK(expar_group_barrier(group));
}

static void test_leavers(void **state)
{
    (void)state;
    run_show(trial_leavers);
}

/* ---- who has none ------------------------------------------------------------------------------------------------ */

static bool check_poisoned(const region_seat *seat)
{
    lowlat_call there;
    const lowlat_choice plain = {0};
    lowlat_prepare_dispatch(&there, seat->ll, seat->show->rounds[2]->there[MASKED_NOBODY], seat->rank, &plain);
    const bool good = CHECK_STATUS(EXPAR_ERR_PEER, lowlat_start(&there)) && CHECK_TEXT("poisoned", "4 regions");
    lowlat_clean(&there);
    return good;
}

/* Without rank 0, and LOST. */
static bool trial_without(const region_seat *seat)
{
    int32_t got[RANKS] = {0};
    const expar_tensor status = expar_tensor_1d(got, EXPAR_I32, RANKS);
    return trial_through(seat, 2) && CHECK_OK(expar_ll_mask_query(seat->ll, &status, NULL)) &&
           CHECK(got[0] == 1 && got[LOST] == 1, "the masks are %d and %d", (int)got[0], (int)got[LOST]);
}

static bool await_end(const region_seat *seat)
{
    const struct timespec moment = {0, 1000000};
    for (int i = 0; i < MOST_NAPS && atomic_load(&seat->show->ended) == 0; i++)
        nanosleep(&moment, NULL);
    return CHECK(atomic_load(&seat->show->ended) == 1, "the others do not go on");
}

static bool trial_end(const region_seat *seat)
{
    bool good = true;
    if (seat->rank == RANKS - 1) {
        good = trial_without(seat);
        atomic_store(&seat->show->ended, good ? 1 : 2);
    }
    return good && await_end(seat);
}

/* ---- a wait ------------------------------------------------------------------------------------------------------ */

/* All but LOST have sent when the limit becomes short, so nothing else is late. */
static bool trial_lossy(const region_seat *seat)
{
    const lowlat_choice hooked = {.hook = true};
    lowlat_call there;
    lowlat_prepare_dispatch(&there, seat->ll, seat->show->rounds[2]->there[MASKED_NOBODY], seat->rank, &hooked);
    bool good = seat->rank == LOST || CHECK_OK(lowlat_start(&there));
    good = CHECK_OK(expar_group_barrier(seat->group)) && good;
    seat->group->boot->late_limit_ms = 1;
    if (good && seat->rank == 0) {
        good = CHECK_STATUS(EXPAR_ERR_PEER, lowlat_end(&there));
        CHECK_TEXT("rank 4 cannot be masked", "4 regions");
    } else if (good && seat->rank != LOST) {
        good = CHECK_OK(lowlat_end(&there));
    }
    seat->group->boot->late_limit_ms = LATE_LIMIT_MS;
    lowlat_clean(&there);
    return good;
}

static void trial_wait(expar_group *group, void *shared)
{
    region_seat seat;
    if (!region_seat_take(&seat, group, shared)) return;
    bool good = mask_apart(&seat) && trial_lossy(&seat);
    if (good && seat.rank == 0) good = check_poisoned(&seat);
    if (good && (seat.rank == 1 || seat.rank == 2 || seat.rank == APART)) good = trial_through(&seat, 2);
    if (good && trial_end(&seat)) CHECK_OK(expar_ll_abandon(seat.ll));
    CHECK_OK(expar_group_barrier(group));
}

static void test_wait(void **state)
{
    (void)state;
    run_show(trial_wait);
}

/* ---- a clean ----------------------------------------------------------------------------------------------------- */

/* A rank that has not come when all that are to have is late. */
static void limit_coming(void *context)
{
    const region_seat *seat = context;
    const hold_stage own = hold_clean_stage(seat->ll, seat->rank, seat->rank);
    bool all = own.step == 1;
    for (int32_t i = 0; i < seat->num_cleaners; i++) {
        const hold_stage other = hold_clean_stage(seat->ll, seat->rank, seat->cleaners[i]);
        all = all && other.attempt == own.attempt && other.step >= 1;
    }
    seat->group->boot->late_limit_ms = all ? 1 : LATE_LIMIT_MS;
}

static bool comes_to_clean(const region_seat *seat)
{
    for (int32_t i = 0; i < seat->num_cleaners; i++)
        if (seat->cleaners[i] == seat->rank) return true;
    return false;
}

static void limit_no_more(const region_seat *seat)
{
    hold_install(seat->ll, NULL, NULL);
    seat->group->boot->late_limit_ms = LATE_LIMIT_MS;
}

/* Ranks 1, 2 and 3 come to no clean, and LOST to the first one alone. */
static void trial_cleans(expar_group *group, void *shared)
{
    region_seat seat;
    if (!region_seat_take(&seat, group, shared)) return;
    bool good = mask_apart(&seat);
    hold_install(seat.ll, limit_coming, &seat);
    seat.num_cleaners = 3;
    seat.cleaners[0] = 0, seat.cleaners[1] = RANKS - 1, seat.cleaners[2] = LOST;
    if (comes_to_clean(&seat)) good = good && CHECK_OK(expar_ll_mask_clean(seat.ll));
    seat.num_cleaners = 2;
    if (seat.rank == 0) {
        good = good && CHECK_STATUS(EXPAR_ERR_PEER, expar_ll_mask_clean(seat.ll));
        CHECK_TEXT("4 regions");
        good = good && check_poisoned(&seat);
    } else if (comes_to_clean(&seat)) {
        good = good && CHECK_OK(expar_ll_mask_clean(seat.ll));
    }
    limit_no_more(&seat);
    if (good && trial_end(&seat)) CHECK_OK(expar_ll_abandon(seat.ll));
    CHECK_OK(expar_group_barrier(group));
}

static void test_clean(void **state)
{
    (void)state;
    run_show(trial_cleans);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_turns), cmocka_unit_test(test_leavers),
                                       cmocka_unit_test(test_wait), cmocka_unit_test(test_clean)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
