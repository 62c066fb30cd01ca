/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of doorbells. The GPU's driver maps them for kernels. Many systems do not allow that; then a thread of the
 * host rings. */
#include "net/gda/devx/devx.h"

#include <errno.h>

#define PAGE_BYTES 4096

int devx_errno(void)
{
    return errno ? errno : EIO;
}

/* A page a queue, as long as there are few of them. The pages are not cached, so a store rings at once, and several
   queues may use one register. */
expar_status devx_open_doorbells(devx *d)
{
    const uint32_t wanted = d->num_queues < DEVX_MOST_UARS ? d->num_queues : DEVX_MOST_UARS;
    while (d->num_uars < wanted) {
        uint32_t tries = 0;
        verbs_uar *uar;
        do {
            errno = 0;
            uar = d->v->alloc_uar(d->context, VERBS_UAR_UNCACHED);
        } while (!uar && devx_again(errno, &tries));
        if (!uar && d->num_uars) break; /* queues share those that there are */
        if (!uar) return devx_failed(d, "mlx5dv_devx_alloc_uar", "a page of doorbells", devx_errno());
        d->uars[d->num_uars++] = uar;
    }
    return EXPAR_OK;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static void *page_of(const verbs_uar *uar)
{
    return (void *)((uintptr_t)uar->reg_addr & ~(uintptr_t)(PAGE_BYTES - 1));
}

/* The register is not where the page begins. */
static expar_status map_page(devx *d, const verbs_uar *uar, cu_address *out)
{
    expar_status status = mem_registers_map(d->gpu, page_of(uar), PAGE_BYTES, out);
    *out += (uintptr_t)uar->reg_addr % PAGE_BYTES;
    return status;
}

static void unmap_pages(devx *d)
{
    while (d->num_seen)
        mem_registers_unmap(d->gpu, page_of(d->uars[--d->num_seen]));
}

expar_status devx_serve_gpu(gda_device *self, const cuda_device *gpu, bool may_change, gda_ringer *ringer)
{
    devx *d = (devx *)self;
    expar_status status = EXPAR_OK;
    if (*ringer == GDA_RINGER_CPU) return EXPAR_OK;
    d->gpu = gpu;
    for (uint32_t i = 0; i < d->num_uars && status == EXPAR_OK; i++) {
        status = map_page(d, d->uars[i], &d->registers[i]);
        if (status == EXPAR_OK) d->num_seen++;
    }
    if (status == EXPAR_OK) return EXPAR_OK;
    unmap_pages(d);
    if (!may_change)
        return error_set(EXPAR_ERR_UNSUPPORTED,
                         "gda: %s: EXPAR_GDA_RINGER=gpu: a page of doorbells cannot be mapped for kernels of %s (%s); "
                         "load NVIDIA's driver with PeerMappingOverride=1 (NVreg_RegistryDwords), or set "
                         "EXPAR_GDA_RINGER=cpu",
                         d->name, gpu->name, expar_last_error());
    LOG(LOG_INFO, "gda: %s: kernels cannot write doorbells (%s), so a thread of the host rings", d->name,
        expar_last_error());
    *ringer = GDA_RINGER_CPU;
    return EXPAR_OK;
}

void devx_set_doorbell(const devx *d, const gda_plan *plan, uint32_t number, gda_parts *parts)
{
    const uint32_t page = number % d->num_uars;
    parts->host_doorbell = (_Atomic uint64_t *)d->uars[page]->reg_addr;
    parts->doorbell = parts->host_doorbell;
    if (plan->place != GDA_PLACE_HOST && plan->ringer == GDA_RINGER_GPU)
        parts->doorbell = (_Atomic uint64_t *)(uintptr_t)d->registers[page];
}

void devx_close_doorbells(devx *d)
{
    unmap_pages(d);
    while (d->num_uars)
        d->v->free_uar(d->uars[--d->num_uars]);
}
