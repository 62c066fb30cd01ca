/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's management library for tests: GPUs whose faults the environment names. */
#include <stdlib.h>

typedef struct fake_gpu {
    int unused;
} * nvmlDevice_t;

static struct fake_gpu the_gpu;

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? (int)strtol(text, NULL, 0) : otherwise;
}

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device);
int nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active);
int nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending);
int nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, unsigned long long *count);
int nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons);
int nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending);

int nvmlInit_v2(void)
{
    return number("FAKE_NVML_INIT", 0);
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    *device = &the_gpu;
    return bus_id ? 0 : 2;
}

/* Four links, of which the first ones are down. */
int nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
    if (!device || link >= 4) return 2;
    *active = link >= (unsigned)number("FAKE_NVML_LINKS_DOWN", 0);
    return 0;
}

int nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    *current = *pending = (unsigned)number("FAKE_NVML_ECC", 1);
    return device ? 0 : 2;
}

/* Corrected errors, and those since the GPU was made, are many, and no fault. */
int nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter, unsigned long long *count)
{
    *count = type == 1 && counter == 0 ? (unsigned long long)number("FAKE_NVML_ECC_ERRORS", 0) : 99;
    return device ? 0 : 2;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
    *reasons = (unsigned long long)number("FAKE_NVML_REASONS", 1);
    return device ? 0 : 2;
}

int nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    *current = *pending = (unsigned)number("FAKE_NVML_MIG", 0);
    return device ? 0 : 2;
}
