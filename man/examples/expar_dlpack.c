/* SPDX-License-Identifier: Apache-2.0 */
#include <expar/expar.h>
#include <stdlib.h>

/* Passes memory that came from malloc to another library, which reads DLPack 1.0 and frees it. */
expar_status hand_out(const expar_tensor *tensor, void **managed)
{
    return expar_tensor_to_dlpack(tensor, EXPAR_DLPACK_VERSION(1, 0), free, tensor->data, managed);
}
