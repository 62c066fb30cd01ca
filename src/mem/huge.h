/* SPDX-License-Identifier: Apache-2.0 */
/* huge: pages of hugetlbfs, for regions. */
#ifndef EXPAR_MEM_HUGE_H
#define EXPAR_MEM_HUGE_H

#include "mem/mem.h"

#define HUGE_BYTES ((size_t)2 << 20)

/* Makes a sealed memfd of `bytes` bytes that has its first huge pages already. It has its final length from the start,
   since mapping a file of hugetlbfs sets it. EXPAR_ERR_UNSUPPORTED: the system has no such pages. EXPAR_ERR_MEMORY: too
   few are free. */
expar_status huge_memfd(int seals, size_t bytes, size_t first_bytes, int *out);
/* Takes huge pages for a range of whole ones; existing contents stay. EXPAR_ERR_MEMORY: too few are free. */
expar_status huge_take(int fd, size_t offset, size_t bytes);

#endif
