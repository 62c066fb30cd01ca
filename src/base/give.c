/* SPDX-License-Identifier: Apache-2.0 */
/* Handing public structs over to callers that may have been built with an older, shorter form of them. */
#include "base/base.h"

#include <string.h>

expar_status struct_give(const char *call, const char *init, const void *full, size_t full_bytes, void *out)
{
    size_t wanted;
    if (!out) return error_set(EXPAR_ERR_NULL, "%s: the struct to be filled is NULL", call);
    memcpy(&wanted, out, sizeof wanted);
    if (wanted < sizeof wanted || wanted > full_bytes)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: struct_size %zu, expected %s's %zu", call, wanted, init, full_bytes);
    memcpy(out, full, wanted);
    memcpy(out, &wanted, sizeof wanted);
    return EXPAR_OK;
}
