/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks: the receiving part of a call. The caller calls it at any time, or never. */
#include "ep/low_latency/ll.h"

struct expar_ll_hook {
    life_record life; /* LL_HOOK_MAGIC */
    expar_ll *ll;     /* its record is kept; the buffer may be destroyed meanwhile */
    bool called;      /* by the thread that has the buffer */
    ll_op op;         /* sent, and not yet received */
};

static const life_kind hooks = {LL_HOOK_MAGIC, "hook", "retained"};
static life_spent spent = LIFE_SPENT_NONE;

static void hook_end(void *object)
{
    expar_ll_hook *hook = object;
    mem_block_release(hook->op.step.call.record);
    ll_op_drop(&hook->op.base);
    ll_unkeep(hook->ll);
    life_keep(&spent, hook);
}

expar_status ll_hook_make(expar_ll *ll, expar_ll_hook **out)
{
    expar_ll_hook *hook = life_renew(&spent, sizeof *hook);
    if (!hook) return error_set(EXPAR_ERR_MEMORY, "no memory for a hook");
    hook->life = life_begin(LL_HOOK_MAGIC, hook_end);
    hook->ll = ll;
    atomic_fetch_add_explicit(&ll->keepers, 1, memory_order_relaxed);
    *out = hook;
    return EXPAR_OK;
}

void ll_hook_fill(expar_ll_hook *hook, const ll_op *op)
{
    hook->op = *op;
    ll_op_hold(&hook->op.base);
}

static expar_status hook_check(const expar_ll_hook *hook, const char *name)
{
    if (!hook) return error_set(EXPAR_ERR_NULL, "%s: hook is NULL", name);
    if (life_alive(&hook->life, LL_HOOK_MAGIC)) return EXPAR_OK;
    return error_set(EXPAR_ERR_HANDLE, "%s: hook is not a living hook", name);
}

expar_status expar_ll_hook_call(expar_ll_hook *hook, void *stream)
{
    static const char name[] = "expar_ll_hook_call";
    expar_status status = hook_check(hook, name);
    if (status != EXPAR_OK) return call_ended(status);
    expar_ll *ll = hook->ll;
    status = ll_take(ll, name, true);
    if (status != EXPAR_OK) return ll_ended(ll, status);
    if (hook->called) {
        status = error_set(EXPAR_ERR_STATE, "%s: the hook has been called already", name);
        return ll_ended(ll, ep_buffer_give(&ll->base, status));
    }
    hook->called = true;
    status = ep_call_receive(&hook->op.base, name, stream);
    return ll_ended(ll, ep_call_end(&hook->op.base, status));
}

expar_status expar_ll_hook_retain(expar_ll_hook *hook)
{
    static const char name[] = "expar_ll_hook_retain";
    expar_status status = hook_check(hook, name);
    if (status == EXPAR_OK && !life_hold(&hook->life)) status = hook_check(hook, name);
    return call_ended(status);
}

void expar_ll_hook_release(expar_ll_hook *hook)
{
    life_release(&hooks, "expar_ll_hook_release", hook);
}
