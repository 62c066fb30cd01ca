/* SPDX-License-Identifier: Apache-2.0 */
/* How calls on GPUs reach ranks of other nodes, and why not by a faster way. */
#include "info.h"

#include "shmem/kernel_ways.h"

#include <stdlib.h>
#include <string.h>

/* Returns the first transport that reaches other nodes; NULL: none does. */
static const json_t *network_of(const json_t *transports)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(transports, "list"), i, one)
    {
        if (strcmp(json_string_value(json_object_get(one, "name")), "p2p") != 0) return one;
    }
    return NULL;
}

/* Returns whether kernels have queues of the transport gda. */
static bool has_queues(const json_t *transports)
{
    const char *memory = getenv("EXPAR_GDA_QUEUE_MEMORY");
    bool found = false;
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(transports, "list"), i, one)
    {
        found |= strcmp(json_string_value(json_object_get(one, "name")), "gda") == 0;
    }
    return found && memory && (strcmp(memory, "pinned") == 0 || strcmp(memory, "device") == 0);
}

/* By what kernels of low-latency calls send to ranks of other nodes. */
static const char *low_latency_way(const json_t *transports)
{
    kernel_ways ways;
    if (kernel_ways_read(&ways) != EXPAR_OK) return kernel_way_name(KERNEL_WAY_NONE);
    return kernel_way_name(kernel_ways_choose(&ways, false, has_queues(transports), network_of(transports) != NULL));
}

static json_t *reason_of(const json_t *transports)
{
    const json_t *network = network_of(transports);
    if (!network) return json_string("no transport reaches other nodes, so calls on GPUs stay inside a node");
    return json_sprintf("kernels of normal mode post to no NIC themselves; %s carries device memory so: %s",
                        json_string_value(json_object_get(network, "name")),
                        json_string_value(json_object_get(json_object_get(network, "memory"), "device")));
}

static const char *setting(const char *name, const char *fallback)
{
    const char *given = getenv(name);
    return given && *given ? given : fallback;
}

/* Why a value of these settings will be rejected when a program asks for a handle; null: it will not. */
static json_t *wrong_of(void)
{
    kernel_ways ways;
    kernel_atomics atomics;
    const bool fine = kernel_ways_read(&ways) == EXPAR_OK && kernel_atomics_read(&atomics) == EXPAR_OK;
    return fine ? json_null() : json_string(expar_last_error());
}

/* Kernels of programs (expar/device.h). */
static json_t *kernels_of(void)
{
    return json_pack("{s:s, s:s, s:o}", "ways", setting("EXPAR_DEVICE_TRANSPORTS", KERNEL_WAYS_DEFAULT), "atomics",
                     setting("EXPAR_DEVICE_ATOMICS", "auto"), "wrong", wrong_of());
}

json_t *info_across(const json_t *transports)
{
    if (!json_is_object(transports)) return json_null();
    return json_pack("{s:{s:s, s:s}, s:{s:s, s:s}, s:o, s:o}", "low_latency", "way", low_latency_way(transports),
                     "buffers", "pinned memory", "normal", "way", "host", "buffers",
                     "pinned memory, outputs on the GPU", "kernels", kernels_of(), "reason", reason_of(transports));
}
