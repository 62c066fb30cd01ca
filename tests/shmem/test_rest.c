/* SPDX-License-Identifier: Apache-2.0 */
/* How a wait goes on. It spins for its time where ranks have a core each, yields at once where they have not, and then
 * sleeps. Clock, core and sched_yield are simulated, by way of the linker, for the one rank that takes the turns. So no
 * result depends on how fast the machine is. */
#include "shmem/kind.h"

#include <sched.h>

#define SPIN_NS ((int64_t)40000)
/* More than any wait takes until it sleeps. */
#define MANY_TURNS 100000
/* That no machine has. */
#define CORE       7000
#define OTHER_CORE 7001

/* ---- the simulated machine --------------------------------------------------------------------------------------- */

static _Thread_local struct {
    bool on;
    int64_t now_ns, step_ns; /* each look at the clock takes so long */
    int looks, yields, core;
} simulated;

int64_t __real_clock_ns(void);
int64_t __wrap_clock_ns(void);
int __real_sched_yield(void);
int __wrap_sched_yield(void);
int __real_sched_getcpu(void);
int __wrap_sched_getcpu(void);

int64_t __wrap_clock_ns(void)
{
    if (!simulated.on) return __real_clock_ns();
    simulated.looks++;
    return simulated.now_ns += simulated.step_ns;
}

int __wrap_sched_yield(void)
{
    if (!simulated.on) return __real_sched_yield();
    simulated.yields++;
    return 0;
}

int __wrap_sched_getcpu(void)
{
    return simulated.on ? simulated.core : __real_sched_getcpu();
}

static void trial(int64_t step_ns, int core)
{
    simulated.on = true;
    simulated.now_ns = 1000000;
    simulated.step_ns = step_ns;
    simulated.looks = simulated.yields = 0;
    simulated.core = core;
}

/* ---- a wait ------------------------------------------------------------------------------------------------------ */

/* The numbers of a rank's waits when a test began. */
typedef struct counts {
    uint64_t yields, sleeps;
} counts;

static counts counts_of(const sym *self)
{
    return (counts){atomic_load(&self->yields), atomic_load(&self->sleeps)};
}

static uint64_t yields_since(const sym *self, counts before)
{
    return atomic_load(&self->yields) - before.yields;
}

static uint64_t sleeps_since(const sym *self, counts before)
{
    return atomic_load(&self->sleeps) - before.sleeps;
}

static void set_cores(sym *self, bool crowded)
{
    self->crowded = crowded;
    self->spin_ns = SPIN_NS;
    self->host_cores = self->machine_cores = 6;
}

static void take_turns(sym_rest *rest, int turns)
{
    while (turns-- > 0)
        CHECK_OK(sym_rest_turn(rest));
}

/* Turns until the first yield, and until the first sleep. */
static int turns_to_yield(sym_rest *rest, counts before)
{
    int turns = 0;
    while (yields_since(rest->sym, before) == 0 && turns++ < MANY_TURNS)
        CHECK_OK(sym_rest_turn(rest));
    return turns;
}

static int turns_to_sleep(sym_rest *rest, counts before)
{
    int turns = 0;
    while (sleeps_since(rest->sym, before) == 0 && turns++ < MANY_TURNS)
        CHECK_OK(sym_rest_turn(rest));
    return turns;
}

/* ---- the scenes, acted by rank 0 --------------------------------------------------------------------------------- */

/* A flag that comes within the time costs no system call; one that comes later costs yields, then a sleep. */
static void spins_for_its_time(sym *self)
{
    set_cores(self, false);
    trial(1000, CORE);
    counts before = counts_of(self);
    sym_rest rest = sym_rest_begin(self, "the test");
    while (simulated.looks < SPIN_NS / 1000)
        take_turns(&rest, 1);
    CHECK(simulated.yields == 0 && yields_since(self, before) == 0, "%d yields within the time", simulated.yields);
    CHECK(sleeps_since(self, before) == 0, "slept within the time");
    turns_to_yield(&rest, before);
    CHECK(simulated.looks <= SPIN_NS / 1000 + 2, "%d looks at the clock before the first yield", simulated.looks);
    CHECK(sleeps_since(self, before) == 0, "slept before it had yielded");
    turns_to_sleep(&rest, before);
    CHECK(sleeps_since(self, before) == 1, "%llu sleeps", (unsigned long long)sleeps_since(self, before));
    sym_rest_end(&rest);
}

/* One that has come by the first turns costs no look at the clock either. */
static void asks_no_clock_at_first(sym *self)
{
    set_cores(self, false);
    trial(1000, CORE);
    sym_rest rest = sym_rest_begin(self, "the test");
    take_turns(&rest, 3);
    sym_rest_end(&rest);
    CHECK(simulated.looks == 0 && simulated.yields == 0, "%d looks, %d yields", simulated.looks, simulated.yields);
}

static void progress_begins_again(sym *self)
{
    set_cores(self, false);
    trial(SPIN_NS, CORE);
    counts before = counts_of(self);
    sym_rest rest = sym_rest_begin(self, "the test");
    turns_to_yield(&rest, before);
    sym_rest_progress(&rest);
    before = counts_of(self);
    CHECK(turns_to_yield(&rest, before) > 10, "did not spin again");
    sym_rest_end(&rest);
}

static void crowds_do_not_spin(sym *self)
{
    set_cores(self, true);
    trial(1000, CORE);
    counts before = counts_of(self);
    sym_rest rest = sym_rest_begin(self, "the test");
    int turns = turns_to_yield(&rest, before);
    CHECK(turns <= 5 && simulated.looks == 0, "yielded at turn %d, behind %d looks at the clock", turns,
          simulated.looks);
    turns_to_sleep(&rest, before);
    CHECK(sleeps_since(self, before) == 1, "%llu sleeps", (unsigned long long)sleeps_since(self, before));
    sym_rest_end(&rest);
}

/* A caller with more threads than cores. */
static void waits_may_be_crowded(sym *self)
{
    set_cores(self, false);
    CHECK(!sym_outnumbers(self, 3), "three threads of two ranks outnumber six cores");
    CHECK(sym_outnumbers(self, 4), "four threads of two ranks do not outnumber six cores");
    trial(1000, CORE);
    counts before = counts_of(self);
    sym_rest rest = sym_rest_begin(self, "the test");
    rest.crowded = true;
    int turns = turns_to_yield(&rest, before);
    CHECK(turns <= 5, "yielded at turn %d", turns);
    sym_rest_end(&rest);
    self->machine_cores = 1;
    CHECK(sym_outnumbers(self, 1), "two ranks of one core's machine are no crowd, though their host has six");
    self->machine_cores = 6;
    self->crowded = true;
    CHECK(sym_outnumbers(self, 1), "no crowd");
}

/* Where the other rank runs on the same core it is let in soon, each turn, until it has gone elsewhere. */
static void shared_cores_are_given_away(sym *self)
{
    set_cores(self, false);
    trial(1, CORE);
    sym_control *other = sym_at(self, 1, 0);
    uint32_t noted = atomic_load(&other->core);
    atomic_store(&other->core, CORE + 1);
    counts before = counts_of(self);
    sym_rest rest = sym_rest_begin(self, "the test");
    int turns = turns_to_yield(&rest, before);
    CHECK(turns <= 5, "yielded at turn %d", turns);
    uint64_t yields = yields_since(self, before);
    take_turns(&rest, 10);
    CHECK(yields_since(self, before) == yields + 10, "a turn did not yield");
    CHECK(atomic_load(&((sym_control *)self->heap.base)->core) == CORE + 1, "does not tell its core");
    atomic_store(&other->core, OTHER_CORE + 1);
    take_turns(&rest, 20);
    before = counts_of(self);
    take_turns(&rest, 100);
    CHECK(yields_since(self, before) == 0, "yields to a rank on another core");
    sym_rest_end(&rest);
    atomic_store(&other->core, noted);
}

/* A system that does not tell where a thread runs. */
static void unknown_cores_are_not_shared(sym *self)
{
    set_cores(self, false);
    trial(1, -1);
    sym_control *other = sym_at(self, 1, 0);
    uint32_t noted = atomic_load(&other->core);
    atomic_store(&other->core, 0);
    counts before = counts_of(self);
    sym_rest rest = sym_rest_begin(self, "the test");
    take_turns(&rest, 100);
    CHECK(yields_since(self, before) == 0, "yields without knowing of a shared core");
    sym_rest_end(&rest);
    atomic_store(&other->core, noted);
}

typedef void (*rest_scene)(sym *self);

/* The other rank is out of the way: it waits at the end, and in a crowd it says nothing of its core. */
static void trial_scenes(expar_group *group, void *shared)
{
    static const rest_scene scenes[] = {
        spins_for_its_time,   asks_no_clock_at_first,      progress_begins_again,       crowds_do_not_spin,
        waits_may_be_crowded, shared_cores_are_given_away, unknown_cores_are_not_shared};
    sym *self = group->sym;
    const bool crowded = self->crowded;
    const int64_t spin_ns = self->spin_ns;
    const int32_t cores = self->host_cores, machine_cores = self->machine_cores;
    (void)shared;
    self->crowded = true;
    CHECK_OK(expar_barrier_all(group));
    for (size_t i = 0; i < ARRAY_LENGTH(scenes) && group->rank == 0; i++) {
        CHECK(sym_at(self, 1, 0) != NULL, "rank 1 is not mapped");
        scenes[i](self);
    }
    simulated.on = false;
    self->crowded = crowded;
    self->spin_ns = spin_ns;
    self->host_cores = cores;
    self->machine_cores = machine_cores;
    CHECK_OK(expar_barrier_all(group));
}

static void waits_spin_yield_and_sleep(void **state)
{
    (void)state;
    kind_run((ranks_plan){0}, 2, trial_scenes);
}

/* ---- what the variable says -------------------------------------------------------------------------------------- */

static void check_none(expar_group *group, void *shared)
{
    (void)shared;
    CHECK(group->sym->crowded, "spins all the same");
}

static void check_seven(expar_group *group, void *shared)
{
    (void)shared;
    CHECK(group->sym->spin_ns == 7000, "spins for %lld ns", (long long)group->sym->spin_ns);
}

static void the_variable_is_heeded(void **state)
{
    (void)state;
    kind_run_with("EXPAR_SPIN", "0", 1, check_none);
    kind_run_with("EXPAR_SPIN", "7", 2, check_seven);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waits_spin_yield_and_sleep),
        cmocka_unit_test(the_variable_is_heeded),
    };
    kind_read(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
