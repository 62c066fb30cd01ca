/* SPDX-License-Identifier: Apache-2.0 */
/* Litmus on GPUs: the protocols of headers, advertisements and completion flags are right by their order alone.
 *
 * Kernels delay threads at random at every ordered access and at every token (link/device/delay.h). Most are not
 * delayed at all, some for less than a microsecond, few for up to a tenth of a millisecond. Meanwhile random scripts
 * over all options run. Every result must be the oracle's. Ranks are threads, on as many GPUs as there are. */
#include "cuda/gpus.h"
#include "ep/harness/options_script.h"
#include "exec/cuda/core/gpu.h"
#include "gpu/delays.h"
#include "oracle/routings.h"
#include "oracle/unit.h"
#include <stdio.h>

#define MOVES_PER_SCRIPT 40
#define ROUNDS           2400
/* One script in so many has many tokens. */
#define WIDE_ONCE_IN 4

static bool trial_script(uint64_t seed)
{
    random_source random = random_start(~seed);
    options_script s = options_script_make(seed, RANKS_THREADS, 0, MOVES_PER_SCRIPT);
    if (seed % WIDE_ONCE_IN == 0) options_script_widen(&s);
    for (int32_t b = 0; b < s.num_buffers; b++) {
        s.configs[b].ring_slots = (int32_t)random_between(&random, 1, 4);
        s.configs[b].num_channels = (int32_t)random_between(&random, 1, 3);
    }
    options_script_fit(&s);
    return options_script_run(&s);
}

/* A script that fails prints its seed: EXPAR_TEST_SEED=… EXPAR_TEST_ROUNDS=1 repeats it alone. */
static void test_delays_change_nothing(void **state)
{
    (void)state;
    uint64_t seed = random_test_seed("litmus on GPUs");
    gpu_programs_delay((uint32_t)seed | 1);
    delays_watch();
    for (int64_t left = random_test_rounds(ROUNDS); left > 0; left -= MOVES_PER_SCRIPT)
        assert_true(trial_script(seed++));
    assert_true(delays_made() > 0);
}

static bool has_compiler(void)
{
    const char *path;
    int32_t version;
    if (cuda_nvrtc_find(&path, &version) == EXPAR_OK) return true;
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
