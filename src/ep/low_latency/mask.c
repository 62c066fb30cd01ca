/* SPDX-License-Identifier: Apache-2.0 */
/* Masks: buffers that have none (config.masking) say so. */
#include "ep/low_latency/ll.h"

static expar_status no_masks(expar_ll *ll, const char *name)
{
    expar_status status = ll_begin(ll, name, true);
    if (status != EXPAR_OK) return status;
    status = error_set(EXPAR_ERR_STATE, "%s: config.masking is 0; expected a buffer with masks", name);
    return ll_end(ll, status);
}

expar_status expar_ll_mask_set(expar_ll *ll, int32_t rank, int32_t masked)
{
    (void)rank, (void)masked;
    return ll_ended(ll, no_masks(ll, "expar_ll_mask_set"));
}

expar_status expar_ll_mask_query(expar_ll *ll, const expar_tensor *status, void *stream)
{
    (void)status, (void)stream;
    return ll_ended(ll, no_masks(ll, "expar_ll_mask_query"));
}

expar_status expar_ll_mask_clean(expar_ll *ll)
{
    return ll_ended(ll, no_masks(ll, "expar_ll_mask_clean"));
}
