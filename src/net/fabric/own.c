/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the caller outside the segments, which stays registered: data there need no copy where the provider takes
 * registered memory alone. */
#include "net/fabric/fabric.h"

#include <stdlib.h>

typedef struct own_range {
    const uint8_t *base;
    uint64_t bytes;
    /* how often it was registered */
    uint64_t count;
    struct fid_mr *mr;
} own_range;

struct fabric_owns {
    /* guards the others; taken after a channel's lock */
    pthread_mutex_t lock;
    own_range *list;
    size_t number;
};

fabric_owns *fabric_owns_new(void)
{
    fabric_owns *owns = calloc(1, sizeof *owns);
    if (owns) pthread_mutex_init(&owns->lock, NULL);
    return owns;
}

void fabric_owns_free(fabric_owns *owns)
{
    if (!owns) return;
    while (owns->number > 0)
        fi_close(&owns->list[--owns->number].mr->fid);
    free(owns->list);
    pthread_mutex_destroy(&owns->lock);
    free(owns);
}

static own_range *fabric_own_at(const fabric_owns *owns, const void *address)
{
    for (size_t i = 0; i < owns->number; i++)
        if (owns->list[i].base == address) return &owns->list[i];
    return NULL;
}

/* By the holder of the lock. */
static expar_status fabric_own_add(const fabric *f, void *address, uint64_t bytes)
{
    fabric_owns *owns = f->owns;
    own_range *larger = realloc(owns->list, (owns->number + 1) * sizeof *larger);
    if (!larger) return error_set(EXPAR_ERR_MEMORY, "fabric: no memory for a list of %zu ranges", owns->number + 1);
    owns->list = larger;
    own_range *own = &larger[owns->number];
    *own = (own_range){.base = address, .bytes = bytes, .count = 1};
    expar_status status = fabric_register_for(f, address, bytes, FI_READ | FI_WRITE, &own->mr);
    if (status == EXPAR_OK) owns->number++;
    return status;
}

expar_status fabric_register_own(const fabric *f, void *address, uint64_t bytes)
{
    expar_status status = EXPAR_OK;
    if (!(f->info->domain_attr->mr_mode & FI_MR_LOCAL)) return EXPAR_OK;
    pthread_mutex_lock(&f->owns->lock);
    own_range *own = fabric_own_at(f->owns, address);
    if (own)
        own->count++;
    else
        status = fabric_own_add(f, address, bytes);
    pthread_mutex_unlock(&f->owns->lock);
    return status;
}

void fabric_unregister_own(const fabric *f, const void *address)
{
    fabric_owns *owns = f->owns;
    pthread_mutex_lock(&owns->lock);
    own_range *own = fabric_own_at(owns, address);
    if (own && --own->count == 0) {
        fi_close(&own->mr->fid);
        *own = owns->list[--owns->number];
    }
    pthread_mutex_unlock(&owns->lock);
}

bool fabric_own_descriptor(fabric_owns *owns, const void *local, size_t bytes, void **descriptor)
{
    bool found = false;
    const uint8_t *at = local;
    pthread_mutex_lock(&owns->lock);
    for (size_t i = 0; i < owns->number && !found; i++) {
        const own_range *own = &owns->list[i];
        found = at >= own->base && at < own->base + own->bytes && bytes <= own->bytes - (size_t)(at - own->base);
        if (found) *descriptor = fi_mr_desc(own->mr);
    }
    pthread_mutex_unlock(&owns->lock);
    return found;
}
