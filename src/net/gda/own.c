/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the caller outside the segments, which stays registered: operations in it need no registration of their
 * own. */
#include "net/gda/parts.h"
#include "net/gda/view.h"

#include <stdlib.h>

static gda_own *own_at(const gda *g, const void *address)
{
    for (size_t i = 0; i < g->num_owns; i++)
        if (g->owns[i].range.begin == (uintptr_t)address) return &g->owns[i];
    return NULL;
}

const gda_range *gda_find_own(const gda *g, const void *address, uint64_t bytes)
{
    const uint64_t begin = (uintptr_t)address;
    for (size_t i = 0; i < g->num_owns; i++) {
        const gda_range *r = &g->owns[i].range;
        if (begin >= r->begin && begin < r->end && bytes <= r->end - begin) return r;
    }
    return NULL;
}

/* Returns a free place in the table of kernels, or -1. */
static int32_t free_place(const gda *g)
{
    uint64_t taken = 0;
    for (size_t i = 0; i < g->num_owns; i++)
        if (g->owns[i].place >= 0) taken |= UINT64_C(1) << g->owns[i].place;
    for (int32_t place = 0; place < (int32_t)GDA_KNOWN; place++)
        if (!(taken >> place & 1)) return place;
    return -1;
}

/* By the holder of the lock. */
static expar_status own_add(gda *g, void *address, uint64_t bytes)
{
    const gda_source source = {.base = address, .bytes = bytes};
    gda_own *larger = realloc(g->owns, (g->num_owns + 1) * sizeof *larger);
    if (!larger) return error_set(EXPAR_ERR_MEMORY, "gda: no memory for a list of %zu ranges", g->num_owns + 1);
    g->owns = larger;
    gda_own *own = &larger[g->num_owns];
    *own = (gda_own){.count = 1, .place = free_place(g)};
    expar_status status = g->device->ops->add_memory(g->device, &source, &own->memory);
    if (status != EXPAR_OK) return status;
    own->range = (gda_range){.begin = (uintptr_t)address, .end = (uintptr_t)address + bytes, .lkey = own->memory.lkey};
    status = gda_kernels_know(g, own, true);
    if (status != EXPAR_OK) {
        g->device->ops->remove_memory(g->device, &own->memory);
        return status;
    }
    g->num_owns++;
    return EXPAR_OK;
}

expar_status gda_register_own(gda *g, void *address, uint64_t bytes)
{
    expar_status status = EXPAR_OK;
    /* Such a device reaches memory with a descriptor only. Data of other memory is copied (post.c). */
    if (g->device->ops->add_region) return EXPAR_OK;
    pthread_mutex_lock(&g->lock);
    gda_own *own = own_at(g, address);
    if (own)
        own->count++;
    else
        status = own_add(g, address, bytes);
    pthread_mutex_unlock(&g->lock);
    return status;
}

void gda_unregister_own(gda *g, const void *address)
{
    pthread_mutex_lock(&g->lock);
    gda_own *own = own_at(g, address);
    if (own && --own->count == 0) {
        if (gda_kernels_know(g, own, false) != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
        g->device->ops->remove_memory(g->device, &own->memory);
        *own = g->owns[--g->num_owns];
    }
    pthread_mutex_unlock(&g->lock);
}

void gda_close_owns(gda *g)
{
    while (g->num_owns)
        g->device->ops->remove_memory(g->device, &g->owns[--g->num_owns].memory);
    free(g->owns);
}
