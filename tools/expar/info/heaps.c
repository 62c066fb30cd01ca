/* SPDX-License-Identifier: Apache-2.0 */
/* Symmetric heaps of the processes that run on this machine now: each rank has its own as a memfd among its
 * descriptors, with a card in it that says how full it is. */
#include "info.h"
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

/* A descriptor of another process that is a heap is added; what cannot be opened or read is none. */
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

static double mib(const json_t *heap, const char *key)
{
    return (double)json_integer_value(json_object_get(heap, key)) / (1 << 20);
}

static int number(const json_t *heap, const char *key)
{
    return (int)json_integer_value(json_object_get(heap, key));
}

void info_heaps_print(const json_t *list)
{
    size_t i;
    json_t *heap;
    if (json_array_size(list) == 0) {
        printf("no process that may be looked at has a symmetric heap\n");
        return;
    }
    printf("sizes in MiB; holes: free space between blocks\n");
    printf("%8s %-16s %9s %10s %9s %6s %9s %9s %9s %6s %6s %9s %9s\n", "pid", "program", "rank", "limit", "grown",
           "chunks", "memory", "used", "most used", "blocks", "holes", "in holes", "largest");
    json_array_foreach(list, i, heap)
    {
        char rank[32];
        snprintf(rank, sizeof rank, "%d of %d", number(heap, "rank"), number(heap, "ranks"));
        printf("%8d %-16s %9s %10.0f %9.1f %6d %9.1f %9.2f %9.2f %6d %6d %9.2f %9.2f\n", number(heap, "pid"),
               json_string_value(json_object_get(heap, "program")), rank, mib(heap, "limit_bytes"),
               mib(heap, "grown_bytes"), number(heap, "chunks"), mib(heap, "memory_bytes"), mib(heap, "used_bytes"),
               mib(heap, "high_water_bytes"), number(heap, "blocks"), number(heap, "holes"), mib(heap, "hole_bytes"),
               mib(heap, "largest_hole_bytes"));
    }
}
