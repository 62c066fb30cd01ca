/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting: a wait spins, yields and sleeps, in this order, and notices failures and time-outs meanwhile.
 *
 * A wait of a few turns costs no system call. A longer wait gives the core to the awaited rank; on a crowded host, the
 * sooner the better. If each rank could have a core, a sleep costs a hundred times what a flag takes from core to core.
 * So a wait spins for about as long as a sleep costs. Yet ranks that are bound to no core may share one, and then a
 * spinning rank only delays the awaited one. So ranks publish the core on which they run. */
#include "base/knobs.h"
#include "shmem/copies/copies.h"
#include "shmem/doorbell.h"
#include "shmem/sym.h"

#include <sched.h>

/* Tells the core that this is a spin loop, if the compiler has an instruction for it. */
static void spin_once(void)
{
#if __has_builtin(__builtin_ia32_pause)
    __builtin_ia32_pause();
#endif
}

static sym_doorbell *own_doorbell(const sym *self)
{
    return &((sym_control *)self->heap.base)->doorbell;
}

void sym_ring(sym *self, int32_t pe)
{
    sym_control *control = sym_at(self, pe, 0);
    if (control) doorbell_ring(&control->doorbell, self->by_threads);
}

void sym_ring_put(sym *self, int32_t pe, uint64_t offset, uint64_t bytes)
{
    sym_control *control = sym_at(self, pe, 0);
    if (control) doorbell_ring_put(&control->doorbell, offset, bytes, self->by_threads);
}

/* No put goes to the control page, so a wait that watches only that page is woken by rings. */
static uint64_t watches_nothing(void)
{
    return doorbell_range(0, 1);
}

/* ---- cores ------------------------------------------------------------------------------------------------------- */

/* Stores the core only when it changes, because neighbours read it. Returns 0 if the system does not tell the core. */
static uint32_t note_core(const sym *self)
{
    _Atomic uint32_t *noted = &((sym_control *)self->heap.base)->core;
    const uint32_t core = (uint32_t)(sched_getcpu() + 1);
    if (atomic_load_explicit(noted, memory_order_relaxed) != core)
        atomic_store_explicit(noted, core, memory_order_relaxed);
    return core;
}

/* Returns whether another rank was last seen on this thread's core. The answer may be old. Then this thread yields for
   nothing, or spins for its full time. */
static bool shares_core(const sym *self)
{
    const uint32_t core = note_core(self);
    for (int32_t pe = 0; pe < self->size && core != 0; pe++) {
        const sym_control *control = pe == self->rank ? NULL : sym_at(self, pe, 0);
        if (control && atomic_load_explicit(&control->core, memory_order_relaxed) == core) return true;
    }
    return false;
}

static void give_core_away(sym_rest *rest)
{
    atomic_fetch_add_explicit(&rest->sym->yields, 1, memory_order_relaxed);
    sched_yield();
}

/* ---- the beginning ----------------------------------------------------------------------------------------------- */

static void count_in(sym *self)
{
    atomic_fetch_add_explicit(&self->waiters, 1, memory_order_relaxed);
    if (!self->crowded) note_core(self);
}

/* The wait has no topic until the caller names one. */
static void begin_wait(sym_rest *rest)
{
    static const boot_topic none = {.kind = BOOT_KIND_NONE};
    rest->look_turn = knob_count(KNOB_WAIT_FIRST_LOOK);
    boot_wait_begin(&rest->wait, rest->sym->boot, &none, rest->what);
    if (rest->among.size == 0) return;
    rest->wait.first = rest->among.start;
    rest->wait.stride = rest->among.stride;
    rest->wait.size = rest->among.size;
}

sym_rest sym_rest_begin(sym *self, const char *what)
{
    count_in(self);
    sym_rest rest = {.sym = self, .what = what, .watch = watches_nothing(), .crowded = self->crowded};
    begin_wait(&rest);
    return rest;
}

sym_rest sym_rest_begin_among(sym *self, const char *what, sym_ranks among)
{
    count_in(self);
    sym_rest rest = {.sym = self, .what = what, .watch = watches_nothing(), .crowded = self->crowded, .among = among};
    begin_wait(&rest);
    return rest;
}

sym_rest sym_rest_begin_open(sym *self, const char *what, uint64_t offset, uint64_t bytes)
{
    count_in(self);
    sym_rest rest = {.sym = self,
                     .what = what,
                     .watch = doorbell_range(offset, bytes),
                     .crowded = self->crowded,
                     .open = true,
                     .tellings = atomic_load_explicit(&self->tellings, memory_order_relaxed)};
    begin_wait(&rest);
    return rest;
}

void sym_rest_expect(sym_rest *rest, const boot_topic *topic, int32_t rank)
{
    rest->wait.topic = *topic;
    boot_wait_for(&rest->wait, rank);
}

static bool goal_is_met(const void *context)
{
    const sym_rest_goal *goal = context;
    return atomic_load_explicit(goal->word, memory_order_acquire) >= goal->least;
}

void sym_rest_until(sym_rest *rest, const sym_rest_goal *goal)
{
    rest->wait.has_come = goal_is_met;
    rest->wait.context = goal;
}

void sym_rest_expect_all(sym_rest *rest, const boot_topic *topic, bool (*misses)(const void *context, int32_t rank),
                         const void *context)
{
    rest->wait.topic = *topic;
    rest->wait.misses = misses;
    rest->wait.context = context;
}

/* ---- without those who are lost ---------------------------------------------------------------------------------- */

void sym_rest_tolerate(sym_rest *rest)
{
    rest->tolerant = rest->wait.missed_alone = rest->wait.tolerant = true;
}

void sym_rest_outlast(sym_rest *rest, bool (*owes)(const void *context, int32_t rank), const void *context)
{
    rest->owes = owes;
    rest->owed_to = context;
}

/* Returns true if the group has failed only because ranks have left, and none of those owes anything. */
static bool is_outlasted(const sym_rest *rest)
{
    const sym *self = rest->sym;
    if (!sym_failed_by_leaving(self)) return false;
    for (int32_t r = 0; r < self->size; r++) {
        const uint8_t gone = atomic_load_explicit(&self->gone[r], memory_order_acquire);
        if (gone != 0 && (gone != SYM_PEER_LEFT || rest->owes(rest->owed_to, r))) return false;
    }
    return true;
}

/* The caller does not know of this loss yet. It must check once more, because the lost rank's stores came before the
   loss. */
static bool looks_once_more(sym_rest *rest)
{
    const uint32_t losses = atomic_load_explicit(&rest->sym->losses, memory_order_acquire);
    const bool news = rest->owes && losses != rest->losses;
    if (news) rest->losses = losses;
    return news;
}

/* Does not count silence: a rank that was silent once may answer again, and is asked. */
static bool has_gone(const sym *self, int32_t rank)
{
    const uint8_t gone = atomic_load_explicit(&self->gone[rank], memory_order_acquire);
    return gone == SYM_PEER_DIED || gone == SYM_PEER_LEFT;
}

static expar_status check_missed(const sym_rest *rest)
{
    expar_status status = sym_check_self(rest->sym, rest->what);
    for (int32_t r = 0; r < rest->sym->size && status == EXPAR_OK; r++)
        if (r != rest->sym->rank && has_gone(rest->sym, r) && rest->wait.misses(rest->wait.context, r))
            status = error_set(EXPAR_ERR_PEER, "%s: rank %d died, or has left the group", rest->what, r);
    return status;
}

bool sym_rest_has_lost(const sym_rest *rest, int32_t rank)
{
    if (rank == rest->sym->rank || !rest->wait.misses(rest->wait.context, rank)) return false;
    return has_gone(rest->sym, rank) || (rest->wait.silent && rest->wait.silent[rank]) || rest->wait.culprit == rank;
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static expar_status rest_check(sym_rest *rest)
{
    if (rest->tolerant) return check_missed(rest);
    if (rest->owes && is_outlasted(rest)) {
        rest->wait.missed_alone = true;
        return EXPAR_OK;
    }
    if (rest->open) return sym_check_losses(rest->sym, rest->tellings, rest->what);
    if (rest->among.size > 0) return sym_check_ranks(rest->sym, &rest->among, rest->what);
    return sym_check(rest->sym, rest->what);
}

/* If there is a network, the waiting thread drives this rank's progress on it while it is awake. */
static void rest_attend(sym_rest *rest, bool awake)
{
    const transport_list *networks = &rest->sym->driven;
    if (networks->count == 0 || rest->attends == awake) return;
    rest->attends = awake;
    transport_attend_all(networks, awake ? 1 : -1);
}

static void rest_drive(sym_rest *rest)
{
    const transport_list *networks = &rest->sym->driven;
    if (networks->count == 0 || rest->passed_over) return;
    rest_attend(rest, true);
    if (transport_progress_all(networks)) copies_wake(rest->sym);
}

static void arm(sym_rest *rest)
{
    doorbell_arm(own_doorbell(rest->sym), rest->watch, &rest->rings);
    rest->armed = rest->passed_over || transport_arm_all(&rest->sym->driven);
}

/* A sleep is short at first, then longer. The doorbell ends it earlier, but raw stores do not ring. */
static int64_t sleep_limit_ns(uint32_t sleeps)
{
    const int64_t most_ns = knob(KNOB_WAIT_MOST_SLEEP_NS);
    int64_t limit_ns = sleeps < 6 ? knob(KNOB_WAIT_SLEEP_NS) << sleeps : most_ns;
    return limit_ns < most_ns ? limit_ns : most_ns;
}

/* Returns true if something came from the network, so that there may be more. If neighbours may ring, or there are
 * several networks, the thread sleeps on the doorbell. Networks are left to their own threads, which ring when
 * something arrives. That holds for the rest of the wait. A network's thread rings after each time it has looked, so it
 * would wake the waiter that made it look. Without neighbours everything arrives from the one network. */
static bool rest_asleep(sym_rest *rest, int64_t limit_ns)
{
    sym *self = rest->sym;
    const transport_list *networks = &self->driven;
    if (networks->count == 1 && !self->some_mapped) {
        const bool came = networks->list[0]->ops->sleep(networks->list[0], limit_ns);
        if (came) copies_wake(self);
        return came;
    }
    /* Do this once: the network's thread then keeps watching, and would ring the doorbell each time it is woken. */
    if (networks->count > 0 && !rest->passed_over) {
        rest_attend(rest, false);
        transport_attend_all(networks, 0);
        rest->passed_over = true;
    }
    atomic_fetch_add_explicit(&self->sleeps, 1, memory_order_relaxed);
    doorbell_sleep(own_doorbell(self), rest->rings, limit_ns, self->by_threads);
    return false;
}

/* Starts the wait over, at the first spin. */
static void spin_again(sym_rest *rest)
{
    rest->turn = rest->idle_turns = 0;
    rest->look_turn = knob_count(KNOB_WAIT_FIRST_LOOK);
    rest->spin_end_ns = 0;
    rest->on_shared_core = rest->armed = false;
}

/* Returns whether the wait still spins. During the first turns it reads neither the clock nor the cores. */
static bool rest_spins(sym_rest *rest)
{
    const uint32_t turn = rest->turn++;
    if (rest->crowded) return turn < knob_count(KNOB_WAIT_CROWDED_SPINS);
    if (turn < rest->look_turn) return true;
    rest->look_turn = turn + knob_count(KNOB_WAIT_TURNS_A_LOOK);
    const int64_t now_ns = clock_ns();
    if (rest->spin_end_ns == 0) rest->spin_end_ns = now_ns + rest->sym->spin_ns;
    rest->on_shared_core = shares_core(rest->sym);
    return now_ns < rest->spin_end_ns || (rest->sym->driven.count > 0 && turn < knob_count(KNOB_WAIT_DRIVEN_SPINS));
}

/* A turn after the spins and yields: looks at the awaited ranks and arms. It sleeps if a former turn has armed and the
   caller has checked since. */
static expar_status rest_bounded(sym_rest *rest, uint32_t turns)
{
    expar_status status = rest->tolerant ? boot_wait_look(&rest->wait) : sym_wait_look(rest->sym, &rest->wait);
    if (status != EXPAR_OK) {
        rest->timed_out = status == EXPAR_ERR_PEER;
        return status;
    }
    bool came = rest->armed && rest_asleep(rest, sleep_limit_ns(turns));
    if (!rest->armed && turns > 0) give_core_away(rest);
    rest_drive(rest);
    /* Waking up takes longer than the gap between two pieces of a large message, so the wait spins again. The time-out
       runs on. */
    if (came)
        spin_again(rest);
    else
        arm(rest);
    return EXPAR_OK;
}

expar_status sym_rest_turn(sym_rest *rest)
{
    const uint32_t yields = knob_count(rest->crowded ? KNOB_WAIT_CROWDED_YIELDS : KNOB_WAIT_YIELDS);
    if (rest->halt && atomic_load_explicit(rest->halt, memory_order_relaxed))
        return error_set(EXPAR_ERR_ABORTED, "%s: the buffer has been abandoned on this rank", rest->what);
    if (atomic_load_explicit(&rest->sym->failure, memory_order_relaxed) != 0) {
        if (looks_once_more(rest)) return EXPAR_OK;
        expar_status status = rest_check(rest);
        if (status != EXPAR_OK) return status;
    }
    const bool spins = rest->idle_turns == 0 && rest_spins(rest);
    if (!spins && rest->idle_turns++ >= yields) return rest_bounded(rest, rest->idle_turns - 1 - yields);
    rest_drive(rest);
    if (spins && !rest->on_shared_core)
        spin_once();
    else
        give_core_away(rest);
    return EXPAR_OK;
}

void sym_rest_progress(sym_rest *rest)
{
    spin_again(rest);
    boot_wait_progress(&rest->wait);
    rest->passed_over = false;
}

void sym_behold(sym *self)
{
    transport_behold_all(&self->driven);
}

void sym_rest_end(sym_rest *rest)
{
    sym_behold(rest->sym);
    /* The doorbell may stay armed for another waiting thread of this rank. That costs one needless ring. */
    rest->armed = false;
    boot_wait_end(&rest->wait);
    rest_attend(rest, false);
    atomic_fetch_sub_explicit(&rest->sym->waiters, 1, memory_order_release);
}
