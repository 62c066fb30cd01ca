/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory through which the data of small operations passes, if their own memory is not registered. A copy
 * takes less time than a registration. */
#include "net/gda/parts.h"

#include <string.h>

enum { STAGE_ALIGNMENT = 64 };

expar_status gda_stage_open(gda *g)
{
    const gda_device_ops *ops = g->device->ops;
    gda_source source = {.bytes = GDA_STAGE_BYTES};
    const gda_place place = ops->add_region ? GDA_PLACE_SHARED : GDA_PLACE_HOST;
    expar_status status = gda_space_open(place, NULL, GDA_STAGE_BYTES, &g->stage);
    if (status == EXPAR_OK && ops->add_region)
        status = ops->add_region(g->device, g->stage.fd, g->stage.bytes, &source.region);
    gda_space_passed(&g->stage);
    source.base = g->stage.host;
    if (status == EXPAR_OK) status = mem_arena_create(GDA_STAGE_BYTES, &g->stage_arena);
    return status == EXPAR_OK ? ops->add_memory(g->device, &source, &g->stage_memory) : status;
}

void gda_stage_close(gda *g)
{
    g->device->ops->remove_memory(g->device, &g->stage_memory);
    if (g->stage_arena) mem_arena_destroy(g->stage_arena);
    gda_space_close(&g->stage);
}

bool gda_stage_has_space(gda *g, uint64_t bytes)
{
    uint64_t offset, given;
    if (!mem_arena_take(g->stage_arena, bytes, STAGE_ALIGNMENT, &offset)) return false;
    mem_arena_give(g->stage_arena, offset, &given);
    return true;
}

void *gda_stage_take(gda *g, uint64_t bytes, gda_flight *flight, gda_range *range)
{
    uint64_t offset;
    if (bytes > GDA_MOST_STAGED || !mem_arena_take(g->stage_arena, bytes, STAGE_ALIGNMENT, &offset)) return NULL;
    flight->staged = g->stage.host + offset;
    *range =
        (gda_range){.begin = g->stage.address, .end = g->stage.address + GDA_STAGE_BYTES, .lkey = g->stage_memory.lkey};
    return flight->staged;
}

void gda_stage_give(gda *g, gda_flight *flight)
{
    uint64_t bytes;
    if (flight->staged) mem_arena_give(g->stage_arena, (uint64_t)(flight->staged - g->stage.host), &bytes);
    flight->staged = NULL;
}
