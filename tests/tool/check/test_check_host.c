/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the rows of expar check about hosts and RDMA devices: each failure that it knows, and that a sound host has
 * none. */
#include "machine.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void look_at_cpus(struct machine *machine)
{
    machine_forget(machine);
    check_cpus(&machine->site, machine->rows);
}

static void look_at_limits(struct machine *machine)
{
    machine_forget(machine);
    check_limits(&machine->site, machine->rows);
}

static void look_at_rdma(struct machine *machine)
{
    machine_forget(machine);
    check_rdma(&machine->site, machine->rows);
}

static void a_sound_host_has_no_warning(void **state)
{
    struct machine *machine = *state;
    static const char *const names[] = {"cpuset",  "numa",       "governor",    "huge_pages",
                                        "memlock", "open_files", "ptrace_scope"};
    machine_put_sound(machine);
    check_cpus(&machine->site, machine->rows);
    check_memory(&machine->site, machine->rows);
    check_limits(&machine->site, machine->rows);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        row_assert(machine->rows, names[i], CHECK_OK, NULL, NULL);
    assert_int_equal(check_exit_code(machine->rows, false), 0);
}

/* Nothing is there: rows are skipped, and none is right. */
static void an_empty_machine_is_skipped(void **state)
{
    struct machine *machine = *state;
    static const char *const names[] = {"cpuset",     "numa",       "governor", "huge_pages",    "memlock",
                                        "open_files", "rdma_ports", "gid",      "error_counters"};
    check_cpus(&machine->site, machine->rows);
    check_memory(&machine->site, machine->rows);
    check_limits(&machine->site, machine->rows);
    check_rdma(&machine->site, machine->rows);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        row_assert(machine->rows, names[i], CHECK_SKIPPED, NULL, NULL);
}

/* ---- processors -------------------------------------------------------------------------------------------------- */

static void too_few_cpus_are_found(void **state)
{
    struct machine *machine = *state;
    machine_put_sound(machine);
    machine->site.ranks_here = 3;
    look_at_cpus(machine);
    row_assert(machine->rows, "cpuset", CHECK_WARNING, "2 of 2 CPUs", "taskset");
    machine->site.ranks_here = 2;
    machine_put(machine, "proc/self/status", "Cpus_allowed_list:\t1\nMems_allowed_list:\t0\n");
    look_at_cpus(machine);
    row_assert(machine->rows, "cpuset", CHECK_WARNING, "1 of 2 CPUs", "taskset");
}

static void a_quota_is_found(void **state)
{
    struct machine *machine = *state;
    machine_put_sound(machine);
    machine_put(machine, "sys/fs/cgroup/cpu.max", "150000 100000\n");
    look_at_cpus(machine);
    row_assert(machine->rows, "cpuset", CHECK_WARNING, "2 of 2 CPUs, quota of 1.5 CPUs", "--cpus");
    machine_put(machine, "sys/fs/cgroup/cpu.max", "max 100000\n");
    look_at_cpus(machine);
    row_assert(machine->rows, "cpuset", CHECK_OK, "2 of 2 CPUs", NULL);
}

static void the_older_quota_is_found(void **state)
{
    struct machine *machine = *state;
    machine_put_sound(machine);
    machine_put(machine, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
    machine_put(machine, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    look_at_cpus(machine);
    row_assert(machine->rows, "cpuset", CHECK_WARNING, "quota of 0.5 CPUs", "--cpus");
    machine_put(machine, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    look_at_cpus(machine);
    row_assert(machine->rows, "cpuset", CHECK_OK, NULL, NULL);
}

static void put_two_nodes(struct machine *machine)
{
    machine_put_sound(machine);
    machine_put(machine, "sys/devices/system/node/online", "0-1\n");
    machine_put(machine, "sys/devices/system/node/node0/cpulist", "0\n");
    machine_put(machine, "sys/devices/system/node/node1/cpulist", "1\n");
}

static void a_rank_on_two_nodes_is_found(void **state)
{
    struct machine *machine = *state;
    put_two_nodes(machine);
    look_at_cpus(machine);
    row_assert(machine->rows, "numa", CHECK_WARNING, "CPUs of 2 of 2 nodes", "expar run --bind");
    machine_put(machine, "proc/self/status", "Cpus_allowed_list:\t0\nMems_allowed_list:\t0-1\n");
    look_at_cpus(machine);
    row_assert(machine->rows, "numa", CHECK_OK, "CPUs of one node of 2", NULL);
}

static void barred_memory_is_found(void **state)
{
    struct machine *machine = *state;
    put_two_nodes(machine);
    machine_put(machine, "proc/self/status", "Cpus_allowed_list:\t1\nMems_allowed_list:\t0\n");
    look_at_cpus(machine);
    row_assert(machine->rows, "numa", CHECK_WARNING, "CPUs of node 1, whose memory", "numactl --membind=1");
}

static void a_slow_governor_is_found(void **state)
{
    struct machine *machine = *state;
    machine_put_sound(machine);
    machine_put(machine, "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n");
    look_at_cpus(machine);
    row_assert(machine->rows, "governor", CHECK_WARNING, "powersave on 1 of 2 CPUs", "cpupower frequency-set");
}

/* ---- memory and limits ------------------------------------------------------------------------------------------- */

static void missing_huge_pages_are_found(void **state)
{
    struct machine *machine = *state;
    machine_put_sound(machine);
    machine_put(machine, "sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never]\n");
    check_memory(&machine->site, machine->rows);
    row_assert(machine->rows, "huge_pages", CHECK_WARNING, "never", "echo advise | sudo tee /sys/");
}

static void missing_reserved_pages_are_found(void **state)
{
    struct machine *machine = *state;
    machine_put_sound(machine);
    setenv("EXPAR_HEAP_PAGES", "huge", 1);
    check_memory(&machine->site, machine->rows);
    row_assert(machine->rows, "huge_pages", CHECK_FAILURE, "0 free pages", "vm.nr_hugepages");
    machine_forget(machine);
    machine_put(machine, "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "12\n");
    check_memory(&machine->site, machine->rows);
    row_assert(machine->rows, "huge_pages", CHECK_OK, "12 free pages", NULL);
    unsetenv("EXPAR_HEAP_PAGES");
}

/* No file system of a test has exactly so little space, except those of the kernel, which have none. */
static void missing_shared_memory_is_found(void **state)
{
    struct machine *machine = *state;
    check_memory(&machine->site, machine->rows);
    row_assert(machine->rows, "dev_shm", CHECK_WARNING, "there is no ", "/dev/shm");
    machine_forget(machine);
    machine->site.shm = "/proc";
    check_memory(&machine->site, machine->rows);
    row_assert(machine->rows, "dev_shm", CHECK_WARNING, "0 MiB free", "--shm-size");
}

static void little_locked_memory_is_found_where_nics_are(void **state)
{
    struct machine *machine = *state;
    machine_put_sound(machine);
    machine_put(machine, "sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    look_at_limits(machine);
    row_assert(machine->rows, "memlock", CHECK_FAILURE, "8192 KiB", "ulimit -l unlimited");
    machine_put(machine, "proc/self/limits", "Max locked memory         17179869184   17179869184   bytes\n");
    look_at_limits(machine);
    row_assert(machine->rows, "memlock", CHECK_WARNING, "16777216 KiB", "ulimit -l unlimited");
    machine_put(machine, "proc/self/limits", "Max locked memory         unlimited   unlimited   bytes\n");
    look_at_limits(machine);
    row_assert(machine->rows, "memlock", CHECK_OK, "unlimited", NULL);
}

static void few_open_files_are_found(void **state)
{
    struct machine *machine = *state;
    machine_put_sound(machine);
    machine->site.ranks = 241; /* 64 + 4·241 = 1028 */
    look_at_limits(machine);
    row_assert(machine->rows, "open_files", CHECK_FAILURE, "1024", "ulimit -n 1028");
    machine->site.ranks = 240;
    look_at_limits(machine);
    row_assert(machine->rows, "open_files", CHECK_OK, "1024", NULL);
    machine->site.ranks = 4096; /* the hard limit is too low as well */
    look_at_limits(machine);
    row_assert(machine->rows, "open_files", CHECK_FAILURE, "1024", "nofile 16448 in /etc/security/limits.conf");
}

static void barred_ptrace_is_found(void **state)
{
    struct machine *machine = *state;
    machine_put_sound(machine);
    machine_put(machine, "proc/sys/kernel/yama/ptrace_scope", "2\n");
    look_at_limits(machine);
    row_assert(machine->rows, "ptrace_scope", CHECK_WARNING, "2: root only", "ptrace_scope=1");
    machine_put(machine, "proc/sys/kernel/yama/ptrace_scope", "3\n");
    look_at_limits(machine);
    row_assert(machine->rows, "ptrace_scope", CHECK_WARNING, "3: nobody", "reboot");
}

/* ---- RDMA devices ------------------------------------------------------------------------------------------------ */

static void put_port(struct machine *machine, const char *device, const char *state)
{
    char path[256];
    snprintf(path, sizeof path, "sys/class/infiniband/%s/ports/1/state", device);
    machine_put(machine, path, state);
    snprintf(path, sizeof path, "sys/class/infiniband/%s/ports/1/rate", device);
    machine_put(machine, path, "400 Gb/sec (4X NDR)\n");
    snprintf(path, sizeof path, "sys/class/infiniband/%s/ports/1/gids/0", device);
    machine_put(machine, path, "fe80:0000:0000:0000:0a0b:0cff:fe0d:0e0f\n");
    snprintf(path, sizeof path, "sys/class/infiniband/%s/ports/1/counters/symbol_error", device);
    machine_put(machine, path, "0\n");
}

static void sound_ports_are_named(void **state)
{
    struct machine *machine = *state;
    put_port(machine, "mlx5_0", "4: ACTIVE\n");
    put_port(machine, "mlx5_1", "4: ACTIVE\n");
    look_at_rdma(machine);
    row_assert(machine->rows, "rdma_ports", CHECK_OK, "mlx5_0/1 400 Gb/sec (4X NDR), mlx5_1/1", NULL);
    row_assert(machine->rows, "gid", CHECK_OK, "on all 2 active ports", NULL);
    row_assert(machine->rows, "error_counters", CHECK_OK, "0", NULL);
}

static void a_port_that_is_down_is_found(void **state)
{
    struct machine *machine = *state;
    put_port(machine, "mlx5_0", "4: ACTIVE\n");
    put_port(machine, "mlx5_1", "1: DOWN\n");
    look_at_rdma(machine);
    row_assert(machine->rows, "rdma_ports", CHECK_WARNING, "not active: mlx5_1/1 1: DOWN", "ibstat");
    put_port(machine, "mlx5_0", "2: INIT\n");
    look_at_rdma(machine);
    row_assert(machine->rows, "rdma_ports", CHECK_FAILURE, "mlx5_0/1 2: INIT, mlx5_1/1 1: DOWN", "ibstat");
    row_assert(machine->rows, "gid", CHECK_SKIPPED, "no active port", NULL);
}

static void a_missing_gid_is_found(void **state)
{
    struct machine *machine = *state;
    put_port(machine, "mlx5_0", "4: ACTIVE\n");
    machine_put(machine, "sys/class/infiniband/mlx5_0/ports/1/gids/0", "0000:0000:0000:0000:0000:0000:0000:0000\n");
    look_at_rdma(machine);
    row_assert(machine->rows, "gid", CHECK_FAILURE, "none on mlx5_0/1", "show_gids");
}

static void errors_of_links_are_found(void **state)
{
    struct machine *machine = *state;
    struct check_text first = {0};
    int64_t sum = 0;
    put_port(machine, "mlx5_0", "4: ACTIVE\n");
    machine_put(machine, "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "7\n");
    machine_put(machine, "sys/class/net/eth0/statistics/rx_crc_errors", "5\n");
    look_at_rdma(machine);
    row_assert(machine->rows, "error_counters", CHECK_WARNING, "mlx5_0 symbol_error 7, eth0 rx_crc_errors 5", "--long");
    assert_true(check_count_errors(&machine->site, &sum, &first));
    assert_int_equal(sum, 12);
}

/* ---- texts from outside ------------------------------------------------------------------------------------------ */

/* Names of devices and contents of files may hold anything. */
static void hostile_names_are_shown_harmless(void **state)
{
    struct machine *machine = *state;
    put_port(machine, "x\033[2J\"<b>\xff", "1: DO\033]0;title\007WN\n");
    machine_put_sound(machine);
    machine_put(machine, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "\033[31m\x80\xc2\x9b\n");
    look_at_cpus(machine);
    row_assert(machine->rows, "governor", CHECK_WARNING, "\\x1b[31m", NULL);
    check_rdma(&machine->site, machine->rows);
    row_assert(machine->rows, "rdma_ports", CHECK_FAILURE, "x\\x1b[2J\"<b>?/1", NULL);
    char *text = json_dumps(machine->rows, JSON_ENSURE_ASCII);
    assert_non_null(text);
    for (const char *c = text; *c; c++)
        assert_true(*c >= 0x20 && *c < 0x7f);
    assert_null(strstr(text, "\\u001b"));
    assert_null(strstr(text, "\\u009b"));
    free(text);
}

static void long_texts_are_cut(void **state)
{
    struct check_text text = {0};
    (void)state;
    for (int i = 0; i < 100; i++)
        check_text_add(&text, "%d0123456789 ", i);
    assert_true(strlen(text.text) < sizeof text.text);
    assert_non_null(strstr(text.text, "..."));
    assert_string_equal(text.text + strlen(text.text) - 3, "...");
}

static void damaged_files_are_no_numbers(void **state)
{
    struct machine *machine = *state;
    int64_t value = 17;
    machine_put_sound(machine);
    machine_put(machine, "proc/sys/kernel/yama/ptrace_scope", "");
    machine_put(machine, "proc/self/status", "Cpus_allowed_list:\tnone\n");
    machine_put(machine, "proc/self/limits", "Max open files");
    look_at_limits(machine);
    row_assert(machine->rows, "ptrace_scope", CHECK_OK, "not restricted", NULL);
    row_assert(machine->rows, "open_files", CHECK_SKIPPED, NULL, NULL);
    look_at_cpus(machine);
    row_assert(machine->rows, "cpuset", CHECK_SKIPPED, NULL, NULL);
    assert_false(check_read_number(&value, "%s/nothing", machine->folder));
    assert_int_equal(value, 17);
}

static void exit_codes_follow_the_worst_row(void **state)
{
    struct machine *machine = *state;
    static const struct {
        enum check_status status;
        int code, strict;
    } steps[] = {
        {CHECK_SKIPPED, 3, 3}, {CHECK_OK, 0, 0}, {CHECK_WARNING, 0, 1}, {CHECK_FAILURE, 2, 2}, {CHECK_OK, 2, 2}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        check_add(machine->rows, &(struct check_row){"host", "step", steps[i].status, "nothing", "true"}, "%zu", i);
        assert_int_equal(check_exit_code(machine->rows, false), steps[i].code);
        assert_int_equal(check_exit_code(machine->rows, true), steps[i].strict);
    }
}

#define ON_MACHINE(name) cmocka_unit_test_setup_teardown(name, machine_setup, machine_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_MACHINE(a_sound_host_has_no_warning),
        ON_MACHINE(an_empty_machine_is_skipped),
        ON_MACHINE(too_few_cpus_are_found),
        ON_MACHINE(a_quota_is_found),
        ON_MACHINE(the_older_quota_is_found),
        ON_MACHINE(a_rank_on_two_nodes_is_found),
        ON_MACHINE(barred_memory_is_found),
        ON_MACHINE(a_slow_governor_is_found),
        ON_MACHINE(missing_huge_pages_are_found),
        ON_MACHINE(missing_reserved_pages_are_found),
        ON_MACHINE(missing_shared_memory_is_found),
        ON_MACHINE(little_locked_memory_is_found_where_nics_are),
        ON_MACHINE(few_open_files_are_found),
        ON_MACHINE(barred_ptrace_is_found),
        ON_MACHINE(sound_ports_are_named),
        ON_MACHINE(a_port_that_is_down_is_found),
        ON_MACHINE(a_missing_gid_is_found),
        ON_MACHINE(errors_of_links_are_found),
        ON_MACHINE(hostile_names_are_shown_harmless),
        cmocka_unit_test(long_texts_are_cut),
        ON_MACHINE(damaged_files_are_no_numbers),
        ON_MACHINE(exit_codes_follow_the_worst_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
