/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>

/* Keeps the rows for the backward pass, when the caller of the forward pass lets go of them. */
expar_status keep_rows(const expar_ep_dispatch_result *rows, expar_ep_output **kept)
{
    expar_status status = expar_ep_output_retain(rows->output);
    if (status == EXPAR_OK) *kept = rows->output;
    return status;
}
