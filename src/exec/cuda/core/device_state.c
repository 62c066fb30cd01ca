/* SPDX-License-Identifier: Apache-2.0 */
/* Per-GPU state. A rank's first buffer on a GPU makes it, with the device heap. Later buffers share it, and the last
 * one to leave destroys it. By CUDA IPC, where nothing grows, each buffer has a state of its own. */
#include "exec/cuda/core/device_state.h"
#include "group/group.h"

#include <stdlib.h>

/* The per-GPU states of a rank, attached to its group. They change as buffers are made and destroyed, which a rank does
   one at a time. */
struct gpu_device_states {
    group_attachment attachment;
    gpu_device_state *first;
    /* The number made so far, the same on all ranks. */
    uint64_t made;
};

/* All buffers are destroyed before the group, and with them their per-GPU states. */
static void device_states_end(group_attachment *attachment)
{
    free((gpu_device_states *)attachment);
}

/* Returns the rank's per-GPU states; NULL: out of memory. */
static gpu_device_states *device_states_of(expar_group *group)
{
    gpu_device_states *device_states = (gpu_device_states *)group_kept(group, device_states_end);
    if (device_states || !(device_states = calloc(1, sizeof *device_states))) return device_states;
    device_states->attachment.end = device_states_end;
    group_keep(group, &device_states->attachment);
    return device_states;
}

/* Returns the state that this rank's buffers on the GPU share; NULL: none yet. */
static gpu_device_state *device_state_on(const gpu_device_states *device_states, int32_t device)
{
    gpu_device_state *device_state = device_states ? device_states->first : NULL;
    while (device_state && (device_state->device != device || !device_heap_grows(device_state->heap)))
        device_state = device_state->next;
    return device_state;
}

/* Collective. Says whether all ranks have a state on the GPU that they want, and it is the same one. */
static expar_status agree_on_device_state(sym *symmetric, const gpu_device_states *device_states, uint64_t number,
                                          bool *same)
{
    const size_t size = (size_t)symmetric->size;
    uint64_t *numbers = calloc(size, sizeof *numbers);
    expar_status own = device_states && numbers ? EXPAR_OK : error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory");
    if (!numbers) return sym_out_of_step(symmetric, "the buffer", own);
    const boot_matter matter = {.what = "the buffer",
                                .rejected = "could not make its part",
                                .mine = &number,
                                .all = numbers,
                                .bytes = sizeof number};
    expar_status status = sym_agree(symmetric, &matter, own);
    *same = number != 0;
    for (size_t r = 0; r < size && status == EXPAR_OK; r++)
        *same = *same && numbers[r] == number;
    free(numbers);
    return status;
}

static void device_state_end(gpu_device_state *device_state, bool quiet)
{
    gpu_device_state **place = &device_state->device_states->first;
    while (*place != device_state)
        place = &(*place)->next;
    *place = device_state->next;
    gpu_store_close(device_state);
    gpu_segments_end(device_state->segments, quiet);
    device_heap_destroy(device_state->heap, quiet);
    free(device_state);
}

static expar_status device_state_make(sym *symmetric, gpu_device_states *device_states, int32_t device, bool for_node,
                                      gpu_device_state **out)
{
    device_heap *heap = NULL;
    gpu_segments *segments = NULL;
    expar_status status =
        for_node ? device_heap_create_for_node(symmetric, device, &heap) : device_heap_create(symmetric, device, &heap);
    device_states->made++;
    if (status == EXPAR_OK && !for_node) status = gpu_segments_make(symmetric, heap, &segments);
    if (status != EXPAR_OK) {
        device_heap_destroy(heap, true);
        return status;
    }
    gpu_device_state *device_state = calloc(1, sizeof *device_state);
    if (!device_state) {
        gpu_segments_end(segments, false);
        device_heap_destroy(heap, true);
        return sym_out_of_step(symmetric, "the buffer", error_set(EXPAR_ERR_MEMORY, "CUDA executor: no memory"));
    }
    device_state->heap = heap;
    device_state->segments = segments;
    device_state->device = device;
    device_state->number = device_states->made;
    device_state->device_states = device_states;
    device_state->next = device_states->first;
    *out = device_states->first = device_state;
    return EXPAR_OK;
}

expar_status gpu_device_state_enter(gpu_core *self, int32_t device, bool for_node)
{
    gpu_device_states *device_states = device_states_of(self->group);
    gpu_device_state *device_state = device_state_on(device_states, device);
    bool same = false;
    expar_status status =
        agree_on_device_state(self->sym, device_states, device_state ? device_state->number : 0, &same);
    if (status != EXPAR_OK) return status;
    if (!same) status = device_state_make(self->sym, device_states, device, for_node, &device_state);
    if (status != EXPAR_OK) return status;
    device_state->references++;
    self->device_state = device_state;
    self->heap = device_state->heap;
    self->segments = device_state->segments;
    self->device = device_heap_device(device_state->heap);
    return EXPAR_OK;
}

void gpu_device_state_leave(gpu_core *self, bool quiet)
{
    gpu_device_state *device_state = self->device_state;
    if (!device_state) return;
    self->device_state = NULL;
    device_state->loud |= !quiet;
    if (--device_state->references == 0) device_state_end(device_state, !device_state->loud);
}
