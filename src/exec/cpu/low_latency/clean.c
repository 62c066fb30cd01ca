/* SPDX-License-Identifier: Apache-2.0 */
/* The new beginning after a clean: masks, epochs and slots of the ranks that are in it. */
#include "exec/cpu/low_latency/far.h"

/* Masks the ranks that are not in the view. They know where the slots have been until now. */
static expar_status set_masks(ll_cpu *self)
{
    ll_masks *masks = self->masks;
    const uint32_t *view = masks->cleaner->view;
    expar_status status = EXPAR_OK;
    for (int32_t r = 0; r < self->shape.ranks && status == EXPAR_OK; r++) {
        const bool masked = view[r] == 0;
        for (int slot = 0; slot < LL_SLOTS && masked && !masks->masked[r]; slot++)
            masks->knows[r][slot] = (int8_t)masks->region[slot];
        masks->masked[r] = masked;
        masks->since[r] = UINT64_MAX;
        if (masked) {
            if (self->far) status = self->far->set_aside(self, r);
            ll_masker_tell(self, r, true);
        } else {
            masks->with[r] = view[r];
        }
    }
    return status;
}

static expar_status begin_anew(ll_cpu *self)
{
    for (int kind = 0; kind < LL_KINDS; kind++)
        for (int slot = 0; slot < LL_SLOTS; slot++) {
            self->records[kind][slot].epoch = 0;
            self->records[kind][slot].unread = false;
        }
    expar_status status = set_masks(self);
    if (status != EXPAR_OK) return status;
    if (!ll_regions_suffice(self))
        return error_set(EXPAR_ERR_PEER,
                         "masked ranks that are alive or silent may still write to all %d regions of "
                         "this buffer",
                         self->shape.regions);
    for (int slot = 0; slot < LL_SLOTS; slot++)
        ll_region_settle(self, slot);
    return EXPAR_OK;
}

/* Rejects a clean while a hook is open, since the clean would lose it. */
static expar_status check_closed(const ll_cpu *self)
{
    for (int kind = 0; kind < LL_KINDS; kind++)
        for (int slot = 0; slot < LL_SLOTS; slot++)
            if (self->records[kind][slot].epoch)
                return error_set(EXPAR_ERR_STATE, "a %s is open; expected its hook to be called first",
                                 kind == LL_DISPATCH ? "dispatch" : "combine");
    return EXPAR_OK;
}

expar_status ll_cpu_mask_clean(executor *base, ll_clean_step *step)
{
    ll_cpu *self = ll_cpu_of(base);
    expar_status checked = check_closed(self);
    if (checked != EXPAR_OK) step->call.rejection = ep_rejection_of(checked);
    expar_status status = ll_clean_agree(self->masks->cleaner, step, self->epochs);
    if (status == EXPAR_OK && self->far) status = self->far->conclude(self, self->masks->cleaner->view);
    if (status != EXPAR_OK) return status;
    return step->call.vote.rank < 0 ? begin_anew(self) : EXPAR_OK;
}
