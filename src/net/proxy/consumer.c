/* SPDX-License-Identifier: Apache-2.0 */
/* The proxy's thread. While commands are in progress it drives the network like any waiting thread. Before it sleeps it
 * leaves that to the transport's own thread, whose `arrived` leads back here. */
#include "base/knobs.h"
#include "net/proxy/parts.h"

#include <sched.h>
#include <sys/prctl.h>

/* Turns without work between two looks at the clock. */
#define PROXY_TURNS_A_LOOK 64u

static bool in_flight(const proxy *self)
{
    return self->taken != self->done;
}

void proxy_attend(proxy *self, bool begins)
{
    if (self->attends == begins) return;
    self->attends = begins;
    transport_attend_all(self->plan.driven, begins ? 1 : -1);
    /* The thread is about to sleep on something else. */
    if (!begins) transport_attend_all(self->plan.driven, 0);
}

/* A spinning thread keeps the others from a core where they are more than the cores. There it naps soon, though a call
   uses its ring. */
static bool spins(const proxy *self)
{
    if (!self->plan.kernels) return false;
    if (self->plan.poll_ns == 0) return true;
    if (self->plan.yields || self->resting) return false;
    return !self->tired || atomic_load_explicit(&self->users, memory_order_relaxed) > 0;
}

/* Other threads may wait for what has arrived. A peer's write leaves no trace, so any progress may have brought one.
   While a thread spins without commands, some turns in between tell nobody. */
static void tell_of_arrivals(const proxy *self, bool moved)
{
    enum { QUIET_TURNS = 16 };
    if (moved || in_flight(self) || self->idle_turns % QUIET_TURNS == 0)
        self->plan.site->arrived(self->plan.site->context);
}

/* A thread that spins without commands drives the network as well: a kernel may wait for what a peer has sent, and the
   transport's own thread pauses. What moves then is no work of this thread, so its time to spin runs on. */
static bool drive(proxy *self)
{
    if (in_flight(self) && self->plan.reaped) transport_reap_all(self->plan.reaped);
    /* Before there are commands, the transports of a group that forms are still being listed. */
    if ((!in_flight(self) && !spins(self)) || self->plan.driven->count == 0) return false;
    proxy_attend(self, true);
    const bool moved = transport_progress_all(self->plan.driven);
    tell_of_arrivals(self, moved);
    return moved && in_flight(self);
}

/* ---- the end of everything --------------------------------------------------------------------------------------- */

/* Waits end before commands are given up, so that nobody takes one that was given up for delivered. */
static void end_ring(proxy *self, expar_status status)
{
    if (proxy_load(&self->ring->ended)) return;
    proxy_store(&self->ring->ended, proxy_failure(1, (int32_t)status, 0));
    self->changed = true;
    proxy_end_all(self, status);
}

static void look_at_poison(proxy *self)
{
    const expar_status poison = (expar_status)atomic_load_explicit(&self->poison, memory_order_acquire);
    if (poison != EXPAR_OK) end_ring(self, poison);
}

/* ---- turns without work ------------------------------------------------------------------------------------------ */

static bool is_wanted(const void *context)
{
    const proxy *self = context;
    return atomic_load_explicit(&self->stops, memory_order_acquire) ||
           atomic_load_explicit(&self->poison, memory_order_acquire) != EXPAR_OK ||
           atomic_load_explicit(&self->announced, memory_order_acquire) || proxy_has_work(self);
}

/* The nap is short while commands are in progress, because completions that other threads see do not wake this one.
   Kernels wake nobody, so a ring of theirs is never out of sight for longer than poll_ns. */
static void consumer_nap(proxy *self, uint32_t naps)
{
    const int64_t most_ns = knob(KNOB_PROXY_MOST_NAP_NS);
    int64_t limit_ns = knob(KNOB_PROXY_NAP_NS) << (naps < 5 ? naps : 5);
    if (limit_ns > most_ns) limit_ns = most_ns;
    if (!in_flight(self)) limit_ns = self->plan.nap_ns;
    if (self->plan.kernels && limit_ns > self->plan.poll_ns) limit_ns = self->plan.poll_ns;
    proxy_attend(self, false);
    atomic_store_explicit(&self->awaits_news, in_flight(self), memory_order_relaxed);
    proxy_gate_wait(&self->work, is_wanted, self, limit_ns);
    atomic_store_explicit(&self->awaits_news, false, memory_order_relaxed);
}

/* Looks for commands that nothing will come of. */
static void consumer_judge(proxy *self, int64_t now_ns)
{
    if (now_ns - self->judged_ns < knob(KNOB_PROXY_JUDGE_NS)) return;
    self->judged_ns = now_ns;
    atomic_fetch_add_explicit(&self->ring->beat, 1, memory_order_relaxed);
    proxy_end_hopeless(self);
    if (proxy_load(&self->ring->ended) || !proxy_finds_hole(self, now_ns)) return;
    LOG(LOG_WARN, "proxy: command %llu was claimed and never published: its producer has ended",
        (unsigned long long)self->taken);
    proxy_poison(self, EXPAR_ERR_CUDA);
}

/* Between two turns of a thread that spins. */
static void breathe(const proxy *self)
{
    if (self->plan.yields) sched_yield();
}

/* A kernel's call may have ended without a word, so its ring rests as well. */
static bool rests(const proxy *self, int64_t now_ns)
{
    return self->plan.kernels && self->plan.poll_ns > 0 && !in_flight(self) &&
           now_ns - self->busy_ns > knob(KNOB_PROXY_REST_NS);
}

/* A call that was announced starts anew with spins. */
static void look_at_announcement(proxy *self)
{
    if (!atomic_load_explicit(&self->announced, memory_order_relaxed)) return;
    if (!atomic_exchange_explicit(&self->announced, false, memory_order_acquire)) return;
    self->idle_turns = 0;
    proxy_crew_leave_watch(self);
}

static void start_rest(proxy *self)
{
    self->busy_ns = clock_ns();
    self->tired = self->plan.spin_ns == 0;
    self->resting = false;
}

/* Returns true if the ring rests, and the thread has slept for that. */
static bool look_at_clock(proxy *self)
{
    const int64_t now_ns = clock_ns();
    consumer_judge(self, now_ns);
    self->tired = now_ns - self->busy_ns > self->plan.spin_ns;
    self->resting = rests(self, now_ns);
    if (!self->resting) return false;
    proxy_attend(self, false);
    proxy_crew_rest(self);
    return true;
}

/* A network answers during some of the turns that spin and yield. */
static void idle(proxy *self)
{
    const uint32_t turn = self->idle_turns++;
    const uint32_t most_spins = knob_count(KNOB_PROXY_SPINS), awake = most_spins + knob_count(KNOB_PROXY_YIELDS);
    if (turn == 0) start_rest(self);
    const bool sleeps = turn >= awake && !spins(self);
    const bool looks = sleeps || turn % PROXY_TURNS_A_LOOK == PROXY_TURNS_A_LOOK - 1;
    if (looks && look_at_clock(self)) {
        look_at_announcement(self);
    } else if (sleeps) {
        consumer_nap(self, turn - awake);
        look_at_announcement(self);
    } else if (turn >= most_spins && !spins(self)) {
        sched_yield();
    } else {
        if (looks) look_at_announcement(self);
        breathe(self);
    }
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

/* Readers of the counters look at `moves` first. */
static void tell_moves(proxy *self)
{
    if (!self->changed) return;
    self->changed = false;
    proxy_store(&self->ring->moves, ++self->moves);
    /* Wakes threads that wait for a slot, or for the end. */
    proxy_gate_open(&self->moved);
}

static bool work(proxy *self)
{
    look_at_poison(self);
    bool moved = proxy_take(self);
    moved |= proxy_move_flights(self);
    moved |= self->changed;
    tell_moves(self);
    return moved || drive(self);
}

void *proxy_consume(void *argument)
{
    proxy *self = argument;
    log_set_rank(self->rank);
    /* Naps of 50 µs would else last for 100 µs. */
    if (self->plan.kernels) prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
    while (!atomic_load_explicit(&self->stops, memory_order_acquire)) {
        if (work(self)) {
            self->idle_turns = 0;
            proxy_crew_leave_watch(self);
        } else {
            idle(self);
        }
    }
    proxy_attend(self, false);
    proxy_crew_leave_watch(self);
    end_ring(self, EXPAR_ERR_ABORTED);
    tell_moves(self);
    return NULL;
}
