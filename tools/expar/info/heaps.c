/* SPDX-License-Identifier: Apache-2.0 */
/* Symmetric heaps of the processes that run on this machine now. Each rank has its heap as a memfd among its
 * descriptors. A record in the heap says how full it is. */
#include "info.h"
#include "table.h"
#include "text.h"
#include <dirent.h>
#include <expar/memory.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static json_t *heap_json(int pid, int32_t rank, int32_t size, const expar_heap_stats *s)
{
    char path[64], program[64] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", pid);
    info_read_line(path, program, sizeof program);
    return json_pack("{s:i, s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "pid", pid,
                     "program", program, "rank", rank, "ranks", size, "limit_bytes", (json_int_t)s->total_bytes,
                     "grown_bytes", (json_int_t)s->grown_bytes, "chunks", (json_int_t)s->chunks, "memory_bytes",
                     (json_int_t)s->memory_bytes, "used_bytes", (json_int_t)s->used_bytes, "high_water_bytes",
                     (json_int_t)s->high_water_bytes, "blocks", (json_int_t)s->blocks, "largest_free_bytes",
                     (json_int_t)s->largest_free_bytes, "holes", (json_int_t)s->holes, "hole_bytes",
                     (json_int_t)s->hole_bytes, "largest_hole_bytes", (json_int_t)s->largest_hole_bytes);
}

/* Adds the heap of another process's descriptor. It skips a descriptor that is no heap, or cannot be opened or read. */
static void add_descriptor(json_t *list, int pid, const char *path)
{
    static const char name[] = "/memfd:expar-heap";
    char target[64] = "";
    expar_heap_stats stats = EXPAR_HEAP_STATS_INIT;
    int32_t rank, size;
    if (readlink(path, target, sizeof target - 1) < 0 || strncmp(target, name, sizeof name - 1) != 0) return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (expar_heap_read_stats(fd, &stats, &rank, &size) == EXPAR_OK)
        json_array_append_new(list, heap_json(pid, rank, size, &stats));
    close(fd);
}

static void add_process(json_t *list, int pid)
{
    char folder[64], path[384];
    struct dirent *entry;
    snprintf(folder, sizeof folder, "/proc/%d/fd", pid);
    DIR *descriptors = opendir(folder);
    while (descriptors && (entry = readdir(descriptors))) {
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        add_descriptor(list, pid, path);
    }
    if (descriptors) closedir(descriptors);
}

json_t *info_heaps(void)
{
    json_t *list = json_array();
    struct dirent *entry;
    DIR *processes = opendir("/proc");
    while (processes && (entry = readdir(processes))) {
        int64_t pid;
        if (text_to_int(entry->d_name, 1, INT32_MAX, &pid)) add_process(list, (int)pid);
    }
    if (processes) closedir(processes);
    return list;
}

/* ---- for a person ------------------------------------------------------------------------------------------------ */

/* The columns of a heap. A cell has the value of `key` in MiB with `digits` after the point, or as it is if digits is
   negative. */
static const struct column {
    const char *title, *key;
    int digits;
} columns[] = {
    {"limit", "limit_bytes", 0},   {"grown", "grown_bytes", 1},
    {"chunks", "chunks", -1},      {"memory", "memory_bytes", 1},
    {"used", "used_bytes", 2},     {"most used", "high_water_bytes", 2},
    {"blocks", "blocks", -1},      {"holes", "holes", -1},
    {"in holes", "hole_bytes", 2}, {"largest", "largest_hole_bytes", 2},
};
enum { NUM_COLUMNS = sizeof columns / sizeof columns[0] };

static int number(const json_t *heap, const char *key)
{
    return (int)json_integer_value(json_object_get(heap, key));
}

/* Adds the row of a heap. The kernel cuts names of programs at 15 bytes. The column has at least that width, so that
   columns do not move when the command is repeated. */
static void put_heap(struct table *table, const json_t *heap)
{
    table_row(table);
    table_cell(table, "%8d", number(heap, "pid"));
    table_cell(table, "%-15s", json_string_value(json_object_get(heap, "program")));
    char rank[32];
    snprintf(rank, sizeof rank, "%d of %d", number(heap, "rank"), number(heap, "ranks"));
    table_cell(table, "%9s", rank);
    for (size_t i = 0; i < NUM_COLUMNS; i++) {
        json_int_t value = json_integer_value(json_object_get(heap, columns[i].key));
        if (columns[i].digits < 0)
            table_cell(table, "%d", (int)value);
        else
            table_cell(table, "%.*f", columns[i].digits, (double)value / (1 << 20));
    }
}

bool info_heaps_print(const json_t *list)
{
    size_t i;
    json_t *heap;
    if (json_array_size(list) == 0) {
        printf("no process that may be looked at has a symmetric heap\n");
        return true;
    }
    struct table *table = table_new();
    table_column(table, "pid", TABLE_RIGHT);
    table_column(table, "program", TABLE_LEFT);
    table_column(table, "rank", TABLE_RIGHT);
    for (i = 0; i < NUM_COLUMNS; i++)
        table_column(table, columns[i].title, TABLE_RIGHT);
    json_array_foreach(list, i, heap)
    {
        put_heap(table, heap);
    }
    printf("sizes in MiB; holes: free space between blocks\n");
    return table_print(table, stdout);
}
