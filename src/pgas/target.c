/* SPDX-License-Identifier: Apache-2.0 */
/* Argument checks that the public one-sided calls share. */
#include "pgas/target.h"

expar_status target_check_pe(const char *call, expar_group *group, int32_t pe)
{
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", call);
    if (pe < 0 || pe >= group->size)
        return error_set(EXPAR_ERR_RANGE, "%s: pe %d, expected 0 to %d", call, pe, group->size - 1);
    return sym_check_pe(group->sym, pe, call);
}

/* Where the heap is, as far as it has grown, and by how much a range that begins in it leaves it. */
static expar_status outside(const char *call, const sym *self, const char *name, const void *address, size_t bytes)
{
    kinds_place begin;
    uint64_t offset, grown = atomic_load_explicit(&self->grown_bytes, memory_order_acquire);
    const uint8_t *base = self->heap.base, *end = base + grown;
    if (kinds_find(self, address, 1, &begin) && begin.memory != TRANSPORT_HOST)
        return error_set(EXPAR_ERR_ADDRESS, "%s: %s: %p with %zu bytes leaves the symmetric %s memory", call, name,
                         address, bytes, transport_memory_name(begin.memory));
    if (kinds_is_device(self, address))
        return error_set(EXPAR_ERR_ADDRESS,
                         "%s: %s: %p is memory of a GPU, and not this rank's symmetric device memory", call, name,
                         address);
    if (sym_offset(self, address, 1, &offset) && (const uint8_t *)address >= base && (const uint8_t *)address < end)
        return error_set(EXPAR_ERR_ADDRESS,
                         "%s: %s: %p with %zu bytes leaves the symmetric heap, which ends %zu "
                         "bytes after it",
                         call, name, address, bytes, (size_t)(end - (const uint8_t *)address));
    return error_set(EXPAR_ERR_ADDRESS, "%s: %s: %p with %zu bytes is not within the symmetric heap, %p to %p", call,
                     name, address, bytes, (const void *)(base + SYM_CONTROL_BYTES), (const void *)end);
}

expar_status target_check_host(const char *call, const expar_group *group, const char *name, const void *address)
{
    if (!address || !kinds_is_device(group->sym, address)) return EXPAR_OK;
    return error_set(EXPAR_ERR_ADDRESS, "%s: %s: %p is memory of a GPU; expected host memory", call, name, address);
}

expar_status target_check_place(const char *call, expar_group *group, const char *name, const void *address,
                                size_t bytes, kinds_place *place)
{
    if (!address) return error_set(EXPAR_ERR_NULL, "%s: %s is NULL", call, name);
    if (!kinds_find(group->sym, address, bytes, place)) return outside(call, group->sym, name, address, bytes);
    return EXPAR_OK;
}

expar_status target_check_word(const char *call, expar_group *group, const char *name, const void *address,
                               size_t bytes, kinds_place *place)
{
    expar_status status = target_check_place(call, group, name, address, bytes, place);
    if (status != EXPAR_OK) return status;
    if ((uintptr_t)address % bytes != 0)
        return error_set(EXPAR_ERR_ALIGNMENT, "%s: %s: %p is not a multiple of %zu", call, name, address, bytes);
    return EXPAR_OK;
}

expar_status target_link(const ops_origin *from, int32_t pe, transport_memory memory, unsigned needs, const void *local,
                         link_peer *out)
{
    sym *self = from->group->sym;
    expar_status status = link_reach(self, pe, memory, needs, from->call, out);
    if (status != EXPAR_OK) return status;
    if (from->nbi && memory != TRANSPORT_DEVICE) out->proxy = sym_proxy_for(self, pe);
    if (local && kinds_is_device(self, local)) link_take_device(out);
    return EXPAR_OK;
}

expar_status target_load(const char *call, const expar_group *group, const void *address, void *out, size_t bytes)
{
    const sym *self = group->sym;
    expar_status status = mem_copier_copy(kinds_copier(self), kinds_side(self, out, bytes, false),
                                          kinds_side(self, address, bytes, true), bytes);
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", call);
}

/* Sleepers watch offsets of the heap; a word elsewhere has none there. */
void target_ring(const expar_group *group, int32_t pe, const kinds_place *place, size_t bytes)
{
    if (place->memory == TRANSPORT_HOST)
        sym_ring_put(group->sym, pe, place->offset, bytes);
    else
        sym_ring(group->sym, pe);
}
