/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of memory, and the rejection of those that a transport does not know. */
#include "net/transport.h"

const char *transport_memory_name(transport_memory memory)
{
    static const char *const names[] = {
        [TRANSPORT_HOST] = "host", [TRANSPORT_PINNED] = "pinned", [TRANSPORT_DEVICE] = "device"};
    return (unsigned)memory < TRANSPORT_MEMORIES ? names[memory] : "unknown";
}

expar_status transport_reject(const transport *self, transport_memory memory)
{
    return error_set(EXPAR_ERR_UNSUPPORTED, "transport %s reaches no memory of kind %s", self->ops->name,
                     transport_memory_name(memory));
}
