/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the rows of expar check about the links between ranks. Measurements are given, and broken operations are
 * real calls that change a byte or lose an update. */
#include "machine.h"
#include <expar/atomics.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Four ranks on two hosts. */
static int32_t host_of[] = {0, 0, 1, 1}, first_of[] = {0, 2};
static char host_names[4][65] = {"alpha", "alpha", "beta", "beta"};
static const struct check_host two_hosts = {
    .count = 2, .of = host_of, .node = host_of, .first = first_of, .names = host_names};

/* ---- MTU --------------------------------------------------------------------------------------------------------- */

static void judge_mtu(struct machine *machine, int32_t alpha, int32_t beta, uint8_t there, uint8_t back)
{
    const int32_t mtus[] = {alpha, beta};
    const uint8_t got[] = {0, there, back, 0};
    machine_forget(machine);
    check_judge_mtu(&two_hosts, mtus, got, machine->rows);
}

static void different_mtus_are_found(void **state)
{
    struct machine *machine = *state;
    judge_mtu(machine, 9000, 1500, 1, 2);
    row_assert(machine->rows, "mtu", CHECK_FAILURE, "alpha 9000, beta 1500", "ip link set DEV mtu 1500");
    row_assert(machine->rows, "mtu_path", CHECK_FAILURE, "full packets are lost from alpha to beta (9000 bytes)",
               "ping -M do");
    judge_mtu(machine, 1500, 1500, 2, 2);
    row_assert(machine->rows, "mtu", CHECK_OK, "1500 on all 2 hosts", NULL);
    row_assert(machine->rows, "mtu_path", CHECK_OK, "between all 2 hosts", NULL);
}

/* A switch that drops what both hosts call small enough. */
static void an_untrue_path_is_found(void **state)
{
    struct machine *machine = *state;
    judge_mtu(machine, 9000, 9000, 2, 1);
    row_assert(machine->rows, "mtu", CHECK_OK, NULL, NULL);
    row_assert(machine->rows, "mtu_path", CHECK_FAILURE, "beta to alpha", "ping -M do");
}

static void a_filter_of_udp_is_no_failure(void **state)
{
    struct machine *machine = *state;
    judge_mtu(machine, 9000, 0, 0, 0);
    row_assert(machine->rows, "mtu", CHECK_SKIPPED, "alpha 9000, beta 0", NULL);
    row_assert(machine->rows, "mtu_path", CHECK_SKIPPED, "no UDP arrives from alpha to beta", "allow UDP");
}

/* ---- clocks ------------------------------------------------------------------------------------------------------ */

/* Rank 1's clock is 50 ms ahead of rank 0's. Its gathers begin 1 ms after those of rank 0. */
static void offsets_of_clocks_are_bounded(void **state)
{
    (void)state;
    int64_t stamps[8][2], low[2], high[2];
    for (int64_t k = 0; k < 8; k++) {
        stamps[k][0] = k * 3000000;
        stamps[k][1] = k * 3000000 + 1000000 + 50000000;
    }
    check_clock_bounds(stamps[0], 8, 2, low, high);
    assert_true(low[0] <= 0 && high[0] >= 0);
    assert_true(low[1] <= 50000000 && high[1] >= 50000000);
    assert_true(low[1] >= 50000000 - 3000000 && high[1] <= 50000000 + 5000000);
}

/* One slow gather widens nothing: the best bounds of all rounds count. */
static void a_slow_gather_does_not_widen_the_bounds(void **state)
{
    (void)state;
    int64_t stamps[8][2], low[2], high[2];
    for (int64_t k = 0; k < 8; k++)
        stamps[k][0] = stamps[k][1] = k * 1000000 + (k > 3 ? 500000000 : 0);
    check_clock_bounds(stamps[0], 8, 2, low, high);
    assert_true(low[1] >= -1000000 && high[1] <= 1000000);
}

static void wrong_clocks_are_found(void **state)
{
    struct machine *machine = *state;
    int64_t low[] = {-1000, -1000, 10000001, 10000001}, high[] = {1000, 1000, 12000001, 12000001};
    check_judge_clocks(&two_hosts, 4, low, high, machine->rows);
    row_assert(machine->rows, "clocks", CHECK_WARNING, "beta +11.0 ms", "chronyc makestep");
    /* Bounds that allow 10 ms prove nothing. */
    low[2] = 10000000;
    machine_forget(machine);
    check_judge_clocks(&two_hosts, 4, low, high, machine->rows);
    row_assert(machine->rows, "clocks", CHECK_OK, "at most 11.0 ms", NULL);
    high[2] = -10000001;
    low[2] = -20000000;
    machine_forget(machine);
    check_judge_clocks(&two_hosts, 4, low, high, machine->rows);
    row_assert(machine->rows, "clocks", CHECK_WARNING, "beta -15.0 ms", NULL);
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

static void set_pair(struct check_pair *pairs, int from, int to, double latency_us, double gbps)
{
    pairs[4 * from + to] = (struct check_pair){.latency_us = latency_us, .gbps = gbps};
}

/* Inside 1 us and 10 GB/s, between 20 us and 2 GB/s. */
static void set_all(struct check_pair *pairs)
{
    for (int from = 0; from < 4; from++)
        for (int to = from + 1; to < 4; to++)
            if (host_of[from] == host_of[to])
                set_pair(pairs, from, to, 1, 10);
            else
                set_pair(pairs, from, to, 20, 2);
}

static void pairs_are_compared_with_their_kind(void **state)
{
    struct machine *machine = *state;
    struct check_pair pairs[16] = {0};
    set_all(pairs);
    check_judge_pairs(&two_hosts, 4, pairs, machine->rows);
    row_assert(machine->rows, "pair_latency", CHECK_OK, "median 1 us inside a node, 20 us between nodes", NULL);
    row_assert(machine->rows, "pair_rate", CHECK_OK, "median 10 GB/s inside a node, 2 GB/s between nodes", NULL);
}

static void slow_pairs_are_named(void **state)
{
    struct machine *machine = *state;
    struct check_pair pairs[16] = {0};
    set_all(pairs);
    set_pair(pairs, 0, 3, 26, 1.59);
    set_pair(pairs, 2, 3, 1.26, 7.9);
    check_judge_pairs(&two_hosts, 4, pairs, machine->rows);
    row_assert(machine->rows, "pair_latency", CHECK_WARNING, "slow: 2-3 1.26, 0-3 (alpha-beta) 26", "mtr HOST");
    row_assert(machine->rows, "pair_rate", CHECK_WARNING, "slow: 2-3 7.9, 0-3 (alpha-beta) 1.59", "ethtool DEV");
    set_all(pairs);
    set_pair(pairs, 0, 3, 24.9, 1.61); /* just above 0.8 */
    machine_forget(machine);
    check_judge_pairs(&two_hosts, 4, pairs, machine->rows);
    row_assert(machine->rows, "pair_latency", CHECK_OK, NULL, NULL);
    row_assert(machine->rows, "pair_rate", CHECK_OK, NULL, NULL);
}

static void a_falling_rate_and_new_errors_are_found(void **state)
{
    struct machine *machine = *state;
    const double steady[] = {10, 9.9, 10.1, 8.1}, falling[] = {10, 10, 10, 7.9};
    check_judge_load(steady, 4, 0, machine->rows);
    row_assert(machine->rows, "load", CHECK_OK, "10 GB/s of all ranks, 8.1 in the slowest of 4 s", NULL);
    machine_forget(machine);
    check_judge_load(falling, 4, 0, machine->rows);
    row_assert(machine->rows, "load", CHECK_WARNING, "7.9 in the slowest", "--long");
    machine_forget(machine);
    check_judge_load(steady, 4, 3, machine->rows);
    row_assert(machine->rows, "load", CHECK_FAILURE, "3 new errors", "ethtool -S");
}

/* ---- the self-test ----------------------------------------------------------------------------------------------- */

static expar_status flipping_put(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    unsigned char *copy = malloc(bytes);
    memcpy(copy, source, bytes);
    copy[bytes - 1] ^= 0x10;
    expar_status status = expar_put(group, dest, copy, bytes, pe);
    free(copy);
    return status;
}

static expar_status short_get(expar_group *group, void *dest, const void *source, size_t bytes, int32_t pe)
{
    return expar_get(group, dest, source, bytes - 1, pe);
}

static expar_status lost_add(expar_group *group, uint64_t *word, uint64_t value, int32_t pe, uint64_t *old)
{
    return expar_atomic_fetch_add_u64(group, word, value - 1, pe, old);
}

static expar_status wrong_swap(expar_group *group, uint64_t *word, uint64_t expected, uint64_t desired, int32_t pe,
                               uint64_t *old)
{
    return expar_atomic_compare_swap_u64(group, word, expected, desired + 1000, pe, old);
}

/* The signal overtakes the data. */
static expar_status early_signal(expar_group *group, void *dest, const void *source, size_t bytes, uint64_t *signal,
                                 uint64_t value, expar_signal_op op, int32_t pe)
{
    (void)bytes;
    return expar_put_signal(group, dest, source, 0, signal, value, op, pe);
}

struct tested_rank {
    expar_group *group;
    const struct check_operations *operations;
    struct check_text wrong;
    expar_status status;
};

static void *rank_main(void *argument)
{
    struct tested_rank *rank = argument;
    rank->status = check_selftest(rank->group, rank->operations, -1, &rank->wrong);
    expar_group_destroy(rank->group);
    return NULL;
}

/* Runs the self-test on three ranks. Returns what the first rank with an error says; "" without one. */
static struct check_text self_test(const struct check_operations *operations)
{
    expar_group *groups[3];
    struct tested_rank ranks[3] = {0};
    pthread_t threads[3];
    struct check_text found = {0};
    assert_int_equal(expar_group_create_threads(3, NULL, groups), EXPAR_OK);
    for (int i = 0; i < 3; i++) {
        ranks[i] = (struct tested_rank){.group = groups[i], .operations = operations};
        assert_int_equal(pthread_create(&threads[i], NULL, rank_main, &ranks[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(ranks[i].status, EXPAR_OK);
        if (!found.used) found = ranks[i].wrong;
    }
    return found;
}

static void assert_found(const struct check_operations *operations, const char *part)
{
    const struct check_text found = self_test(operations);
    if (!strstr(found.text, part)) fail_msg("'%s' lacks '%s'", found.text, part);
}

static void sound_transports_pass(void **state)
{
    (void)state;
    assert_string_equal(self_test(&check_library_operations).text, "");
}

static void broken_operations_are_found(void **state)
{
    (void)state;
    struct check_operations broken = check_library_operations;
    broken.put = flipping_put;
    assert_found(&broken, "put from rank 1 to rank 0: byte 5002 of 5003 is 0x10 instead of 0x00");
    broken = check_library_operations;
    broken.get = short_get;
    assert_found(&broken, "get from rank 1 to rank 0: byte 5002 of 5003 is 0x3c instead of 0x00");
    broken = check_library_operations;
    broken.fetch_add = lost_add;
    assert_found(&broken, "fetch-add to rank 0: the sum is 9 instead of 15");
    broken = check_library_operations;
    broken.compare_swap = wrong_swap;
    assert_found(&broken, "compare-and-swap ");
    broken = check_library_operations;
    broken.put_signal = early_signal;
    assert_found(&broken, "put with signal from rank ");
}

/* ---- rows of all ranks ------------------------------------------------------------------------------------------- */

static void add_row(json_t *rows, const char *name, enum check_status status, const char *value)
{
    check_add(rows, &(struct check_row){"host", name, status, "what is right", "mend it"}, "%s", value);
}

static json_t *merge(json_t *const *lists, int32_t ranks)
{
    json_t *merged = check_merge(ranks, lists);
    assert_non_null(merged);
    for (int32_t rank = 0; rank < ranks; rank++)
        json_decref(lists[rank]);
    return merged;
}

static void differences_are_found(void **state)
{
    (void)state;
    json_t *lists[] = {json_array(), json_array(), json_array(), json_array()};
    static const char *const versions[] = {"0.1.0", "0.1.0", "0.2.0", "0.2.0"};
    for (int i = 0; i < 4; i++) {
        add_row(lists[i], "versions", CHECK_OK, versions[i]);
        add_row(lists[i], "governor", CHECK_OK, i == 3 ? "schedutil" : "performance");
        add_row(lists[i], "dev_shm", CHECK_OK, versions[i]); /* may differ */
        add_row(lists[i], "memlock", i == 1 ? CHECK_FAILURE : CHECK_OK, i == 1 ? "64 KiB" : "unlimited");
        add_row(lists[i], "numa", CHECK_OK, "1 node");
    }
    json_t *merged = merge(lists, 4);
    row_assert(merged, "versions", CHECK_FAILURE, "0.1.0 (ranks 0-1); 0.2.0 (ranks 2-3)", "one version of expar");
    row_assert(merged, "governor", CHECK_WARNING, "performance (ranks 0-2); schedutil (ranks 3)", "cpupower");
    row_assert(merged, "dev_shm", CHECK_OK, "0.1.0 (ranks 0-1); 0.2.0 (ranks 2-3)", NULL);
    row_assert(merged, "memlock", CHECK_FAILURE, "unlimited (ranks 0, 2-3); 64 KiB (ranks 1)", "mend it");
    row_assert(merged, "numa", CHECK_OK, "1 node", NULL);
    assert_int_equal(json_array_size(merged), 5);
    assert_string_equal(json_string_value(json_object_get(json_array_get(merged, 3), "ranks")), "1");
    json_decref(merged);
}

/* Lists of peers may lack rows, and may hold what is no row. */
static void odd_lists_are_survived(void **state)
{
    (void)state;
    json_t *lists[] = {json_array(), json_loads("[1, {\"name\": 5}, {\"status\": \"ok\"}, null]", 0, NULL),
                       json_array()};
    add_row(lists[0], "numa", CHECK_OK, "1 node");
    add_row(lists[2], "gpu_driver", CHECK_OK, "CUDA 13.0");
    json_t *merged = merge(lists, 3);
    row_assert(merged, "numa", CHECK_OK, "1 node (ranks 0); nothing (ranks 1-2)", NULL);
    row_assert(merged, "gpu_driver", CHECK_WARNING, "nothing (ranks 0-1); CUDA 13.0 (ranks 2)", "one version");
    json_decref(merged);
}

#define ON_MACHINE(name) cmocka_unit_test_setup_teardown(name, machine_setup, machine_teardown)

/* ---- rates between GPUs ------------------------------------------------------------------------------------------ */

/* Rank 0 is the first of host alpha, rank 2 of host beta. Each sees three GPUs, whose copies have that rate. */
static struct check_gpu_rates *rates_make(double gbps)
{
    struct check_gpu_rates *rates = calloc(4, sizeof *rates);
    assert_non_null(rates);
    for (int first = 0; first < 4; first += 2) {
        rates[first].gpus = 3;
        for (int from = 0; from < 3; from++)
            for (int to = 0; to < 3; to++)
                rates[first].gbps[from][to] = from == to ? 0 : gbps;
    }
    return rates;
}

static void slow_links_of_gpus_are_found(void **state)
{
    struct machine *machine = *state;
    struct check_gpu_rates *rates = rates_make(300);
    check_judge_gpus(&two_hosts, rates, machine->rows);
    row_assert(machine->rows, "gpu_rate", CHECK_OK, "median 300 GB/s of 12 directions", NULL);
    rates[2].gbps[1][0] = 100;
    rates[0].gbps[2][1] = 240; /* 0.8 of the median is no fault */
    machine_forget(machine);
    check_judge_gpus(&two_hosts, rates, machine->rows);
    row_assert(machine->rows, "gpu_rate", CHECK_WARNING, "slow: GPU 1 to 0 (beta) 100", "nvidia-smi nvlink -s");
    free(rates);
}

/* A host whose GPUs all are slow is found beside a larger one. */
static void a_slow_host_is_found(void **state)
{
    struct machine *machine = *state;
    struct check_gpu_rates *rates = rates_make(300);
    rates[2].gpus = 2;
    rates[2].gbps[0][1] = rates[2].gbps[1][0] = 60;
    check_judge_gpus(&two_hosts, rates, machine->rows);
    row_assert(machine->rows, "gpu_rate", CHECK_WARNING, "GPU 0 to 1 (beta) 60, GPU 1 to 0 (beta) 60", "topo -m");
    free(rates);
}

static void many_slow_links_are_counted(void **state)
{
    struct machine *machine = *state;
    struct check_gpu_rates *rates = rates_make(300);
    for (int to = 0; to < 16; to++)
        for (int from = 0; from < 16; from++)
            rates[0].gbps[from][to] = from == to ? 0 : from == 15 ? 10 : 300;
    rates[0].gpus = 16;
    check_judge_gpus(&two_hosts, rates, machine->rows);
    row_assert(machine->rows, "gpu_rate", CHECK_WARNING, "GPU 15 to 5 (alpha) 10 and 9 more", "nvlink -s");
    free(rates);
}

static void rates_that_cannot_be_measured_are_told(void **state)
{
    struct machine *machine = *state;
    struct check_gpu_rates *rates = rates_make(0);
    check_judge_gpus(&two_hosts, rates, machine->rows);
    row_assert(machine->rows, "gpu_rate", CHECK_SKIPPED, "no GPU reaches another one", NULL);
    machine_forget(machine);
    rates[0].gpus = rates[2].gpus = 1;
    check_judge_gpus(&two_hosts, rates, machine->rows);
    row_assert(machine->rows, "gpu_rate", CHECK_SKIPPED, "sees one GPU", NULL);
    machine_forget(machine);
    snprintf(rates[2].error, sizeof rates[2].error, "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY");
    check_judge_gpus(&two_hosts, rates, machine->rows);
    row_assert(machine->rows, "gpu_rate", CHECK_WARNING, "beta: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY", "64 MiB");
    free(rates);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_MACHINE(different_mtus_are_found),
        ON_MACHINE(an_untrue_path_is_found),
        ON_MACHINE(a_filter_of_udp_is_no_failure),
        cmocka_unit_test(offsets_of_clocks_are_bounded),
        cmocka_unit_test(a_slow_gather_does_not_widen_the_bounds),
        ON_MACHINE(wrong_clocks_are_found),
        ON_MACHINE(pairs_are_compared_with_their_kind),
        ON_MACHINE(slow_pairs_are_named),
        ON_MACHINE(a_falling_rate_and_new_errors_are_found),
        ON_MACHINE(slow_links_of_gpus_are_found),
        ON_MACHINE(a_slow_host_is_found),
        ON_MACHINE(many_slow_links_are_counted),
        ON_MACHINE(rates_that_cannot_be_measured_are_told),
        cmocka_unit_test(sound_transports_pass),
        cmocka_unit_test(broken_operations_are_found),
        cmocka_unit_test(differences_are_found),
        cmocka_unit_test(odd_lists_are_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
