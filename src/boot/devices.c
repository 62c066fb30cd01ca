/* SPDX-License-Identifier: Apache-2.0 */
/* Finds what is near this process: the NUMA node of its cores, and the network devices of its host. */
#include "boot/place.h"
#include "boot/wire/wire.h"

#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- NUMA node --------------------------------------------------------------------------------------------------- */

static bool has_cores(const char *sys, int32_t node, const cpu_set_t *cores)
{
    char path[256];
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, cores)) continue;
        int length = snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpu%d", sys, node, core);
        if (length < 0 || (size_t)length >= sizeof path || access(path, F_OK) != 0) return false;
    }
    return true;
}

int32_t place_numa_node(const char *sys, const cpu_set_t *cores)
{
    if (CPU_COUNT(cores) == 0) return -1;
    for (int32_t node = 0; node < PLACE_MAX_NUMA_NODES; node++)
        if (has_cores(sys, node, cores)) return node;
    return -1;
}

/* ---- network devices --------------------------------------------------------------------------------------------- */

/* Adds a whole name or nothing: a name that does not fit is left out. */
static void add_name(char text[BOOT_NICS_TEXT], const char *name)
{
    size_t used = strlen(text), wanted = strlen(name) + (used > 0);
    if (wanted >= BOOT_NICS_TEXT - used) return;
    snprintf(text + used, BOOT_NICS_TEXT - used, "%s%s", used > 0 ? "," : "", name);
}

static void list_rdma_devices(const char *folder, char text[BOOT_NICS_TEXT])
{
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.') add_name(text, entries[i]->d_name);
        free(entries[i]);
    }
    if (count >= 0) free(entries);
}

/* Does not read /sys, which may show the interfaces of another network namespace. */
static void list_interfaces(char text[BOOT_NICS_TEXT])
{
    struct ifaddrs *all;
    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *one = all; one; one = one->ifa_next) {
        bool is_link = one->ifa_addr && one->ifa_addr->sa_family == AF_PACKET;
        if (is_link && one->ifa_flags & IFF_UP && !(one->ifa_flags & IFF_LOOPBACK)) add_name(text, one->ifa_name);
    }
    freeifaddrs(all);
}

void place_nics(const char *sys, char text[BOOT_NICS_TEXT])
{
    char folder[256];
    memset(text, 0, BOOT_NICS_TEXT);
    snprintf(folder, sizeof folder, "%s/class/infiniband", sys);
    list_rdma_devices(folder, text);
    if (!text[0]) list_interfaces(text);
    /* Peers reject a place whose text has control characters. The kernel allows them in names. */
    wire_text_clean(text);
}
