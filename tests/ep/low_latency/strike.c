/* SPDX-License-Identifier: Apache-2.0 */
#include "ep/low_latency/strike.h"
#include "ep/harness/check.h"
#include "ep/low_latency/hold.h"
#include "oracle/unit.h"
#include "shmem/kind.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

/* How long a rank or a thread that is late stands still: longer than looks at it, and far shorter than the time-out. */
#define LATE_MS     400
#define DEADLINE_MS 60000

static const char *const phase_names[] = {"dispatch: send", "dispatch: before its hook", "dispatch: receive",
                                          "combine: send",  "combine: before its hook",  "combine: receive",
                                          "a clean"};

void strike_nap(void)
{
    const struct timespec moment = {0, 1000000};
    nanosleep(&moment, NULL);
}

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

strike_seat strike_sit(expar_group *group, strike_table *table)
{
    return (strike_seat){.table = table, .group = group, .rank = expar_group_rank(group)};
}

bool strike_is_victim(const strike_seat *seat)
{
    return seat->rank == seat->table->what.victim;
}

bool strike_without_hook(const strike_case *what, strike_phase send)
{
    return (send == SENDS_BACK && what->ahead) || (what->whole && send == what->phase);
}

static void strike(const strike_seat *seat)
{
    const struct timespec late = {0, LATE_MS * 1000000L};
    atomic_store(&seat->table->struck, 1);
    if (seat->table->what.signal)
        raise(seat->table->what.signal);
    else
        nanosleep(&late, NULL);
}

static void strike_in_time(void *context)
{
    strike_seat *seat = context;
    if (atomic_fetch_sub(&seat->steps_left, 1) == 1) strike(seat);
}

static void set_step(strike_seat *seat, void (*step)(void *context))
{
    if (seat->table->what.whole)
        hold_watch(seat->ll, STRIKE_RANKS, step, step ? seat : NULL);
    else
        hold_install_posts(seat->ll, step, step ? seat : NULL);
}

void strike_enter(strike_seat *seat, strike_phase now)
{
    const strike_case *what = &seat->table->what;
    if (seat->round != STRIKE_ROUND || now != what->phase) return;
    if (strike_is_victim(seat)) {
        atomic_store(&seat->steps_left, what->whole && hold_goes_on() ? 1 : what->step);
        set_step(seat, strike_in_time);
        return;
    }
    while ((what->signal == SIGSTOP || what->whole) && now != CLEANS && !atomic_load(&seat->table->struck))
        strike_nap();
    if (what->signal == SIGSTOP && !what->late) kind_set_silence(seat->group, STRIKE_SILENCE_MS);
}

/* The phase after which the victim takes no more steps. */
static strike_phase last_phase(const strike_case *what)
{
    if (!what->posts) return what->phase;
    return what->phase < SENDS_BACK ? RECEIVES_THERE : RECEIVES_BACK;
}

void strike_leave(strike_seat *seat, strike_phase now)
{
    if (seat->round != STRIKE_ROUND || now != last_phase(&seat->table->what) || !strike_is_victim(seat)) return;
    set_step(seat, NULL);
    if (atomic_load(&seat->steps_left) > 0) strike(seat);
}

/* ---- the parent -------------------------------------------------------------------------------------------------- */

static const ranks_plan plan = {
    .kind = RANKS_PROCESSES, .size = STRIKE_RANKS, .heap_bytes = (size_t)16 << 20, .ends_itself = true};

void strike_tell(const strike_case *what)
{
    fprintf(stderr, "rank %d, %s in %s, step %d%s%s\n", (int)what->victim,
            what->signal == SIGKILL ? "killed"
            : what->signal          ? "stopped"
                                    : "held",
            phase_names[what->phase], (int)what->step, what->ahead ? ", weights ahead" : "",
            what->whole ? ", in a wait" : "");
}

void strike_wake_late(const strike_show *show)
{
    const pid_t victim = show->pids[show->table->what.victim];
    const int64_t deadline_ms = ranks_clock_ms() + DEADLINE_MS;
    siginfo_t info = {0};
    if (!show->table->what.late || show->table->what.signal != SIGSTOP) return;
    while (waitid(P_PID, (id_t)victim, &info, WEXITED | WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0 &&
           ranks_clock_ms() < deadline_ms)
        strike_nap();
    for (int32_t i = 0; i < LATE_MS; i++)
        strike_nap();
    kill(victim, SIGCONT);
}

static bool begin(const strike_trial *trial, strike_show *show, const strike_case *what)
{
    show->table = mmap(NULL, trial->table_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (show->table == MAP_FAILED) abort();
    show->table->what = *what;
    if (trial->prepare) trial->prepare(show->table);
    if (!ranks_host_start(&show->host)) return false;
    for (int32_t r = 0; r < STRIKE_RANKS; r++)
        show->pids[r] = ranks_fork(&plan, &show->host.id, r, trial->body, show->table);
    return true;
}

/* Side by side. Hosts end in the other order: later ones have inherited what holds earlier ones. */
static bool trial_cases(const strike_trial *trial, const strike_case *cases, int32_t count)
{
    strike_show shows[STRIKE_MOST];
    int32_t begun = 0;
    check_begin(-1);
    while (begun < count && begin(trial, &shows[begun], &cases[begun]))
        begun++;
    bool passed = begun == count;
    for (int32_t i = 0; i < begun && trial->attend; i++)
        trial->attend(&shows[i]);
    for (int32_t i = 0; i < begun; i++)
        passed &= trial->see_out(&shows[i]);
    while (begun-- > 0) {
        passed &= ranks_host_stop(&shows[begun].host);
        munmap(shows[begun].table, trial->table_bytes);
    }
    return passed;
}

void strike_trial_all(const strike_trial *trial, const strike_case *cases, int32_t count)
{
    const int32_t abreast = hold_goes_on() ? 1 : trial->side_by_side;
    for (int32_t first = 0; first < count; first += abreast)
        assert_true(trial_cases(trial, cases + first, count - first < abreast ? count - first : abreast));
}

int32_t strike_victims_of(size_t steps)
{
    const int32_t most = getenv("EXPAR_TEST_QUICK") ? 1 : STRIKE_RANKS;
    return hold_goes_on() && steps > (size_t)most ? most : (int32_t)steps;
}

void strike_trial_phases(const strike_trial *trial, int32_t victim, int32_t step, int signal, bool wakes)
{
    strike_case cases[PHASES];
    for (int i = 0; i < PHASES; i++)
        cases[i] =
            (strike_case){.victim = victim, .phase = (strike_phase)i, .step = step, .signal = signal, .wakes = wakes};
    strike_trial_all(trial, cases, PHASES);
}

void strike_trial_killed(const strike_trial *trial)
{
    static const int32_t steps[] = {1, 5, 11, 20, 1000};
    for (int32_t i = 0; i < strike_victims_of(sizeof steps / sizeof *steps); i++)
        strike_trial_phases(trial, i % STRIKE_RANKS, steps[i], SIGKILL, false);
}

void strike_trial_posts(const strike_trial *trial, int signal, bool late)
{
    const bool ends_well = late || signal == 0;
    static const struct {
        strike_phase phase;
        int32_t step;
    } places[] = {{SENDS_THERE, 1}, {SENDS_THERE, 5}, {OPEN_THERE, 1}, {RECEIVES_THERE, 1}, {SENDS_BACK, 5}};
    enum { COUNT = sizeof places / sizeof *places };
    strike_case cases[COUNT];
    for (int i = 0; i < COUNT; i++)
        cases[i] = (strike_case){.victim = i % STRIKE_RANKS,
                                 .phase = places[i].phase,
                                 .step = places[i].step,
                                 .signal = signal,
                                 .posts = true,
                                 .late = late};
    /* A late one is not lost: one place, where it has passed some of its rows on, stands for all. */
    if (ends_well && getenv("EXPAR_TEST_QUICK"))
        strike_trial_all(trial, &cases[1], 1);
    else
        strike_trial_all(trial, cases, COUNT);
}

void strike_trial_ahead(const strike_trial *trial, int signal)
{
    static const int32_t steps[] = {3, 9, 13, 17, 24, 1000};
    enum { COUNT = sizeof steps / sizeof *steps };
    strike_case cases[COUNT];
    for (int i = 0; i < COUNT; i++)
        cases[i] = (strike_case){.victim = i % STRIKE_RANKS,
                                 .phase = SENDS_BACK,
                                 .step = steps[i],
                                 .signal = signal,
                                 .ahead = true,
                                 .whole = hold_goes_on()};
    strike_trial_all(trial, cases, strike_victims_of(COUNT));
}

void strike_trial_waits(const strike_trial *trial, int signal)
{
    static const int32_t steps[STRIKE_RANKS] = {5, 20, 40};
    strike_case cases[2 * STRIKE_RANKS];
    for (int i = 0; i < 2 * STRIKE_RANKS; i++)
        cases[i] = (strike_case){.victim = i / 2,
                                 .phase = i % 2 ? SENDS_BACK : SENDS_THERE,
                                 .step = steps[i / 2],
                                 .signal = signal,
                                 .whole = true};
    strike_trial_all(trial, cases, 2 * strike_victims_of(STRIKE_RANKS));
}
