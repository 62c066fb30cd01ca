/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels write the requests of a network device and ring its doorbell (link/device/gda.h), and a software NIC carries
 * them out, on GPU 0 or on a simulated one. Random programs run against a model of memory, under all faults that a
 * device may have. The signal of a message must not overtake its data. Queues fail, and a device stops. Indices begin
 * near the end of 16 bits.
 *
 * Queues and heaps are in pinned memory, which the NIC's thread loads and stores, or in that of the GPU, which it
 * reaches by copies. The kernels ring, or a thread of the host does. */
#include "gpu/delays.h"
#include "link/device/gda_scene.h"

#define ROUNDS 24 /* of a warp */
#define SEEDS  1

static const scene_kind kinds[] = {
    {"queues and heaps in pinned memory", GDA_PLACE_PINNED, GDA_PLACE_PINNED, GDA_RINGER_GPU, false},
    {"queues and heaps in the GPU", GDA_PLACE_DEVICE, GDA_PLACE_DEVICE, GDA_RINGER_GPU, false},
    {"queues in the GPU, heaps in pinned memory", GDA_PLACE_DEVICE, GDA_PLACE_PINNED, GDA_RINGER_GPU, true},
    {"queues in pinned memory, heaps in the GPU, the host rings", GDA_PLACE_PINNED, GDA_PLACE_DEVICE, GDA_RINGER_CPU,
     true},
    {"queues in the GPU, the host rings", GDA_PLACE_DEVICE, GDA_PLACE_PINNED, GDA_RINGER_CPU, false},
};

static const gda_plan plans[] = {
    {.depth = 64, .cq_entries = 64, .batch = 8, .most = 7, .num_results = 32, .first = 0xffe0},
    {.depth = 128, .cq_entries = 256, .batch = 16, .most = 96, .num_results = 64, .flushes = true, .first = 0x1fff0},
};

static const nic_faults harmless = {.delay_turns = 2,
                                    .drop_one_in = 17,
                                    .lose_answer_one_in = 9,
                                    .coalesce_one_in = 3,
                                    .shuffle_one_in = 3,
                                    .late_reads_one_in = 3,
                                    .rnr_retries = 3};

/* The body with each kind and plan, and with each seed of delays; a GPU without a compiler has none late. */
static void with_all(void (*body)(gda_scene *s, random_source *random), const nic_faults *faults, const char *name)
{
    random_source random = random_start(random_test_seed(name));
    for (size_t k = 0; k < ARRAY_LENGTH(kinds); k++) {
        for (int64_t seed = 0; seed <= SEEDS; seed++) {
            nic_faults seeded = *faults;
            gda_scene s;
            seeded.seed = random_bits(&random);
            scene_begin(&s, &kinds[k], &plans[(k + (size_t)seed) % ARRAY_LENGTH(plans)], &seeded);
            ASSERT_OK(scene_load(s.device, seed, &s.program));
            if (seed && cuda_program_is_generic(s.program))
                printf("SKIPPED: no compiler for kernels, seed %d of delays\n", (int)seed);
            else
                body(&s, &random);
            cuda_program_release(s.program);
            scene_end(&s);
        }
    }
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static void compare_areas(const gda_scene *s)
{
    static uint8_t heap[GDAP_HEAP];
    const scene_own *own = scene_host(s);
    uint64_t adds = 0, seen = 0;
    for (int rank = 0; rank < GDAP_RANKS; rank++) {
        ASSERT_OK(gda_space_read(&s->heaps[rank], 0, heap, sizeof heap));
        for (int w = 0; w < GDAP_WARPS; w++)
            assert_memory_equal(heap + GDAP_AREAS_AT + w * GDAP_AREA, own->models[w][rank], GDAP_AREA);
        if (rank == 0) memcpy(&seen, heap, sizeof seen);
    }
    for (int w = 0; w < GDAP_WARPS; w++)
        adds += own->adds[w];
    assert_true(adds > 0 && seen == adds);
}

static void run_programs(gda_scene *s, random_source *random)
{
    scene_launch(s, "gda_programs", (int32_t)random_test_rounds(ROUNDS), random_bits(random));
    scene_await(s);
    scene_check(s);
    compare_areas(s);
    const nic_counts counts = nic_counted(s->nic);
    assert_true(counts.requests > 0 && counts.rings > 0);
    assert_true(counts.errors == 0 && counts.bad_rings == 0 && counts.overruns == 0);
    for (uint32_t from = 0; from < GDAP_RANKS; from++) {
        const gda_queue queue = scene_queue(s, from, 1 - from);
        assert_true(atomic_load(&queue.cons_idx) == atomic_load(&queue.ready_head));
        assert_true(atomic_load(&queue.cons_idx) >> 16 > s->plan.first >> 16); /* the 16 bits have wrapped */
    }
}

static void test_programs(void **state)
{
    (void)state;
    with_all(run_programs, &harmless, "programs");
}

/* A device that carries atomics out twice is noticed. */
static void test_atomics_twice(void **state)
{
    nic_faults broken = harmless;
    int failed = 0;
    gda_scene s;
    (void)state;
    broken.lose_answer_one_in = 2;
    broken.atomics_twice = true;
    scene_begin(&s, &kinds[0], &plans[0], &broken);
    ASSERT_OK(scene_load(s.device, 0, &s.program));
    scene_launch(&s, "gda_programs", ROUNDS, 17);
    scene_await(&s);
    for (int w = 0; w < GDAP_WARPS; w++)
        failed += scene_host(&s)->wrong[w] == GDAP_OLD;
    assert_true(failed > 0);
    cuda_program_release(s.program);
    scene_end(&s);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static void run_messages(gda_scene *s, random_source *random)
{
    scene_launch(s, "gda_messages", (int32_t)random_test_rounds(ROUNDS), random_bits(random));
    scene_await(s);
    scene_check(s);
}

static void test_messages(void **state)
{
    (void)state;
    with_all(run_messages, &harmless, "messages");
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Checks that all warps end with the cause, and that the host is told of it. */
static void check_failures(const gda_scene *s, uint32_t by, uint32_t syndrome)
{
    const scene_own *own = scene_host(s);
    scene_check(s);
    for (uint32_t from = 0; from < GDAP_RANKS; from++) {
        const gda_queue queue = scene_queue(s, from, 1 - from);
        const uint64_t failure = atomic_load(&queue.error);
        assert_int_equal(gda_failure_by(failure), by);
        assert_int_equal(gda_failure_syndrome(failure), syndrome);
        assert_true(atomic_load(&own->words[from][1 - from].told) == failure);
    }
    for (int w = 0; w < GDAP_WARPS; w++)
        assert_true(own->seen[w] != 0);
}

static void run_failing(gda_scene *s, random_source *random)
{
    scene_launch(s, "gda_fail", INT32_MAX, random_bits(random));
    scene_await(s);
    /* Requests that are flushed may hide the cause from all who poll; see gda_cause_is_unseen. */
    const gda_queue queue = scene_queue(s, 0, 1);
    const uint64_t failure = atomic_load(&queue.error);
    if (!gda_cause_is_unseen(failure)) assert_int_equal(gda_failure_syndrome(failure), GDA_SYNDROME_REMOTE_OPERATION);
    scene_check(s);
    assert_int_equal(nic_counted(s->nic).errors, GDAP_RANKS);
    for (uint32_t from = 0; from < GDAP_RANKS; from++) {
        const gda_queue failed = scene_queue(s, from, 1 - from);
        assert_true(atomic_load(&scene_host(s)->words[from][1 - from].told) == atomic_load(&failed.error));
    }
}

static void test_failing_requests(void **state)
{
    nic_faults failing = harmless;
    (void)state;
    failing.fail_one_in = 60;
    with_all(run_failing, &failing, "failing requests");
}

/* The device stops in the middle; the host gives the queues up, and the kernel ends. */
static void run_stopped(gda_scene *s, random_source *random)
{
    const int64_t since_ns = clock_ns();
    scene_launch(s, "gda_fail", INT32_MAX, random_bits(random));
    while (nic_counted(s->nic).requests < 200 && clock_ns() - since_ns < SCENE_WAIT_NS)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    assert_true(nic_counted(s->nic).requests >= 200);
    nic_hold(s->nic, true);
    scene_stop(s);
    scene_await(s);
    check_failures(s, GDA_FAILED_BY_HOST, 0);
}

static void test_stopped_device(void **state)
{
    (void)state;
    with_all(run_stopped, &harmless, "stopped device");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_programs),         cmocka_unit_test(test_atomics_twice),  cmocka_unit_test(test_messages),
        cmocka_unit_test(test_failing_requests), cmocka_unit_test(test_stopped_device),
    };
    if (gpus_count(1) < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
