/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the settings of kernel_ways.h. */
#include "shmem/kernel_ways.h"
#include "base/shown.h"

#include <stdio.h>
#include <string.h>

static const char *const way_names[] = {
    [KERNEL_WAY_MAPPED] = "mapped", [KERNEL_WAY_GDA] = "gda", [KERNEL_WAY_PROXY] = "proxy"};
static const char *const atomics_names[KERNEL_ATOMICS] = {
    [KERNEL_ATOMICS_AUTO] = "auto", [KERNEL_ATOMICS_NODE] = "node", [KERNEL_ATOMICS_OWNER] = "owner"};

bool kernel_ways_have(const kernel_ways *ways, kernel_way way)
{
    for (int i = 0; i < KERNEL_WAYS; i++)
        if (ways->list[i] == way) return true;
    return false;
}

kernel_way kernel_ways_choose(const kernel_ways *ways, bool mapped, bool gda, bool proxy)
{
    const bool there[] = {[KERNEL_WAY_MAPPED] = mapped, [KERNEL_WAY_GDA] = gda, [KERNEL_WAY_PROXY] = proxy};
    for (int i = 0; i < KERNEL_WAYS && ways->list[i] != KERNEL_WAY_NONE; i++)
        if (there[ways->list[i]]) return ways->list[i];
    return KERNEL_WAY_NONE;
}

void kernel_ways_text(const kernel_ways *ways, char text[KERNEL_WAYS_BYTES])
{
    size_t length = 0;
    for (int i = 0; i < KERNEL_WAYS && ways->list[i] != KERNEL_WAY_NONE; i++)
        length +=
            (size_t)snprintf(text + length, KERNEL_WAYS_BYTES - length, "%s%s", i ? "," : "", way_names[ways->list[i]]);
}

const char *kernel_way_name(kernel_way way)
{
    return way == KERNEL_WAY_NONE ? "none" : way_names[way];
}

static kernel_way way_named(const char *name, size_t length)
{
    for (int way = KERNEL_WAY_MAPPED; way <= KERNEL_WAY_PROXY; way++)
        if (strlen(way_names[way]) == length && strncmp(way_names[way], name, length) == 0) return (kernel_way)way;
    return KERNEL_WAY_NONE;
}

expar_status kernel_ways_read(kernel_ways *out)
{
    const char *const text = env_string("EXPAR_DEVICE_TRANSPORTS");
    kernel_ways ways = {{KERNEL_WAY_NONE}};
    int count = 0;
    for (const char *at = text ? text : KERNEL_WAYS_DEFAULT; at; count++) {
        const size_t length = strcspn(at, ",");
        const kernel_way way = way_named(at, length);
        if (way == KERNEL_WAY_NONE || kernel_ways_have(&ways, way))
            return error_set(EXPAR_ERR_ARGUMENT,
                             "EXPAR_DEVICE_TRANSPORTS=%s: expected mapped, gda and proxy, each at most once, separated "
                             "by commas",
                             SHOWN(text));
        ways.list[count] = way;
        at = at[length] ? at + length + 1 : NULL;
    }
    *out = ways;
    return EXPAR_OK;
}

const char *kernel_atomics_name(kernel_atomics atomics)
{
    return atomics_names[atomics];
}

expar_status kernel_atomics_read(kernel_atomics *out)
{
    const char *const text = env_string("EXPAR_DEVICE_ATOMICS");
    *out = KERNEL_ATOMICS_AUTO;
    for (int i = 0; text && i < KERNEL_ATOMICS; i++) {
        *out = (kernel_atomics)i;
        if (strcmp(atomics_names[i], text) == 0) return EXPAR_OK;
    }
    if (!text) return EXPAR_OK;
    return error_set(EXPAR_ERR_ARGUMENT, "EXPAR_DEVICE_ATOMICS=%s: expected auto, node or owner", SHOWN(text));
}
