/* SPDX-License-Identifier: Apache-2.0 */
/* The base of tests of transports: each transport of the build, also with the shim, over a group's heap. */
#ifndef TESTS_NET_STAGE_H
#define TESTS_NET_STAGE_H

#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
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
/* The same over a site that has more segments than the group's. */
bool stage_open_at(stage *s, expar_group *group, const subject *who, const transport_site *site, uint64_t bytes);
void stage_close(stage *s);

/* The transport's `run` for one operation on a heap. */
static inline expar_status stage_put(const stage *s, int32_t pe, uint64_t offset, const void *source, size_t bytes)
{
    return s->via->ops->run(
        s->via,
        &(transport_request){.kind = TRANSPORT_KIND_PUT, .pe = pe, .offset = offset, .source = source, .bytes = bytes});
}
static inline expar_status stage_get(const stage *s, int32_t pe, void *dest, uint64_t offset, size_t bytes)
{
    return s->via->ops->run(
        s->via,
        &(transport_request){.kind = TRANSPORT_KIND_GET, .pe = pe, .offset = offset, .dest = dest, .bytes = bytes});
}

/* This rank's heap at an offset. */
static inline uint8_t *own(const stage *s, uint64_t offset)
{
    return (uint8_t *)s->group->sym->heap.base + offset;
}

#endif
