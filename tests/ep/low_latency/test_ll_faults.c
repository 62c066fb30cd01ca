/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies, or falls silent, in each phase of low-latency calls. The others' calls or hooks end with EXPAR_ERR_PEER
 * and name it, wherever they stand. The next one fails at once; buffer and group can be destroyed. */
#include "ep/harness/check.h"
#include "ep/low_latency/hold.h"
#include "ep/low_latency/reach.h"
#include "ep/low_latency/strike.h"
#include "ep/low_latency/trial.h"
#include "oracle/unit.h"
#include "shmem/kind.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { RANKS = STRIKE_RANKS, ROUNDS = 50, ROUNDS_OF_LATE = STRIKE_ROUND + 3 };
/* Survivors must have ended by then; they are expected to need a second, or their time-out and some. */
#define DEADLINE_MS 60000

/* One rank's, in memory that all share: written by the rank, read when it has ended. */
typedef struct fault_note {
    expar_status status, again;
    char text[1024], again_text[1024];
} fault_note;

typedef struct fault_table {
    strike_table strike;
    const lowlat_traffic *traffic;
    const lowlat_answers *back;
    _Atomic int32_t told; /* survivors that have their error */
    fault_note notes[RANKS];
} fault_table;

static fault_table *table_of(const strike_seat *seat)
{
    return (fault_table *)seat->table;
}

/* Nobody is lost: somebody is late. */
static bool ends_well(const strike_case *what)
{
    return what->late || what->signal == 0;
}

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

/* Before the round in which it happens each call has one, but where weights go ahead. */
static bool without_hook(const strike_seat *seat, strike_phase send)
{
    strike_case what = seat->table->what;
    what.whole = what.whole && seat->round == STRIKE_ROUND;
    return strike_without_hook(&what, send);
}

/* One call with its hook; `now`: its send. Keeps what went wrong. */
static bool trial_phases(strike_seat *seat, lowlat_call *call, strike_phase now, fault_note *note)
{
    strike_enter(seat, now);
    expar_status status = lowlat_start(call);
    strike_leave(seat, now);
    strike_enter(seat, now + 1);
    strike_leave(seat, now + 1);
    strike_enter(seat, now + 2);
    if (status == EXPAR_OK) status = lowlat_end(call);
    if (status == EXPAR_OK) {
        strike_leave(seat, now + 2);
        return CHECK(lowlat_is_right(call), "what came in round %d", (int)seat->round);
    }
    note->status = status;
    snprintf(note->text, sizeof note->text, "%s", expar_last_error());
    return false;
}

static bool trial_round(strike_seat *seat, fault_note *note)
{
    const fault_table *table = table_of(seat);
    const lowlat_choice hooked = {.hook = !without_hook(seat, SENDS_THERE)},
                        choice = {.hook = !without_hook(seat, SENDS_BACK)};
    lowlat_call there, back;
    lowlat_prepare_dispatch(&there, seat->ll, table->traffic, seat->rank, &hooked);
    bool well = trial_phases(seat, &there, SENDS_THERE, note);
    if (well) {
        lowlat_prepare_combine(&back, seat->ll, table->traffic, table->back, seat->rank, &choice, there.there.handle);
        well = trial_phases(seat, &back, SENDS_BACK, note);
        lowlat_clean(&back);
    }
    lowlat_clean(&there);
    return well;
}

static void try_again(const strike_seat *seat, fault_note *note)
{
    const lowlat_choice plain = {0};
    lowlat_call call;
    lowlat_prepare_dispatch(&call, seat->ll, table_of(seat)->traffic, seat->rank, &plain);
    note->again = lowlat_start(&call);
    snprintf(note->again_text, sizeof note->again_text, "%s", expar_last_error());
    lowlat_clean(&call);
}

/* A rank that has been told of a silence stays until all have: so nobody hears of another's leaving in its stead. */
static void await_others(strike_seat *seat)
{
    const int64_t deadline_ms = ranks_clock_ms() + DEADLINE_MS / 2;
    atomic_fetch_add(&table_of(seat)->told, 1);
    while (seat->table->what.signal == SIGSTOP && !strike_is_victim(seat) &&
           atomic_load(&table_of(seat)->told) < RANKS - 1 && ranks_clock_ms() < deadline_ms)
        strike_nap();
}

/* Data that a network has taken from a stopped rank may not come, and so others may wait before they are where it has
   struck itself. */
static void expect_silence(const strike_seat *seat)
{
    const strike_case *what = &seat->table->what;
    if (what->signal == SIGSTOP && !what->late && !strike_is_victim(seat) && !reach_is_mapped())
        kind_set_silence(seat->group, STRIKE_SILENCE_MS);
}

static void trial_rank(expar_group *group, void *shared)
{
    strike_seat seat = strike_sit(group, shared);
    const llo_job *job = &table_of(&seat)->traffic->job;
    fault_note *note = &table_of(&seat)->notes[seat.rank];
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = job->max_tokens;
    config.hidden = job->hidden;
    config.max_topk = job->topk;
    config.num_experts = job->num_experts;
    config.unmapped = reach_unmapped();
    if (!CHECK_OK(expar_ll_create(group, &config, &seat.ll))) return;
    expect_silence(&seat);
    const int32_t rounds = ends_well(&seat.table->what) ? ROUNDS_OF_LATE : ROUNDS;
    while (seat.round < rounds && trial_round(&seat, note))
        seat.round++;
    if (note->status != EXPAR_OK) try_again(&seat, note);
    await_others(&seat);
    CHECK(hold_device_serves(seat.rank), "the device of rank %d serves no more", (int)seat.rank);
    CHECK_OK(expar_ll_destroy(seat.ll));
    CHECK_OK(expar_group_destroy(group));
}

/* ---- the parent -------------------------------------------------------------------------------------------------- */

/* With weights that travel along, and without. */
static lowlat_traffic *traffic_of_all[2];
static lowlat_answers *back_of_all[2];

static void make_traffic(bool ahead)
{
    static const int64_t num_tokens[RANKS] = {9, 12, 10};
    random_source random = random_start(2);
    const lowlat_plan rows = {.num_ranks = RANKS,
                              .max_tokens = 12,
                              .hidden = 256,
                              .topk = 3,
                              .num_experts = 2 * RANKS,
                              .with_weights = !ahead,
                              .num_tokens = num_tokens};
    traffic_of_all[ahead] = lowlat_traffic_make(&rows, &random);
    back_of_all[ahead] = lowlat_answers_make(traffic_of_all[ahead], ORACLE_BF16,
                                             ahead ? EXPAR_LL_SUM_REDUCED : EXPAR_LL_SUM_EXACT, &random);
}

static void prepare(strike_table *strike)
{
    fault_table *table = (fault_table *)strike;
    table->traffic = traffic_of_all[strike->what.ahead];
    table->back = back_of_all[strike->what.ahead];
}

static bool names(const char *text, int32_t rank)
{
    char name[16];
    snprintf(name, sizeof name, "rank %d", (int)rank);
    return strstr(text, name) != NULL;
}

/* Where the others wait for the victim: a call that it has sent ends well, and so it is the next one. */
static const char *const waits_of[PHASES] = {
    [SENDS_THERE] = ": low-latency dispatch: ",   [OPEN_THERE] = ": low-latency combine: ",
    [RECEIVES_THERE] = ": low-latency combine: ", [SENDS_BACK] = ": low-latency combine: ",
    [OPEN_BACK] = ": low-latency dispatch: ",     [RECEIVES_BACK] = ": low-latency dispatch: "};

/* A kernel that is on its way goes on though its rank is stopped, but where the CPU simulates it: then either may be.
 * So it is where a rank is stopped in its wait for the others, after its sends. Data that a network has taken from a
 * stopped rank may not come, and data for it is not taken: any wait may be the one. */
static bool names_its_wait(const char *text, const strike_case *what)
{
    if (!reach_is_mapped()) return strstr(text, ": low-latency ");
    const strike_phase stopped = what->phase, sends = stopped < SENDS_BACK ? SENDS_THERE : SENDS_BACK,
                       receives = sends + 2;
    if (strstr(text, waits_of[stopped])) return true;
    return (hold_goes_on() || what->whole) && stopped < receives &&
           (strstr(text, waits_of[sends]) || strstr(text, waits_of[receives]));
}

/* The phase, and what had come from the victim: "low-latency dispatch: rows: … rows of rank 1: 3 of 7", and not all.
 * Kernels that the CPU simulates may get no core for the second in which a GPU's say what they waited for. Then the
 * host says that alone. */
static bool tells_of_a_wait(const char *text, const strike_case *what)
{
    char from[24];
    long long came, all;
    snprintf(from, sizeof from, " of rank %d: ", (int)what->victim);
    const char *told = strstr(text, from);
    if (!reach_is_mapped() && strstr(text, "answer")) return names_its_wait(text, what);
    if (!hold_goes_on() && strstr(text, "the stream has not reached the call")) return names_its_wait(text, what);
    return names_its_wait(text, what) && strstr(text, "timed out after") && told &&
           sscanf(told + strlen(from), "%lld of %lld", &came, &all) == 2 && came >= 0 && came < all;
}

static bool check_note(const fault_table *table, int32_t rank)
{
    const fault_note *note = &table->notes[rank];
    const strike_case *what = &table->strike.what;
    if (ends_well(what))
        return CHECK(note->status == EXPAR_OK, "rank %d got %s (%s)", (int)rank, expar_status_string(note->status),
                     note->text);
    return CHECK(note->status == EXPAR_ERR_PEER && names(note->text, what->victim), "rank %d got %s (%s)", (int)rank,
                 expar_status_string(note->status), note->text) &
           CHECK(strstr(note->text, "expar_ll_"), "rank %d is not told of its call: %s", (int)rank, note->text) &
           CHECK(what->signal == SIGKILL || tells_of_a_wait(note->text, what),
                 "rank %d is not told what it waited for: %s", (int)rank, note->text) &
           CHECK(note->again == EXPAR_ERR_PEER && names(note->again_text, what->victim) &&
                     strstr(note->again_text, "poisoned"),
                 "rank %d was then told %s (%s)", (int)rank, expar_status_string(note->again), note->again_text);
}

/* A killed one is dead; a stopped one is killed now, or woken, and then told of the others. */
static bool wait_for_victim(const strike_show *show)
{
    const strike_case *what = &show->table->what;
    const fault_note *note = &((const fault_table *)show->table)->notes[what->victim];
    if (what->signal == SIGSTOP && !what->late) kill(show->pids[what->victim], what->wakes ? SIGCONT : SIGKILL);
    int status = ranks_wait(show->pids[what->victim], ranks_clock_ms() + DEADLINE_MS, NULL);
    if (ends_well(what))
        return CHECK(status == 0 && atomic_load(&show->table->struck), "the victim ended with wait status %#x",
                     (unsigned)status) &
               check_note((const fault_table *)show->table, what->victim);
    if (what->wakes)
        return CHECK(status == 0, "the victim woke and ended with wait status %#x", (unsigned)status) &
               CHECK(note->status == EXPAR_ERR_PEER, "the victim woke and got %s (%s)",
                     expar_status_string(note->status), note->text);
    return CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the victim ended with wait status %#x",
                 (unsigned)status);
}

static bool see_through(const strike_show *show)
{
    const strike_case *what = &show->table->what;
    bool passed = true;
    for (int32_t r = 0; r < RANKS; r++) {
        if (r == what->victim) continue;
        int status = ranks_wait(show->pids[r], ranks_clock_ms() + DEADLINE_MS, NULL);
        passed &= CHECK(status == 0, "rank %d ended with wait status %#x", (int)r, (unsigned)status);
        passed &= check_note((const fault_table *)show->table, r);
    }
    passed &= wait_for_victim(show);
    if (!passed) strike_tell(what);
    return passed;
}

static const strike_trial trial = {.table_bytes = sizeof(fault_table),
                                   .side_by_side = 3,
                                   .body = trial_rank,
                                   .prepare = prepare,
                                   .attend = strike_wake_late,
                                   .see_out = see_through};

static void test_killed(void **state)
{
    (void)state;
    strike_trial_killed(&trial);
}

static void test_killed_while_weights_go_ahead(void **state)
{
    (void)state;
    strike_trial_ahead(&trial, SIGKILL);
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

static void test_killed_among_posts(void **state)
{
    (void)state;
    strike_trial_posts(&trial, SIGKILL, false);
}

/* At a step that is drawn; by the order in which threads and kernels run, it may lie in any command. */
static void test_killed_among_posts_anywhere(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("kills among posts"));
    if (getenv("EXPAR_TEST_QUICK")) skip();
    for (int64_t i = random_test_rounds(2); i > 0; i--) {
        const strike_case what = {.victim = (int32_t)random_between(&random, 0, RANKS - 1),
                                  .phase = random_once_in(&random, 2) ? SENDS_THERE : SENDS_BACK,
                                  .step = (int32_t)random_between(&random, 1, 40),
                                  .signal = SIGKILL,
                                  .posts = true};
        strike_trial_all(&trial, &what, 1);
    }
}

/* Returns whether no thread of the host passes a rank's data to a network. The victim strikes at a step of such a
   thread, and the other ranks wait until it has struck: without one they would wait for ever. */
static bool has_no_posts(void)
{
    return hold_goes_on() && reach_is_mapped();
}

static void test_late(void **state)
{
    (void)state;
    if (has_no_posts()) skip();
    strike_trial_posts(&trial, SIGSTOP, true);
}

/* One thread of a rank. */
static void test_held(void **state)
{
    (void)state;
    strike_trial_posts(&trial, 0, true);
}

static void test_stopped(void **state)
{
    (void)state;
    strike_trial_phases(&trial, 1, 9, SIGSTOP, false);
}

static void test_stopped_and_woken(void **state)
{
    (void)state;
    strike_trial_phases(&trial, 2, 3, SIGSTOP, true);
}

int main(int argc, char **argv)
{
    make_traffic(false);
    make_traffic(true);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed_among_posts),
                                       cmocka_unit_test(test_killed_among_posts_anywhere),
                                       cmocka_unit_test(test_late),
                                       cmocka_unit_test(test_held),
                                       cmocka_unit_test(test_killed),
                                       cmocka_unit_test(test_killed_while_weights_go_ahead),
                                       cmocka_unit_test(test_killed_in_a_wait),
                                       cmocka_unit_test(test_stopped_in_a_wait),
                                       cmocka_unit_test(test_stopped),
                                       cmocka_unit_test(test_stopped_and_woken)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        lowlat_answers_free(back_of_all[i], traffic_of_all[i]);
        lowlat_traffic_free(traffic_of_all[i]);
    }
    return failed;
}
