/* SPDX-License-Identifier: Apache-2.0 */
/* Where memory of the caller's lies, and memory that its functions give. Called by ep and exec; calls cuda and base. */
#ifndef EXPAR_MEM_PLACE_H
#define EXPAR_MEM_PLACE_H

#include "cuda/cuda.h"
#include "mem/mem.h"
#include <expar/tensor.h>

/* Memory from the caller's functions, for use on the stream: EXPAR_ERR_MEMORY (NULL), EXPAR_ERR_ALIGNMENT,
   EXPAR_ERR_DEVICE. What cannot be used goes back at once. */
expar_status mem_allocate(expar_device device, const mem_allocator *from, uint64_t bytes, void *stream, void **out);

/* What an address itself says: that it is memory of the device, as far as it shows; NULL is. member: behind the name in
   texts, ".data" or "". */
expar_status mem_check_place(expar_device device, const char *name, const char *member, const void *data);
/* That it is memory of a device which hosts do not read; false where it does not show. */
bool mem_is_far(const void *data);

#endif
