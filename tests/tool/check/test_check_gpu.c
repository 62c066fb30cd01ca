/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the rows of expar check about GPUs. The facts are those that info_cuda gives; the management library is a
   fake. */
#include "machine.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Facts about `count` GPUs, of which each reaches all others, or none. */
static json_t *facts(int count, bool linked, const char *compiler)
{
    json_t *gpus = json_array();
    for (int i = 0; i < count; i++) {
        json_t *links = json_array();
        for (int k = 0; linked && k < count; k++)
            if (k != i) json_array_append_new(links, json_pack("{s:i}", "gpu", k));
        json_array_append_new(gpus, json_pack("{s:i, s:o, s:o}", "index", i, "bus_id",
                                              json_sprintf("0000:%02X:00.0", 0x1b + i), "links", links));
    }
    return json_pack("{s:{s:s, s:n}, s:{s:s?, s:n, s:s}, s:n, s:o}", "driver", "version", "13.0", "missing", "compiler",
                     "version", compiler, "path", "missing", "no NVRTC", "ready_kernels", "gpus", gpus);
}

static json_t *no_facts(const char *why)
{
    return json_pack("{s:{s:n, s:s}, s:{s:n, s:n, s:s}, s:n, s:[]}", "driver", "version", "missing", why, "compiler",
                     "version", "path", "missing", "no NVRTC", "ready_kernels", "gpus");
}

/* Takes the facts over. */
static void look(struct machine *machine, json_t *cuda)
{
    assert_non_null(cuda);
    machine_forget(machine);
    check_gpus(&machine->site, cuda, machine->rows);
    json_decref(cuda);
}

static void put_card(struct machine *machine, const char *root, const char *bus, const char *node)
{
    char path[256], target[160];
    snprintf(target, sizeof target, "sys/devices/%s/%s", root, bus);
    snprintf(path, sizeof path, "%s/vendor", target);
    machine_put(machine, path, "0x10de\n");
    snprintf(path, sizeof path, "%s/class", target);
    machine_put(machine, path, "0x030200\n");
    snprintf(path, sizeof path, "%s/numa_node", target);
    machine_put(machine, path, node);
    snprintf(path, sizeof path, "sys/bus/pci/devices/%s", bus);
    machine_link(machine, path, target);
}

static void put_nic(struct machine *machine, const char *name, const char *root, const char *bus)
{
    char path[256], target[160];
    snprintf(target, sizeof target, "sys/devices/%s/%s", root, bus);
    snprintf(path, sizeof path, "%s/vendor", target);
    machine_put(machine, path, "0x15b3\n");
    snprintf(path, sizeof path, "sys/class/infiniband/%s/device", name);
    machine_link(machine, path, target);
}

/* ---- driver, compiler, peers ------------------------------------------------------------------------------------- */

static void a_machine_without_gpus_is_skipped(void **state)
{
    struct machine *machine = *state;
    look(machine, no_facts("libcuda.so.1 is not there"));
    row_assert(machine->rows, "gpu_driver", CHECK_SKIPPED, "no NVIDIA GPU", NULL);
    row_assert(machine->rows, "mig", CHECK_SKIPPED, NULL, NULL);
    assert_int_equal(json_array_size(machine->rows), 9);
}

static void a_missing_driver_is_found(void **state)
{
    struct machine *machine = *state;
    put_card(machine, "pci0000:00", "0000:1b:00.0", "0\n");
    look(machine, no_facts("libcuda.so.1 is not there"));
    row_assert(machine->rows, "gpu_driver", CHECK_FAILURE, "1 NVIDIA GPUs, and: libcuda.so.1",
               "install NVIDIA's driver");
    look(machine, no_facts("the driver sees no GPU"));
    row_assert(machine->rows, "gpu_driver", CHECK_FAILURE, "sees no GPU", "nvidia-smi -L");
    look(machine, no_facts("cuInit: CUDA_ERROR_UNKNOWN"));
    row_assert(machine->rows, "gpu_driver", CHECK_FAILURE, "cuInit", "nvidia-smi   (docs/reference/gpu.md");
}

static void a_missing_compiler_is_found(void **state)
{
    struct machine *machine = *state;
    look(machine, facts(2, true, NULL));
    row_assert(machine->rows, "nvrtc", CHECK_FAILURE, "not found; ready kernels: none", "nvidia-cuda-nvrtc");
    look(machine, facts(2, true, "13.0"));
    row_assert(machine->rows, "nvrtc", CHECK_OK, "CUDA 13.0", NULL);
}

static void ready_kernels_soften_a_missing_compiler(void **state)
{
    struct machine *machine = *state;
    json_t *cuda = facts(2, true, NULL);
    json_object_set_new(cuda, "ready_kernels", json_string("sm_90"));
    look(machine, cuda);
    row_assert(machine->rows, "nvrtc", CHECK_WARNING, "ready kernels: sm_90", "nvidia-cuda-nvrtc");
}

static void missing_peers_are_found(void **state)
{
    struct machine *machine = *state;
    look(machine, facts(4, false, "13.0"));
    row_assert(machine->rows, "peer_access", CHECK_FAILURE, "GPU 0 reaches 0 of 3, GPU 1 reaches 0 of 3",
               "nvidia-smi topo -p2p r");
    look(machine, facts(4, true, "13.0"));
    row_assert(machine->rows, "peer_access", CHECK_OK, "all pairs", NULL);
    look(machine, facts(1, true, "13.0"));
    row_assert(machine->rows, "peer_access", CHECK_SKIPPED, "one GPU", NULL);
}

/* ---- the management library -------------------------------------------------------------------------------------- */

static void look_with(struct machine *machine, const char *variable, const char *value)
{
    machine->site.nvml = FAKE_NVML;
    setenv(variable, value, 1);
    look(machine, facts(2, true, "13.0"));
    unsetenv(variable);
}

static void sound_gpus_have_no_warning(void **state)
{
    struct machine *machine = *state;
    look_with(machine, "FAKE_NVML_MIG", "0");
    row_assert(machine->rows, "nvlink", CHECK_OK, "all 8 links active", NULL);
    row_assert(machine->rows, "ecc", CHECK_OK, "on", NULL);
    row_assert(machine->rows, "throttling", CHECK_OK, "none", NULL);
    row_assert(machine->rows, "mig", CHECK_OK, "off", NULL);
}

static void links_that_are_down_are_found(void **state)
{
    struct machine *machine = *state;
    look_with(machine, "FAKE_NVML_LINKS_DOWN", "3");
    row_assert(machine->rows, "nvlink", CHECK_FAILURE, "GPU 0: 3 links down, GPU 1: 3 links down", "nvlink -s");
}

static void faults_of_ecc_are_found(void **state)
{
    struct machine *machine = *state;
    look_with(machine, "FAKE_NVML_ECC", "0");
    row_assert(machine->rows, "ecc", CHECK_WARNING, "off on GPU 0, GPU 1", "-e 1");
    look_with(machine, "FAKE_NVML_ECC_ERRORS", "5");
    row_assert(machine->rows, "ecc", CHECK_FAILURE, "GPU 0: 5, GPU 1: 5", "-d ECC");
}

static void throttling_is_found(void **state)
{
    struct machine *machine = *state;
    look_with(machine, "FAKE_NVML_REASONS", "0x44");
    row_assert(machine->rows, "throttling", CHECK_WARNING, "GPU 0 (reasons 0x40)", "PERFORMANCE");
    look_with(machine, "FAKE_NVML_REASONS", "0x4"); /* a power limit that somebody has set */
    row_assert(machine->rows, "throttling", CHECK_OK, "none", NULL);
}

static void mig_is_found(void **state)
{
    struct machine *machine = *state;
    look_with(machine, "FAKE_NVML_MIG", "1");
    row_assert(machine->rows, "mig", CHECK_WARNING, "on: GPU 0, GPU 1", "-mig 0");
}

static void a_missing_management_library_is_skipped(void **state)
{
    struct machine *machine = *state;
    look(machine, facts(2, true, "13.0"));
    row_assert(machine->rows, "nvlink", CHECK_SKIPPED, "/nowhere/libnvidia-ml.so", NULL);
    look_with(machine, "FAKE_NVML_INIT", "9");
    row_assert(machine->rows, "nvlink", CHECK_SKIPPED, "cannot be used", NULL);
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

static void far_nics_are_found(void **state)
{
    struct machine *machine = *state;
    put_card(machine, "pci0000:00", "0000:1b:00.0", "0\n");
    put_card(machine, "pci0000:80", "0000:1c:00.0", "1\n");
    look(machine, facts(2, true, "13.0"));
    row_assert(machine->rows, "gpu_nic", CHECK_SKIPPED, "no RDMA device", NULL);
    put_nic(machine, "mlx5_0", "pci0000:00/0000:00:01.0", "0000:1a:00.0");
    look(machine, facts(2, true, "13.0"));
    row_assert(machine->rows, "gpu_nic", CHECK_WARNING, "far from all: GPU 1", "nvidia-smi topo -m");
    put_nic(machine, "mlx5_1", "pci0000:80", "0000:9a:00.0");
    look(machine, facts(2, true, "13.0"));
    row_assert(machine->rows, "gpu_nic", CHECK_OK, "near for all GPUs", NULL);
}

static void barred_memory_of_gpus_is_found(void **state)
{
    struct machine *machine = *state;
    put_card(machine, "pci0000:00", "0000:1b:00.0", "0\n");
    put_card(machine, "pci0000:80", "0000:1c:00.0", "1\n");
    machine_put(machine, "proc/self/status", "Mems_allowed_list:\t0,2-3\n");
    look(machine, facts(2, true, "13.0"));
    row_assert(machine->rows, "gpu_numa", CHECK_WARNING, "barred: GPU 1 on node 1", "--membind");
    machine_put(machine, "proc/self/status", "Mems_allowed_list:\t0-1\n");
    look(machine, facts(2, true, "13.0"));
    row_assert(machine->rows, "gpu_numa", CHECK_OK, "GPU 0 on node 0, GPU 1 on node 1", NULL);
}

#define ON_MACHINE(name) cmocka_unit_test_setup_teardown(name, machine_setup, machine_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_MACHINE(a_machine_without_gpus_is_skipped),
        ON_MACHINE(a_missing_driver_is_found),
        ON_MACHINE(a_missing_compiler_is_found),
        ON_MACHINE(ready_kernels_soften_a_missing_compiler),
        ON_MACHINE(missing_peers_are_found),
        ON_MACHINE(sound_gpus_have_no_warning),
        ON_MACHINE(links_that_are_down_are_found),
        ON_MACHINE(faults_of_ecc_are_found),
        ON_MACHINE(throttling_is_found),
        ON_MACHINE(mig_is_found),
        ON_MACHINE(a_missing_management_library_is_skipped),
        ON_MACHINE(far_nics_are_found),
        ON_MACHINE(barred_memory_of_gpus_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
