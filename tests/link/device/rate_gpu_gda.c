/* SPDX-License-Identifier: Apache-2.0 */
/* The producers of gda on a GPU are measured: requests a second, their bytes, and doorbells. The device is held while
 * warps post, so that figures are the producers' alone. Then it carries all out, which is verified. One thread alone
 * posts and waits; its time is shown beside the part of the device, which is a thread of the host. No time is asserted.
 * It runs on GPU 0, or on a simulated one, whose figures mean nothing. */
#include "link/device/gda_scene.h"

#define DEPTH       32768 /* all requests of a measurement fit into a queue */
#define MOST_QUEUES (GDAP_RANKS * GDAP_RANKS)
#define ROUNDS      80 /* of a warp, with 32 requests each */
#define ALONE       2000

static const gda_plan plan = {.depth = DEPTH, .cq_entries = DEPTH, .batch = 32, .most = 64, .num_results = 32};
static const nic_faults no_faults = {.rnr_retries = 3};

static const scene_kind kinds[] = {
    {"queues in pinned memory", GDA_PLACE_PINNED, GDA_PLACE_PINNED, GDA_RINGER_GPU, false},
    {"queues in the GPU", GDA_PLACE_DEVICE, GDA_PLACE_PINNED, GDA_RINGER_GPU, false},
    {"queues in the GPU, the host rings", GDA_PLACE_DEVICE, GDA_PLACE_PINNED, GDA_RINGER_CPU, false},
};

static int32_t rounds_of(int32_t wanted)
{
    return getenv("EXPAR_TEST_QUICK") ? wanted / 20 : wanted;
}

/* Returns the microseconds of the kernel. */
static double run_rate(const gda_scene *s, int32_t rounds, uint32_t num_queues)
{
    scene_own *own = scene_host(s);
    gdap_call call = scene_call(s, rounds, 0);
    own->times[0] = UINT64_MAX;
    own->times[1] = 0;
    call.num_queues = num_queues;
    scene_launch_call(s, "gda_rate", &call);
    scene_await(s);
    scene_check(s);
    return (double)(own->times[1] - own->times[0]) / 1000;
}

/* Waits until the device has carried out so many requests. */
static void await_requests(const gda_scene *s, uint64_t count)
{
    const int64_t since_ns = clock_ns();
    while (nic_counted(s->nic).requests < count && clock_ns() - since_ns < SCENE_WAIT_NS)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    assert_true(nic_counted(s->nic).requests == count && nic_counted(s->nic).errors == 0);
}

static uint64_t sum_of_words(const gda_scene *s)
{
    uint64_t sum = 0;
    for (int rank = 0; rank < GDAP_RANKS; rank++) {
        uint64_t word;
        ASSERT_OK(gda_space_read(&s->heaps[rank], 0, &word, sizeof word));
        sum += word;
    }
    return sum;
}

static void measure_together(gda_scene *s, uint32_t num_queues)
{
    const int32_t rounds = rounds_of(ROUNDS);
    const uint64_t count = (uint64_t)rounds * GDAP_WARPS * 32, before = sum_of_words(s);
    const uint64_t done = nic_counted(s->nic).requests;
    uint64_t rings = 0;
    nic_hold(s->nic, true);
    const double us = run_rate(s, rounds, num_queues);
    for (uint32_t q = 0; q < MOST_QUEUES; q++) {
        const gda_queue queue = scene_queue(s, q / GDAP_RANKS, q % GDAP_RANKS);
        rings += atomic_load(&queue.rings) + atomic_load(&s->rung[q / GDAP_RANKS][q % GDAP_RANKS].rings);
    }
    nic_hold(s->nic, false);
    await_requests(s, done + count);
    assert_true(sum_of_words(s) - before == count);
    printf("%s: %u queue%s, %d warps: %.2f M requests of %d bytes a second, %.3f doorbells each (%llu requests)\n",
           s->kind.name, num_queues, num_queues == 1 ? "" : "s", GDAP_WARPS, (double)count / us, GDA_BLOCK_BYTES,
           (double)rings / (double)count, (unsigned long long)count);
    fflush(stdout);
}

static void measure_alone(gda_scene *s)
{
    const int32_t rounds = rounds_of(ALONE);
    run_rate(s, rounds / 10, 0); /* warms up */
    const nic_counts before = nic_counted(s->nic);
    const double us = run_rate(s, rounds, 0);
    const nic_counts after = nic_counted(s->nic);
    const double completions = (double)(after.completions - before.completions);
    assert_true(after.requests - before.requests == (uint64_t)rounds);
    printf(
        "%s: one thread, posted until seen complete: %.2f us, the device in software took %.2f of it (%d requests)\n",
        s->kind.name, us / rounds, (double)(after.busy_ns - before.busy_ns) / completions / 1000, rounds);
    fflush(stdout);
}

static void test_rates(void **state)
{
    (void)state;
    for (size_t k = 0; k < ARRAY_LENGTH(kinds); k++) {
        gda_scene s;
        for (uint32_t queues = 0; queues <= MOST_QUEUES; queues = queues ? queues * 4 : 1) {
            scene_begin(&s, &kinds[k], &plan, &no_faults);
            ASSERT_OK(scene_load(s.device, 0, &s.program));
            if (queues)
                measure_together(&s, queues);
            else
                measure_alone(&s);
            cuda_program_release(s.program);
            scene_end(&s);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rates)};
    if (gpus_count(1) < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
