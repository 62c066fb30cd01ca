/* SPDX-License-Identifier: Apache-2.0 */
/* `expar info` for a person. */
#include "info.h"
#include <stdio.h>
#include <string.h>

#define LABEL_WIDTH 22

static void print_label(const char *label)
{
    printf("  %-*s", LABEL_WIDTH, label);
}

/* Bytes in the largest unit that divides well; null is "unlimited". */
static void print_bytes(const char *label, const json_t *value)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    print_label(label);
    if (!json_is_integer(value)) {
        printf("unlimited\n");
        return;
    }
    double bytes = (double)json_integer_value(value);
    int unit = 0;
    for (; bytes >= 1024 && unit < 4; unit++)
        bytes /= 1024;
    printf("%.4g %s\n", bytes, units[unit]);
}

static void print_text(const json_t *object, const char *label, const char *key)
{
    print_label(label);
    const char *text = json_string_value(json_object_get(object, key));
    printf("%s\n", text ? text : "not found");
}

static void print_cpu(const json_t *cpu)
{
    size_t i;
    json_t *entry;
    char label[32];
    printf("processors\n");
    print_text(cpu, "model", "model");
    print_label("cores");
    printf("%d, %d threads, %d usable here, %d packages\n", (int)json_integer_value(json_object_get(cpu, "cores")),
           (int)json_integer_value(json_object_get(cpu, "threads")),
           (int)json_integer_value(json_object_get(cpu, "usable_threads")),
           (int)json_integer_value(json_object_get(cpu, "packages")));
    json_array_foreach(json_object_get(cpu, "numa_nodes"), i, entry)
    {
        snprintf(label, sizeof label, "NUMA node %zu", i);
        print_bytes(label, entry);
    }
    json_array_foreach(json_object_get(cpu, "caches"), i, entry)
    {
        snprintf(label, sizeof label, "L%d cache (%d)", (int)json_integer_value(json_object_get(entry, "level")),
                 (int)json_integer_value(json_object_get(entry, "count")));
        print_bytes(label, json_object_get(entry, "bytes"));
    }
}

static void print_memory(const json_t *memory)
{
    printf("memory\n");
    print_bytes("total", json_object_get(memory, "total_bytes"));
    print_bytes("available", json_object_get(memory, "available_bytes"));
    print_bytes("lockable (ulimit -l)", json_object_get(memory, "memlock_bytes"));
    print_bytes("addresses (ulimit -v)", json_object_get(memory, "address_space_bytes"));
    print_bytes("/dev/shm free", json_object_get(memory, "dev_shm_free_bytes"));
    print_text(memory, "huge pages", "huge_pages");
    print_text(memory, "shared huge pages", "shared_huge_pages");
    print_bytes("huge page size", json_object_get(memory, "huge_page_bytes"));
    print_text(memory, "heap of a rank", "heap");
}

/* The driver's order of performance (0 is the best) matters where there are links of several kinds. */
static void print_links(const json_t *links)
{
    size_t i;
    json_t *link;
    printf("reaches %s", json_array_size(links) ? "GPU" : "no other GPU");
    json_array_foreach(links, i, link)
    {
        printf("%s %d (performance rank %d, %s)", i ? "," : "", (int)json_integer_value(json_object_get(link, "gpu")),
               (int)json_integer_value(json_object_get(link, "performance_rank")),
               json_is_true(json_object_get(link, "atomics")) ? "atomics" : "no atomics");
    }
    printf("\n");
}

static void print_gpu(const json_t *gpu)
{
    char label[32];
    snprintf(label, sizeof label, "GPU %d", (int)json_integer_value(json_object_get(gpu, "index")));
    print_label(label);
    if (json_object_get(gpu, "error")) {
        printf("%s\n", json_string_value(json_object_get(gpu, "error")));
        return;
    }
    printf("%s, %s, %.0f GiB, %d SMs, compute capability %s%s; ", json_string_value(json_object_get(gpu, "name")),
           json_string_value(json_object_get(gpu, "bus_id")),
           (double)json_integer_value(json_object_get(gpu, "memory_bytes")) / (1 << 30),
           (int)json_integer_value(json_object_get(gpu, "sms")),
           json_string_value(json_object_get(gpu, "compute_capability")),
           json_is_true(json_object_get(gpu, "shareable")) ? "" : ", memory cannot be shared");
    print_links(json_object_get(gpu, "links"));
}

static void print_found(const json_t *part, const char *label)
{
    const char *version = json_string_value(json_object_get(part, "version"));
    const char *path = json_string_value(json_object_get(part, "path"));
    print_label(label);
    if (version)
        printf("CUDA %s%s%s\n", version, path ? ", " : "", path ? path : "");
    else
        printf("%s\n", json_string_value(json_object_get(part, "missing")));
}

static void print_cuda(const json_t *cuda)
{
    size_t i;
    json_t *gpu;
    printf("GPUs\n");
    print_found(json_object_get(cuda, "driver"), "driver");
    print_found(json_object_get(cuda, "compiler"), "kernel compiler");
    print_label("ready kernels");
    const char *ready = json_string_value(json_object_get(cuda, "ready_kernels"));
    printf("%s\n", ready ? ready : "none: this library was built without nvcc");
    json_array_foreach(json_object_get(cuda, "gpus"), i, gpu)
    {
        print_gpu(gpu);
    }
}

static void print_paths(const json_t *list, const char *title, const char *key)
{
    size_t i;
    json_t *entry;
    printf("%s\n", title);
    json_array_foreach(list, i, entry)
    {
        print_text(entry, json_string_value(json_object_get(entry, "name")), key);
    }
}

static void print_matrix(const json_t *transport)
{
    size_t rank, pe;
    json_t *row, *reach;
    json_array_foreach(json_object_get(transport, "matrix"), rank, row)
    {
        char label[64];
        snprintf(label, sizeof label, "  from rank %zu to all", rank);
        print_label(label);
        json_array_foreach(row, pe, reach)
        {
            printf("%s ", json_string_value(reach));
        }
        printf("\n");
    }
}

static void print_place(const json_t *place)
{
    json_int_t node = json_integer_value(json_object_get(place, "numa_node"));
    if (!json_is_object(place)) return;
    print_label("each rank");
    if (node < 0)
        printf("on cores of several NUMA nodes");
    else
        printf("on NUMA node %d", (int)node);
    const char *nics = json_string_value(json_object_get(place, "nics"));
    printf(", near %s\n", *nics ? nics : "no network device");
}

static void print_transports(const json_t *transports)
{
    size_t i;
    json_t *entry;
    printf("transports, tried by %d ranks on %d nodes (m map, p put, g get, a atomics; capital: used)\n",
           (int)json_integer_value(json_object_get(transports, "ranks")),
           (int)json_integer_value(json_object_get(transports, "nodes")));
    print_place(json_object_get(transports, "place"));
    json_array_foreach(json_object_get(transports, "list"), i, entry)
    {
        const char *note = json_string_value(json_object_get(entry, "note"));
        print_text(entry, json_string_value(json_object_get(entry, "name")), "reach");
        if (*note) {
            print_label("");
            printf("%s\n", note);
        }
        print_matrix(entry);
    }
    const char *missing = json_string_value(json_object_get(transports, "missing"));
    if (!missing) return;
    print_label("not to be had");
    printf("%s\n", missing);
}

static void print_advice(const json_t *advice)
{
    size_t i;
    json_t *entry;
    printf("missing for faster paths\n");
    if (json_array_size(advice) == 0) printf("  nothing\n");
    json_array_foreach(advice, i, entry)
    {
        printf("  %s: %s\n      %s\n", json_string_value(json_object_get(entry, "missing")),
               json_string_value(json_object_get(entry, "effect")),
               json_string_value(json_object_get(entry, "command")));
    }
}

void info_print(const json_t *info)
{
    const json_t *build = json_object_get(info, "build");
    printf("expar %s\n", json_string_value(json_object_get(info, "version")));
    print_text(build, "build", "type");
    print_text(build, "compiler", "compiler");
    print_text(build, "sanitizers", "sanitizers");
    print_text(build, "kernel", "kernel");
    print_cpu(json_object_get(info, "cpu"));
    print_memory(json_object_get(info, "memory"));
    print_cuda(json_object_get(info, "cuda"));
    print_paths(json_object_get(info, "launchers"), "launchers", "path");
    print_transports(json_object_get(info, "transports"));
    print_advice(json_object_get(info, "advice"));
}
