/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the library's table of structs, and looks that some of its lines are what this program's compiler says. */
#include <expar/expar.h>

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static int failures;

static void look(const char *name, size_t offset, size_t bytes, const char *type)
{
    char line[256];
    snprintf(line, sizeof line, "{\"name\": \"%s\", \"offset\": %zu, \"size\": %zu, \"type\": \"%s\"}", name, offset,
             bytes, type);
    if (strstr(expar_abi(), line)) return;
    fprintf(stderr, "the table has no %s\n", line);
    failures++;
}
#define LOOK(owner, member, type) look(#member, offsetof(owner, member), sizeof((owner *)0)->member, type)

int main(void)
{
    LOOK(expar_tensor, data, "void *");
    LOOK(expar_tensor, strides, "int64_t[4]");
    LOOK(expar_tensor, device, "expar_device");
    LOOK(expar_ep_dispatch_args, handle, "const expar_ep_handle *");
    LOOK(expar_ep_dispatch_args, topk_weights, "expar_tensor");
    LOOK(expar_ep_combine_args, bias, "expar_tensor[2]");
    LOOK(expar_ep_combine_result, event, "expar_event *");
    LOOK(expar_network_stats, put_bytes, "uint64_t");
    LOOK(expar_cuda_gpu, bus_id, "char[32]");
    fputs(expar_abi(), stdout);
    return failures;
}
