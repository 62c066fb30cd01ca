/* SPDX-License-Identifier: Apache-2.0 */
/* A lane: one worker with every W-th channel. It looks at all of its rings in turn, sends and receives what it can, and
   rests only if nothing moved at all. So ranks with a single thread cannot wait for each other in a circle. */
#include "base/knobs.h"
#include "exec/cpu/normal/cpu.h"

/* Rows would never come if a word has been overwritten, so the words are checked. */
static expar_status lane_check(const cpu_executor *self, uint32_t epoch, int32_t worker)
{
    expar_status status = EXPAR_OK;
    for (int32_t c = worker; c < self->shape.channels && status == EXPAR_OK; c += self->active)
        status = cpu_rings_check(self, epoch, c);
    return status;
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
    for (;;) {
        cpu_lane_turn turn = {.status = EXPAR_OK};
        bool moved = lane->turn(context, worker, &turn);
        status = turn.status;
        if (!turn.open || status != EXPAR_OK) break;
        if (moved) {
            sym_rest_progress(&rest);
            continue;
        }
        if (++idle % check_turns == 0) status = lane_check(self, epoch, worker);
        if (status == EXPAR_OK) status = sym_rest_turn(&rest);
        if (status != EXPAR_OK) break;
    }
    sym_rest_end(&rest);
    /* orders the direct rows that this lane has written */
    cpu_copy_fence();
    return status == EXPAR_OK ? EXPAR_OK : lane->report(context, worker, status);
}
