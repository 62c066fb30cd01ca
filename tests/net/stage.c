/* SPDX-License-Identifier: Apache-2.0 */
#include "stage.h"

#include <stdlib.h>
#include <string.h>

subject subjects[2 * STAGE_MOST_TRANSPORTS];
size_t num_subjects;

int stage_find_subjects(void **state)
{
    const transport_ops *ops;
    const char *only = getenv("EXPAR_TRANSPORTS");
    (void)state;
    num_subjects = 0;
    for (size_t i = 0; i < STAGE_MOST_TRANSPORTS && (ops = transport_at(i)); i++) {
        if (only && strcmp(only, ops->name) != 0) continue;
        if (strcmp(ops->name, "gda") == 0 && !getenv("EXPAR_GDA_NIC")) continue; /* it needs a device */
        subjects[num_subjects++] = (subject){ops, false};
        subjects[num_subjects++] = (subject){ops, true};
    }
    return transport_at(STAGE_MOST_TRANSPORTS) != NULL; /* cmocka: a set-up that has failed */
}

/* Puts the shim before the transport. */
static bool stage_delay(stage *s, const transport_site *site)
{
    shim_plan plan = {.seed = 17 + (uint64_t)s->group->rank, .longest_ns = 20000, .busy_every = 3};
    return CHECK_OK(shim_open(s->via, site, &plan, &s->via));
}

/* In two parts, so that operations meet the border between them. */
static bool stage_grow(stage *s, uint64_t bytes)
{
    const transport_ops *ops = s->via->ops;
    uint64_t middle = s->area + bytes / 2;
    return !ops->grow || (CHECK_OK(ops->grow(s->via, TRANSPORT_HOST, 0, middle)) &&
                          CHECK_OK(ops->grow(s->via, TRANSPORT_HOST, middle, s->area + bytes - middle)));
}

bool stage_open(stage *s, expar_group *group, const subject *who, uint64_t bytes)
{
    return stage_open_at(s, group, who, &group->sym->site, bytes);
}

bool stage_open_at(stage *s, expar_group *group, const subject *who, const transport_site *site, uint64_t bytes)
{
    const transport_ops *ops = who->ops;
    *s = (stage){.group = group};
    return CHECK_OK(ops->open(site, &s->via)) && CHECK_OK(sym_take(group->sym, "stage", bytes, 4096, &s->area)) &&
           stage_grow(s, bytes) && (!who->late || stage_delay(s, site));
}

void stage_close(stage *s)
{
    CHECK_OK(sym_give(s->group->sym, "stage", s->area));
    s->via->ops->close(s->via);
}
