/* SPDX-License-Identifier: Apache-2.0 */
/* `expar info` for a person: sections of labels and their values. Missing parts stand out. */
#include "colour.h"
#include "info.h"
#include "table.h"
#include "text.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The least width of each label, so that all sections are alike. */
#define LABEL_WIDTH 21
/* Blanks before and after a label. */
#define LABEL_GAPS 4
#define NARROW     60 /* columns of a terminal on which values do not break */

/* ---- a section --------------------------------------------------------------------------------------------------- */

static struct table *section(void)
{
    struct table *table = table_new();
    table_column(table, NULL, TABLE_LEFT);
    table_column(table, NULL, TABLE_LEFT);
    return table;
}

/* Starts the next line with its label. Its value goes into the next cell. */
static void label(struct table *table, const char *text)
{
    table_row(table);
    table_cell(table, "  %-*s", LABEL_WIDTH, text);
}

/* Returns the columns for values on this terminal; INT_MAX: they do not break. */
static int value_columns(void)
{
    const int columns = terminal_columns(STDOUT_FILENO);
    return columns < NARROW ? INT_MAX : columns - LABEL_WIDTH - LABEL_GAPS;
}

/* Fills the value of the last label by `cell`. Running text breaks between words, and goes on in lines without a
   label. */
static void put_running(struct table *table, void (*cell)(struct table *, const char *, ...), const char *text)
{
    char *lines = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&lines, &bytes);
    if (!out) return;
    text_wrap(out, text ? text : "not found", 0, value_columns());
    fclose(out);
    bool begun = false;
    for (char *rest = lines, *line; lines && (line = strsep(&rest, "\n")) && (rest || !begun);) {
        if (begun) label(table, "");
        cell(table, "%s", line);
        begun = true;
    }
    free(lines);
}

/* Adds a line with bytes in the largest unit of measure that divides well; null is "unlimited". */
static void put_bytes(struct table *table, const char *name, const json_t *value)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    label(table, name);
    if (!json_is_integer(value)) {
        table_cell(table, "unlimited");
        return;
    }
    double bytes = (double)json_integer_value(value);
    int unit = 0;
    for (; bytes >= 1024 && unit < 4; unit++)
        bytes /= 1024;
    table_cell(table, "%.4g %s", bytes, units[unit]);
}

static const char *text_of(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static int number_of(const json_t *object, const char *key)
{
    return (int)json_integer_value(json_object_get(object, key));
}

static void put_text(struct table *table, const json_t *object, const char *name, const char *key)
{
    const char *text = text_of(object, key);
    label(table, name);
    if (text)
        put_running(table, table_cell, text);
    else
        table_warn(table, "not found");
}

/* ---- the sections ------------------------------------------------------------------------------------------------ */

static bool print_build(const json_t *info)
{
    const json_t *build = json_object_get(info, "build");
    struct table *table = section();
    printf("expar %s\n", text_of(info, "version"));
    put_text(table, build, "build", "type");
    put_text(table, build, "compiler", "compiler");
    put_text(table, build, "sanitizers", "sanitizers");
    put_text(table, build, "kernel", "kernel");
    return table_print(table, stdout);
}

static bool print_cpu(const json_t *info)
{
    const json_t *cpu = json_object_get(info, "cpu");
    struct table *table = section();
    size_t i;
    json_t *entry;
    char name[32];
    printf("processors\n");
    put_text(table, cpu, "model", "model");
    label(table, "cores");
    table_cell(table, "%d, %d threads, %d usable here, %d packages", number_of(cpu, "cores"), number_of(cpu, "threads"),
               number_of(cpu, "usable_threads"), number_of(cpu, "packages"));
    json_array_foreach(json_object_get(cpu, "numa_nodes"), i, entry)
    {
        snprintf(name, sizeof name, "NUMA node %zu", i);
        put_bytes(table, name, entry);
    }
    json_array_foreach(json_object_get(cpu, "caches"), i, entry)
    {
        snprintf(name, sizeof name, "L%d cache (%d)", number_of(entry, "level"), number_of(entry, "count"));
        put_bytes(table, name, json_object_get(entry, "bytes"));
    }
    return table_print(table, stdout);
}

static bool print_memory(const json_t *info)
{
    const json_t *memory = json_object_get(info, "memory");
    struct table *table = section();
    printf("memory\n");
    put_bytes(table, "total", json_object_get(memory, "total_bytes"));
    put_bytes(table, "available", json_object_get(memory, "available_bytes"));
    put_bytes(table, "lockable (ulimit -l)", json_object_get(memory, "memlock_bytes"));
    put_bytes(table, "addresses (ulimit -v)", json_object_get(memory, "address_space_bytes"));
    put_bytes(table, "/dev/shm free", json_object_get(memory, "dev_shm_free_bytes"));
    put_text(table, memory, "huge pages", "huge_pages");
    put_text(table, memory, "shared huge pages", "shared_huge_pages");
    put_bytes(table, "huge page size", json_object_get(memory, "huge_page_bytes"));
    put_text(table, memory, "heap of a rank", "heap");
    return table_print(table, stdout);
}

/* Writes the links. The driver's order of performance (0 is the best) is shown if there are links of several kinds. */
static void write_links(FILE *out, const json_t *links)
{
    size_t i;
    json_t *link;
    fprintf(out, "reaches %s", json_array_size(links) ? "GPU" : "no other GPU");
    json_array_foreach(links, i, link)
    {
        fprintf(out, "%s %d (performance rank %d, %s)", i ? "," : "", number_of(link, "gpu"),
                number_of(link, "performance_rank"),
                json_is_true(json_object_get(link, "atomics")) ? "atomics" : "no atomics");
    }
}

static void write_gpu(FILE *out, const json_t *gpu)
{
    fprintf(out, "%s, %s, %.0f GiB, %d SMs, compute capability %s%s; ", text_of(gpu, "name"), text_of(gpu, "bus_id"),
            (double)json_integer_value(json_object_get(gpu, "memory_bytes")) / (1 << 30), number_of(gpu, "sms"),
            text_of(gpu, "compute_capability"),
            json_is_true(json_object_get(gpu, "shareable")) ? "" : ", memory cannot be shared");
    write_links(out, json_object_get(gpu, "links"));
}

static void put_gpu(struct table *table, const json_t *gpu)
{
    char name[32], *text = NULL;
    size_t bytes = 0;
    snprintf(name, sizeof name, "GPU %d", number_of(gpu, "index"));
    label(table, name);
    if (json_object_get(gpu, "error")) {
        put_running(table, table_alarm, text_of(gpu, "error"));
        return;
    }
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return;
    write_gpu(out, gpu);
    fclose(out);
    put_running(table, table_cell, text);
    free(text);
}

static void put_found(struct table *table, const json_t *part, const char *name)
{
    const char *version = text_of(part, "version"), *path = text_of(part, "path");
    label(table, name);
    if (version)
        table_cell(table, "CUDA %s%s%s", version, path ? ", " : "", path ? path : "");
    else
        put_running(table, table_warn, text_of(part, "missing"));
}

static void put_way(struct table *table, const json_t *mode, const char *what)
{
    char text[256];
    snprintf(text, sizeof text, "%s (%s); buffers in %s", what, text_of(mode, "way"), text_of(mode, "buffers"));
    put_running(table, table_cell, text);
}

static void put_kernels(struct table *table, const json_t *kernels)
{
    label(table, "programs' kernels");
    table_cell(table, "ways %s; atomics on device memory: %s", text_of(kernels, "ways"), text_of(kernels, "atomics"));
    const json_t *wrong = json_object_get(kernels, "wrong");
    if (!json_is_string(wrong)) return;
    label(table, "");
    put_running(table, table_cell, json_string_value(wrong));
}

static void put_across(struct table *table, const json_t *across)
{
    if (!json_is_object(across)) return;
    label(table, "to other nodes");
    const json_t *low_latency = json_object_get(across, "low_latency");
    const char *way = text_of(low_latency, "way");
    put_way(table, low_latency,
            strcmp(way, "gda") == 0    ? "low latency: kernels write requests for a network device"
            : strcmp(way, "none") == 0 ? "low latency: no way of EXPAR_DEVICE_TRANSPORTS leads there"
                                       : "low latency: kernels pass commands to host threads");
    label(table, "");
    put_way(table, json_object_get(across, "normal"),
            "normal mode: threads of the host say what to move, and kernels move rows");
    label(table, "");
    put_running(table, table_cell, text_of(across, "reason"));
    put_kernels(table, json_object_get(across, "kernels"));
}

static bool print_cuda(const json_t *info)
{
    const json_t *cuda = json_object_get(info, "cuda");
    struct table *table = section();
    size_t i;
    json_t *gpu;
    printf("GPUs\n");
    put_found(table, json_object_get(cuda, "driver"), "driver");
    put_found(table, json_object_get(cuda, "compiler"), "kernel compiler");
    const char *ready = text_of(cuda, "ready_kernels");
    label(table, "ready kernels");
    if (ready)
        table_cell(table, "%s", ready);
    else
        table_warn(table, "none: this library was built without nvcc");
    json_array_foreach(json_object_get(cuda, "gpus"), i, gpu)
    {
        put_gpu(table, gpu);
    }
    put_across(table, json_object_get(cuda, "across_nodes"));
    return table_print(table, stdout);
}

static bool print_launchers(const json_t *info)
{
    struct table *table = section();
    size_t i;
    json_t *entry;
    printf("launchers\n");
    json_array_foreach(json_object_get(info, "launchers"), i, entry)
    {
        const char *path = text_of(entry, "path");
        label(table, text_of(entry, "name"));
        table_cell(table, "%s", path ? path : "not here; optional");
    }
    return table_print(table, stdout);
}

static void put_place(struct table *table, const json_t *place)
{
    if (!json_is_object(place)) return;
    const int node = number_of(place, "numa_node");
    const char *nics = text_of(place, "nics");
    char where[64] = "on cores of several NUMA nodes";
    if (node >= 0) snprintf(where, sizeof where, "on NUMA node %d", node);
    label(table, "each rank");
    table_cell(table, "%s, near %s", where, *nics ? nics : "no network device");
}

static void put_reach(struct table *table, const json_t *row)
{
    char text[512] = "";
    size_t pe, used = 0;
    json_t *reach;
    json_array_foreach(row, pe, reach)
    {
        if (used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s ", json_string_value(reach));
    }
    table_cell(table, "%s", text);
}

/* Kinds of memory that go the same way share a line. */
static void put_ways(struct table *table, const json_t *ways)
{
    label(table, "  host, pinned memory");
    table_cell(table, "%s", text_of(ways, "host"));
    label(table, "  device memory");
    table_cell(table, "%s", text_of(ways, "device"));
}

static void put_transport(struct table *table, const json_t *transport)
{
    const char *note = text_of(transport, "note");
    size_t rank;
    json_t *row;
    put_text(table, transport, text_of(transport, "name"), "reach");
    if (*note) {
        label(table, "");
        put_running(table, table_cell, note);
    }
    put_ways(table, json_object_get(transport, "memory"));
    json_array_foreach(json_object_get(transport, "matrix"), rank, row)
    {
        char name[64];
        snprintf(name, sizeof name, "  from rank %zu to all", rank);
        label(table, name);
        put_reach(table, row);
    }
}

static bool print_transports(const json_t *info)
{
    const json_t *transports = json_object_get(info, "transports");
    struct table *table = section();
    size_t i;
    json_t *entry;
    printf("transports, tried by %d ranks on %d nodes\n", number_of(transports, "ranks"),
           number_of(transports, "nodes"));
    printf("  m map, p put, g get, a atomics; capitals mark the one that is used\n");
    put_place(table, json_object_get(transports, "place"));
    json_array_foreach(json_object_get(transports, "list"), i, entry)
    {
        put_transport(table, entry);
    }
    const char *missing = text_of(transports, "missing");
    if (missing) {
        label(table, "not to be had");
        /* Without devices for gda nothing is out of reach. */
        if (strncmp(missing, "gda: ", 5) == 0)
            put_running(table, table_cell, missing);
        else
            put_running(table, table_alarm, missing);
    }
    return table_print(table, stdout);
}

/* Prints each missing part and its use, and below it the command that provides it. */
static bool print_advice(const json_t *info)
{
    const json_t *advice = json_object_get(info, "advice");
    struct table *table = section();
    size_t i;
    json_t *entry;
    printf("missing for faster paths\n");
    if (json_array_size(advice) == 0) printf("  nothing\n");
    json_array_foreach(advice, i, entry)
    {
        table_row(table);
        table_warn(table, "  %-*s", LABEL_WIDTH, text_of(entry, "missing"));
        table_cell(table, "%s", text_of(entry, "effect"));
        label(table, "");
        table_cell(table, "%s", text_of(entry, "command"));
    }
    return table_print(table, stdout);
}

bool info_print(const json_t *info)
{
    return print_build(info) && print_cpu(info) && print_memory(info) && print_cuda(info) && print_launchers(info) &&
           print_transports(info) && print_advice(info);
}
