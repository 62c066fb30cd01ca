/* SPDX-License-Identifier: Apache-2.0 */
/* Finding a kernel of the tool. */
#include "tool_kernels.h"
#include <string.h>

expar_status tool_kernel_load(const cuda_device *device, const char *name, cuda_program **out)
{
    for (size_t i = 0; i < tool_num_kernels; i++)
        if (!strcmp(tool_kernels[i].name, name)) return cuda_program_make(device, &tool_kernels[i], NULL, 0, out);
    return error_set(EXPAR_ERR_ARGUMENT, "the tool has no kernel source %s", name);
}
