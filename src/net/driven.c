/* SPDX-License-Identifier: Apache-2.0 */
/* Handles several transports, which need progress or whose operations must be reaped, as one. */
#include "net/transport.h"

bool transport_progress_all(const transport_list *driven)
{
    bool moved = false;
    for (int32_t i = 0; i < driven->count; i++)
        moved |= driven->list[i]->ops->progress(driven->list[i]);
    return moved;
}

void transport_reap_all(const transport_list *reaped)
{
    for (int32_t i = 0; i < reaped->count; i++)
        reaped->list[i]->ops->reap(reaped->list[i]);
}

void transport_behold_all(const transport_list *driven)
{
    for (int32_t i = 0; i < driven->count; i++)
        if (driven->list[i]->ops->behold) driven->list[i]->ops->behold(driven->list[i]);
}

void transport_attend_all(const transport_list *driven, int change)
{
    for (int32_t i = 0; i < driven->count; i++)
        driven->list[i]->ops->attend(driven->list[i], change);
}

/* If one transport has something already, the thread must stay awake; the others are armed all the same. */
bool transport_arm_all(const transport_list *driven)
{
    bool may_sleep = true;
    for (int32_t i = 0; i < driven->count; i++)
        may_sleep &= driven->list[i]->ops->arm(driven->list[i]);
    return may_sleep;
}
