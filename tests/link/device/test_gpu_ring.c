/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels reach a peer by the proxy's ring (link/device/ring.h), with the suite of mapped memory: rows are seen after
 * their flags, also with threads that are late at random. Warps claim for all of their lanes at once, and no command is
 * lost. Kernels leave when the ring ends. On GPU 0, or on a simulated one. */
#include "gpu/delays.h"
#include "link/device/ring_scene.h"

#include <stdlib.h>
#include <time.h>

#define PAIRS      4
#define ROUNDS     24
#define SEEDS      2
#define TIMEOUT_NS (UINT64_C(60) * 1000000000)

static mem_pinned peer, sources;

/* Bodies with each seed; a GPU without a compiler has none late. */
static void with_delays(void (*body)(cuda_device *device, cuda_program *program))
{
    cuda_device *device;
    ASSERT_OK(cuda_device_open(0, &device));
    ASSERT_OK(cuda_enter(device));
    for (int64_t seed = 0; seed <= SEEDS; seed++) {
        cuda_program *program;
        ASSERT_OK(scene_load(device, seed, &program));
        if (seed && cuda_program_is_generic(program))
            printf("SKIPPED: no compiler for kernels, seed %d of delays\n", (int)seed);
        else
            body(device, program);
        cuda_program_release(program);
    }
    cuda_leave();
    cuda_device_close(device);
}

/* ---- mail -------------------------------------------------------------------------------------------------------- */

#define MOST_ROW_BYTES INT64_C(16000)
#define FLAGS_BYTES    (PAIRS * LINK_FLAG_WORDS * sizeof(uint64_t))

static void check_rows(int64_t row_bytes)
{
    const uint32_t *seen = (const uint32_t *)(const void *)((const uint8_t *)peer.host + FLAGS_BYTES);
    for (int32_t pair = 0; pair < PAIRS; pair++)
        for (int64_t i = 0; i < row_bytes / 4; i++)
            assert_int_equal(seen[pair * (row_bytes / 4) + i], link_unit_word(pair, ROUNDS, i));
}

static void send_mail(cuda_program *program, uint32_t num_slots, int64_t row_bytes)
{
    ring_scene s;
    memset(peer.host, 0, peer.bytes);
    scene_open(&s, 1, num_slots, peer.host, peer.bytes, true);
    s.program = program;
    uint8_t *on_gpu = (uint8_t *)(uintptr_t)peer.device;
    link_mail_call call = {.way = LINK_WAY_RING,
                           .rounds = ROUNDS,
                           .rows = on_gpu + FLAGS_BYTES,
                           .row_bytes = row_bytes,
                           .flags = (uint64_t *)(void *)on_gpu,
                           .wrong = scene_word_on_gpu(&s, WORD_WRONG),
                           .late = scene_word_on_gpu(&s, WORD_LATE),
                           .timeout_ns = TIMEOUT_NS,
                           .port = (proxy_port *)(uintptr_t)s.ports[0],
                           .sources = (uint8_t *)(uintptr_t)sources.device,
                           .sources_host = (uintptr_t)sources.host,
                           .rows_at = FLAGS_BYTES};
    scene_launch(&s, "link_mail", 2 * PAIRS, &call);
    ASSERT_OK(cuda_synchronize());
    assert_int_equal(*(uint32_t *)scene_word(&s, WORD_LATE), 0);
    assert_int_equal(*(uint32_t *)scene_word(&s, WORD_WRONG), 0);
    check_rows(row_bytes);
    s.rank.memory[1] = NULL;
    scene_close(&s);
}

static void send_all_mail(cuda_device *device, cuda_program *program)
{
    static const int64_t rows[] = {16, 16 * (LINK_THREADS + 1), MOST_ROW_BYTES};
    (void)device;
    for (size_t i = 0; i < ARRAY_LENGTH(rows); i++)
        for (uint32_t slots = 2; slots <= 32; slots *= 16)
            send_mail(program, slots, rows[i]);
}

static void test_rows_are_seen_after_their_flags(void **state)
{
    (void)state;
    with_delays(send_all_mail);
}

/* ---- storms ------------------------------------------------------------------------------------------------------ */

#define STORM_BLOCKS 4
#define STORM_ROUNDS 20

static uint64_t storm_commands(int32_t lane)
{
    uint64_t commands = 0;
    for (int32_t warp = 0; warp < STORM_BLOCKS * LINK_THREADS / 32; warp++)
        for (int32_t round = 0; round < STORM_ROUNDS; round++)
            commands += (uint64_t)link_storm_wants(warp, lane, round);
    return commands;
}

static void storm(cuda_device *device, cuda_program *program)
{
    ring_scene s;
    (void)device;
    memset(peer.host, 0, peer.bytes);
    scene_open(&s, 1, 64, peer.host, peer.bytes, true);
    s.program = program;
    link_storm_call call = {.port = (proxy_port *)(uintptr_t)s.ports[0],
                            .pe = 1,
                            .rounds = STORM_ROUNDS,
                            .late = scene_word_on_gpu(&s, WORD_LATE)};
    scene_launch(&s, "link_storm", STORM_BLOCKS, &call);
    ASSERT_OK(cuda_synchronize());
    assert_int_equal(*(uint32_t *)scene_word(&s, WORD_LATE), 0);
    for (int32_t lane = 0; lane < 32; lane++)
        assert_int_equal(((const uint64_t *)peer.host)[lane], storm_commands(lane));
    s.rank.memory[1] = NULL;
    scene_close(&s);
}

static void test_warps_lose_no_command(void **state)
{
    (void)state;
    with_delays(storm);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

/* The ring ends under a kernel that would issue for long: it leaves, and the context lives. */
static void end_under_kernel(cuda_device *device, cuda_program *program)
{
    ring_scene s;
    (void)device;
    scene_open(&s, 1, 64, NULL, 0, true);
    s.program = program;
    link_storm_call call = {.port = (proxy_port *)(uintptr_t)s.ports[0],
                            .pe = 1,
                            .rounds = INT32_MAX,
                            .late = scene_word_on_gpu(&s, WORD_LATE)};
    scene_launch(&s, "link_storm", STORM_BLOCKS, &call);
    const int64_t since_ns = clock_ns();
    while (atomic_load(&s.rank.posts) == 0 && clock_ns() - since_ns < (int64_t)TIMEOUT_NS)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    proxy_poison(s.rings[0], EXPAR_ERR_PEER);
    ASSERT_OK(cuda_synchronize());
    assert_int_equal(*(uint32_t *)scene_word(&s, WORD_LATE), STORM_BLOCKS * LINK_THREADS / 32);
    scene_close(&s);
}

static void test_kernels_leave_a_ring_that_ends(void **state)
{
    (void)state;
    with_delays(end_under_kernel);
}

/* ------------------------------------------------------------------------------------------------------------------ */

static int set_up(void **state)
{
    cuda_device *device;
    (void)state;
    delays_watch();
    if (cuda_device_open(0, &device) != EXPAR_OK || cuda_enter(device) != EXPAR_OK) return -1;
    ASSERT_OK(mem_pinned_create(FLAGS_BYTES + PAIRS * MOST_ROW_BYTES, &peer));
    ASSERT_OK(mem_pinned_create(PAIRS * MOST_ROW_BYTES, &sources));
    *state = device;
    return 0;
}

static int tear_down(void **state)
{
    mem_pinned_free(&sources);
    mem_pinned_free(&peer);
    cuda_leave();
    cuda_device_close(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_seen_after_their_flags),
        cmocka_unit_test(test_warps_lose_no_command),
        cmocka_unit_test(test_kernels_leave_a_ring_that_ends),
    };
    if (gpus_count(1) < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
