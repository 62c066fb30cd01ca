/* SPDX-License-Identifier: Apache-2.0 */
/* What a report says of the machine. */
#include "bench/common/machine.h"
#include <expar/status.h>
#include <stdbool.h>
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

json_t *bench_machine(void)
{
    char model[256], tcp[32];
    struct utsname system;
    cpu_model(model, sizeof model);
    bench_tcp_congestion_control(tcp, sizeof tcp);
    const char *kernel = uname(&system) == 0 ? system.release : "unknown";
    json_int_t memory = (json_int_t)sysconf(_SC_PHYS_PAGES) * (json_int_t)sysconf(_SC_PAGESIZE);
    return json_pack("{s:s, s:I, s:I, s:s, s:s, s:s}", "cpu", model, "cores", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN),
                     "memory_bytes", memory, "kernel", kernel, "tcp_congestion_control", tcp, "expar", expar_version());
}
