/* SPDX-License-Identifier: Apache-2.0 */
/* GPUs, their links, the driver, and the compiler of kernels. */
#include "info.h"
#include <expar/info.h>
#include <string.h>

static json_t *version_text(int32_t version)
{
    return json_sprintf("%d.%d", version / 1000, version % 1000 / 10);
}

/* Returns the last error's text without the name of the call. */
static const char *reason(void)
{
    const char *text = expar_last_error(), *colon = strstr(text, ": ");
    return colon ? colon + 2 : text;
}

/* Returns {version, missing}; one of the two is null. */
static json_t *driver(int32_t *num_gpus)
{
    int32_t version;
    if (expar_cuda_get_driver(&version, num_gpus) == EXPAR_OK)
        return json_pack("{s:o, s:n}", "version", version_text(version), "missing");
    return json_pack("{s:n, s:s}", "version", "missing", reason());
}

static json_t *compiler(void)
{
    int32_t version;
    const char *path;
    if (expar_cuda_get_compiler(&version, &path) == EXPAR_OK)
        return json_pack("{s:o, s:s, s:n}", "version", version_text(version), "path", path, "missing");
    return json_pack("{s:n, s:n, s:s}", "version", "path", "missing", reason());
}

/* Returns the other GPUs whose memory this one reaches by loads and stores: [{gpu, performance_rank, atomics}]. */
static json_t *links_of(int32_t from, int32_t num_gpus)
{
    json_t *list = json_array();
    for (int32_t to = 0; to < num_gpus; to++) {
        int32_t access = 0, rank = 0, atomics = 0;
        if (to != from && expar_cuda_get_link(from, to, &access, &rank, &atomics) == EXPAR_OK && access)
            json_array_append_new(
                list, json_pack("{s:i, s:i, s:b}", "gpu", to, "performance_rank", rank, "atomics", atomics));
    }
    return list;
}

static json_t *gpu(int32_t index, int32_t num_gpus)
{
    expar_cuda_gpu facts = EXPAR_CUDA_GPU_INIT;
    if (expar_cuda_get_gpu(index, &facts) != EXPAR_OK)
        return json_pack("{s:i, s:s}", "index", index, "error", reason());
    return json_pack("{s:i, s:s, s:s, s:o, s:i, s:I, s:b, s:o}", "index", index, "name", facts.name, "bus_id",
                     facts.bus_id, "compute_capability", json_sprintf("%d.%d", facts.major, facts.minor), "sms",
                     facts.num_sms, "memory_bytes", (json_int_t)facts.memory_bytes, "shareable", facts.shareable,
                     "links", links_of(index, num_gpus));
}

json_t *info_cuda(void)
{
    int32_t num_gpus = 0, ready = expar_cuda_ready_kernels();
    json_t *gpus = json_array(), *the_driver = driver(&num_gpus);
    for (int32_t i = 0; i < num_gpus; i++)
        json_array_append_new(gpus, gpu(i, num_gpus));
    return json_pack("{s:o, s:o, s:o, s:o}", "driver", the_driver, "compiler", compiler(), "ready_kernels",
                     ready ? json_sprintf("sm_%d", ready) : json_null(), "gpus", gpus);
}
