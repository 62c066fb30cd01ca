/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that higher layers attach to a group. The group destroys them when it ends. */
#include "group/parts.h"

void group_keep(expar_group *group, group_attachment *attachment)
{
    attachment->next = atomic_load_explicit(&group->attachments, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&group->attachments, &attachment->next, attachment,
                                                  memory_order_release, memory_order_relaxed)) {
    }
}

group_attachment *group_kept(const expar_group *group, void (*end)(group_attachment *self))
{
    group_attachment *attachment = atomic_load_explicit(&group->attachments, memory_order_acquire);
    while (attachment && attachment->end != end)
        attachment = attachment->next;
    return attachment;
}

void group_attachments_leave(expar_group *group)
{
    group_attachment *attachment = atomic_load_explicit(&group->attachments, memory_order_acquire);
    for (; attachment; attachment = attachment->next) {
        if (attachment->leave) attachment->leave(attachment);
        attachment->leave = NULL;
    }
}

void group_attachments_end(expar_group *group)
{
    group_attachment *attachment = atomic_load_explicit(&group->attachments, memory_order_acquire);
    while (attachment) {
        group_attachment *before = attachment->next;
        attachment->end(attachment);
        attachment = before;
    }
}
