/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the proxy's rings from kernels, by a transport that does nothing. Figures are the time from a command's
 * issue until its thread sees that it is done, and the commands a second of one ring and of four. It verifies that all
 * commands were posted, and asserts no time. On GPU 0, or on a simulated one, whose figures mean nothing. */
#include "link/device/ring_scene.h"

#include <stdlib.h>

#define ALONE       20000
#define WARM        1000
#define MOST_RINGS  4
#define BLOCKS      2 /* for each ring */
#define RATE_ROUNDS 5000

/* The simulated GPU takes turns by switches of stacks: fewer rounds do. */
static int32_t rounds_of(int32_t wanted)
{
    const char *few = getenv("EXPAR_TEST_QUICK");
    return few ? wanted / 100 : wanted;
}

static double measured_us(const ring_scene *s)
{
    return (double)(*(uint64_t *)scene_word(s, WORD_END) - *(uint64_t *)scene_word(s, WORD_BEGIN)) / 1000;
}

static link_rate_call rate_call(const ring_scene *s, int32_t rounds)
{
    link_rate_call call = {.num_rings = s->num_rings,
                           .rounds = rounds,
                           .begin = scene_word_on_gpu(s, WORD_BEGIN),
                           .end = scene_word_on_gpu(s, WORD_END),
                           .late = scene_word_on_gpu(s, WORD_LATE)};
    for (int32_t i = 0; i < s->num_rings; i++)
        call.ports[i] = (proxy_port *)(uintptr_t)s->ports[i];
    memset(s->words.host, 0, s->words.bytes);
    *(uint64_t *)scene_word(s, WORD_BEGIN) = UINT64_MAX;
    return call;
}

static void run_rate(ring_scene *s, link_rate_call *call, uint32_t blocks, uint64_t commands)
{
    const uint64_t before = atomic_load(&s->rank.posts);
    scene_launch(s, "link_rate", blocks, call);
    ASSERT_OK(cuda_synchronize());
    assert_int_equal(*(uint32_t *)scene_word(s, WORD_LATE), 0);
    assert_int_equal(atomic_load(&s->rank.posts) - before, commands);
}

static int compare(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void measure_alone(cuda_program *program)
{
    ring_scene s;
    mem_pinned cycles;
    cu_address on_gpu; /* of `cycles`: a store to pinned memory would hold up the next command's fence */
    const int32_t rounds = rounds_of(ALONE);
    scene_open(&s, 1, SCENE_SLOTS, NULL, 0, false);
    s.program = program;
    const size_t bytes = (size_t)rounds * sizeof(uint32_t);
    ASSERT_OK(mem_pinned_create(bytes, &cycles));
    ASSERT_OK(CUDA_CALL(MemAlloc, &on_gpu, bytes));
    for (int32_t turn = 0; turn < 2; turn++) { /* the first warms up */
        const int32_t now = turn ? rounds : rounds_of(WARM);
        link_rate_call call = rate_call(&s, now);
        call.cycles = (uint32_t *)(uintptr_t)on_gpu;
        run_rate(&s, &call, 1, (uint64_t)now);
    }
    ASSERT_OK(mem_device_copy(s.device, cycles.device, on_gpu, bytes));
    uint32_t *all = cycles.host;
    double sum = 0;
    for (int32_t i = 0; i < rounds; i++)
        sum += all[i];
    const double us = measured_us(&s) / sum; /* a cycle's */
    qsort(all, (size_t)rounds, sizeof *all, compare);
    printf("command issued until seen done, one thread: mean %.2f us, median %.2f, p99 %.2f (%d commands)\n",
           measured_us(&s) / rounds, all[rounds / 2] * us, all[rounds / 100 * 99] * us, rounds);
    fflush(stdout);
    ASSERT_OK(CUDA_CALL(MemFree, on_gpu));
    mem_pinned_free(&cycles);
    scene_close(&s);
}

static void measure_together(cuda_program *program, int32_t rings)
{
    ring_scene s;
    const int32_t rounds = rounds_of(RATE_ROUNDS);
    const uint32_t blocks = (uint32_t)(rings * BLOCKS);
    const uint64_t commands = (uint64_t)rounds * blocks * LINK_THREADS;
    scene_open(&s, rings, SCENE_SLOTS, NULL, 0, false);
    s.program = program;
    link_rate_call call = rate_call(&s, rounds);
    run_rate(&s, &call, blocks, commands);
    printf("%d rings, %u warps: %.2f M commands a second (%llu commands)\n", rings, blocks * LINK_THREADS / 32,
           (double)commands / measured_us(&s), (unsigned long long)commands);
    fflush(stdout);
    scene_close(&s);
}

static void test_rates_of_rings(void **state)
{
    cuda_device *device;
    cuda_program *program;
    (void)state;
    ASSERT_OK(cuda_device_open(0, &device));
    ASSERT_OK(cuda_enter(device));
    ASSERT_OK(scene_load(device, 0, &program));
    measure_alone(program);
    for (int32_t rings = 1; rings <= MOST_RINGS; rings *= 2)
        measure_together(program, rings);
    cuda_program_release(program);
    cuda_leave();
    cuda_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rates_of_rings)};
    if (gpus_count(1) < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
