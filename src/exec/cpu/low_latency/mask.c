/* SPDX-License-Identifier: Apache-2.0 */
/* Masks: ranks without which this rank's calls go on, and the regions to which slots move because of them.
 *
 * A masked rank may only be slow, or stopped, and may still write where the words that it has seen allow it. That does
 * no harm in memory that has one writer. But places of combines belong to tokens, and have another writer in each call.
 * So a slot whose places a masked rank may still write to moves to a fresh region with its next acknowledgement, which
 * names the region. It does not move at once, since other ranks have been admitted where it lies.
 *
 * A region serves again when all masked ranks that know it are dead, or back. Data of a far rank may arrive after its
 * death, so a far rank never counts as dead here. */
#include "exec/cpu/low_latency/far.h"

#include <stdlib.h>
#include <string.h>

void ll_masks_free(ll_masks *masks)
{
    if (!masks) return;
    free(masks->masked);
    free(masks->knows);
    free(masks->since);
    free(masks->peer_regions);
    free(masks->with);
    members_free(masks->cleaner);
    free(masks);
}

static void masks_spread(void *context)
{
    const ll_cpu *self = context;
    self->far->spread(self);
}

static group_members *cleaner_make(ll_cpu *self)
{
    group_members *cleaner = members_make(self->sym, BOOT_KIND_LOW_LATENCY, self->number, self->space.clean_bytes);
    if (!cleaner) return NULL;
    for (int32_t r = 0; r < self->shape.ranks; r++)
        cleaner->words[r] = ll_is_far(self, r) ? NULL : ll_at(self, r, self->space.cleans);
    cleaner->halted = &self->halted;
    cleaner->late_limit_ms = self->plan.late_limit_ms;
    cleaner->spread = self->far ? masks_spread : NULL;
    cleaner->spread_context = self;
    return cleaner;
}

ll_masks *ll_masks_make(ll_cpu *self)
{
    const size_t n = (size_t)self->shape.ranks;
    ll_masks *masks = calloc(1, sizeof *masks);
    if (!masks) return NULL;
    masks->masked = calloc(n, sizeof *masks->masked);
    masks->knows = calloc(n, sizeof *masks->knows);
    masks->since = calloc(n, sizeof *masks->since);
    masks->peer_regions = calloc(n, sizeof *masks->peer_regions);
    masks->with = calloc(n, sizeof *masks->with);
    masks->cleaner = cleaner_make(self);
    if (masks->masked && masks->knows && masks->since && masks->peer_regions && masks->with && masks->cleaner)
        return masks;
    ll_masks_free(masks);
    return NULL;
}

/* ---- regions ----------------------------------------------------------------------------------------------------- */

/* Near ranks that are dead write nothing more. A rank that has left the buffer has said so after everything that it has
   written. A rank that has only left the group may have a thread that still writes. */
static bool writes_no_more(const ll_cpu *self, int32_t rank)
{
    const bool dead = atomic_load_explicit(&self->sym->gone[rank], memory_order_acquire) == SYM_PEER_DIED;
    return (dead && !ll_is_far(self, rank)) ||
           (ll_look(self, ll_masker_at(&self->space, rank)) & LL_MASKER_PARTED) != 0;
}

/* Returns the region of the slot from its next acknowledgement on (ll_region_choose). */
static int32_t find_region(const ll_cpu *self, int32_t slot)
{
    const ll_masks *masks = self->masks;
    uint32_t known = 0;
    for (int32_t r = 0; r < self->shape.ranks; r++)
        if (masks->masked[r] && !writes_no_more(self, r)) known |= 1u << masks->knows[r][slot];
    return ll_region_choose(masks->region[slot], known, self->shape.regions);
}

bool ll_regions_suffice(const ll_cpu *self)
{
    return find_region(self, 0) >= 0 && find_region(self, 1) >= 0;
}

/* The flags in the new region may be older than any sweep, so they are cleared. */
void ll_region_settle(ll_cpu *self, int32_t slot)
{
    const uint64_t bytes = (uint64_t)self->shape.tokens * (uint64_t)self->space.places * 8;
    const int32_t region = find_region(self, slot);
    if (region < 0 || region == self->masks->region[slot]) return;
    self->masks->region[slot] = region;
    memset(ll_here(self, self->space.row_flags + ((uint64_t)region * LL_SLOTS + (uint64_t)slot) * bytes), 0,
           (size_t)bytes);
    if (self->far) self->far->clear(self, LL_COMBINE, slot, region);
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

bool ll_is_masked_by(const ll_cpu *self, int32_t rank)
{
    const bool masked = ll_masker_masks(ll_look(self, ll_masker_at(&self->space, rank)), self->masks->with[rank]);
    if (masked && ll_is_far(self, rank)) ll_see(self);
    return masked;
}

static uint64_t masker_word(const ll_cpu *self, bool masked, uint64_t parted)
{
    return ll_masker_word(masked, self->masks->cleaner->attempt, parted);
}

static void tell(const ll_cpu *self, int32_t rank, uint64_t word)
{
    if (ll_is_far(self, rank)) {
        self->far->masker(self, rank, word);
        return;
    }
    ll_store(self, rank, ll_masker_at(&self->space, self->sym->rank), word);
    sym_ring(self->sym, rank);
}

void ll_masker_tell(ll_cpu *self, int32_t rank, bool masked)
{
    tell(self, rank, masker_word(self, masked, 0));
}

void ll_masker_part(ll_cpu *self)
{
    for (int32_t r = 0; r < self->shape.ranks; r++)
        tell(self, r, masker_word(self, self->masks->masked[r], LL_MASKER_PARTED));
    for (int32_t r = 0; r < self->shape.ranks; r++)
        if (ll_is_far(self, r)) self->far->linger(self, r);
}

expar_status ll_mask(ll_cpu *self, int32_t rank, const char *why)
{
    ll_masks *masks = self->masks;
    masks->masked[rank] = 1;
    masks->since[rank] = UINT64_MAX;
    for (int slot = 0; slot < LL_SLOTS; slot++)
        masks->knows[rank][slot] = (int8_t)masks->region[slot];
    if (!ll_regions_suffice(self)) {
        masks->masked[rank] = 0;
        return error_set(EXPAR_ERR_PEER,
                         "rank %d cannot be masked: masked ranks that are alive or silent may still write to all "
                         "%d regions of this buffer",
                         rank, self->shape.regions);
    }
    expar_status status = self->far ? self->far->set_aside(self, rank) : EXPAR_OK;
    if (status != EXPAR_OK) {
        masks->masked[rank] = 0;
        return status;
    }
    masks->changes++;
    if (why) LOG(LOG_WARN, "rank %d is masked: %s", rank, why);
    ll_masker_tell(self, rank, true);
    return EXPAR_OK;
}

static expar_status unmask(ll_cpu *self, int32_t rank)
{
    ll_masks *masks = self->masks;
    if (!masks->masked[rank]) return EXPAR_OK;
    if (masks->since[rank] != masks->steps || ll_is_masked_by(self, rank))
        return error_set(EXPAR_ERR_STATE,
                         "rank %d has been left out of a call meanwhile, or has masked this one; expected "
                         "expar_ll_mask_clean to take it in again",
                         rank);
    masks->masked[rank] = 0;
    ll_masker_tell(self, rank, false);
    if (ll_is_far(self, rank)) self->far->linger(self, rank);
    return EXPAR_OK;
}

expar_status ll_cpu_mask_set(executor *base, int32_t rank, bool masked)
{
    ll_cpu *self = ll_cpu_of(base);
    if (!masked) return unmask(self, rank);
    if (self->masks->masked[rank]) return EXPAR_OK;
    expar_status status = ll_mask(self, rank, NULL);
    if (status != EXPAR_OK) return error_set(EXPAR_ERR_LIMIT, "%s", expar_last_error());
    if (ll_is_far(self, rank)) self->far->linger(self, rank);
    self->masks->since[rank] = self->masks->steps;
    return EXPAR_OK;
}

/* There are no streams here. */
expar_status ll_cpu_mask_query(executor *base, int32_t *status, void *stream)
{
    const ll_cpu *self = ll_cpu_of(base);
    (void)stream;
    memcpy(status, self->masks->masked, (size_t)self->shape.ranks * sizeof *status);
    return EXPAR_OK;
}
