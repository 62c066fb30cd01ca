/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs: driver, compiler, which reach each other, and how near they are to NICs and to memory. */
#include "base/shown.h"
#include "check.h"
#include "info/info.h"
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *member(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* ---- devices of the PCI bus -------------------------------------------------------------------------------------- */

static bool is_nvidia_gpu(const struct check_site *site, const char *device)
{
    char vendor[16] = "", class[16] = "";
    check_read(vendor, sizeof vendor, "%s/bus/pci/devices/%s/vendor", site->sys, device);
    check_read(class, sizeof class, "%s/bus/pci/devices/%s/class", site->sys, device);
    return strcmp(vendor, "0x10de") == 0 && strncmp(class, "0x03", 4) == 0;
}

static size_t count_nvidia(const struct check_site *site)
{
    struct check_names devices;
    size_t count = 0;
    check_names_read(&devices, "%s/bus/pci/devices", site->sys);
    for (size_t i = 0; i < devices.count; i++)
        count += is_nvidia_gpu(site, devices.names[i]);
    check_names_free(&devices);
    return count;
}

/* CUDA writes "0000:1B:00.0" or "00000000:1B:00.0"; the kernel "0000:1b:00.0". */
static void bus_name(const char *bus_id, char name[32])
{
    const char *colon = strchr(bus_id, ':');
    const size_t domain = colon ? (size_t)(colon - bus_id) : 0;
    snprintf(name, 32, "%s", domain > 4 ? bus_id + domain - 4 : bus_id);
    for (char *c = name; *c; c++)
        *c = (char)tolower((unsigned char)*c);
}

/* Finds the path of a device through the tree of bridges: "/sys/devices/pci0000:00/0000:00:01.0/…". */
static bool tree_path(const char *link, char path[PATH_MAX])
{
    return realpath(link, path) != NULL;
}

/* ---- driver, compiler, peers ------------------------------------------------------------------------------------- */

static bool add_driver(const struct check_site *site, const json_t *driver, json_t *rows)
{
    const char *version = member(driver, "version"), *missing = member(driver, "missing");
    const size_t devices = count_nvidia(site);
    struct check_row row = {"GPU", "gpu_driver", CHECK_OK, "a driver that runs the GPUs", NULL};
    if (version) {
        check_add(rows, &row, "CUDA %s", version);
        return true;
    }
    row.status = devices ? CHECK_FAILURE : CHECK_SKIPPED;
    row.remedy = devices ? info_driver_remedy(missing) : NULL;
    if (devices)
        check_add(rows, &row, "%zu NVIDIA GPUs, and: %s", devices, missing);
    else
        check_add(rows, &row, "no NVIDIA GPU");
    return false;
}

static void add_compiler(const json_t *cuda, json_t *rows)
{
    const json_t *compiler = json_object_get(cuda, "compiler");
    const char *version = member(compiler, "version"), *ready = member(cuda, "ready_kernels");
    struct check_row row = {"GPU", "nvrtc", CHECK_OK, "NVRTC, which compiles kernels for this GPU",
                            INFO_COMPILER_REMEDY};
    if (version) {
        check_add(rows, &row, "CUDA %s", version);
        return;
    }
    row.status = ready ? CHECK_WARNING : CHECK_FAILURE;
    check_add(rows, &row, "not found; ready kernels: %s", ready ? ready : "none");
}

static void add_peers(const json_t *gpus, json_t *rows)
{
    size_t i;
    json_t *gpu;
    struct check_text text = {0};
    struct check_row row = {"GPU", "peer_access", CHECK_OK, "each GPU reaches all others", INFO_PEERS_REMEDY};
    if (json_array_size(gpus) < 2) {
        row.status = CHECK_SKIPPED;
        row.remedy = NULL;
        check_add(rows, &row, "one GPU");
        return;
    }
    json_array_foreach(gpus, i, gpu)
    {
        const size_t reached = json_array_size(json_object_get(gpu, "links"));
        if (reached + 1 < json_array_size(gpus))
            check_text_add(&text, "%sGPU %zu reaches %zu of %zu", text.used ? ", " : "", i, reached,
                           json_array_size(gpus) - 1);
    }
    if (!info_peers_complete(gpus)) row.status = CHECK_FAILURE;
    check_add(rows, &row, "%s", text.used ? text.text : "all pairs");
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* Counts the folders that two paths have in common. Devices below one root complex share at least the folder
   "pciDDDD:BB", whose depth is given. */
static size_t common_depth(const char *a, const char *b)
{
    size_t depth = 0, i = 0;
    for (; a[i] && a[i] == b[i]; i++)
        depth += a[i] == '/';
    return depth + (a[i] == 0 && b[i] == '/');
}

static size_t root_depth(const char *path)
{
    const char *root = strstr(path, "/pci");
    size_t depth = 0;
    for (const char *c = path; root && c <= root; c++)
        depth += *c == '/';
    return root ? depth : SIZE_MAX;
}

/* Finds out whether any RDMA device is below the same root complex as the GPU. */
static bool has_near_nic(const struct check_site *site, const char *gpu_path, const struct check_names *nics)
{
    char link[PATH_MAX], path[PATH_MAX];
    for (size_t i = 0; i < nics->count; i++) {
        snprintf(link, sizeof link, "%s/class/infiniband/%s/device", site->sys, nics->names[i]);
        if (tree_path(link, path) && common_depth(gpu_path, path) > root_depth(gpu_path)) return true;
    }
    return false;
}

static void add_nic_distance(const struct check_site *site, const json_t *gpus, json_t *rows)
{
    size_t i;
    json_t *gpu;
    struct check_names nics;
    struct check_text far = {0};
    struct check_row row = {"GPU", "gpu_nic", CHECK_OK, "an RDMA device below each GPU's root complex",
                            "nvidia-smi topo -m   (PIX and PXB are near, SYS is far: move the card, or bind ranks)"};
    check_names_read(&nics, "%s/class/infiniband", site->sys);
    json_array_foreach(gpus, i, gpu)
    {
        char link[PATH_MAX], path[PATH_MAX], name[32];
        bus_name(member(gpu, "bus_id") ? member(gpu, "bus_id") : "", name);
        snprintf(link, sizeof link, "%s/bus/pci/devices/%s", site->sys, name);
        if (nics.count && tree_path(link, path) && !has_near_nic(site, path, &nics))
            check_text_add(&far, "%sGPU %zu", far.used ? ", " : "", i);
    }
    if (nics.count == 0) {
        row.status = CHECK_SKIPPED;
        row.remedy = NULL;
        check_add(rows, &row, "no RDMA device");
    } else {
        if (far.used) row.status = CHECK_WARNING;
        check_add(rows, &row, far.used ? "far from all: %s" : "near%s", far.used ? far.text : " for all GPUs");
    }
    check_names_free(&nics);
}

/* Reads this process's NUMA nodes from the kernel's list of nodes whose memory it may use. */
static bool may_use_node(const struct check_site *site, int64_t node)
{
    char path[PATH_MAX], text[1024];
    snprintf(path, sizeof path, "%s/self/status", site->proc);
    if (!check_read_field(path, "Mems_allowed_list", text, sizeof text)) return true;
    for (const char *c = text; *c;) {
        char *end;
        const long low = strtol(c, &end, 10), high = *end == '-' ? strtol(end + 1, &end, 10) : low;
        if (end == c || (node >= low && node <= high)) return true;
        c = *end == ',' ? end + 1 : end;
        if (*end && *end != ',') return true;
    }
    return false;
}

static void add_gpu_numa(const struct check_site *site, const json_t *gpus, json_t *rows)
{
    size_t i;
    json_t *gpu;
    struct check_text text = {0}, barred = {0};
    char name[32];
    int64_t node;
    json_array_foreach(gpus, i, gpu)
    {
        bus_name(member(gpu, "bus_id") ? member(gpu, "bus_id") : "", name);
        if (!check_read_number(&node, "%s/bus/pci/devices/%s/numa_node", site->sys, name) || node < 0) continue;
        check_text_add(&text, "%sGPU %zu on node %d", text.used ? ", " : "", i, (int)node);
        if (!may_use_node(site, node))
            check_text_add(&barred, "%sGPU %zu on node %d", barred.used ? ", " : "", i, (int)node);
    }
    struct check_row row = {"GPU", "gpu_numa", text.used ? CHECK_OK : CHECK_SKIPPED,
                            "memory of each GPU's NUMA node may be used",
                            text.used ? "numactl --membind=all ...   (in a container: --cpuset-mems)" : NULL};
    if (barred.used) row.status = CHECK_WARNING;
    check_add(rows, &row, barred.used ? "barred: %s" : "%s",
              barred.used ? barred.text
              : text.used ? text.text
                          : "the kernel does not tell");
}

static void skip_all(json_t *rows)
{
    static const char *const names[] = {"nvrtc",      "peer_access", "nvlink",  "ecc",
                                        "throttling", "mig",         "gpu_nic", "gpu_numa"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_add(rows, &(struct check_row){"GPU", names[i], CHECK_SKIPPED, "a driver and a GPU", NULL},
                  "no GPU is usable");
}

void check_gpus(const struct check_site *site, const json_t *cuda, json_t *rows)
{
    const json_t *gpus = json_object_get(cuda, "gpus");
    if (!add_driver(site, json_object_get(cuda, "driver"), rows) || json_array_size(gpus) == 0) {
        skip_all(rows);
        return;
    }
    add_compiler(cuda, rows);
    add_peers(gpus, rows);
    check_nvml(site, gpus, rows);
    add_nic_distance(site, gpus, rows);
    add_gpu_numa(site, gpus, rows);
}
