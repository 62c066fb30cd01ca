/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors for other libraries, from calls of other names than expar_tensor_to_dlpack's. */
#ifndef EXPAR_BASE_DLPACK_H
#define EXPAR_BASE_DLPACK_H

#include <expar/dlpack.h>

/* As expar_tensor_to_dlpack; texts of errors begin with `call`. */
expar_status dlpack_make(const char *call, const expar_tensor *tensor, uint32_t version, void (*release)(void *context),
                         void *context, void **managed);

#endif
