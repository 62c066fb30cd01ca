/* SPDX-License-Identifier: Apache-2.0 */
/* The host: processors that may be used, NUMA nodes, the governor, huge pages, shared memory. */
#include "base/shown.h"
#include "check.h"
#include "info/info.h"
#include <hwloc.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

/* Less than this in /dev/shm stops Open MPI and PyTorch's loaders. expar itself takes nothing from it. */
#define LEAST_SHM_BYTES (INT64_C(64) << 20)

/* Reads a list such as "0-3,8"; NULL when it cannot be read. The caller frees it. */
static hwloc_bitmap_t list_read(const char *text)
{
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (set && hwloc_bitmap_list_sscanf(set, text) == 0 && !hwloc_bitmap_iszero(set)) return set;
    hwloc_bitmap_free(set);
    return NULL;
}

/* Reads the set of CPUs or NUMA nodes that this process may use: "Cpus_allowed_list", "Mems_allowed_list". */
static hwloc_bitmap_t allowed(const struct check_site *site, const char *name)
{
    char path[PATH_MAX], text[2048];
    snprintf(path, sizeof path, "%s/self/status", site->proc);
    return check_read_field(path, name, text, sizeof text) ? list_read(text) : NULL;
}

static hwloc_bitmap_t online(const struct check_site *site, const char *what)
{
    char text[2048];
    return check_read(text, sizeof text, "%s/devices/system/%s/online", site->sys, what) ? list_read(text) : NULL;
}

/* ---- cpuset ------------------------------------------------------------------------------------------------------ */

/* Returns the CPUs that a control group's quota is worth; 0: no quota. A container sees its own group at the root. */
static double quota_cpus(const struct check_site *site)
{
    char line[64];
    double quota, period;
    int64_t old_quota, old_period;
    if (check_read(line, sizeof line, "%s/fs/cgroup/cpu.max", site->sys))
        return sscanf(line, "%lf %lf", &quota, &period) == 2 && period > 0 ? quota / period : 0;
    if (check_read_number(&old_quota, "%s/fs/cgroup/cpu/cpu.cfs_quota_us", site->sys) && old_quota > 0 &&
        check_read_number(&old_period, "%s/fs/cgroup/cpu/cpu.cfs_period_us", site->sys) && old_period > 0)
        return (double)old_quota / (double)old_period;
    return 0;
}

static void add_cpuset(const struct check_site *site, const hwloc_bitmap_t mine, const hwloc_bitmap_t all, json_t *rows)
{
    const int usable = hwloc_bitmap_weight(mine), total = all ? hwloc_bitmap_weight(all) : usable;
    const double quota = quota_cpus(site);
    const double cpus = quota > 0 && quota < usable ? quota : usable;
    char expected[64], worth[48] = "";
    snprintf(expected, sizeof expected, "a CPU for each of the %d ranks here", site->ranks_here);
    if (quota > 0) snprintf(worth, sizeof worth, ", quota of %.3g CPUs", quota);
    const bool good = cpus >= site->ranks_here;
    check_add(rows,
              &(struct check_row){"host", "cpuset", good ? CHECK_OK : CHECK_WARNING, expected,
                                  quota > 0 && quota < usable
                                      ? "docker run --cpus=N ...   (or raise cpu.max of the control group)"
                                      : "taskset -c 0-N ...   (or start fewer ranks; in a container: --cpuset-cpus)"},
              "%d of %d CPUs%s", usable, total, worth);
}

/* ---- NUMA -------------------------------------------------------------------------------------------------------- */

/* Counts the NUMA nodes whose CPUs this process may use; *node gets the last one. */
static int nodes_used(const struct check_site *site, const hwloc_bitmap_t nodes, const hwloc_bitmap_t mine, int *node)
{
    int count = 0;
    for (int i = hwloc_bitmap_first(nodes); i >= 0; i = hwloc_bitmap_next(nodes, i)) {
        char text[2048];
        if (!check_read(text, sizeof text, "%s/devices/system/node/node%d/cpulist", site->sys, i)) continue;
        hwloc_bitmap_t cpus = list_read(text);
        if (cpus && hwloc_bitmap_intersects(cpus, mine)) {
            count++;
            *node = i;
        }
        hwloc_bitmap_free(cpus);
    }
    return count;
}

static void judge_numa(const struct check_site *site, const hwloc_bitmap_t nodes, const hwloc_bitmap_t mine,
                       const hwloc_bitmap_t memory, json_t *rows)
{
    int node = 0;
    const int total = hwloc_bitmap_weight(nodes), used = nodes_used(site, nodes, mine, &node);
    struct check_row row = {"host", "numa", CHECK_OK, "CPUs and memory of one NUMA node", NULL};
    if (total > 1 && used > 1) {
        row.status = CHECK_WARNING;
        row.remedy = "expar run --bind ...   (or numactl --cpunodebind=N --membind=N)";
        check_add(rows, &row, "CPUs of %d of %d nodes", used, total);
    } else if (total > 1 && memory && !hwloc_bitmap_isset(memory, (unsigned)node)) {
        char remedy[64];
        snprintf(remedy, sizeof remedy, "numactl --membind=%d ...", node);
        row.status = CHECK_WARNING;
        row.remedy = remedy;
        check_add(rows, &row, "CPUs of node %d, whose memory may not be used", node);
    } else {
        check_add(rows, &row, total > 1 ? "CPUs of one node of %d" : "%d node", total);
    }
}

static void add_numa(const struct check_site *site, const hwloc_bitmap_t mine, json_t *rows)
{
    hwloc_bitmap_t nodes = online(site, "node"), memory = allowed(site, "Mems_allowed_list");
    if (nodes)
        judge_numa(site, nodes, mine, memory, rows);
    else
        check_add(rows, &(struct check_row){"host", "numa", CHECK_SKIPPED, "CPUs and memory of one NUMA node", NULL},
                  "the kernel does not tell its nodes");
    hwloc_bitmap_free(memory);
    hwloc_bitmap_free(nodes);
}

/* ---- governor ---------------------------------------------------------------------------------------------------- */

/* Finds the first CPU of the set that has another governor than `performance`. Returns how many were read. */
static int governors_read(const struct check_site *site, const hwloc_bitmap_t mine, char other[128], int *slow)
{
    int read = 0;
    *slow = 0;
    for (int cpu = hwloc_bitmap_first(mine); cpu >= 0; cpu = hwloc_bitmap_next(mine, cpu)) {
        char name[128];
        if (!check_read(name, sizeof name, "%s/devices/system/cpu/cpu%d/cpufreq/scaling_governor", site->sys, cpu))
            continue;
        read++;
        if (strcmp(name, "performance") == 0) continue;
        if ((*slow)++ == 0) snprintf(other, 128, "%s", name);
    }
    return read;
}

static void add_governor(const struct check_site *site, const hwloc_bitmap_t mine, json_t *rows)
{
    char other[128] = "";
    int slow, read = governors_read(site, mine, other, &slow);
    struct check_row row = {"host", "governor", CHECK_OK, "performance", "sudo cpupower frequency-set -g performance"};
    if (read == 0) {
        row.status = CHECK_SKIPPED;
        row.remedy = NULL;
        check_add(rows, &row, "the kernel has no governor here: a hypervisor or the firmware decides");
    } else if (slow > 0) {
        row.status = CHECK_WARNING;
        check_add(rows, &row, "%s on %d of %d CPUs", SHOWN(other), slow, read);
    } else {
        check_add(rows, &row, "performance");
    }
}

void check_cpus(const struct check_site *site, json_t *rows)
{
    hwloc_bitmap_t mine = allowed(site, "Cpus_allowed_list"), all = online(site, "cpu");
    if (mine) {
        add_cpuset(site, mine, all, rows);
        add_numa(site, mine, rows);
        add_governor(site, mine, rows);
    } else {
        static const char *const names[] = {"cpuset", "numa", "governor"};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            check_add(rows, &(struct check_row){"host", names[i], CHECK_SKIPPED, "a kernel that tells its CPUs", NULL},
                      "%s/self/status names no CPUs", site->proc);
    }
    hwloc_bitmap_free(all);
    hwloc_bitmap_free(mine);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Pages that the user asks for by EXPAR_HEAP_PAGES=huge must have been set aside. */
static bool add_reserved_pages(const struct check_site *site, json_t *rows)
{
    const char *pages = getenv("EXPAR_HEAP_PAGES");
    int64_t free_pages = 0;
    if (!pages || strcmp(pages, "huge") != 0) return false;
    check_read_number(&free_pages, "%s/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", site->sys);
    check_add(rows,
              &(struct check_row){"host", "huge_pages", free_pages > 0 ? CHECK_OK : CHECK_FAILURE,
                                  "free pages of 2 MiB for EXPAR_HEAP_PAGES=huge", "sudo sysctl vm.nr_hugepages=N"},
              "%" PRId64 " free pages of 2 MiB", free_pages);
    return true;
}

static void add_huge_pages(const struct check_site *site, json_t *rows)
{
    char path[PATH_MAX], word[128];
    if (add_reserved_pages(site, rows)) return;
    snprintf(path, sizeof path, "%s/%s", site->sys, INFO_SHARED_HUGE_PAGES);
    info_chosen_word(path, word, sizeof word);
    struct check_row row = {"host", "huge_pages", CHECK_OK, "huge pages for shared memory: advise or always",
                            INFO_SHARED_HUGE_PAGES_REMEDY};
    if (strcmp(word, "unknown") == 0) {
        row.status = CHECK_SKIPPED;
        row.remedy = NULL;
    } else if (!info_shared_huge_pages(word)) {
        row.status = CHECK_WARNING;
    }
    check_add(rows, &row, "%s", SHOWN(word));
}

static void add_shared_memory(const struct check_site *site, json_t *rows)
{
    struct statvfs stat;
    struct check_row row = {"host", "dev_shm", CHECK_OK, "64 MiB free, for Open MPI and PyTorch (expar takes none)",
                            "sudo mount -o remount,size=8G /dev/shm   (in a container: --shm-size=8g)"};
    if (statvfs(site->shm, &stat) != 0) {
        row.status = CHECK_WARNING;
        check_add(rows, &row, "there is no %s", SHOWN(site->shm));
        return;
    }
    const int64_t bytes = (int64_t)((uint64_t)stat.f_bavail * stat.f_frsize);
    if (bytes < LEAST_SHM_BYTES) row.status = CHECK_WARNING;
    check_add(rows, &row, "%" PRId64 " MiB free", bytes >> 20);
}

void check_memory(const struct check_site *site, json_t *rows)
{
    add_huge_pages(site, rows);
    add_shared_memory(site, rows);
}
