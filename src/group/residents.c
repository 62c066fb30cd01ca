/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that higher layers attach to a group. The group destroys them when it ends. */
#include "group/parts.h"

void group_keep(expar_group *group, group_resident *resident)
{
    resident->next = atomic_load_explicit(&group->residents, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&group->residents, &resident->next, resident, memory_order_release,
                                                  memory_order_relaxed)) {
    }
}

group_resident *group_kept(const expar_group *group, void (*end)(group_resident *self))
{
    group_resident *resident = atomic_load_explicit(&group->residents, memory_order_acquire);
    while (resident && resident->end != end)
        resident = resident->next;
    return resident;
}

void group_residents_end(expar_group *group)
{
    group_resident *resident = atomic_load_explicit(&group->residents, memory_order_acquire);
    while (resident) {
        group_resident *before = resident->next;
        resident->end(resident);
        resident = before;
    }
}
