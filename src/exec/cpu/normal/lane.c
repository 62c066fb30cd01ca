/* SPDX-License-Identifier: Apache-2.0 */
/* A lane: one worker with every W-th channel. It looks at all of its rings in turn, sends and receives what it can, and
   rests only if nothing moved at all. So ranks with a single thread cannot wait for each other in a circle. */
#include "base/knobs.h"
#include "exec/cpu/normal/cpu.h"

#include <sched.h>

/* A carrier's answer comes soon, and rings no doorbell: meanwhile the lane rests in one turn of so many. */
enum { TURNS_WITH_CARRIER = 64 };

/* Rows would never come if a word has been overwritten, so the words are checked. */
static expar_status lane_check(const cpu_executor *self, uint32_t epoch, int32_t worker)
{
    expar_status status = EXPAR_OK;
    for (int32_t c = worker; c < self->shape.channels && status == EXPAR_OK; c += self->active)
        status = cpu_rings_check(self, epoch, c);
    return status;
}

/* The state of a lane's work at the carrier. */
typedef struct lane_carried {
    uint64_t complete;
    bool pending;
    uint32_t turns;
} lane_carried;

/* Ends a turn: lets the carrier begin, and learns what it has completed. */
static void lane_carry(cpu_carrier *carrier, int32_t worker, lane_carried *carried, cpu_lane_turn *turn, bool *moved)
{
    const uint64_t before = carried->complete;
    if (!carrier || turn->status != EXPAR_OK) return;
    carrier->ops->hand_over(carrier, worker, false);
    turn->status = carrier->ops->complete(carrier, worker, &carried->complete);
    carried->pending = carried->complete < carrier->ops->asked(carrier, worker);
    turn->open += carried->pending;
    *moved |= carried->complete > before;
}

/* Returns whether the lane looks again at once, since the carrier is at work. */
static bool lane_looks_again(lane_carried *carried)
{
    if (!carried->pending || ++carried->turns % TURNS_WITH_CARRIER == 0) return false;
    sched_yield();
    return true;
}

expar_status cpu_lane_run(cpu_executor *self, const cpu_lane *lane, uint32_t epoch, const void *context, int32_t worker)
{
    sym_rest rest = sym_rest_begin(self->sym, lane->what);
    rest.halt = &self->halted;
    rest.crowded = sym_outnumbers(self->sym, self->active);
    /* A rank that has posted its completion flag is awaited no more. */
    const cpu_missing missing = {.self = self, .mailbox = EP_MAILBOX_COMPLETION, .epoch = epoch};
    cpu_expect(&rest, &missing);
    expar_status status = EXPAR_OK;
    const uint32_t check_turns = knob_count(KNOB_CPU_CHECK_TURNS);
    uint32_t idle = 0;
    lane_carried carried = {0};
    for (;;) {
        cpu_lane_turn turn = {.status = EXPAR_OK};
        bool moved = lane->turn(context, worker, &turn);
        lane_carry(self->carrying, worker, &carried, &turn, &moved);
        status = turn.status;
        if (!turn.open || status != EXPAR_OK) break;
        if (moved) {
            sym_rest_progress(&rest);
            continue;
        }
        if (lane_looks_again(&carried)) continue;
        if (++idle % check_turns == 0) status = lane_check(self, epoch, worker);
        if (status == EXPAR_OK) status = sym_rest_turn(&rest);
        if (status != EXPAR_OK) break;
    }
    sym_rest_end(&rest);
    /* orders the direct rows that this lane has written */
    cpu_copy_fence();
    return status == EXPAR_OK ? EXPAR_OK : lane->report(context, worker, status);
}
