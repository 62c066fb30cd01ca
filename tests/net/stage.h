/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of transports stand on: each transport of the build, also behind the shim, over a group's heap. */
#ifndef TESTS_NET_STAGE_H
#define TESTS_NET_STAGE_H

#include "ep/check.h"
#include "ep/ranks.h"
#include "group/parts.h"
#include "shim.h"

/* Every transport, and every transport behind the shim, which leaves nothing to chance and luck. */
typedef struct subject {
    const transport_ops *ops;
    bool late;
} subject;
#define STAGE_MOST_TRANSPORTS 8
extern subject subjects[];
extern size_t num_subjects;
/* Fills them, with the one that EXPAR_TRANSPORTS names where it is set; a set-up of a group of tests. */
int stage_find_subjects(void **state);

/* A transport of its own over the group's heap, and an area in it. */
typedef struct stage {
    expar_group *group;
    transport *via;
    uint64_t area; /* offset of the area */
} stage;

bool stage_open(stage *s, expar_group *group, const subject *who, uint64_t bytes);
void stage_close(stage *s);

/* This rank's heap at an offset. */
static inline uint8_t *own(const stage *s, uint64_t offset)
{
    return (uint8_t *)s->group->sym->heap.base + offset;
}

#endif
