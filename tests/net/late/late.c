/* SPDX-License-Identifier: Apache-2.0 */
/* late: p2p with the shim, as a transport of its own: it is added by the steps of CONTRIBUTING and by nothing else.
 * With LATE_ATOMICS=none it carries puts and gets alone, so that atomics and signals go by the transport after it. With
 * LATE_NODES=pretended it reaches thread ranks of other nodes, too, as a network does: by operations, without a place
 * where their memory could be seen. */
#include "net/shim.h"
#include "net/transport.h"

#include <stdlib.h>
#include <string.h>

#define LONGEST_NS 20000

/* LATE_RAREST_NS: delays that others overtake by far. LATE_ROWS_NS: the delay by which all overtakes data as large as a
   row, with the flag after it. */
#define ROW_BYTES 32
static int64_t nanoseconds(const char *variable)
{
    const char *text = getenv(variable);
    return text ? strtoll(text, NULL, 10) : 0;
}

extern const transport_ops transport_late;

typedef struct late {
    transport base;
    transport *shim;
    const transport_site *site;
    /* p2p sees one node of all ranks, where nodes are simulated. */
    transport_site whole;
    int32_t *one_node;
} late;

static transport *shim_of(const transport *self)
{
    return ((const late *)self)->shim;
}

static bool is_far(const transport *self, int32_t pe)
{
    const transport_site *site = ((const late *)self)->site;
    return site->nodes[pe] != site->nodes[site->boot->rank];
}

static const transport_site *site_of_p2p(late *l, const transport_site *site)
{
    const char *nodes = getenv("LATE_NODES");
    if (!nodes || strcmp(nodes, "pretended") != 0) return site;
    l->one_node = calloc((size_t)site->boot->size, sizeof *l->one_node);
    l->whole = *site;
    l->whole.nodes = l->one_node;
    return l->one_node ? &l->whole : NULL;
}

static expar_status open_shim(late *l, const transport_site *site, transport **out)
{
    const transport_site *shown = site_of_p2p(l, site);
    const shim_plan plan = {.seed = 23 + (uint64_t)site->boot->rank,
                            .longest_ns = LONGEST_NS,
                            .rarest_ns = nanoseconds("LATE_RAREST_NS"),
                            .rows_ns = nanoseconds("LATE_ROWS_NS"),
                            .row_bytes = ROW_BYTES};
    transport *inner;
    if (!shown) return error_set(EXPAR_ERR_MEMORY, "late: no memory");
    expar_status status = transport_find("p2p", 3)->open(shown, &inner);
    if (status != EXPAR_OK) return status;
    status = shim_open(inner, site, &plan, out);
    if (status != EXPAR_OK) inner->ops->close(inner);
    return status;
}

static expar_status late_open(const transport_site *site, transport **out)
{
    late *l = calloc(1, sizeof *l);
    if (!l) return error_set(EXPAR_ERR_MEMORY, "late: no memory");
    l->base.ops = &transport_late;
    l->site = site;
    expar_status status = open_shim(l, site, &l->shim);
    if (status != EXPAR_OK) {
        free(l->one_node);
        free(l);
        return status;
    }
    *out = &l->base;
    return EXPAR_OK;
}

static unsigned late_reach(const transport *self, int32_t pe, transport_memory memory)
{
    const char *atomics = getenv("LATE_ATOMICS");
    unsigned reach = shim_of(self)->ops->reach(shim_of(self), pe, memory);
    bool none = atomics && strcmp(atomics, "none") == 0;
    if (is_far(self, pe)) reach &= ~(unsigned)TRANSPORT_MAP;
    return none ? reach & ~(unsigned)(TRANSPORT_ATOMIC | TRANSPORT_COHERENT) : reach;
}

static void *late_map(const transport *self, int32_t pe, transport_memory memory, uint64_t offset)
{
    return is_far(self, pe) ? NULL : shim_of(self)->ops->map(shim_of(self), pe, memory, offset);
}

static expar_status late_run(transport *self, const transport_request *request)
{
    return shim_of(self)->ops->run(shim_of(self), request);
}

static expar_status late_post(transport *self, const transport_request *request, transport_batch *batch)
{
    return shim_of(self)->ops->post(shim_of(self), request, batch);
}

static void late_drop(transport *self, int32_t pe, transport_batch *batch)
{
    shim_of(self)->ops->drop(shim_of(self), pe, batch);
}

static expar_status late_fence(transport *self)
{
    return shim_of(self)->ops->fence(shim_of(self));
}

static expar_status late_quiet(transport *self)
{
    return shim_of(self)->ops->quiet(shim_of(self));
}

static expar_status late_settle(transport *self, transport_batch *batch)
{
    return shim_of(self)->ops->settle(shim_of(self), batch);
}

static void late_close(transport *self)
{
    shim_of(self)->ops->close(shim_of(self));
    free(((late *)self)->one_node);
    free(self);
}

const transport_ops transport_late = {
    .name = "late",
    .summary = "ranks of one host, late and in another order",
    .open = late_open,
    .reach = late_reach,
    .map = late_map,
    .run = late_run,
    .post = late_post,
    .drop = late_drop,
    .fence = late_fence,
    .quiet = late_quiet,
    .settle = late_settle,
    .close = late_close,
};
