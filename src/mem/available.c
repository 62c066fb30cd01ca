/* SPDX-License-Identifier: Apache-2.0 */
/* Finds how much memory this process can still take before the kernel would kill a process for it. That is what the
 * machine has available, and what each memory cgroup of this process leaves, up to the outermost. */
#include "mem/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES 1024
#define LINE_BYTES 1024

/* The names that one version of cgroups uses. */
typedef struct cgroup_names {
    const char *mount, *limit, *usage, *cache[2]; /* cache: keys in memory.stat of memory that can be dropped */
} cgroup_names;

static const cgroup_names version_1 = {
    .mount = "/sys/fs/cgroup/memory",
    .limit = "memory.limit_in_bytes",
    .usage = "memory.usage_in_bytes",
    .cache = {"total_inactive_file", "total_active_file"},
};
static const cgroup_names version_2 = {
    .mount = "/sys/fs/cgroup",
    .limit = "memory.max",
    .usage = "memory.current",
    .cache = {"inactive_file", "active_file"},
};

/* Reads the number that follows `key` and a colon or space in `line`; false if the line has another key. */
static bool number_of(const char *line, const char *key, uint64_t *value)
{
    size_t length = strlen(key);
    char *end;
    if (strncmp(line, key, length) != 0 || (line[length] != ':' && line[length] != ' ')) return false;
    unsigned long long number = strtoull(line + length + 1, &end, 10);
    if (end == line + length + 1) return false;
    *value = number;
    return true;
}

/* Returns the sum of two numbers that follow keys in a file; a missing one counts 0. */
static uint64_t sum_of_keys(const char *path, const char *const keys[2])
{
    char line[LINE_BYTES];
    uint64_t sum = 0, value;
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    while (fgets(line, sizeof line, file))
        for (int k = 0; k < 2; k++)
            if (number_of(line, keys[k], &value)) sum += value;
    fclose(file);
    return sum;
}

/* Reads a file that holds one number; false if it does not exist or holds a word ("max"). */
static bool read_number(const char *path, uint64_t *value)
{
    char line[LINE_BYTES], *end;
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool read = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    if (!read) return false;
    unsigned long long number = strtoull(line, &end, 10);
    if (end == line) return false;
    *value = number;
    return true;
}

static void keep_least(mem_available *spare, uint64_t bytes, const char *what, const char *name)
{
    if (bytes >= spare->bytes) return;
    spare->bytes = bytes;
    snprintf(spare->limit, sizeof spare->limit, "%s%s", what, name);
}

static void ask_machine(const char *root, mem_available *spare)
{
    static const char *const keys[] = {"MemAvailable", "SwapFree"};
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    uint64_t kilobytes = sum_of_keys(path, keys);
    if (kilobytes > 0) keep_least(spare, kilobytes * 1024, "what this machine has", "");
}

/* Asks one cgroup: `path` is "" for the outermost that is mounted. */
static void ask_cgroup(const char *root, const cgroup_names *names, const char *path, mem_available *spare)
{
    char file[PATH_BYTES];
    uint64_t limit, usage;
    snprintf(file, sizeof file, "%s%s%s/%s", root, names->mount, path, names->limit);
    if (!read_number(file, &limit)) return;
    snprintf(file, sizeof file, "%s%s%s/%s", root, names->mount, path, names->usage);
    if (!read_number(file, &usage)) return;
    snprintf(file, sizeof file, "%s%s%s/memory.stat", root, names->mount, path);
    uint64_t cache = sum_of_keys(file, names->cache);
    uint64_t held = usage > cache ? usage - cache : 0;
    keep_least(spare, limit > held ? limit - held : 0, "what is left to memory cgroup ", path[0] ? path : "/");
}

/* Handles a line of /proc/self/cgroup: "NUMBER:CONTROLLERS:PATH"; version 2 has no controllers. It skips a path that is
   not mounted here, because a container sees only its own part. */
static void ask_cgroups_of(const char *root, char *line, mem_available *spare)
{
    char *controllers = strchr(line, ':');
    char *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path) return;
    *path++ = '\0';
    controllers++;
    path[strcspn(path, "\n")] = '\0';
    const cgroup_names *names = strcmp(controllers, "memory") == 0 ? &version_1 : &version_2;
    if (names == &version_2 && controllers[0] != '\0') return;
    for (char *end = path + strlen(path); end >= path; end--) {
        if (*end != '\0' && *end != '/') continue;
        *end = '\0';
        ask_cgroup(root, names, path, spare);
    }
}

void mem_available_find(const char *root, mem_available *out)
{
    char line[LINE_BYTES];
    *out = (mem_available){.bytes = UINT64_MAX, .limit = "no limit is known"};
    ask_machine(root, out);
    snprintf(line, sizeof line, "%s/proc/self/cgroup", root);
    FILE *file = fopen(line, "re");
    if (!file) return;
    while (fgets(line, sizeof line, file))
        ask_cgroups_of(root, line, out);
    fclose(file);
}
