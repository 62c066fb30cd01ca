/* SPDX-License-Identifier: Apache-2.0 */
/* Litmus of low-latency mode on GPUs: the protocol of headers, acknowledgements and slots is right by its order alone.
 *
 * Kernels hold threads back at random at every ordered access and at every token (link/device/delay.h), while random
 * scripts run whose ranks are refused, differ, and make third calls. Every result must be the oracle's. Ranks are
 * threads, on as many GPUs as there are. */
#include "cuda/cuda.h"
#include "cuda/gpus.h"
#include "ep/low_latency/script.h"
#include "exec/cuda/core/gpu.h"
#include "gpu/delays.h"
#include "gpu/worker.h"
#include "oracle/unit.h"
#include <stdio.h>

#define OPS_PER_SCRIPT 24
#define ROUNDS         1200

/* A script that fails prints its seed: EXPAR_TEST_SEED=… EXPAR_TEST_ROUNDS=1 repeats it alone. */
static bool trial_script(uint64_t seed)
{
    const lowlat_script_plan plan = {.kind = RANKS_THREADS, .num_ops = OPS_PER_SCRIPT, .with_trouble = seed & 1};
    lowlat_script *s = lowlat_script_make(seed, &plan);
    bool passed = ranks_run(&s->ranks, lowlat_script_trial, s);
    if (!passed) lowlat_script_print(s);
    lowlat_script_free(s);
    return passed;
}

static void test_delays_change_nothing(void **state)
{
    (void)state;
    uint64_t seed = random_test_seed("low-latency litmus on GPUs");
    gpu_programs_delay((uint32_t)seed | 1);
    delays_watch();
    for (int64_t left = random_test_rounds(ROUNDS); left > 0; left -= OPS_PER_SCRIPT)
        assert_true(trial_script(seed++));
    if (!worker_is_host()) assert_true(delays_made() > 0);
}

static bool has_compiler(void)
{
    const char *path;
    int32_t version;
    if (worker_is_host() || cuda_nvrtc_find(&path, &version) == EXPAR_OK) return true;
    printf("SKIPPED: delays are compiled in: %s\n", expar_last_error());
    return false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_delays_change_nothing)};
    if (!has_compiler()) return GPUS_SKIP;
    routing_recorded();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
