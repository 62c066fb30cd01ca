/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, the limits on it, and huge pages for shared memory. */
#include "info.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

bool info_read_line(const char *path, char *text, size_t bytes)
{
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool read = fgets(text, (int)bytes, file) != NULL;
    fclose(file);
    if (read) text[strcspn(text, "\n")] = '\0';
    return read;
}

/* Returns a value of /proc/meminfo ("MemTotal:  123 kB") in bytes; 0 if it is missing. */
static json_int_t meminfo_bytes(const char *name)
{
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file) return 0;
    char line[256];
    json_int_t kilobytes = 0;
    size_t length = strlen(name);
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, name, length) && line[length] == ':') kilobytes = atoll(line + length + 1);
    fclose(file);
    return kilobytes * 1024;
}

/* Returns a limit in bytes, or null for "unlimited". */
static json_t *limit(int resource)
{
    struct rlimit limits;
    if (getrlimit(resource, &limits) || limits.rlim_cur == RLIM_INFINITY) return json_null();
    return json_integer((json_int_t)limits.rlim_cur);
}

void info_chosen_word(const char *path, char *word, size_t bytes)
{
    char line[256];
    snprintf(word, bytes, "unknown");
    if (!info_read_line(path, line, sizeof line)) return;
    char *open = strchr(line, '['), *close = open ? strchr(open, ']') : NULL;
    if (close) snprintf(word, bytes, "%.*s", (int)(close - open - 1), open + 1);
}

static json_int_t shared_memory_free(void)
{
    struct statvfs stat;
    if (statvfs("/dev/shm", &stat)) return 0;
    return (json_int_t)((uint64_t)stat.f_bavail * stat.f_frsize);
}

json_t *info_memory(void)
{
    char shared[32], pages[32];
    info_chosen_word("/sys/" INFO_SHARED_HUGE_PAGES, shared, sizeof shared);
    info_chosen_word("/sys/kernel/mm/transparent_hugepage/enabled", pages, sizeof pages);
    const char *heap = getenv("EXPAR_HEAP_SIZE");
    return json_pack("{s:I, s:I, s:o, s:o, s:I, s:s, s:s, s:I, s:s}", "total_bytes", meminfo_bytes("MemTotal"),
                     "available_bytes", meminfo_bytes("MemAvailable"), "memlock_bytes", limit(RLIMIT_MEMLOCK),
                     "address_space_bytes", limit(RLIMIT_AS), "dev_shm_free_bytes", shared_memory_free(), "huge_pages",
                     pages, "shared_huge_pages", shared, "huge_page_bytes", meminfo_bytes("Hugepagesize"), "heap",
                     heap && *heap ? heap : "16G (default)");
}
