/* SPDX-License-Identifier: Apache-2.0 */
/* The description of the machine in a report. */
#include "bench/frame/machine.h"
#include <expar/info.h>
#include <expar/status.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static void cpu_model(char *model, size_t bytes)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(model, bytes, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strncmp(line, "model name", 10) ? NULL : strchr(line, ':');
        if (!value) continue;
        snprintf(model, bytes, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
        break;
    }
    if (file) fclose(file);
}

void bench_tcp_congestion_control(char *name, size_t bytes)
{
    FILE *file = fopen("/proc/sys/net/ipv4/tcp_congestion_control", "re");
    bool read = file && fgets(name, (int)bytes, file);
    if (!read) snprintf(name, bytes, "unknown");
    name[strcspn(name, "\n")] = '\0';
    if (file) fclose(file);
}

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

static json_t *version_json(int32_t version)
{
    return json_sprintf("%d.%d", version / 1000, version % 1000 / 10);
}

static json_t *gpus_json(int32_t count)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < count; i++) {
        expar_cuda_gpu gpu = EXPAR_CUDA_GPU_INIT;
        if (expar_cuda_get_gpu(i, &gpu) != EXPAR_OK) continue;
        json_array_append_new(list, json_pack("{s:s, s:i, s:I, s:o}", "name", gpu.name, "sms", gpu.num_sms,
                                              "memory_bytes", (json_int_t)gpu.memory_bytes, "compute_capability",
                                              json_sprintf("%d.%d", gpu.major, gpu.minor)));
    }
    return list;
}

static void add_cuda(json_t *machine)
{
    int32_t driver = 0, compiler = 0, count = 0;
    if (expar_cuda_get_driver(&driver, &count) != EXPAR_OK) return;
    json_object_set_new(machine, "gpus", gpus_json(count));
    json_object_set_new(machine, "cuda_driver", version_json(driver));
    bool found = expar_cuda_get_compiler(&compiler, NULL) == EXPAR_OK;
    json_object_set_new(machine, "nvrtc", found ? version_json(compiler) : json_null());
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

json_t *bench_machine(bool cuda)
{
    char model[256], tcp[32];
    struct utsname system;
    cpu_model(model, sizeof model);
    bench_tcp_congestion_control(tcp, sizeof tcp);
    const char *kernel = uname(&system) == 0 ? system.release : "unknown";
    json_int_t memory = (json_int_t)sysconf(_SC_PHYS_PAGES) * (json_int_t)sysconf(_SC_PAGESIZE);
    json_t *machine =
        json_pack("{s:s, s:I, s:I, s:s, s:s, s:s}", "cpu", model, "cores", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN),
                  "memory_bytes", memory, "kernel", kernel, "tcp_congestion_control", tcp, "expar", expar_version());
    if (machine && cuda) add_cuda(machine);
    return machine;
}
