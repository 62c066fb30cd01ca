/* SPDX-License-Identifier: Apache-2.0 */
/* Rates of copies between GPUs. One process of each host measures all pairs that its GPUs make, one after the other, in
 * both directions. Copies are the driver's, over the link that kernels use, too. */
#include "check.h"
#include "cuda/cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COPY_BYTES ((size_t)32 << 20)
#define COPIES     2
/* The best sample counts, since other work only makes samples worse. The first one also opens the way. */
#define SAMPLES 6

/* One open GPU. */
struct rate_gpu {
    cuda_device *device;
    cu_stream stream;
    cu_event begin, end;
    cu_address source, target; /* COPY_BYTES each */
};

/* ---- one GPU ----------------------------------------------------------------------------------------------------- */

static void gpu_close(struct rate_gpu *gpu)
{
    const cu_driver *driver = cuda_driver();
    if (!gpu->device) return;
    if (cuda_enter(gpu->device) == EXPAR_OK) {
        if (gpu->end) driver->EventDestroy(gpu->end);
        if (gpu->begin) driver->EventDestroy(gpu->begin);
        if (gpu->target) driver->MemFree(gpu->target);
        if (gpu->source) driver->MemFree(gpu->source);
        if (gpu->stream) driver->StreamDestroy(gpu->stream);
        cuda_leave();
    }
    cuda_device_close(gpu->device);
    *gpu = (struct rate_gpu){0};
}

static expar_status gpu_open(int32_t index, struct rate_gpu *gpu)
{
    expar_status status = cuda_device_open(index, &gpu->device);
    if (status != EXPAR_OK) return status;
    status = cuda_enter(gpu->device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(StreamCreate, &gpu->stream, CU_STREAM_NON_BLOCKING);
    if (status == EXPAR_OK) status = CUDA_CALL(MemAlloc, &gpu->source, COPY_BYTES);
    if (status == EXPAR_OK) status = CUDA_CALL(MemAlloc, &gpu->target, COPY_BYTES);
    if (status == EXPAR_OK) status = CUDA_CALL(EventCreate, &gpu->begin, 0);
    if (status == EXPAR_OK) status = CUDA_CALL(EventCreate, &gpu->end, 0);
    cuda_leave();
    return status;
}

/* ---- one direction of a pair ------------------------------------------------------------------------------------- */

/* Without this the driver would carry the bytes through memory of the host. */
static expar_status enable_peer(const struct rate_gpu *peer)
{
    const cu_result result = cuda_driver()->CtxEnablePeerAccess(peer->device->context, 0);
    if (result == CU_ERROR_PEER_ENABLED) return EXPAR_OK;
    return cuda_status(result, __FILE__, __LINE__, "cuCtxEnablePeerAccess");
}

static expar_status sample(const struct rate_gpu *from, const struct rate_gpu *to, float *milliseconds)
{
    expar_status status = CUDA_CALL(EventRecord, from->begin, from->stream);
    for (int i = 0; i < COPIES && status == EXPAR_OK; i++)
        status = CUDA_CALL(MemcpyAsync, to->target, from->source, COPY_BYTES, from->stream);
    if (status == EXPAR_OK) status = CUDA_CALL(EventRecord, from->end, from->stream);
    if (status == EXPAR_OK) status = CUDA_CALL(StreamSynchronize, from->stream);
    if (status == EXPAR_OK) status = CUDA_CALL(EventElapsedTime, milliseconds, from->begin, from->end);
    return status;
}

static expar_status measure_pair(const struct rate_gpu *from, const struct rate_gpu *to, double *gbps)
{
    float best = 0, milliseconds = 0;
    expar_status status = cuda_enter(from->device);
    if (status != EXPAR_OK) return status;
    status = enable_peer(to);
    for (int i = 0; i < SAMPLES && status == EXPAR_OK; i++) {
        status = sample(from, to, &milliseconds);
        if (milliseconds > 0 && (best <= 0 || milliseconds < best)) best = milliseconds;
    }
    cuda_leave();
    if (status == EXPAR_OK && best > 0) *gbps = COPIES * (double)COPY_BYTES / ((double)best * 1e6);
    return status;
}

/* ---- all pairs of a host ----------------------------------------------------------------------------------------- */

/* Measures one direction if the two GPUs reach each other; peer_access names those that do not. */
static expar_status measure_if_linked(const struct rate_gpu *gpus, int32_t from, int32_t to,
                                      struct check_gpu_rates *rates)
{
    cuda_link link = {0};
    expar_status status = from == to ? EXPAR_OK : cuda_link_between(from, to, &link);
    if (status != EXPAR_OK || !link.access) return status;
    return measure_pair(&gpus[from], &gpus[to], &rates->gbps[from][to]);
}

static expar_status measure_all(struct rate_gpu *gpus, struct check_gpu_rates *rates)
{
    expar_status status = EXPAR_OK;
    for (int32_t i = 0; i < rates->gpus && status == EXPAR_OK; i++)
        status = gpu_open(i, &gpus[i]);
    for (int32_t from = 0; from < rates->gpus; from++)
        for (int32_t to = 0; to < rates->gpus && status == EXPAR_OK; to++)
            status = measure_if_linked(gpus, from, to, rates);
    return status;
}

void check_measure_gpus(struct check_gpu_rates *rates)
{
    struct rate_gpu gpus[CHECK_MAX_GPUS] = {0};
    *rates = (struct check_gpu_rates){0};
    if (cuda_open() != EXPAR_OK || cuda_device_count(&rates->gpus) != EXPAR_OK) return;
    if (rates->gpus > CHECK_MAX_GPUS) rates->gpus = CHECK_MAX_GPUS;
    if (rates->gpus < 2) return;
    if (measure_all(gpus, rates) != EXPAR_OK) snprintf(rates->error, sizeof rates->error, "%s", expar_last_error());
    for (int32_t i = 0; i < rates->gpus; i++)
        gpu_close(&gpus[i]);
}

/* ---- slow directions --------------------------------------------------------------------------------------------- */

/* The rates of all hosts; values: [all pairs]. Returns how many there are. */
static size_t collect(const struct check_host *hosts, const struct check_gpu_rates *rates, double *values)
{
    size_t count = 0;
    for (int32_t host = 0; host < hosts->count; host++) {
        const struct check_gpu_rates *mine = &rates[hosts->first[host]];
        for (int32_t from = 0; from < mine->gpus; from++)
            for (int32_t to = 0; to < mine->gpus; to++)
                if (mine->gbps[from][to] > 0) values[count++] = mine->gbps[from][to];
    }
    return count;
}

static void name_slow(const struct check_host *hosts, int32_t host, const struct check_gpu_rates *rates, double least,
                      size_t *count, struct check_text *text)
{
    for (int32_t from = 0; from < rates->gpus; from++)
        for (int32_t to = 0; to < rates->gpus; to++) {
            const double gbps = rates->gbps[from][to];
            if (gbps <= 0 || gbps >= least || ++*count > CHECK_MOST_NAMED) continue;
            check_text_add(text, "%sGPU %d to %d", text->used ? ", " : "", from, to);
            if (hosts->count > 1) check_text_add(text, " (%s)", hosts->names[hosts->first[host]]);
            check_text_add(text, " %.3g", gbps);
        }
}

/* Names the first host whose measurement failed, or says why there is none. */
static void add_unmeasured(const struct check_host *hosts, const struct check_gpu_rates *rates, json_t *rows)
{
    int32_t most = 0;
    struct check_row row = {"GPU", "gpu_rate", CHECK_SKIPPED, "two GPUs that reach each other", NULL};
    for (int32_t host = 0; host < hosts->count; host++)
        if (rates[hosts->first[host]].gpus > most) most = rates[hosts->first[host]].gpus;
    check_add(rows, &row, "%s",
              most == 0   ? "no GPU is usable"
              : most == 1 ? "the first rank of a host sees one GPU"
                          : "no GPU reaches another one");
}

static bool add_error(const struct check_host *hosts, const struct check_gpu_rates *rates, json_t *rows)
{
    for (int32_t host = 0; host < hosts->count; host++) {
        const int32_t first = hosts->first[host];
        if (!rates[first].error[0]) continue;
        check_add(rows,
                  &(struct check_row){"GPU", "gpu_rate", CHECK_WARNING, "copies between all GPUs come to an end",
                                      "nvidia-smi   (64 MiB of each GPU are needed; then look at faults of the GPU)"},
                  "%s: %.*s", hosts->names[first], (int)sizeof rates[first].error - 1, rates[first].error);
        return true;
    }
    return false;
}

void check_judge_gpus(const struct check_host *hosts, const struct check_gpu_rates *rates, json_t *rows)
{
    double *values = calloc((size_t)hosts->count * CHECK_MAX_GPUS * CHECK_MAX_GPUS + 1, sizeof *values);
    struct check_text slow = {0};
    struct check_row row = {"GPU", "gpu_rate", CHECK_OK, "each pair: at least 0.8 of the median",
                            "nvidia-smi nvlink -s; nvidia-smi topo -m   (then look at other work on these GPUs)"};
    const size_t count = values ? collect(hosts, rates, values) : 0;
    const double middle = count ? check_median(values, count) : 0;
    size_t slow_count = 0;
    free(values);
    if (add_error(hosts, rates, rows)) return;
    if (!count) {
        add_unmeasured(hosts, rates, rows);
        return;
    }
    for (int32_t host = 0; host < hosts->count; host++)
        name_slow(hosts, host, &rates[hosts->first[host]], CHECK_LEAST_SHARE * middle, &slow_count, &slow);
    if (slow_count > CHECK_MOST_NAMED) check_text_add(&slow, " and %zu more", slow_count - CHECK_MOST_NAMED);
    if (slow_count) row.status = CHECK_WARNING;
    check_add(rows, &row, "median %.3g GB/s of %zu directions%s%s", middle, count, slow.used ? "; slow: " : "",
              slow.text);
}
