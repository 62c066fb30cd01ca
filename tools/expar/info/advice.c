/* SPDX-License-Identifier: Apache-2.0 */
/* Advice about missing parts of a faster path, with the commands that provide them. */
#include "info.h"
#include <stdint.h>
#include <string.h>

/* The symmetric heap reserves this on each rank unless EXPAR_HEAP_SIZE says otherwise. */
#define DEFAULT_HEAP_BYTES (INT64_C(16) << 30)

static void add(json_t *list, const char *missing, const char *effect, const char *command)
{
    json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "missing", missing, "effect", effect, "command", command));
}

static bool has_launcher(const json_t *launchers, const char *name)
{
    size_t i;
    json_t *entry;
    json_array_foreach(launchers, i, entry)
    {
        if (!strcmp(json_string_value(json_object_get(entry, "name")), name))
            return json_is_string(json_object_get(entry, "path"));
    }
    return false;
}

const char *info_driver_remedy(const char *missing)
{
    if (strstr(missing, "sees no GPU"))
        return "nvidia-smi -L   (lists those of the machine; CUDA_VISIBLE_DEVICES hides the others)";
    if (strstr(missing, "cuInit")) return "nvidia-smi   (docs/reference/gpu.md says what each message means)";
    return "install NVIDIA's driver, 525 or newer   (docs/reference/gpu.md says what each message means)";
}

/* Advises about the driver. An installed driver may see no GPU, or fail to start. */
static void advise_driver(json_t *list, const char *missing)
{
    const char *what = strstr(missing, "sees no GPU") ? "a GPU that this process sees"
                       : strstr(missing, "cuInit")    ? "a driver that starts"
                                                      : "CUDA";
    add(list, what, "buffers and kernels on GPUs", info_driver_remedy(missing));
}

bool info_peers_complete(const json_t *gpus)
{
    size_t i;
    json_t *gpu;
    json_array_foreach(gpus, i, gpu)
    {
        if (json_array_size(json_object_get(gpu, "links")) + 1 < json_array_size(gpus)) return false;
    }
    return true;
}

bool info_shared_huge_pages(const char *word)
{
    return strcmp(word, "never") != 0 && strcmp(word, "deny") != 0;
}

/* Advises about the compiler of kernels. Precompiled kernels serve only some GPUs, and only in their generic form. */
static void advise_cuda(json_t *list, const json_t *cuda)
{
    const json_t *driver = json_object_get(cuda, "driver"), *compiler = json_object_get(cuda, "compiler");
    if (json_is_null(json_object_get(driver, "version"))) {
        advise_driver(list, json_string_value(json_object_get(driver, "missing")));
        return;
    }
    if (json_is_null(json_object_get(compiler, "version")))
        add(list, "NVRTC", "kernels compiled for this GPU and for this shape", INFO_COMPILER_REMEDY);
    if (!info_peers_complete(json_object_get(cuda, "gpus")))
        add(list, "peer access between all GPUs", "a buffer on all of them; it needs GPUs that reach each other",
            INFO_PEERS_REMEDY);
}

json_t *info_advice(const json_t *memory, const json_t *launchers, const json_t *cuda, const json_t *transports)
{
    json_t *list = json_array();
    const char *shared = json_string_value(json_object_get(memory, "shared_huge_pages"));
    if (!info_shared_huge_pages(shared))
        add(list, "huge pages for shared memory", "fewer TLB misses and page faults in the symmetric heap",
            INFO_SHARED_HUGE_PAGES_REMEDY);
    const json_t *space = json_object_get(memory, "address_space_bytes");
    if (json_is_integer(space) && json_integer_value(space) < 8 * DEFAULT_HEAP_BYTES)
        add(list, "address space for 8 heaps of the default size", "groups can be formed without a smaller heap",
            "ulimit -v unlimited   (or set EXPAR_HEAP_SIZE)");
    if (!has_launcher(launchers, "mpirun"))
        add(list, "mpirun", "expar bench --mpi can compare with Open MPI",
            "sudo apt-get install openmpi-bin libopenmpi-dev   (then build again)");
    /* If something else is wrong, such as a mistyped name, the reason above is enough. */
    const char *missing = json_string_value(json_object_get(transports, "missing"));
    if (missing && strstr(missing, "libfabric"))
        add(list, "a network", "ranks of several hosts reach each other",
            INFO_NETWORK_REMEDY "   (see above for what exactly is missing)");
    advise_cuda(list, cuda);
    return list;
}
