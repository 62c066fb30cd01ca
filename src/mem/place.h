/* SPDX-License-Identifier: Apache-2.0 */
/* Finds where the caller's memory lies, and allocates memory by the caller's functions. Called by ep and exec; calls
 * cuda and base. */
#ifndef EXPAR_MEM_PLACE_H
#define EXPAR_MEM_PLACE_H

#include "cuda/cuda.h"
#include "mem/mem.h"
#include <expar/tensor.h>

/* Allocates memory by the caller's functions, for use on the stream: EXPAR_ERR_MEMORY (NULL), EXPAR_ERR_ALIGNMENT,
   EXPAR_ERR_DEVICE. Unusable memory is freed at once. */
expar_status mem_allocate(expar_device device, const mem_allocator *from, uint64_t bytes, void *stream, void **out);

/* Checks that an address is memory of the device, as far as the address itself shows; NULL is. member: follows the name
   in texts, ".data" or "". */
expar_status mem_check_place(expar_device device, const char *name, const char *member, const void *data);
/* Returns true if the address is known to be memory of a device, which hosts do not read. */
bool mem_is_far(const void *data);

#endif
