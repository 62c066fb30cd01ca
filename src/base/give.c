/* SPDX-License-Identifier: Apache-2.0 */
/* Fills public structs of callers that may have been built with an older, shorter form of them. */
#include "base/base.h"

#include <string.h>

expar_status struct_give(const char *call, const char *name, const char *init, const void *full, size_t full_bytes,
                         void *out)
{
    size_t wanted;
    if (!out) return error_set(EXPAR_ERR_NULL, "%s: %s is NULL", call, name);
    memcpy(&wanted, out, sizeof wanted);
    if (wanted < sizeof wanted || wanted > full_bytes)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: %s.struct_size %zu, expected %zu to %zu (%s)", call, name, wanted,
                         sizeof wanted, full_bytes, init);
    memcpy(out, full, wanted);
    memcpy(out, &wanted, sizeof wanted);
    return EXPAR_OK;
}
