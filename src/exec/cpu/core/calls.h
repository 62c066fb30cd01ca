/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of executor_ops that are the same for both modes on the CPU: nothing is queued here, and everything is
 * known when a step returns. */
#ifndef EXPAR_EXEC_CPU_CORE_CALLS_H
#define EXPAR_EXEC_CPU_CORE_CALLS_H

#include "exec/executor.h"

expar_status cpu_check(executor *base, const char *what);
bool cpu_untold(executor *base, ep_vote *vote, int64_t *dropped);
expar_status cpu_keep(executor *base, const exec_call *call, mem_block *const *blocks, int32_t count);
bool cpu_follows(const executor *base, const exec_call *call, expar_event *event);
expar_status cpu_take_place(executor *base, exec_call *call);
expar_status cpu_join(executor *base, const exec_call *call, expar_event *event);
void cpu_depart(executor *base, exec_call *call, expar_event *event, event_keeper *keeper);
expar_status cpu_record(executor *base, const exec_call *call, expar_event *event, exec_replay *replay);
expar_status cpu_end(executor *base, exec_call *call);
expar_status cpu_tell(executor *base, const exec_call *call, executor_done_fn done, void *context,
                      event_keeper *keeper);

/* They, in a table of either mode. */
#define CPU_CALL_OPS                                                                                                   \
    .check = cpu_check, .untold = cpu_untold, .await = cpu_check, .keep = cpu_keep, .follows = cpu_follows,            \
    .place = cpu_take_place, .join = cpu_join, .depart = cpu_depart, .record = cpu_record, .end = cpu_end,             \
    .tell = cpu_tell

#endif
