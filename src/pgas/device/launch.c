/* SPDX-License-Identifier: Apache-2.0 */
/* expar_launch: kernels whose blocks run at the same time, because they wait for each other or for other ranks. */
#include "pgas/device/parts.h"

#include <string.h>

static const char what[] = "expar_launch";

static expar_status args_copy(const expar_launch_args *given, expar_launch_args *out)
{
    if (!given) return error_set(EXPAR_ERR_NULL, "%s: args is NULL", what);
    if (given->struct_size < sizeof given->struct_size || given->struct_size > sizeof *out)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: args.struct_size %zu, expected %zu to %zu (EXPAR_LAUNCH_ARGS_INIT)",
                         what, given->struct_size, sizeof given->struct_size, sizeof *out);
    *out = (expar_launch_args)EXPAR_LAUNCH_ARGS_INIT;
    memcpy(out, given, given->struct_size);
    if (!out->function) return error_set(EXPAR_ERR_NULL, "%s: args.function is NULL", what);
    if (out->threads == 0) return error_set(EXPAR_ERR_ARGUMENT, "%s: args.threads 0, expected 1 or more", what);
    return EXPAR_OK;
}

/* The device is entered. */
static expar_status find_most_blocks(const cuda_device *device, const expar_launch_args *args, uint32_t *most)
{
    int each = 0;
    expar_status status = CUDA_CALL(OccupancyMaxActiveBlocksPerMultiprocessor, &each, args->function,
                                    (int)args->threads, args->shared_bytes);
    *most = (uint32_t)each * (uint32_t)device->num_sms;
    return status;
}

/* The rings look for commands all the time, as long as the kernel runs. */
static expar_status launch_announced(const expar_group *group, const cuda_launch *launch, void **arguments)
{
    handles *all = handles_of(group);
    const bool announced = launched_begin(all, launch->stream);
    const expar_status status = cuda_launch_kernel(launch, arguments);
    if (announced) launched_end(all, launch->stream, status);
    return status;
}

static expar_status launch_entered(const expar_group *group, const cuda_device *device, const expar_launch_args *args,
                                   uint32_t *blocks)
{
    uint32_t most;
    expar_status status = find_most_blocks(device, args, &most);
    if (status != EXPAR_OK) return error_prefix(status, "%s", what);
    if (most == 0 || args->blocks > most)
        return error_set(EXPAR_ERR_LIMIT,
                         "%s: args.blocks %u of %u threads, expected at most %u, which run on GPU %d at the same time",
                         what, args->blocks, args->threads, most, device->index);
    const cuda_launch launch = {.function = args->function,
                                .stream = args->stream,
                                .blocks = args->blocks ? args->blocks : most,
                                .threads = args->threads,
                                .shared_bytes = args->shared_bytes,
                                .cooperative = true};
    status = launch_announced(group, &launch, args->arguments);
    if (status == EXPAR_OK && blocks) *blocks = launch.blocks;
    return status == EXPAR_OK ? EXPAR_OK : error_prefix(status, "%s", what);
}

static expar_status launch_on(const expar_group *group, const expar_launch_args *given, uint32_t *blocks)
{
    expar_launch_args args;
    cuda_device *device;
    expar_status status = args_copy(given, &args);
    if (status == EXPAR_OK) status = sym_check_self(group->sym, what);
    if (status != EXPAR_OK) return status;
    const int32_t gpu = kinds_device(group->sym, TRANSPORT_DEVICE);
    if (gpu < 0) return error_set(EXPAR_ERR_STATE, "%s: this group has no device memory yet, so it has no GPU", what);
    status = cuda_device_open(gpu, &device);
    if (status != EXPAR_OK) return status;
    status = cuda_enter(device);
    if (status == EXPAR_OK) {
        status = launch_entered(group, device, &args, blocks);
        cuda_leave();
    }
    cuda_device_close(device);
    return status;
}

expar_status expar_launch(expar_group *group, const expar_launch_args *args, uint32_t *blocks)
{
    if (!group) return group_ended(group, error_set(EXPAR_ERR_NULL, "%s: group is NULL", what));
    if (!group_enter(group, what)) return group_ended(group, EXPAR_ERR_STATE);
    const expar_status status = launch_on(group, args, blocks);
    group_leave(group);
    return group_ended(group, status);
}
