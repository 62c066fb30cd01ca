/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory. PCI keeps the order of writes to all of it, because any of it may hold flags. Memory of GPUs is
 * registered by dma-buf where there is one, else as peer memory, which a module of the kernel makes possible. */
#include "base/shown.h"
#include "net/gda/devx/devx.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int access_of(const gda_source *source)
{
    const int shared = VERBS_REMOTE_WRITE | VERBS_REMOTE_READ | VERBS_REMOTE_ATOMIC;
    return VERBS_LOCAL_WRITE | (source->shared ? shared : 0);
}

static void name_memory(const gda_source *source, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%llu bytes of %s at %p", (unsigned long long)source->bytes,
             source->is_device ? "a GPU's memory" : "memory", source->base);
}

verbs_mr *devx_register(const devx *d, void *address, size_t bytes, int access)
{
    uint32_t tries = 0;
    verbs_mr *mr;
    do {
        errno = 0;
        mr = d->v->reg_mr(d->pd, address, bytes, access);
    } while (!mr && devx_again(errno, &tries));
    return mr;
}

/* Returns NULL, with a reason in *code, where there is no dma-buf or the driver cannot take it. */
static verbs_mr *register_dmabuf(const devx *d, const gda_source *source, int *code)
{
    *code = EOPNOTSUPP;
    if (!source->is_dmabuf || !d->v->reg_dmabuf_mr) return NULL;
    uint32_t tries = 0;
    verbs_mr *mr;
    do {
        errno = 0;
        mr = d->v->reg_dmabuf_mr(d->pd, source->offset, source->bytes, (uintptr_t)source->base, source->fd,
                                 access_of(source));
    } while (!mr && devx_again(errno, &tries));
    *code = errno ? errno : EIO;
    return mr;
}

static expar_status neither_way(const devx *d, const gda_source *source, int by_dmabuf, int by_peer)
{
    char what[96], first[64];
    name_memory(source, what, sizeof what);
    snprintf(first, sizeof first, "%s", strerror(by_dmabuf));
    return error_set(EXPAR_ERR_UNSUPPORTED,
                     "gda: %s: %s cannot be registered: by dma-buf (ibv_reg_dmabuf_mr: %s), which needs Linux 5.12, "
                     "rdma-core 34 and NVIDIA's open kernel modules, nor as peer memory (ibv_reg_mr: %s), which needs "
                     "the module nvidia-peermem",
                     d->name, what, first, strerror(by_peer));
}

expar_status devx_add_memory(gda_device *self, const gda_source *source, gda_memory *out)
{
    const devx *d = (const devx *)self;
    int by_dmabuf = 0;
    verbs_mr *mr = source->is_device ? register_dmabuf(d, source, &by_dmabuf) : NULL;
    if (!mr) mr = devx_register(d, source->base, source->bytes, access_of(source));
    if (!mr && source->is_device) return neither_way(d, source, by_dmabuf, errno ? errno : EIO);
    if (!mr) {
        char what[96];
        name_memory(source, what, sizeof what);
        return devx_failed(d, "ibv_reg_mr", what, errno ? errno : EIO);
    }
    *out = (gda_memory){
        .remote = (uintptr_t)source->base, .lkey = gda_be32(mr->lkey), .rkey = gda_be32(mr->rkey), .handle = mr};
    return EXPAR_OK;
}

void devx_remove_memory(gda_device *self, gda_memory *memory)
{
    const devx *d = (const devx *)self;
    if (memory->handle) d->v->dereg_mr(memory->handle);
    *memory = (gda_memory){0};
}
