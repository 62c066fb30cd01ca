/* SPDX-License-Identifier: Apache-2.0 */
/* Rings of the proxy that serve a GPU, and the kernels of tests/cuda/kernels/link.cu that use them. The peers' memory
 * is pinned memory of this process, or there is none and operations do nothing. */
#ifndef TESTS_LINK_DEVICE_RING_SCENE_H
#define TESTS_LINK_DEVICE_RING_SCENE_H

#include "cuda/cuda.h"
#include "cuda/gpus.h"
#include "cuda/kernels/link.h"
#include "cuda/test_sources.h"
#include "mem/device.h"
#include "net/copying.h"
#include "oracle/unit.h"

#include <stdio.h>
#include <string.h>

#define ASSERT_OK(call)                                                                                                \
    do {                                                                                                               \
        expar_status status_of_call = (call);                                                                          \
        if (status_of_call != EXPAR_OK) fail_msg("%s: %s", #call, expar_last_error());                                 \
    } while (0)

#define SCENE_SLOTS 1024

typedef struct ring_scene {
    cuda_device *device;
    cuda_program *program;
    copying rank;
    proxy_crew *crew;
    int32_t num_rings;
    proxy *rings[LINK_MOST_RINGS];
    cu_address ports[LINK_MOST_RINGS];
    /* words that kernels raise, and 64 bytes for each */
    mem_pinned words;
} ring_scene;

enum { WORD_WRONG, WORD_LATE, WORD_BEGIN, WORD_END, WORD_COUNT };

static inline void *scene_word(const ring_scene *s, int32_t word)
{
    return (uint8_t *)s->words.host + 64 * word;
}

static inline void *scene_word_on_gpu(const ring_scene *s, int32_t word)
{
    return (uint8_t *)(uintptr_t)s->words.device + 64 * word;
}

/* seed: of the delays of kernels; 0: there are none. */
static inline expar_status scene_load(cuda_device *device, int64_t seed, cuda_program **out)
{
    const cuda_macro late = {"EXPAR_DELAYS", seed};
    for (size_t i = 0; i < test_num_sources; i++)
        if (strstr(test_sources[i].name, "kernels/link.cu"))
            return cuda_program_make(device, &test_sources[i], &late, seed ? 1 : 0, out);
    return error_set(EXPAR_ERR_ARGUMENT, "the tests have no kernel source link.cu");
}

/* peer: memory of PE 1 that the host reads and writes, or NULL; yields: threads outnumber cores. */
static inline void scene_open(ring_scene *s, int32_t rings, uint32_t num_slots, void *peer, uint64_t bytes, bool yields)
{
    memset(s, 0, sizeof *s);
    ASSERT_OK(cuda_device_open(0, &s->device));
    ASSERT_OK(cuda_enter(s->device));
    ASSERT_OK(mem_pinned_create(64 * WORD_COUNT, &s->words));
    copying_open(&s->rank, 0);
    s->rank.memory[1] = peer;
    if (peer) atomic_store(&s->rank.bytes, bytes);
    ASSERT_OK(proxy_crew_open(rings, &s->crew));
    for (int32_t i = 0; i < rings; i++, s->num_rings++) {
        proxy_plan plan = copying_plan(&s->rank, num_slots);
        plan.first = UINT64_MAX - 100; /* numbers pass the end of 64 bits */
        plan.crew = s->crew;
        plan.yields = yields;
        plan.orphan_ns = INT64_C(3600) * 1000000000;
        ASSERT_OK(proxy_open(&plan, &s->rings[i]));
        ASSERT_OK(proxy_serve_gpu(s->rings[i], s->device, &s->ports[i]));
    }
}

static inline void scene_close(ring_scene *s)
{
    for (int32_t i = 0; i < s->num_rings; i++)
        proxy_close(s->rings[i]);
    proxy_crew_close(s->crew);
    mem_pinned_free(&s->words);
    cuda_leave();
    cuda_device_close(s->device);
}

static inline void scene_launch(const ring_scene *s, const char *kernel, uint32_t blocks, void *call)
{
    cuda_launch launch = {.blocks = blocks, .threads = LINK_THREADS};
    ASSERT_OK(cuda_program_kernel(s->program, kernel, 0, &launch.function));
    for (int32_t i = 0; i < s->num_rings; i++)
        proxy_expect(s->rings[i]);
    ASSERT_OK(cuda_launch_kernel(&launch, (void *[]){call}));
}

#endif
