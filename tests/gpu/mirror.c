/* SPDX-License-Identifier: Apache-2.0 */
/* Between host memory and the GPU. */
#include "gpu/mirror.h"
#include "cuda/cuda.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES ((size_t)192 << 20)
#define UNIT_BYTES  256

/* What a rank has; a rank is a thread here. Arguments live in the arena for one call. */
typedef struct mirror {
    cuda_device *device;
    cu_stream stream;
    cu_address arena;
    size_t used;
    expar_group *group;
    int32_t rank;
} mirror;
static _Thread_local mirror own;

/* Results that a test may still look at: host copies of a dispatch's tensors. */
typedef struct copy {
    expar_ep_output *output;
    void *host[5];
    expar_tensor x; /* the first one, as it lies on the GPU */
    struct copy *next;
} copy;
static copy *copies; /* guarded by lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Trouble with the mirror itself ends the test. */
static void need(expar_status status, const char *what)
{
    if (status == EXPAR_OK) return;
    fprintf(stderr, "mirror: %s: %s\n", what, expar_last_error());
    abort();
}

/* ---- tensors ---- */

/* From the first to the last byte of a matrix, gaps between rows included. */
static size_t span_bytes(const expar_tensor *t)
{
    if (t->shape[0] == 0 || t->shape[1] == 0) return 0;
    int64_t elements = (t->shape[0] - 1) * t->strides[0] + (t->shape[1] - 1) * t->strides[1] + 1;
    return (size_t)elements * expar_dtype_bytes(t->dtype);
}

/* A copy of a host matrix on the GPU, or as it is where the test left it out. */
static expar_tensor lend(const expar_tensor *host)
{
    expar_tensor t = *host;
    if (!t.data && t.ndim == 0) return t;
    if (t.device.type == EXPAR_CPU) t.device = (expar_device){.type = EXPAR_CUDA, .index = own.device->index};
    size_t bytes = span_bytes(host);
    if (!t.data) return t;
    if (own.used + bytes > ARENA_BYTES) need(EXPAR_ERR_MEMORY, "the arena is too small");
    cu_address at = own.arena + own.used;
    own.used += (bytes / UNIT_BYTES + 1) * UNIT_BYTES;
    t.data = (void *)(uintptr_t)at;
    if (bytes) need(CUDA_CALL(MemcpyHtoDAsync, at, host->data, bytes, own.stream), "copy to the GPU");
    return t;
}

static void fetch(const expar_tensor *from, void *to)
{
    size_t bytes = span_bytes(from);
    if (bytes) need(CUDA_CALL(MemcpyDtoHAsync, to, (cu_address)(uintptr_t)from->data, bytes, own.stream), "copy back");
}

static void settle(void)
{
    need(CUDA_CALL(StreamSynchronize, own.stream), "wait for the stream");
}

/* ---- buffers ---- */

expar_status mirror_ep_create(expar_group *group, const expar_ep_config *config, expar_ep **ep)
{
    int32_t count = 0;
    need(cuda_device_count(&count), "count GPUs");
    if (!config) return expar_ep_create(group, config, ep);
    int32_t index = expar_group_rank(group) % count;
    need(cuda_device_open(index, &own.device), "open the GPU");
    need(cuda_enter(own.device), "enter the GPU");
    need(CUDA_CALL(StreamCreate, &own.stream, CU_STREAM_NON_BLOCKING), "make a stream");
    need(CUDA_CALL(MemAlloc, &own.arena, ARENA_BYTES), "take the arena");
    own.group = group;
    own.rank = expar_group_rank(group);
    expar_ep_config on_gpu = *config;
    on_gpu.device = (expar_device){.type = EXPAR_CUDA, .index = index};
    on_gpu.pool_bytes = config->pool_bytes + ((int64_t)64 << 20);
    return expar_ep_create(group, &on_gpu, ep);
}

expar_status mirror_ep_destroy(expar_ep *ep)
{
    expar_status status = expar_ep_destroy(ep);
    cuda_driver()->MemFree(own.arena);
    cuda_driver()->StreamDestroy(own.stream);
    cuda_leave();
    cuda_device_close(own.device);
    own = (mirror){0};
    return status;
}

/* ---- results ---- */

/* Puts host memory in place of a tensor's own. */
static void *bring(expar_tensor *tensor)
{
    if (!tensor->data && tensor->ndim == 0) return NULL;
    void *host = calloc(span_bytes(tensor) + 1, 1);
    if (!host) abort();
    fetch(tensor, host);
    tensor->data = host;
    tensor->device = (expar_device){.type = EXPAR_CPU};
    return host;
}

static copy *copy_keep(const expar_dispatch_result *result)
{
    copy *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->output = result->output;
    c->x = result->recv_x;
    pthread_mutex_lock(&lock);
    c->next = copies;
    copies = c;
    pthread_mutex_unlock(&lock);
    return c;
}

/* The result's recv_x on the GPU whose host copy begins there. */
static bool copy_find(const void *host, expar_tensor *x)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (const copy *c = copies; c && !found; c = c->next) {
        found = host && c->host[0] == host;
        if (found) *x = c->x;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void mirror_output_release(expar_ep_output *output)
{
    pthread_mutex_lock(&lock);
    copy **place = &copies;
    while (*place && (*place)->output != output)
        place = &(*place)->next;
    copy *c = *place;
    if (c) *place = c->next;
    pthread_mutex_unlock(&lock);
    for (int i = 0; c && i < 5; i++)
        free(c->host[i]);
    free(c);
    expar_ep_output_release(output);
}

/* ---- calls ---- */

/* Memory of the host's symmetric heap has no counterpart in the GPU's: there it is the caller's own. */
static expar_path path_on_gpu(expar_path asked, bool own_memory)
{
    return asked == EXPAR_PATH_DIRECT && own_memory ? EXPAR_PATH_AUTO : asked;
}

/* What the CPU would have done for a test whose own output is not where peers reach it. */
static expar_path path_on_cpu(const expar_dispatch_args *args, expar_path path)
{
    if (args->path != EXPAR_PATH_AUTO) return args->path;
    return own.group && expar_ptr(own.group, args->out_x.data, own.rank) ? path : EXPAR_PATH_QUEUE;
}

expar_status mirror_dispatch(expar_ep *ep, const expar_dispatch_args *args, expar_dispatch_result *result)
{
    if (!args || !result || args->struct_size != sizeof *args) return expar_dispatch(ep, args, result);
    expar_dispatch_args given = *args;
    own.used = 0;
    bool has_out = args->out_x.ndim != 0;
    given.x = lend(&args->x);
    given.topk_idx = lend(&args->topk_idx);
    given.topk_weights = lend(&args->topk_weights);
    given.x_scales = lend(&args->x_scales);
    given.token_in_rank = lend(&args->token_in_rank);
    given.out_x = lend(&args->out_x);
    given.path = path_on_gpu(args->path, has_out);
    given.stream = own.stream;
    expar_status status = expar_dispatch(ep, &given, result);
    settle();
    if (status != EXPAR_OK) return status;
    copy *kept = copy_keep(result);
    if (has_out) {
        fetch(&given.out_x, args->out_x.data);
        result->recv_x.data = args->out_x.data;
        result->recv_x.device = (expar_device){.type = EXPAR_CPU};
    } else {
        kept->host[0] = bring(&result->recv_x);
    }
    kept->host[1] = bring(&result->recv_topk_idx);
    kept->host[2] = bring(&result->recv_topk_weights);
    kept->host[3] = bring(&result->recv_x_scales);
    kept->host[4] = bring(&result->recv_row_map);
    settle();
    if (has_out && args->path != EXPAR_PATH_QUEUE) result->path = path_on_cpu(args, result->path);
    return EXPAR_OK;
}

/* Rows that lie in a result go back there, others into the arena. */
static expar_tensor lend_rows(const expar_tensor *host)
{
    expar_tensor x;
    if (!copy_find(host->data, &x)) return lend(host);
    size_t bytes = span_bytes(host);
    if (bytes) need(CUDA_CALL(MemcpyHtoDAsync, (cu_address)(uintptr_t)x.data, host->data, bytes, own.stream), "rows");
    return x;
}

expar_status mirror_combine(expar_ep *ep, const expar_combine_args *args)
{
    if (!args || args->struct_size != sizeof *args) return expar_combine(ep, args);
    expar_combine_args given = *args;
    own.used = 0;
    given.x = lend_rows(&args->x);
    given.topk_weights = lend(&args->topk_weights);
    given.expert_weights = lend(&args->expert_weights);
    given.bias[0] = lend(&args->bias[0]);
    given.bias[1] = lend(&args->bias[1]);
    given.y = lend(&args->y);
    given.out_topk_weights = lend(&args->out_topk_weights);
    given.path = path_on_gpu(args->path, true);
    given.stream = own.stream;
    expar_status status = expar_combine(ep, &given);
    settle();
    if (status != EXPAR_OK) return status;
    fetch(&given.y, args->y.data);
    if (args->out_topk_weights.ndim) fetch(&given.out_topk_weights, args->out_topk_weights.data);
    if (args->x.ndim) fetch(&given.x, args->x.data);
    settle();
    return EXPAR_OK;
}
