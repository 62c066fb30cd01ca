/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels of normal mode are compiled for which shape. Kernels that open a call are compiled with the buffer,
 * kernels for rows when a shape is first used.
 *
 * Ranks of one process that share a GPU load all kernels with the buffer, for any shape, and nothing afterwards
 * (core/programs.c). */
#include "exec/cuda/normal/normal_gpu.h"

#include <stdlib.h>

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void release(gpu_programs *programs)
{
    cuda_program_release(programs->dispatch);
    cuda_program_release(programs->combine);
    cuda_program_release(programs->slots);
    free(programs);
}

static bool is_number(int32_t dtype)
{
    return dtype == EXPAR_BF16 || dtype == EXPAR_F16 || dtype == EXPAR_F32;
}

/* Rows that cannot be added are only dispatched, and a dispatch does not use the type. */
static expar_status programs_load(gpu_executor *self, gpu_programs *out)
{
    const cuda_macro macros[] = {{"EXPAR_RANKS", self->shape.ranks},
                                 {"EXPAR_ROW_BYTES", out->row_bytes},
                                 {"EXPAR_TOPK", out->topk},
                                 {"EXPAR_DTYPE", out->dtype}};
    const bool plain = out->any_shape || !out->by_slot, adds = out->any_shape || is_number(out->dtype);
    gpu_request requests[GPU_MOST_REQUESTS];
    size_t count = 0;
    if (plain)
        requests[count++] =
            (gpu_request){"normal/dispatch.cu", "ep_dispatch_impl", macros, 3, &out->dispatch, &out->dispatch_kernel};
    if (plain && adds)
        requests[count++] =
            (gpu_request){"normal/combine.cu", "ep_combine_impl", macros, 4, &out->combine, &out->combine_kernel};
    if (out->any_shape || out->by_slot)
        requests[count++] = (gpu_request){"normal/combine_slots.cu", "ep_combine_impl_slots", macros, 4, &out->slots,
                                          &out->slots_kernel};
    return gpu_programs_request(&self->core, requests, count);
}

static expar_status load_beside_captures(gpu_executor *self, gpu_programs *out)
{
    int mode;
    expar_status status = gpu_leave_captures(&mode);
    if (status != EXPAR_OK) return status;
    status = programs_load(self, out);
    gpu_return_to_captures(mode);
    return status;
}

/* Loads all kernels that a shape needs, before a call launches any of them. */
static expar_status programs_add(gpu_executor *self, const gpu_programs *wanted)
{
    gpu_programs *made = malloc(sizeof *made);
    if (!made) return error_set(EXPAR_ERR_MEMORY, "no memory for a shape's kernels");
    *made = *wanted;
    expar_status status = load_beside_captures(self, made);
    if (status != EXPAR_OK) {
        release(made);
        return status;
    }
    made->next = self->programs;
    self->programs = made;
    return EXPAR_OK;
}

static bool serves(const gpu_programs *p, const gpu_programs *wanted)
{
    return p->any_shape || (p->row_bytes == wanted->row_bytes && p->topk == wanted->topk && p->dtype == wanted->dtype &&
                            p->by_slot == wanted->by_slot);
}

expar_status gpu_programs_find(gpu_executor *self, int64_t row_bytes, const ep_form *form, const gpu_programs **out)
{
    const gpu_programs wanted = {.row_bytes = row_bytes,
                                 .topk = form->topk,
                                 .dtype = form->dtype,
                                 .by_slot = gpu_by_slot(form, self->shape.ranks)};
    const gpu_programs *p = self->programs;
    while (p && !serves(p, &wanted))
        p = p->next;
    if (!p) {
        expar_status status = programs_add(self, &wanted);
        if (status != EXPAR_OK) return status;
        p = self->programs;
    }
    *out = p;
    return EXPAR_OK;
}

expar_status gpu_prepare(executor *base, const ep_form *form, int64_t row_bytes)
{
    const gpu_programs *unused;
    return gpu_programs_find(gpu_of(base), row_bytes, form, &unused);
}

/* ---- with the buffer --------------------------------------------------------------------------------------------- */

/* No call without a buffer has to load its kernels then while those of other ranks run on the GPU. */
static expar_status open_loose(int32_t device)
{
    const gpu_loose *unused;
    expar_status status = gpu_loose_find(&gpu_loose_counts, device, &unused);
    return status == EXPAR_OK ? gpu_loose_find(&gpu_loose_sums, device, &unused) : status;
}

expar_status gpu_programs_open(gpu_executor *self)
{
    const cuda_macro ranks = {"EXPAR_RANKS", self->shape.ranks};
    expar_status status = gpu_program_load(&self->core, "normal/layout.cu", &ranks, 1, &self->open_program);
    if (status == EXPAR_OK)
        status = cuda_program_load(self->core.device, "normal/expert.cu", NULL, 0, &self->expert_program);
    if (status == EXPAR_OK) status = cuda_program_kernel(self->open_program, "ep_notify", 0, &self->notify_kernel);
    if (status == EXPAR_OK) status = cuda_program_kernel(self->open_program, "ep_check_topk", 0, &self->check_kernel);
    if (status == EXPAR_OK) status = cuda_program_kernel(self->expert_program, "ep_map", 0, &self->map_kernel);
    if (status == EXPAR_OK) status = cuda_program_kernel(self->expert_program, "ep_expand", 0, &self->expand_kernel);
    if (status == EXPAR_OK)
        status = cuda_program_kernel(self->expert_program, "ep_zero_padding", 0, &self->padding_kernel);
    if (status == EXPAR_OK) status = cuda_program_kernel(self->expert_program, "ep_columns", 0, &self->columns_kernel);
    if (status == EXPAR_OK) status = cuda_program_kernel(self->expert_program, "ep_sources", 0, &self->sources_kernel);
    if (status == EXPAR_OK) status = cuda_program_kernel(self->expert_program, "ep_reduce", 0, &self->reduce_kernel);
    if (status == EXPAR_OK) status = cuda_program_kernel(self->expert_program, "ep_tell_counts", 0, &self->tell_kernel);
    const gpu_programs any = {.any_shape = true};
    if (status == EXPAR_OK && self->core.shares_gpu) status = programs_add(self, &any);
    return status == EXPAR_OK && self->core.shares_gpu ? open_loose(self->core.device->index) : status;
}

void gpu_programs_close(gpu_executor *self)
{
    while (self->programs) {
        gpu_programs *next = self->programs->next;
        release(self->programs);
        self->programs = next;
    }
    cuda_program_release(self->open_program);
    cuda_program_release(self->expert_program);
}
