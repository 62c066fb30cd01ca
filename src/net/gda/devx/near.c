/* SPDX-License-Identifier: Apache-2.0 */
/* Which of several devices is near the rank. The system shows a device on PCI as a folder below all bridges to it:
 * devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0. */
#include "net/gda/devx/devx.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the number of folders in which both paths lie. */
static int32_t common_folders(const char *a, const char *b)
{
    int32_t count = 0;
    for (; *a && *a == *b; a++, b++)
        count += *a == '/';
    return count;
}

/* Returns false if there is no such file. */
static bool near_follow(const char *sys, const char *folder, const char *name, const char *file, char path[PATH_MAX])
{
    char link[PATH_MAX];
    const int length = snprintf(link, sizeof link, "%s/%s/%s%s", sys, folder, name, file);
    return length > 0 && length < (int)sizeof link && realpath(link, path);
}

/* The driver may write the address in capitals; the system does not. */
static bool find_gpu(const char *sys, const devx_place *place, char path[PATH_MAX])
{
    char name[sizeof place->gpu] = "";
    for (size_t i = 0; i < sizeof name; i++)
        name[i] = (char)tolower((unsigned char)place->gpu[i]);
    return name[0] && near_follow(sys, "bus/pci/devices", name, "", path);
}

/* Returns -1 if it is not known. */
static int32_t node_of_device(const char *sys, const char *name)
{
    char path[PATH_MAX];
    int node = -1;
    if (!near_follow(sys, "class/infiniband", name, "/device/numa_node", path)) return -1;
    FILE *file = fopen(path, "re");
    if (!file) return -1;
    if (fscanf(file, "%d", &node) != 1) node = -1;
    fclose(file);
    return node;
}

int32_t devx_nearness(const char *sys, const char *name, const devx_place *place)
{
    char gpu[PATH_MAX], device[PATH_MAX];
    if (find_gpu(sys, place, gpu) && near_follow(sys, "class/infiniband", name, "/device", device))
        return common_folders(gpu, device);
    return place->numa_node >= 0 && node_of_device(sys, name) == place->numa_node;
}

size_t devx_pick(const int32_t *nearness, size_t count, int32_t turn)
{
    int32_t most = 0;
    size_t num_near = 0;
    for (size_t i = 0; i < count; i++)
        if (nearness[i] > most) most = nearness[i];
    for (size_t i = 0; i < count; i++)
        num_near += nearness[i] == most;
    size_t skip = num_near ? (size_t)turn % num_near : 0;
    for (size_t i = 0; i < count; i++)
        if (nearness[i] == most && skip-- == 0) return i;
    return 0;
}
