/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>
#include <stdio.h>

/* Where the rows of each rank lie in what a dispatch has brought. */
expar_status show_sources(const expar_ep_handle *handle, int32_t num_ranks)
{
    expar_ep_handle_info info = EXPAR_EP_HANDLE_INFO_INIT;
    expar_status status = expar_ep_handle_get_info(handle, &info);
    for (int32_t r = 0; status == EXPAR_OK && info.rank_prefix && r < num_ranks; r++)
        printf("rank %d: up to row %d\n", (int)r, (int)info.rank_prefix[r]);
    return status;
}
