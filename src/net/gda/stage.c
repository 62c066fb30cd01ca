/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory through which the data of small operations passes, if their own memory is not registered. A copy
 * takes less time than a registration. */
#include "net/gda/parts.h"

#include <stdlib.h>
#include <string.h>

expar_status gda_stage_open(gda *g)
{
    g->stage = aligned_alloc(4096, GDA_STAGE_BYTES);
    if (!g->stage) return error_set(EXPAR_ERR_MEMORY, "gda: no memory for copies, %d bytes", GDA_STAGE_BYTES);
    const gda_source source = {.base = g->stage, .bytes = GDA_STAGE_BYTES};
    expar_status status = mem_arena_create(GDA_STAGE_BYTES, &g->stage_arena);
    return status == EXPAR_OK ? g->device->ops->add_memory(g->device, &source, &g->stage_memory) : status;
}

void gda_stage_close(gda *g)
{
    g->device->ops->remove_memory(g->device, &g->stage_memory);
    if (g->stage_arena) mem_arena_destroy(g->stage_arena);
    free(g->stage);
}

void *gda_stage_take(gda *g, uint64_t bytes, gda_flight *flight, gda_range *range)
{
    uint64_t offset;
    if (bytes > GDA_MOST_STAGED || !mem_arena_take(g->stage_arena, bytes, 64, &offset)) return NULL;
    flight->staged = g->stage + offset;
    *range = (gda_range){
        .begin = (uintptr_t)g->stage, .end = (uintptr_t)g->stage + GDA_STAGE_BYTES, .lkey = g->stage_memory.lkey};
    return flight->staged;
}

void gda_stage_give(gda *g, gda_flight *flight)
{
    uint64_t bytes;
    if (flight->staged) mem_arena_give(g->stage_arena, (uint64_t)(flight->staged - g->stage), &bytes);
    flight->staged = NULL;
}
