/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's management library (NVML), by dlopen: links between GPUs, ECC, throttling, MIG. NVIDIA keeps
 * the numbers of its interface stable. */
#include "base/shown.h"
#include "check.h"
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MOST_LINKS 18

/* Reasons for low clocks that a person must look at: hardware slowdown, software and hardware thermal slowdown, power
   brake. Idle clocks, a set power limit and applications' clocks are normal. */
#define BAD_REASONS (0x08ull | 0x20ull | 0x40ull | 0x80ull)

enum { UNCORRECTED = 1, VOLATILE = 0 };

typedef struct nvmlDevice_st *nvml_device;

/* All functions return 0 on success. */
struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*device_of)(const char *bus_id, nvml_device *device);
    int (*link_state)(nvml_device device, unsigned link, unsigned *active);
    int (*ecc_mode)(nvml_device device, unsigned *current, unsigned *pending);
    int (*ecc_errors)(nvml_device device, int type, int counter, unsigned long long *count);
    int (*reasons)(nvml_device device, unsigned long long *reasons);
    int (*mig_mode)(nvml_device device, unsigned *current, unsigned *pending);
};

static bool function_find(void *library, const char *name, void *function, size_t bytes)
{
    void *address = dlsym(library, name);
    if (address) memcpy(function, &address, bytes);
    return address != NULL;
}

#define FIND(member, name) function_find(nvml->library, name, &nvml->member, sizeof nvml->member)

static bool nvml_open(const char *file, struct nvml *nvml)
{
    *nvml = (struct nvml){.library = dlopen(file, RTLD_NOW | RTLD_LOCAL)};
    if (!nvml->library) return false;
    return FIND(init, "nvmlInit_v2") && FIND(shutdown, "nvmlShutdown") &&
           FIND(device_of, "nvmlDeviceGetHandleByPciBusId_v2") && FIND(link_state, "nvmlDeviceGetNvLinkState") &&
           FIND(ecc_mode, "nvmlDeviceGetEccMode") && FIND(ecc_errors, "nvmlDeviceGetTotalEccErrors") &&
           FIND(reasons, "nvmlDeviceGetCurrentClocksThrottleReasons") && FIND(mig_mode, "nvmlDeviceGetMigMode") &&
           nvml->init() == 0;
}

static void nvml_close(struct nvml *nvml)
{
    if (nvml->library) dlclose(nvml->library);
    *nvml = (struct nvml){0};
}

/* Reports of all GPUs: `bad` names what is wrong, `good` what is right. */
struct gpu_facts {
    struct check_text down, ecc_off, ecc_errors, slow, mig;
    unsigned links, with_ecc, with_reasons, with_mig, gpus;
};

static void note(struct check_text *text, size_t gpu, const char *format, unsigned long long value)
{
    check_text_add(text, "%sGPU %zu", text->used ? ", " : "", gpu);
    check_text_add(text, format, value);
}

/* A GPU without NVLinks rejects the first one. An NVSwitch machine has all links of a GPU active. */
static void look_at_links(const struct nvml *nvml, nvml_device device, size_t gpu, struct gpu_facts *facts)
{
    unsigned active, down = 0, links = 0;
    for (unsigned link = 0; link < MOST_LINKS && nvml->link_state(device, link, &active) == 0; link++) {
        links++;
        down += !active;
    }
    facts->links += links;
    if (down > 0) note(&facts->down, gpu, ": %llu links down", down);
}

static void look_at_ecc(const struct nvml *nvml, nvml_device device, size_t gpu, struct gpu_facts *facts)
{
    unsigned current = 0, pending = 0;
    unsigned long long errors = 0;
    if (nvml->ecc_mode(device, &current, &pending) != 0) return;
    facts->with_ecc++;
    if (!current) note(&facts->ecc_off, gpu, "", 0);
    if (current && nvml->ecc_errors(device, UNCORRECTED, VOLATILE, &errors) == 0 && errors > 0)
        note(&facts->ecc_errors, gpu, ": %llu", errors);
}

static void look(const struct nvml *nvml, const char *bus_id, size_t gpu, struct gpu_facts *facts)
{
    nvml_device device;
    unsigned long long reasons = 0;
    unsigned current = 0, pending = 0;
    if (nvml->device_of(bus_id, &device) != 0) return;
    facts->gpus++;
    look_at_links(nvml, device, gpu, facts);
    look_at_ecc(nvml, device, gpu, facts);
    if (nvml->reasons(device, &reasons) == 0) facts->with_reasons++;
    if (reasons & BAD_REASONS) note(&facts->slow, gpu, " (reasons 0x%llx)", reasons & BAD_REASONS);
    if (nvml->mig_mode(device, &current, &pending) == 0) facts->with_mig++;
    if (current) note(&facts->mig, gpu, "", 0);
}

static const char mig_remedy[] = "sudo nvidia-smi -i GPU -mig 0   (ends all work on it)";

/* Adds a row: skipped where no GPU tells, `status` where the text says what is wrong. */
static void add_fact(json_t *rows, struct check_row row, unsigned told, const struct check_text *wrong,
                     const char *prefix, const char *good)
{
    if (told == 0) {
        row.status = CHECK_SKIPPED;
        row.remedy = NULL;
        check_add(rows, &row, "the GPUs do not tell");
    } else if (wrong->used) {
        check_add(rows, &row, "%s%s", prefix, wrong->text);
    } else {
        row.status = CHECK_OK;
        check_add(rows, &row, "%s", good);
    }
}

static void add_facts(const struct gpu_facts *facts, json_t *rows)
{
    char links[64];
    snprintf(links, sizeof links, "all %u links active", facts->links);
    add_fact(rows,
             (struct check_row){"GPU", "nvlink", CHECK_FAILURE, "all NVLinks active",
                                "nvidia-smi nvlink -s   (then: systemctl status nvidia-fabricmanager)"},
             facts->links, &facts->down, "", links);
    if (facts->ecc_errors.used)
        add_fact(rows,
                 (struct check_row){"GPU", "ecc", CHECK_FAILURE, "no uncorrected error since the driver started",
                                    "nvidia-smi -q -d ECC   (then: sudo nvidia-smi -r -i GPU, or replace it)"},
                 facts->with_ecc, &facts->ecc_errors, "uncorrected errors on ", "");
    else
        add_fact(rows,
                 (struct check_row){"GPU", "ecc", CHECK_WARNING, "on, and no uncorrected error",
                                    "sudo nvidia-smi -i GPU -e 1   (and a reboot)"},
                 facts->with_ecc, &facts->ecc_off, "off on ", "on, no uncorrected error");
    add_fact(rows,
             (struct check_row){"GPU", "throttling", CHECK_WARNING, "no slowdown by heat or by the power supply",
                                "nvidia-smi -q -d PERFORMANCE,TEMPERATURE   (then look at cooling and power)"},
             facts->with_reasons, &facts->slow, "slowed down: ", "none");
    add_fact(rows,
             (struct check_row){"GPU", "mig", CHECK_WARNING, "off: instances do not reach each other", mig_remedy},
             facts->with_mig, &facts->mig, "on: ", "off");
}

void check_nvml(const struct check_site *site, const json_t *gpus, json_t *rows)
{
    static const char *const names[] = {"nvlink", "ecc", "throttling", "mig"};
    struct nvml nvml;
    struct gpu_facts facts = {0};
    size_t i;
    json_t *gpu;
    if (nvml_open(site->nvml, &nvml)) {
        json_array_foreach(gpus, i, gpu)
        {
            const char *bus_id = json_string_value(json_object_get(gpu, "bus_id"));
            if (bus_id) look(&nvml, bus_id, i, &facts);
        }
        nvml.shutdown();
        add_facts(&facts, rows);
    } else {
        for (i = 0; i < sizeof names / sizeof *names; i++)
            check_add(rows,
                      &(struct check_row){"GPU", names[i], CHECK_SKIPPED, "NVIDIA's management library",
                                          "nvidia-smi   (comes with the library, libnvidia-ml)"},
                      "%s cannot be used", SHOWN(site->nvml));
    }
    nvml_close(&nvml);
}
