/* SPDX-License-Identifier: Apache-2.0 */
/* NVSHMEM's names on top of expar: for the host in C and C++, for kernels under nvcc and NVRTC. A program includes
 * <nvshmem.h> and is built with what `pkg-config --cflags --libs expar-nvshmem` says. docs/reference/nvshmem.md has the
 * table of what is covered, and says what differs.
 *
 * Most names are inline functions, which call expar for the host and expar/device.h for kernels. Names that start, end
 * and allocate are in the library (expar/compat/parts/library.h). A host's call that fails says why on stderr and ends
 * the job. A kernel's call that fails ends the job when the host next completes or synchronises. */
#ifndef EXPAR_COMPAT_NVSHMEM_H
#define EXPAR_COMPAT_NVSHMEM_H

#include <expar/compat/parts/atomics.h>
#include <expar/compat/parts/collectives.h>
#include <expar/compat/parts/order.h>
#include <expar/compat/parts/rma.h>
#include <expar/compat/parts/waits.h>

#endif
