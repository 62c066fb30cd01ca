/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of a rank change words of another rank by the rank's rings, and its transports: by mapped memory or by the
 * network (EXPAR_TRANSPORTS). Each ring carries a storm of warps. On a GPU that all ranks share, or a simulated one. */
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "group/group.h"
#include "link/device/ring_scene.h"
#include "shmem/rings.h"

#include <expar/memory.h>

#define RANKS        2
#define STORM_BLOCKS 2
#define STORM_ROUNDS 12

static ranks_kind kind = RANKS_THREADS;

static uint64_t storm_commands(int32_t lane)
{
    uint64_t commands = 0;
    for (int32_t warp = 0; warp < STORM_BLOCKS * LINK_THREADS / 32; warp++)
        for (int32_t round = 0; round < STORM_ROUNDS; round++)
            commands += (uint64_t)link_storm_wants(warp, lane, round);
    return commands;
}

static void storm_all_rings(expar_group *group, const sym_rings *rings, const cuda_program *program, uint64_t at)
{
    mem_pinned late;
    if (!CHECK_OK(mem_pinned_create(64, &late))) return;
    cuda_launch launch = {.blocks = STORM_BLOCKS, .threads = LINK_THREADS};
    CHECK_OK(cuda_program_kernel(program, "link_storm", 0, &launch.function));
    for (int32_t i = 0; i < rings->count; i++) {
        link_storm_call call = {.port = (proxy_port *)(uintptr_t)rings->ports[i],
                                .pe = (group->rank + 1) % RANKS,
                                .at = at,
                                .rounds = STORM_ROUNDS,
                                .late = (uint32_t *)(uintptr_t)late.device};
        sym_rings_expect(rings);
        CHECK_OK(cuda_launch_kernel(&launch, (void *[]){&call}));
        CHECK_OK(cuda_synchronize());
    }
    CHECK(*(uint32_t *)late.host == 0, "%u waits of warps have ended in vain", *(uint32_t *)late.host);
    mem_pinned_free(&late);
}

static void check_words(const uint64_t *words, int32_t rings)
{
    for (int32_t lane = 0; lane < 32; lane++) {
        const uint64_t expected = (uint64_t)rings * storm_commands(lane);
        CHECK(words[lane] == expected, "word %d is %llu, %llu is expected", lane, (unsigned long long)words[lane],
              (unsigned long long)expected);
    }
}

static void storm(expar_group *group, void *shared)
{
    const sym_rings *rings = NULL, *again = NULL;
    cuda_program *program = NULL;
    void *block = NULL;
    (void)shared;
    if (!CHECK_OK(expar_calloc(group, 32, sizeof(uint64_t), &block))) return;
    if (!CHECK_OK(sym_rings_get(group->sym, 0, &rings)) || !CHECK_OK(cuda_enter(rings->device))) return;
    CHECK_OK(sym_rings_get(group->sym, 0, &again));
    CHECK(again == rings, "the rings were made twice");
    CHECK_OK(scene_load(rings->device, 0, &program));
    const uint64_t at = (uint64_t)((uint8_t *)block - (uint8_t *)group->sym->heap.base);
    storm_all_rings(group, rings, program, at);
    CHECK_OK(expar_barrier_all(group));
    check_words(block, rings->count);
    cuda_program_release(program);
    cuda_leave();
    CHECK_OK(expar_barrier_all(group));
    CHECK_OK(expar_free(group, block));
}

static void test_kernels_reach_other_ranks(void **state)
{
    (void)state;
    assert_true(ranks_run(&(ranks_plan){.kind = kind, .size = RANKS}, storm, NULL));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kernels_reach_other_ranks)};
    if (argc > 1 && strcmp(argv[1], "processes") == 0) kind = RANKS_PROCESSES;
    if (gpus_count(1) < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
