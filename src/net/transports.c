/* SPDX-License-Identifier: Apache-2.0 */
/* The transports of this build, by name. */
#include "net/transport.h"

#include <string.h>

static const transport_ops *const all[] = {
    &transport_p2p,
#ifdef EXPAR_HAVE_LIBFABRIC
    &transport_fabric,
#endif
};

const transport_ops *transport_find(const char *name, size_t name_length)
{
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++)
        if (strlen(all[i]->name) == name_length && memcmp(all[i]->name, name, name_length) == 0) return all[i];
    return NULL;
}

const char *transport_names(void)
{
#ifdef EXPAR_HAVE_LIBFABRIC
    return "p2p,fabric";
#else
    return "p2p";
#endif
}
