/* SPDX-License-Identifier: Apache-2.0 */
/* A rank dies, or falls silent, in each phase of low-latency calls: the others' calls or hooks end with EXPAR_ERR_PEER
 * and name it, wherever they stand; the next one fails at once; buffer and group can be destroyed. Ranks are processes.
 *
 * All make rounds of a dispatch and a combine, each with a hook but where weights go ahead. In round FATAL the victim
 * strikes itself in the phase of the case, at one of its steps, or, if the phase has fewer, behind it. */
#include "ep/low_latency/hold.h"
#include "ep/low_latency/play.h"
#include "ep/low_latency/reach.h"
#include "ep/ranks.h"
#include "oracle/unit.h"
#include "shmem/kind.h"
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

enum { RANKS = 3, FATAL = 2, ROUNDS = 50 };
/* Survivors must have ended by then; they are expected to need a second, or their time-out and some. */
#define DEADLINE_MS 60000
/* Of survivors of a silence: what it takes to be silent is longer all the same. */
#define SHORT_SILENCE_MS 1500

typedef enum phase { SENDS_THERE, OPEN_THERE, RECEIVES_THERE, SENDS_BACK, OPEN_BACK, RECEIVES_BACK, PHASES } phase;
static const char *const phase_names[] = {"dispatch: send", "dispatch: before its hook", "dispatch: receive",
                                          "combine: send",  "combine: before its hook",  "combine: receive"};

typedef struct fault_case {
    int32_t victim;
    phase phase;
    int32_t step;
    int signal; /* SIGKILL, or SIGSTOP */
    bool ahead; /* combines are reduced, and their weights go ahead: the send waits for others, and there is no hook */
    bool whole; /* the call of the phase has no hook, and the others begin theirs when the victim has struck itself: in
                   its wait for them, at the step, on GPUs whenever it is seen there */
    bool wakes; /* SIGSTOP: goes on when the others have ended */
} fault_case;

/* Of one rank, in memory that all share: written by the rank, read when it has ended. */
typedef struct fault_note {
    expar_status status, again;
    char text[1024], again_text[1024];
} fault_note;

typedef struct fault_table {
    fault_case what;
    const lowlat_traffic *traffic;
    const lowlat_answers *back;
    _Atomic int32_t struck; /* 1: the victim is about to strike itself. Written by it, read by the others */
    _Atomic int32_t told;   /* survivors that have their error */
    fault_note notes[RANKS];
} fault_table;

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

typedef struct fault_seat {
    fault_table *table;
    expar_group *group;
    expar_ll *ll;
    int32_t rank, round;
    int32_t steps_left; /* of the victim, in its phase */
} fault_seat;

static void nap(void)
{
    const struct timespec moment = {0, 1000000};
    nanosleep(&moment, NULL);
}

static void strike(const fault_seat *seat)
{
    atomic_store(&seat->table->struck, 1);
    raise(seat->table->what.signal);
}

static void strike_in_time(void *context)
{
    fault_seat *seat = context;
    if (--seat->steps_left == 0) strike(seat);
}

static bool without_hook(const fault_seat *seat, phase send)
{
    const fault_case *what = &seat->table->what;
    return (send == SENDS_BACK && what->ahead) || (what->whole && seat->round == FATAL && send == what->phase);
}

/* Before a phase. Survivors of a silence, or of what happens in a wait for them, come late to it, when the victim is
 * about to strike itself. */
static void enter_phase(fault_seat *seat, phase now)
{
    const fault_case *what = &seat->table->what;
    if (seat->round != FATAL || now != what->phase) return;
    if (seat->rank == what->victim) {
        seat->steps_left = what->whole && hold_goes_on() ? 1 : what->step;
        if (what->whole)
            hold_watch(seat->ll, RANKS, strike_in_time, seat);
        else
            hold_install(seat->ll, strike_in_time, seat);
        return;
    }
    while ((what->signal == SIGSTOP || what->whole) && !atomic_load(&seat->table->struck))
        nap();
    if (what->signal == SIGSTOP) kind_set_silence(seat->group, SHORT_SILENCE_MS);
}

static void leave_phase(fault_seat *seat, phase now)
{
    if (seat->round != FATAL || now != seat->table->what.phase || seat->rank != seat->table->what.victim) return;
    if (seat->table->what.whole)
        hold_watch(seat->ll, RANKS, NULL, NULL);
    else
        hold_install(seat->ll, NULL, NULL);
    if (seat->steps_left > 0) strike(seat);
}

/* One call with its hook; `now`: its send. Keeps what went wrong. */
static bool play_phases(fault_seat *seat, lowlat_call *call, phase now, fault_note *note)
{
    enter_phase(seat, now);
    expar_status status = lowlat_start(call);
    leave_phase(seat, now);
    enter_phase(seat, now + 1);
    leave_phase(seat, now + 1);
    enter_phase(seat, now + 2);
    if (status == EXPAR_OK) status = lowlat_end(call);
    if (status == EXPAR_OK) {
        leave_phase(seat, now + 2);
        return CHECK(lowlat_is_right(call), "what came in round %d", (int)seat->round);
    }
    note->status = status;
    snprintf(note->text, sizeof note->text, "%s", expar_last_error());
    return false;
}

static bool play_round(fault_seat *seat, fault_note *note)
{
    const fault_table *table = seat->table;
    const lowlat_choice hooked = {.hook = !without_hook(seat, SENDS_THERE)},
                        choice = {.hook = !without_hook(seat, SENDS_BACK)};
    lowlat_call there, back;
    lowlat_prepare_dispatch(&there, seat->ll, table->traffic, seat->rank, &hooked);
    bool well = play_phases(seat, &there, SENDS_THERE, note);
    if (well) {
        lowlat_prepare_combine(&back, seat->ll, table->traffic, table->back, seat->rank, &choice, there.there.handle);
        well = play_phases(seat, &back, SENDS_BACK, note);
        lowlat_clean(&back);
    }
    lowlat_clean(&there);
    return well;
}

static void try_again(const fault_seat *seat, fault_note *note)
{
    const lowlat_choice plain = {0};
    lowlat_call call;
    lowlat_prepare_dispatch(&call, seat->ll, seat->table->traffic, seat->rank, &plain);
    note->again = lowlat_start(&call);
    snprintf(note->again_text, sizeof note->again_text, "%s", expar_last_error());
    lowlat_clean(&call);
}

/* Who has been told of a silence stays until all have: so nobody hears of another's leaving in its stead. */
static void await_others(fault_seat *seat)
{
    const int64_t deadline_ms = ranks_clock_ms() + DEADLINE_MS / 2;
    atomic_fetch_add(&seat->table->told, 1);
    while (seat->table->what.signal == SIGSTOP && seat->rank != seat->table->what.victim &&
           atomic_load(&seat->table->told) < RANKS - 1 && ranks_clock_ms() < deadline_ms)
        nap();
}

/* What a network has taken from a rank that is stopped may not come, and so others may wait before they are where it
 * has struck itself. */
static void expect_silence(const fault_seat *seat)
{
    const fault_case *what = &seat->table->what;
    if (what->signal == SIGSTOP && seat->rank != what->victim && !reach_is_mapped())
        kind_set_silence(seat->group, SHORT_SILENCE_MS);
}

static void play_rank(expar_group *group, void *shared)
{
    fault_seat seat = {.table = shared, .group = group, .rank = expar_group_rank(group)};
    fault_note *note = &seat.table->notes[seat.rank];
    expar_ll_config config = EXPAR_LL_CONFIG_INIT;
    config.max_tokens = seat.table->traffic->job.max_tokens;
    config.hidden = seat.table->traffic->job.hidden;
    config.num_topk = seat.table->traffic->job.topk;
    config.num_experts = seat.table->traffic->job.num_experts;
    config.unmapped = reach_unmapped();
    if (!CHECK_OK(expar_ll_create(group, &config, &seat.ll))) return;
    expect_silence(&seat);
    while (seat.round < ROUNDS && play_round(&seat, note))
        seat.round++;
    if (note->status != EXPAR_OK) try_again(&seat, note);
    await_others(&seat);
    CHECK(hold_device_serves(seat.rank), "the device of rank %d serves no more", (int)seat.rank);
    CHECK_OK(expar_ll_destroy(seat.ll));
    CHECK_OK(expar_group_destroy(group));
}

/* ---- the parent -------------------------------------------------------------------------------------------------- */

static const ranks_plan plan = {
    .kind = RANKS_PROCESSES, .size = RANKS, .heap_bytes = (size_t)16 << 20, .ends_itself = true};

typedef struct fault_show {
    ranks_host host;
    fault_table *table;
    pid_t pids[RANKS];
} fault_show;

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
    back_of_all[ahead] =
        lowlat_answers_make(traffic_of_all[ahead], ORACLE_BF16, ahead ? EXPAR_LL_REDUCED : EXPAR_LL_EXACT, &random);
}

static bool begin(fault_show *show, const fault_case *what)
{
    show->table = mmap(NULL, sizeof *show->table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (show->table == MAP_FAILED) abort();
    show->table->what = *what;
    show->table->traffic = traffic_of_all[what->ahead];
    show->table->back = back_of_all[what->ahead];
    if (!ranks_host_start(&show->host)) return false;
    for (int32_t r = 0; r < RANKS; r++)
        show->pids[r] = ranks_fork(&plan, &show->host.id, r, play_rank, show->table);
    return true;
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

/* A kernel that is on its way goes on though its rank is stopped, but where the CPU plays it: then either may be. So it
 * is where a rank is stopped in its wait for the others, behind what it sends. What a network has taken from a stopped
 * rank may not come, and what is sent to it is not taken: any wait may be the one. */
static bool names_its_wait(const char *text, const fault_case *what)
{
    if (!reach_is_mapped()) return strstr(text, ": low-latency ");
    const phase stopped = what->phase, sends = stopped < SENDS_BACK ? SENDS_THERE : SENDS_BACK, receives = sends + 2;
    if (strstr(text, waits_of[stopped])) return true;
    return (hold_goes_on() || what->whole) && stopped < receives &&
           (strstr(text, waits_of[sends]) || strstr(text, waits_of[receives]));
}

/* The phase, and what had come from the victim: "low-latency dispatch: rows: … rows of rank 1: 3 of 7", and not all.
 * Of kernels that the CPU plays, and that get no core for the second in which a GPU's say what they waited for, the
 * host says that alone. */
static bool tells_of_a_wait(const char *text, const fault_case *what)
{
    char from[24];
    long long came, all;
    snprintf(from, sizeof from, " of rank %d: ", (int)what->victim);
    const char *told = strstr(text, from);
    if (!reach_is_mapped() && strstr(text, "answer")) return names_its_wait(text, what);
    if (!hold_goes_on() && strstr(text, "the stream had not come to the call")) return names_its_wait(text, what);
    return names_its_wait(text, what) && strstr(text, "timed out after") && told &&
           sscanf(told + strlen(from), "%lld of %lld", &came, &all) == 2 && came >= 0 && came < all;
}

static bool check_note(const fault_table *table, int32_t rank)
{
    const fault_note *note = &table->notes[rank];
    const int32_t victim = table->what.victim;
    return CHECK(note->status == EXPAR_ERR_PEER && names(note->text, victim), "rank %d got %s (%s)", (int)rank,
                 expar_status_string(note->status), note->text) &
           CHECK(strstr(note->text, "expar_ll_"), "rank %d is not told of its call: %s", (int)rank, note->text) &
           CHECK(table->what.signal == SIGKILL || tells_of_a_wait(note->text, &table->what),
                 "rank %d is not told what it waited for: %s", (int)rank, note->text) &
           CHECK(note->again == EXPAR_ERR_PEER && names(note->again_text, victim) &&
                     strstr(note->again_text, "poisoned"),
                 "rank %d was then told %s (%s)", (int)rank, expar_status_string(note->again), note->again_text);
}

/* A killed one is dead; a stopped one is killed now, or woken, and then told of the others. */
static bool wait_for_victim(const fault_show *show)
{
    const fault_case *what = &show->table->what;
    const fault_note *note = &show->table->notes[what->victim];
    if (what->signal == SIGSTOP) kill(show->pids[what->victim], what->wakes ? SIGCONT : SIGKILL);
    int status = ranks_wait(show->pids[what->victim], ranks_clock_ms() + DEADLINE_MS, NULL);
    if (what->wakes)
        return CHECK(status == 0, "the victim woke and ended with wait status %#x", (unsigned)status) &
               CHECK(note->status == EXPAR_ERR_PEER, "the victim woke and got %s (%s)",
                     expar_status_string(note->status), note->text);
    return CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the victim ended with wait status %#x",
                 (unsigned)status);
}

static bool see_through(const fault_show *show)
{
    const fault_case *what = &show->table->what;
    bool passed = true;
    for (int32_t r = 0; r < RANKS; r++) {
        if (r == what->victim) continue;
        int status = ranks_wait(show->pids[r], ranks_clock_ms() + DEADLINE_MS, NULL);
        passed &= CHECK(status == 0, "rank %d ended with wait status %#x", (int)r, (unsigned)status);
        passed &= check_note(show->table, r);
    }
    passed &= wait_for_victim(show);
    if (!passed)
        fprintf(stderr, "rank %d, %s in %s, step %d\n", (int)what->victim,
                what->signal == SIGKILL ? "killed" : "stopped", phase_names[what->phase], (int)what->step);
    return passed;
}

/* How many cases go on side by side: on GPUs, which all their ranks share, one. */
static int32_t abreast(void)
{
    return hold_goes_on() ? 1 : 3;
}

/* Side by side. Hosts end in the other order: later ones have inherited what holds earlier ones. */
static bool play_cases(const fault_case *cases, int32_t count)
{
    fault_show shows[PHASES];
    int32_t begun = 0;
    check_begin(-1);
    while (begun < count && begin(&shows[begun], &cases[begun]))
        begun++;
    bool passed = begun == count;
    for (int32_t i = 0; i < begun; i++)
        passed &= see_through(&shows[i]);
    while (begun-- > 0) {
        passed &= ranks_host_stop(&shows[begun].host);
        munmap(shows[begun].table, sizeof *shows[begun].table);
    }
    return passed;
}

static void play_all(const fault_case *cases, int32_t count)
{
    for (int32_t first = 0; first < count; first += abreast())
        assert_true(play_cases(cases + first, count - first < abreast() ? count - first : abreast()));
}

static void play_phases_of(int32_t victim, int32_t step, int signal, bool wakes)
{
    fault_case cases[PHASES];
    for (int i = 0; i < PHASES; i++)
        cases[i] = (fault_case){.victim = victim, .phase = (phase)i, .step = step, .signal = signal, .wakes = wakes};
    play_all(cases, PHASES);
}

/* Nobody counts a kernel's steps: there each rank is the victim once, or where EXPAR_TEST_QUICK asks for it one is. */
static int32_t victims_of(size_t steps)
{
    const int32_t most = getenv("EXPAR_TEST_QUICK") ? 1 : RANKS;
    return hold_goes_on() && steps > (size_t)most ? most : (int32_t)steps;
}

/* At the first step, in the unit's words, behind them, among the rows, and behind all. */
static void test_killed(void **state)
{
    static const int32_t steps[] = {1, 5, 11, 20, 1000};
    (void)state;
    for (int32_t i = 0; i < victims_of(sizeof steps / sizeof *steps); i++)
        play_phases_of(i % RANKS, steps[i], SIGKILL, false);
}

/* Among the units, the weights, and the rows. */
static void test_killed_while_weights_go_ahead(void **state)
{
    static const int32_t steps[] = {3, 9, 13, 17, 24, 1000};
    fault_case cases[PHASES];
    (void)state;
    for (int i = 0; i < PHASES; i++)
        cases[i] = (fault_case){.victim = i % RANKS,
                                .phase = SENDS_BACK,
                                .step = steps[i],
                                .signal = SIGKILL,
                                .ahead = true,
                                .whole = hold_goes_on()};
    play_all(cases, victims_of(PHASES));
}

/* What the victim sends is with the others; it waits for theirs. */
static void play_waits(int signal)
{
    static const int32_t steps[] = {5, 20, 40};
    fault_case cases[2 * RANKS];
    for (int i = 0; i < 2 * RANKS; i++)
        cases[i] = (fault_case){.victim = i / 2,
                                .phase = i % 2 ? SENDS_BACK : SENDS_THERE,
                                .step = steps[i / 2],
                                .signal = signal,
                                .whole = true};
    play_all(cases, 2 * victims_of(RANKS));
}

static void test_killed_in_a_wait(void **state)
{
    (void)state;
    play_waits(SIGKILL);
}

static void test_stopped_in_a_wait(void **state)
{
    (void)state;
    play_waits(SIGSTOP);
}

static void test_stopped(void **state)
{
    (void)state;
    play_phases_of(1, 9, SIGSTOP, false);
}

static void test_stopped_and_woken(void **state)
{
    (void)state;
    play_phases_of(2, 3, SIGSTOP, true);
}

int main(int argc, char **argv)
{
    make_traffic(false);
    make_traffic(true);
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),           cmocka_unit_test(test_killed_while_weights_go_ahead),
        cmocka_unit_test(test_killed_in_a_wait), cmocka_unit_test(test_stopped_in_a_wait),
        cmocka_unit_test(test_stopped),          cmocka_unit_test(test_stopped_and_woken)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        lowlat_answers_free(back_of_all[i], traffic_of_all[i]);
        lowlat_traffic_free(traffic_of_all[i]);
    }
    return failed;
}
