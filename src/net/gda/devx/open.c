/* SPDX-License-Identifier: Apache-2.0 */
/* A device is opened, and all that its queues share; in the end all goes in reverse order. */
#include "net/gda/devx/devx.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- what queues share ------------------------------------------------------------------------------------------- */

static expar_status devx_open_domain(devx *d)
{
    verbs_pd_out out = {0};
    errno = 0;
    d->pd = d->v->alloc_pd(d->context);
    if (!d->pd) return devx_failed(d, "ibv_alloc_pd", "a protection domain", devx_errno());
    verbs_objects objects = {.pd = {.in = d->pd, .out = &out}};
    const int code = d->v->init_obj(&objects, VERBS_OBJECT_PD);
    if (code != 0) return devx_failed(d, "mlx5dv_init_obj", "the number of the protection domain", code);
    d->pdn = out.pdn;
    return EXPAR_OK;
}

static expar_status find_event_queue(devx *d)
{
    const int code = d->v->query_eqn(d->context, 0, &d->eqn);
    return code ? devx_failed(d, "mlx5dv_devx_query_eqn", "event queue 0", code) : EXPAR_OK;
}

/* ---- the table of operations ------------------------------------------------------------------------------------- */

static void devx_describe(const gda_device *self, char *text, size_t text_bytes)
{
    const devx *d = (const devx *)self;
    snprintf(text, text_bytes, "%s (set-up by devx, which has not run on a real device yet), %u port%s", d->name,
             d->num_ports, d->num_ports == 1 ? "" : "s");
}

static void devx_close(gda_device *self)
{
    devx *d = (devx *)self;
    for (uint32_t i = d->queues ? d->num_queues : 0; i-- > 0;)
        devx_close_queue(d, &d->queues[i]);
    devx_close_doorbells(d);
    if (d->pd) d->v->dealloc_pd(d->pd);
    if (d->context) d->v->close_device(d->context);
    free(d->queues);
    free(d);
}

static const gda_device_ops devx_ops = {
    .serve_gpu = devx_serve_gpu,
    .add_queue = devx_add_queue,
    .connect = devx_connect,
    .stop = devx_stop,
    .add_memory = devx_add_memory,
    .remove_memory = devx_remove_memory,
    .describe = devx_describe,
    .close = devx_close,
};

expar_status gda_devx_open(const gda_options *options, const devx_place *place, uint32_t num_queues, gda_device **out)
{
    devx *d = calloc(1, sizeof *d);
    if (!d) return error_set(EXPAR_ERR_MEMORY, "gda: no memory for a device");
    *d = (devx){.base.ops = &devx_ops, .options = *options, .place = *place};
    expar_status status = verbs_load(&d->v);
    if (status == EXPAR_OK) status = devx_choose(d);
    if (status == EXPAR_OK) {
        d->queues = calloc(num_queues, sizeof *d->queues);
        d->num_queues = num_queues;
        if (!d->queues) status = error_set(EXPAR_ERR_MEMORY, "gda: no memory for %u queues", num_queues);
    }
    if (status == EXPAR_OK) status = devx_open_domain(d);
    if (status == EXPAR_OK) status = find_event_queue(d);
    if (status == EXPAR_OK) status = devx_open_doorbells(d);
    if (status != EXPAR_OK) {
        devx_close(&d->base);
        return status;
    }
    *out = &d->base;
    return EXPAR_OK;
}
