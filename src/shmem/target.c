/* SPDX-License-Identifier: Apache-2.0 */
/* Argument checks that the public one-sided calls share. */
#include "shmem/target.h"

expar_status target_check_pe(const char *call, expar_group *group, int32_t pe)
{
    if (!group) return error_set(EXPAR_ERR_NULL, "%s: group is NULL", call);
    if (pe < 0 || pe >= group->size)
        return error_set(EXPAR_ERR_RANGE, "%s: pe %d, expected 0 to %d", call, pe, group->size - 1);
    return sym_check_pe(group->sym, pe, call);
}

expar_status target_check_range(const char *call, expar_group *group, const char *name, const void *address,
                                size_t bytes, uint64_t *offset)
{
    if (!address) return error_set(EXPAR_ERR_NULL, "%s: %s is NULL", call, name);
    if (!sym_offset(group->sym, address, bytes, offset))
        return error_set(EXPAR_ERR_ADDRESS, "%s: %s: %p with %zu bytes is not within the symmetric heap", call, name,
                         address, bytes);
    return EXPAR_OK;
}

expar_status target_check_word(const char *call, expar_group *group, const char *name, const void *address,
                               size_t bytes, uint64_t *offset)
{
    expar_status status = target_check_range(call, group, name, address, bytes, offset);
    if (status != EXPAR_OK) return status;
    if ((uintptr_t)address % bytes != 0)
        return error_set(EXPAR_ERR_ALIGNMENT, "%s: %s: %p is not a multiple of %zu", call, name, address, bytes);
    return EXPAR_OK;
}

expar_status target_transport(const char *call, expar_group *group, transport *const *table, int32_t pe,
                              transport **out)
{
    if (!table[pe])
        return error_set(EXPAR_ERR_UNSUPPORTED, "%s: rank %d is on another node (%d), and no transport reaches it%s%s",
                         call, pe, group->nodes[pe], group->sym->unreached ? ": " : "",
                         group->sym->unreached ? group->sym->unreached : "");
    *out = table[pe];
    return EXPAR_OK;
}
