/* SPDX-License-Identifier: Apache-2.0 */
/* With masks a rank dies, or is stopped, in each phase of low-latency calls. The others' calls go on without an error,
 * with the oracle's results without that rank. One that was stopped wakes while they go on, ends its call, finds itself
 * alone, and counts again after a clean. There is a clean before the round in which it happens. The others decide it
 * with the victim, which then is lost in the round, or without it. */
#include "ep/harness/check.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/masked.h"
#include "ep/low_latency/reach.h"
#include "ep/low_latency/strike.h"
#include "ep/low_latency/trial.h"
#include "oracle/unit.h"
#include "shmem/kind.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { RANKS = STRIKE_RANKS, AFTER = 12, TRAFFICS = 3 };
#define DEADLINE_MS 120000

/* Rounds of all cases with such a victim, by turns. */
static masked_traffic *traffics[2][RANKS][TRAFFICS];

typedef struct fault_table {
    strike_table strike;
    _Atomic int32_t after;      /* rounds that the first of the others has made without the victim; for the parent */
    _Atomic int32_t up;         /* 1: a victim that was stopped has made its rounds alone. By it, for the others */
    _Atomic int32_t left_out;   /* 1: a clean has left the victim out. By the first of the others, for the victim */
    _Atomic int32_t last_round; /* the round before which the others clean: by the first of them; 0: not known yet */
} fault_table;

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

typedef struct fault_seat {
    strike_seat strike;
    fault_table *table;
    bool cleaned; /* of a victim: the clean that left it out has become that of the later others */
} fault_seat;

/* One call with its hook; `now`: its send. */
static bool trial_phases(fault_seat *seat, lowlat_call *call, strike_phase now)
{
    strike_enter(&seat->strike, now);
    bool well = CHECK_OK(lowlat_start(call));
    strike_leave(&seat->strike, now);
    strike_enter(&seat->strike, now + 1);
    strike_leave(&seat->strike, now + 1);
    strike_enter(&seat->strike, now + 2);
    well = well && CHECK_OK(lowlat_end(call));
    strike_leave(&seat->strike, now + 2);
    return well;
}

/* ---- what comes of the round in which it happens ----------------------------------------------------------------- */

/* Each expert's counter rises by as many rows as came. */
static bool check_stats(const lowlat_call *call, const int32_t *src_info)
{
    const llo_job *job = &call->traffic->job;
    const int64_t places = lowlat_places(job);
    bool right = true;
    for (int32_t l = 0; l < lowlat_locals(job) && right; l++) {
        int32_t came = 0;
        for (int32_t i = 0; i < call->traffic->arrivals[call->rank].count[l]; i++)
            came += src_info[l * places + i] != -1;
        const int32_t grew = call->stats[l] - lowlat_first_stat(l);
        right = CHECK(grew == came, "stats[%d] grew by %d, and %d rows came", (int)l, (int)grew, (int)came);
    }
    return right;
}

/* Counts of the victim's rows have come: rows of others are all here, and of its own each is, or is none. */
static bool check_part(const lowlat_call *call, int32_t victim)
{
    const llo_job *job = &call->traffic->job;
    const lowlat_arrival *wanted = &call->traffic->arrivals[call->rank];
    const int64_t places = lowlat_places(job), n = job->num_ranks;
    const size_t row_bytes = llo_row_bytes(job);
    expar_ll_handle_info info = EXPAR_LL_HANDLE_INFO_INIT;
    char *none = calloc(1, row_bytes);
    bool right = none && CHECK_OK(expar_ll_handle_get_info(call->there.handle, &info));
    for (int64_t i = 0; i < lowlat_locals(job) * places && right; i++) {
        const int64_t range = wanted->range[i / places * n + victim];
        const bool of_victim = i % places >= range >> 32 && i % places < (range >> 32) + (range & 0x7fffffff);
        const int32_t token = ((const int32_t *)info.src_info.data)[i];
        const char *row = (const char *)call->there.recv_x.data + (size_t)i * row_bytes;
        if (i % places >= wanted->count[i / places]) continue;
        const bool missing = of_victim && token == -1;
        right = CHECK(missing || token == wanted->src_info[i], "row %lld is token %d", (long long)i, (int)token) &&
                CHECK(memcmp(row, missing ? none : (const char *)wanted->x + (size_t)i * row_bytes, row_bytes) == 0,
                      "row %lld, %s", (long long)i, missing ? "which has not come" : "which has come");
    }
    free(none);
    return right && check_stats(call, info.src_info.data);
}

/* Whether the victim's counts came; the call is compared with that view. */
static masked_view find_view(lowlat_call *call, const masked_traffic *m)
{
    const lowlat_arrival *all = &m->there[MASKED_NOBODY]->arrivals[call->rank];
    const int32_t *count = call->there.recv_count.data;
    masked_view view = MASKED_NOBODY;
    for (int32_t l = 0; l < lowlat_locals(&m->there[0]->job); l++)
        if (count[l] != all->count[l]) view = MASKED_VICTIM;
    call->traffic = m->there[view];
    return view;
}

/* All sums have the victim's rows, or none has. */
static bool check_sums(lowlat_call *call, const masked_traffic *m, masked_view view)
{
    const lowlat_answers *all = m->back[MASKED_NOBODY];
    const size_t bytes = (size_t)(all->inputs[call->rank].num_tokens * all->job.hidden) * 2;
    const bool whole = view == MASKED_NOBODY && memcmp(call->back.y.data, all->y[call->rank], bytes) == 0;
    call->answers = m->back[whole ? MASKED_NOBODY : MASKED_VICTIM];
    return CHECK(lowlat_is_right(call), "sums in the round in which it happens, view %d", (int)view);
}

/* Data that a rank has sent over a network, and that has not come by then, is lost with it, or delayed. So all data of
   rounds before has come, and a rank for which data of the round itself is delayed, in any phase, need not wait long.
   */
static bool settle_before(const fault_seat *seat)
{
    if (reach_is_mapped() && !reach_unmapped()) return true;
    if (!CHECK_OK(expar_group_barrier(seat->strike.group))) return false;
    if (seat->table->strike.what.signal == SIGSTOP && !strike_is_victim(&seat->strike))
        kind_set_silence(seat->strike.group, STRIKE_SILENCE_MS);
    return true;
}

static bool trial_fatal(fault_seat *seat, const masked_traffic *m)
{
    const strike_case *what = &seat->table->strike.what;
    const lowlat_choice hooked = {.hook = !strike_without_hook(what, SENDS_THERE), .stats = true},
                        choice = {.hook = !strike_without_hook(what, SENDS_BACK)};
    lowlat_call there, back;
    lowlat_prepare_dispatch(&there, seat->strike.ll, m->there[MASKED_NOBODY], seat->strike.rank, &hooked);
    bool well = trial_phases(seat, &there, SENDS_THERE);
    if (well) {
        const masked_view view = strike_is_victim(&seat->strike) ? MASKED_NOBODY : find_view(&there, m);
        well = strike_is_victim(&seat->strike) ||
               (view == MASKED_NOBODY ? check_part(&there, m->victim) : lowlat_is_right(&there));
        lowlat_prepare_combine(&back, seat->strike.ll, m->there[view], m->back[view], seat->strike.rank, &choice,
                               there.there.handle);
        well = trial_phases(seat, &back, SENDS_BACK) &&
               (strike_is_victim(&seat->strike) || check_sums(&back, m, view)) && well;
        lowlat_clean(&back);
    }
    lowlat_clean(&there);
    return well;
}

/* ---- before and after it ----------------------------------------------------------------------------------------- */

static const masked_traffic *traffic_of(const fault_seat *seat)
{
    const strike_case *what = &seat->table->strike.what;
    return traffics[what->ahead][what->victim][seat->strike.round % TRAFFICS];
}

static bool trial_view(fault_seat *seat, masked_view view)
{
    const masked_traffic *m = traffic_of(seat);
    const lowlat_choice hooked = {.hook = true}, choice = {.hook = !seat->table->strike.what.ahead};
    lowlat_call there, back;
    lowlat_prepare_dispatch(&there, seat->strike.ll, m->there[view], seat->strike.rank, &hooked);
    bool well = lowlat_trial(&there);
    if (well) {
        lowlat_prepare_combine(&back, seat->strike.ll, m->there[view], m->back[view], seat->strike.rank, &choice,
                               there.there.handle);
        well = lowlat_trial(&back);
        lowlat_clean(&back);
    }
    lowlat_clean(&there);
    seat->strike.round++;
    return CHECK(well, "round %d, view %d", (int)seat->strike.round - 1, (int)view);
}

static bool check_masks(const fault_seat *seat, const uint8_t *wanted)
{
    int32_t got[RANKS] = {0};
    const expar_tensor status = expar_tensor_1d(got, EXPAR_I32, RANKS);
    bool right = CHECK_OK(expar_ll_mask_query(seat->strike.ll, &status, NULL));
    for (int32_t r = 0; r < RANKS && right; r++)
        right = CHECK(got[r] == (wanted ? wanted[r] : 0), "the mask of rank %d is %d", (int)r, (int)got[r]);
    return right;
}

/* Without the victim, until it is up again or, if it is dead, for a while. */
static bool trial_after(fault_seat *seat)
{
    fault_table *table = seat->table;
    const bool first = seat->strike.rank == (table->strike.what.victim == 0 ? 1 : 0);
    bool well = trial_view(seat, MASKED_VICTIM) && check_masks(seat, masked_of(traffic_of(seat), seat->strike.rank));
    kind_set_silence(seat->strike.group, DEADLINE_MS);
    while (well && seat->strike.round != atomic_load(&table->last_round)) {
        well = trial_view(seat, MASKED_VICTIM);
        if (!first) continue;
        const bool enough = atomic_fetch_add(&table->after, 1) >= 2 * AFTER;
        const bool ends = enough && (table->strike.what.signal == SIGKILL || atomic_load(&table->left_out) ||
                                     atomic_load(&table->up));
        /* The other one may be a round ahead. */
        if (ends && !atomic_load(&table->last_round)) atomic_store(&table->last_round, seat->strike.round + 3);
    }
    return well;
}

/* Headers of the next round may have come before the others masked the victim, which is alone for sure in the next. */
static bool trial_alone(fault_seat *seat)
{
    bool well = trial_fatal(seat, traffic_of(seat));
    seat->strike.round++;
    for (int32_t i = 0; i < AFTER && well; i++)
        well = trial_view(seat, MASKED_OTHERS);
    well = well && check_masks(seat, masked_of(traffic_of(seat), seat->strike.rank));
    atomic_store(&seat->table->up, 1);
    return well;
}

static bool clean_in_phase(fault_seat *seat)
{
    strike_enter(&seat->strike, CLEANS);
    bool well = CHECK_OK(expar_ll_mask_clean(seat->strike.ll));
    strike_leave(&seat->strike, CLEANS);
    /* If it is not the others' second one the victim has decided for all, and was left out before it could tell them:
       that it finds in its calls. */
    if (strike_is_victim(&seat->strike)) {
        const int32_t other = seat->strike.rank == 0 ? 1 : 0;
        seat->cleaned = atomic_load(&seat->table->left_out) && hold_clean_taken(seat->strike.ll, other) > 1;
        return well;
    }
    int32_t masks[RANKS] = {0};
    const expar_tensor status = expar_tensor_1d(masks, EXPAR_I32, RANKS);
    well = well && CHECK_OK(expar_ll_mask_query(seat->strike.ll, &status, NULL));
    if (masks[seat->table->strike.what.victim]) atomic_store(&seat->table->left_out, 1);
    return well;
}

/* Twice, with calls after both. */
static bool trial_cleaned(fault_seat *seat)
{
    const bool dead = seat->table->strike.what.signal == SIGKILL;
    bool well = true;
    for (int32_t i = 0; i < 4 && well; i++) {
        well = i % 2 == 1 || (i == 0 && seat->cleaned) || CHECK_OK(expar_ll_mask_clean(seat->strike.ll));
        /* The victim has made other rounds than the others. */
        seat->strike.round = i;
        well = well && check_masks(seat, dead ? masked_of(traffic_of(seat), seat->strike.rank) : NULL) &&
               trial_view(seat, dead ? MASKED_VICTIM : MASKED_NOBODY);
    }
    return well;
}

static void trial_rank(expar_group *group, void *shared)
{
    fault_seat seat = {.strike = strike_sit(group, shared), .table = shared};
    lowlat_plan plan = {.max_tokens = 12, .hidden = 128, .topk = 4, .num_experts = 3 * RANKS};
    const expar_ll_config config = masked_config(&plan);
    if (!CHECK_OK(masked_create(group, &config, &seat.strike.ll))) return;
    bool well = true;
    while (seat.strike.round < STRIKE_ROUND && well)
        well = trial_view(&seat, MASKED_NOBODY);
    well = well && settle_before(&seat);
    if (seat.table->strike.what.phase == CLEANS) well = well && clean_in_phase(&seat);
    well = well && (seat.cleaned || trial_fatal(&seat, traffic_of(&seat)));
    seat.strike.round++;
    if (!seat.cleaned) well = well && (strike_is_victim(&seat.strike) ? trial_alone(&seat) : trial_after(&seat));
    well = well && trial_cleaned(&seat);
    if (well) {
        CHECK(hold_device_serves(seat.strike.rank), "the device of rank %d serves no more", (int)seat.strike.rank);
        CHECK_OK(expar_ll_destroy(seat.strike.ll));
        CHECK_OK(expar_group_destroy(group));
    } else {
        expar_group_abandon(group);
    }
}

/* ---- the parent -------------------------------------------------------------------------------------------------- */

static void make_traffics(void)
{
    random_source random = random_start(11);
    int64_t tokens[RANKS];
    for (int ahead = 0; ahead < 2; ahead++)
        for (int32_t victim = 0; victim < RANKS; victim++)
            for (int i = 0; i < TRAFFICS; i++) {
                lowlat_plan rows = masked_plan(RANKS, tokens, &random);
                rows.with_weights = !ahead;
                traffics[ahead][victim][i] = masked_traffic_make(
                    &rows, victim, ahead ? EXPAR_LL_SUM_REDUCED : EXPAR_LL_SUM_EXACT, random_bits(&random));
            }
}

static void free_traffics(void)
{
    for (int ahead = 0; ahead < 2; ahead++)
        for (int32_t victim = 0; victim < RANKS; victim++)
            for (int i = 0; i < TRAFFICS; i++)
                masked_traffic_free(traffics[ahead][victim][i]);
}

/* A stopped one is woken once the others have gone on for a while. */
static void wake(const strike_show *show)
{
    const int64_t deadline_ms = ranks_clock_ms() + DEADLINE_MS / 2;
    const fault_table *table = (const fault_table *)show->table;
    if (show->table->what.signal != SIGSTOP) return;
    while (atomic_load(&table->after) < AFTER && ranks_clock_ms() < deadline_ms)
        strike_nap();
    kill(show->pids[show->table->what.victim], SIGCONT);
}

static bool see_through(const strike_show *show)
{
    const strike_case *what = &show->table->what;
    bool passed = true;
    for (int32_t r = 0; r < RANKS; r++) {
        const bool killed = r == what->victim && what->signal == SIGKILL;
        const int status = ranks_wait(show->pids[r], ranks_clock_ms() + DEADLINE_MS, NULL);
        passed &= CHECK(killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0,
                        "rank %d ended with wait status %#x", (int)r, (unsigned)status);
    }
    if (!passed) strike_tell(what);
    return passed;
}

static const strike_trial trial = {.table_bytes = sizeof(fault_table),
                                   .side_by_side = STRIKE_MOST,
                                   .body = trial_rank,
                                   .attend = wake,
                                   .see_out = see_through};

static void test_killed(void **state)
{
    (void)state;
    strike_trial_killed(&trial);
}

static void test_killed_in_a_wait(void **state)
{
    (void)state;
    strike_trial_waits(&trial, SIGKILL);
}

static void test_stopped_in_a_wait(void **state)
{
    (void)state;
    strike_trial_waits(&trial, SIGSTOP);
}

static void test_killed_while_weights_go_ahead(void **state)
{
    (void)state;
    strike_trial_ahead(&trial, SIGKILL);
}

static void test_stopped(void **state)
{
    static const int32_t steps[] = {1, 17};
    (void)state;
    for (int32_t i = 0; i < strike_victims_of(sizeof steps / sizeof *steps); i++)
        strike_trial_phases(&trial, i % RANKS, steps[i], SIGSTOP, false);
}

static void test_stopped_while_weights_go_ahead(void **state)
{
    (void)state;
    strike_trial_ahead(&trial, SIGSTOP);
}

/* Among the words of its coming, its view, its decision, and after. */
static void trial_cleans(int signal)
{
    static const int32_t steps[2 * STRIKE_MOST] = {1, 8, 19, 20, 23, 25, 26, 28, 29, 31, 33, 1000};
    strike_case cases[2 * STRIKE_MOST];
    for (int i = 0; i < 2 * STRIKE_MOST; i++)
        cases[i] = (strike_case){.victim = i % RANKS, .phase = CLEANS, .step = steps[i], .signal = signal};
    strike_trial_all(&trial, cases, strike_victims_of(2 * STRIKE_MOST));
}

static void test_killed_in_a_clean(void **state)
{
    (void)state;
    trial_cleans(SIGKILL);
}

static void test_stopped_in_a_clean(void **state)
{
    (void)state;
    trial_cleans(SIGSTOP);
}

int main(int argc, char **argv)
{
    make_traffics();
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed),
                                       cmocka_unit_test(test_killed_while_weights_go_ahead),
                                       cmocka_unit_test(test_stopped),
                                       cmocka_unit_test(test_stopped_while_weights_go_ahead),
                                       cmocka_unit_test(test_killed_in_a_wait),
                                       cmocka_unit_test(test_stopped_in_a_wait),
                                       cmocka_unit_test(test_killed_in_a_clean),
                                       cmocka_unit_test(test_stopped_in_a_clean)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free_traffics();
    return failed;
}
