/* SPDX-License-Identifier: Apache-2.0 */
/* Rings for kernels. For a GPU the driver pins the ring, and the port lies in the GPU's memory. For the CPU the port
 * lies after the ring. */
#include "mem/device.h"
#include "net/proxy/parts.h"

/* The words with which the port begins lie after the ring, in pinned memory, so that the copy needs no other place. */
static uint64_t write_image(const proxy *self, cu_address at)
{
    uint8_t *image = (uint8_t *)self->ring + self->image_at;
    proxy_port *port = (proxy_port *)(void *)image;
    uint64_t *done_to = (uint64_t *)(void *)(image + sizeof *port);
    *port = proxy_port_start(self->ring, self->plan.num_slots, self->plan.first);
    port->done_to = (PORTABLE_SHARED(uint64_t) *)(uintptr_t)(at + sizeof *port);
    port->size = self->size;
    port->orphan_ns = (uint64_t)self->plan.orphan_ns;
    for (int32_t pe = 0; pe < self->size; pe++)
        done_to[pe] = proxy_end(self->plan.first, 0);
    return sizeof *port + (uint64_t)self->size * sizeof *done_to;
}

static expar_status make_port(proxy *self)
{
    const cu_address image = (cu_address)((uintptr_t)self->ring + self->image_at);
    const uint64_t bytes = self->ring_bytes - self->image_at;
    expar_status status = cuda_enter(self->gpu);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemAlloc, &self->gpu_port, bytes);
    cuda_leave();
    if (status != EXPAR_OK) return status;
    return mem_device_copy(self->gpu, self->gpu_port, image, write_image(self, self->gpu_port));
}

expar_status proxy_serve_gpu(proxy *self, const cuda_device *device, cu_address *port)
{
    expar_status status = mem_host_register(device, self->ring, self->ring_bytes);
    if (status != EXPAR_OK) return status;
    self->gpu = device;
    status = make_port(self);
    if (status != EXPAR_OK) {
        proxy_leave_gpu(self);
        return status;
    }
    *port = self->gpu_port;
    return EXPAR_OK;
}

proxy_port *proxy_serve_cpu(proxy *self)
{
    uint8_t *image = (uint8_t *)self->ring + self->image_at;
    write_image(self, (cu_address)(uintptr_t)image);
    self->serves_cpu = true;
    return (proxy_port *)(void *)image;
}

/* The head of a GPU lies in its memory, and the words after the ring are free once the port is made. */
expar_status proxy_quiet_kernels(proxy *self, const char *what)
{
    const proxy_port *seen = (const proxy_port *)(const void *)((const uint8_t *)self->ring + self->image_at);
    if (self->serves_cpu) return proxy_await_end(self, what, proxy_load(&seen->head));
    if (!self->gpu_port) return EXPAR_OK;
    expar_status status =
        mem_device_copy(self->gpu, (cu_address)(uintptr_t)&seen->head, self->gpu_port, sizeof seen->head);
    return status == EXPAR_OK ? proxy_await_end(self, what, proxy_load(&seen->head)) : status;
}

void proxy_leave_gpu(proxy *self)
{
    if (!self->gpu) return;
    if (self->gpu_port && cuda_enter(self->gpu) == EXPAR_OK) {
        if (CUDA_CALL(MemFree, self->gpu_port) != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
        cuda_leave();
    }
    mem_host_unregister(self->gpu, self->ring);
    self->gpu = NULL;
    self->gpu_port = 0;
}
