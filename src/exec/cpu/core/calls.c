/* SPDX-License-Identifier: Apache-2.0 */
#include "exec/cpu/core/calls.h"

expar_status cpu_check(executor *base, const char *what)
{
    (void)base, (void)what;
    return EXPAR_OK;
}

bool cpu_untold(executor *base, ep_vote *vote, int64_t *dropped)
{
    (void)base, (void)vote, (void)dropped;
    return false;
}

expar_status cpu_keep(executor *base, const exec_call *call, mem_block *const *blocks, int32_t count)
{
    (void)base, (void)call, (void)blocks, (void)count;
    return EXPAR_OK;
}

bool cpu_follows(const executor *base, const exec_call *call, expar_event *event)
{
    (void)base, (void)call, (void)event;
    return false;
}

expar_status cpu_take_place(executor *base, exec_call *call)
{
    (void)base;
    call->placed = true;
    return EXPAR_OK;
}

expar_status cpu_join(executor *base, const exec_call *call, expar_event *event)
{
    (void)base, (void)call, (void)event;
    return error_set(EXPAR_ERR_STATE, "no stream of the CPU can wait for an event");
}

/* There is no stream. */
void cpu_depart(executor *base, exec_call *call, expar_event *event, event_keeper *keeper)
{
    (void)base, (void)call, (void)event;
    keeper->mark = NULL;
}

expar_status cpu_record(executor *base, const exec_call *call, expar_event *event, exec_replay *replay)
{
    (void)base, (void)call, (void)event, (void)replay;
    return error_set(EXPAR_ERR_STATE, "no stream of the CPU is captured");
}

expar_status cpu_end(executor *base, exec_call *call)
{
    (void)base;
    call->placed = false;
    return EXPAR_OK;
}

/* No thread may ask for it here. */
expar_status cpu_tell(executor *base, const exec_call *call, executor_done_fn done, void *context, event_keeper *keeper)
{
    (void)base, (void)call, (void)done, (void)context, (void)keeper;
    return error_set(EXPAR_ERR_UNSUPPORTED, "steps on the CPU have ended when they return");
}
