/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks that the warps of the copy roofline's kernels write, put together as those of calls are. */
#include "bench/gpu/gpu.h"
#include <stdlib.h>

bool kernel_stamps_open(struct kernel_stamps *stamps, const struct bench_world *world, size_t moments, size_t warps)
{
    *stamps = (struct kernel_stamps){.world = world, .moments = moments, .warps = warps};
    stamps->words = world->device->alloc(world, moments * warps * sizeof *stamps->words);
    return stamps->words != NULL;
}

void kernel_stamps_close(struct kernel_stamps *stamps)
{
    if (stamps->words) stamps->world->device->free(stamps->world, stamps->words);
    stamps->words = NULL;
}

/* Returns a copy on the host, which the caller frees. NULL: there are none. */
static uint64_t *fetch(const struct kernel_stamps *stamps)
{
    const size_t bytes = stamps->moments * stamps->warps * sizeof *stamps->words;
    uint64_t *words = stamps->words ? malloc(bytes) : NULL;
    if (!words) return NULL;
    if (bench_good(stamps->world, CUDA_CALL(MemcpyDtoH, words, (cu_address)(uintptr_t)stamps->words, bytes)))
        return words;
    free(words);
    return NULL;
}

bool kernel_stamps_of_rows(const struct kernel_stamps *stamps, struct bench_moments *out)
{
    executor_times times;
    uint64_t *words = fetch(stamps);
    const bool known = words && gpu_stamps_read(words, stamps->warps, &times);
    free(words);
    if (known) *out = gpu_moments_of_rows(&times);
    return known;
}

bool kernel_stamps_of_turn(const struct kernel_stamps *stamps, struct bench_moments *out)
{
    ll_times times;
    uint64_t *words = fetch(stamps);
    const bool known = words && ll_stamps_read(words, stamps->warps, &times);
    free(words);
    if (known) *out = gpu_moments_of_turn(&times);
    return known;
}

struct bench_moments gpu_moments_of_rows(const executor_times *times)
{
    return (struct bench_moments){
        .notified = times->notified,
        .notify_us = {times->layout_us, times->headers_us, times->wait_us, times->counts_us, times->gap_us},
        .open_us = times->open_us,
        .sent_middle_us = times->sent_middle_us,
        .sent_us = times->sent_us,
        .ended_us = times->ended_us};
}

struct bench_moments gpu_moments_of_turn(const ll_times *times)
{
    return (struct bench_moments){.started_us = times->started_us,
                                  .sent_middle_us = times->sent_middle_us,
                                  .sent_us = times->sent_us,
                                  .seen_us = times->seen_us,
                                  .done_us = times->done_us,
                                  .ended_us = times->ended_us};
}
