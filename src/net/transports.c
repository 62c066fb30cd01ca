/* SPDX-License-Identifier: Apache-2.0 */
/* The transports of this build, by name. The build makes transports.inc and transport_names.h from the folders beside
 * this file. */
#include "net/transport.h"
#include "transport_names.h"

#include <string.h>

#define TRANSPORT(name) extern const transport_ops transport_##name;
#include "transports.inc"
#undef TRANSPORT

static const transport_ops *const all[] = {
#define TRANSPORT(name) &transport_##name,
#include "transports.inc"
#undef TRANSPORT
};

const transport_ops *transport_at(size_t place)
{
    return place < ARRAY_LENGTH(all) ? all[place] : NULL;
}

const transport_ops *transport_find(const char *name, size_t name_length)
{
    for (size_t i = 0; i < ARRAY_LENGTH(all); i++)
        if (strlen(all[i]->name) == name_length && memcmp(all[i]->name, name, name_length) == 0) return all[i];
    return NULL;
}

const char *transport_names(void)
{
    return TRANSPORT_NAMES;
}
