/* SPDX-License-Identifier: Apache-2.0 */
/* Memory outside the heap: expar_register and its like. */
#include "pgas/memory.h"
#include "pgas/stream/stream.h"

/* A range must have bytes, and end in the address space. */
static expar_status range_check(const char *what, const void *address, size_t bytes)
{
    if (!address) return error_set(EXPAR_ERR_NULL, "%s: address is NULL", what);
    if (bytes > 0 && bytes <= UINTPTR_MAX - (uintptr_t)address) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "%s: bytes %zu, expected 1 to %zu", what, bytes,
                     (size_t)(UINTPTR_MAX - (uintptr_t)address));
}

/* ---- for own operations ------------------------------------------------------------------------------------------ */

expar_status expar_register(expar_group *group, void *address, size_t bytes)
{
    static const char what[] = "expar_register";
    expar_status status = memory_enter(group, what);
    if (status != EXPAR_OK) return group_ended(group, status);
    status = range_check(what, address, bytes);
    if (status == EXPAR_OK) status = kinds_register_own(group->sym, what, address, bytes);
    group_leave(group);
    return group_ended(group, status);
}

expar_status expar_unregister(expar_group *group, const void *address)
{
    static const char what[] = "expar_unregister";
    expar_status status = memory_enter(group, what);
    if (status != EXPAR_OK) return group_ended(group, status);
    status = address ? kinds_unregister_own(group->sym, what, address)
                     : error_set(EXPAR_ERR_NULL, "%s: address is NULL", what);
    group_leave(group);
    return group_ended(group, status);
}

/* ---- as symmetric memory ----------------------------------------------------------------------------------------- */

static expar_status register_symmetric(expar_group *group, const char *what, void *address, size_t bytes, void **out)
{
    void *made = NULL;
    const device_heap_memory memory = {.address = (cu_address)(uintptr_t)address, .bytes = bytes};
    expar_status own = range_check(what, address, bytes);
    if (own == EXPAR_OK && !out) own = error_set(EXPAR_ERR_NULL, "%s: out is NULL", what);
    expar_status status = kinds_register(group->sym, what, &memory, own, &made);
    if (status != EXPAR_OK) return status;
    stream_prepare(group);
    *out = made;
    return EXPAR_OK;
}

expar_status expar_register_symmetric(expar_group *group, void *address, size_t bytes, void **out)
{
    static const char what[] = "expar_register_symmetric";
    const expar_status status = memory_enter(group, what);
    if (status != EXPAR_OK) return group_ended(group, status);
    return group_ended(group, memory_leave(group, register_symmetric(group, what, address, bytes, out)));
}

static expar_status unregister_symmetric(expar_group *group, const char *what, const void *address)
{
    kinds_place place = {.memory = TRANSPORT_HOST};
    kinds_range range;
    expar_status own = EXPAR_OK;
    if (!address)
        own = error_set(EXPAR_ERR_NULL, "%s: address is NULL", what);
    else if (!kinds_find(group->sym, address, 1, &place) || !kinds_find_registered(group->sym, &place, &range) ||
             range.begin != place.offset)
        own = error_set(EXPAR_ERR_ADDRESS, "%s: address: %p, expected one that expar_register_symmetric has given",
                        what, address);
    else
        own = block_settle(group, what);
    if (own == EXPAR_ERR_INTERRUPTED) return own; /* the call can be repeated */
    const expar_status status = memory_agree_on_block(group->sym, what, &place, own);
    return status == EXPAR_OK ? kinds_unregister(group->sym, what, &place) : status;
}

expar_status expar_unregister_symmetric(expar_group *group, const void *address)
{
    static const char what[] = "expar_unregister_symmetric";
    const expar_status status = memory_enter(group, what);
    if (status != EXPAR_OK) return group_ended(group, status);
    return group_ended(group, memory_leave(group, unregister_symmetric(group, what, address)));
}
