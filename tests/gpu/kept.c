/* SPDX-License-Identifier: Apache-2.0 */
/* Host copies of results. */
#include "gpu/kept.h"
#include <pthread.h>
#include <stdlib.h>

typedef struct kept {
    const void *owner;
    void *host[KEPT_PARTS];
    expar_tensor on[KEPT_PARTS]; /* as they lie on the GPU */
    int32_t *counts;
    struct kept *next;
} kept;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kept *all; /* guarded by lock */

static void *bring(mirrored *t, expar_tensor *tensor)
{
    void *host = calloc(mirrored_span_bytes(tensor) + 1, 1);
    if (!host) abort();
    mirrored_fetch(t, tensor, host);
    tensor->data = host;
    tensor->device = (expar_device){.type = EXPAR_CPU};
    return host;
}

void kept_put(mirrored *t, const void *owner, expar_tensor *const parts[KEPT_PARTS])
{
    kept *k = calloc(1, sizeof *k);
    if (!k) abort();
    k->owner = owner;
    for (int i = 0; i < KEPT_PARTS; i++) {
        if (!parts[i] || (!parts[i]->data && parts[i]->ndim == 0)) continue;
        k->on[i] = *parts[i];
        k->host[i] = bring(t, parts[i]);
    }
    pthread_mutex_lock(&lock);
    k->next = all;
    all = k;
    pthread_mutex_unlock(&lock);
}

void kept_add(mirrored *t, expar_ep_dispatch_result *result, const expar_ep_dispatch_args *args)
{
    expar_tensor *const parts[KEPT_PARTS] = {args->out_x.ndim ? NULL : &result->recv_x,
                                             args->out_topk_idx.ndim ? NULL : &result->recv_topk_idx,
                                             args->out_topk_weights.ndim ? NULL : &result->recv_topk_weights,
                                             args->out_scales.ndim ? NULL : &result->recv_scales,
                                             args->out_row_map.ndim ? NULL : &result->recv_row_map,
                                             args->out_src_token.ndim ? NULL : &result->recv_src_token,
                                             args->out_row_weights.ndim ? NULL : &result->recv_row_weights,
                                             args->out_src_metadata.ndim ? NULL : &result->recv_src_metadata};
    kept_put(t, result->output, parts);
}

const int32_t *kept_counts(const expar_ep_output *output, int32_t *counts)
{
    pthread_mutex_lock(&lock);
    kept *k = all;
    while (k && k->owner != output)
        k = k->next;
    if (k) k->counts = counts;
    pthread_mutex_unlock(&lock);
    return counts;
}

static bool is_first_part(const kept *k, const void *host)
{
    return host && k->host[0] == host;
}

/* Those of the caller's own device alone: another one is an error that the call is to find. */
expar_tensor kept_give(mirrored *t, const expar_tensor *host)
{
    expar_tensor on = *host;
    pthread_mutex_lock(&lock);
    const kept *k = host->device.type == EXPAR_CPU ? all : NULL;
    while (k && !is_first_part(k, host->data))
        k = k->next;
    if (k) {
        on.data = k->on[0].data;
        on.device = k->on[0].device;
    }
    pthread_mutex_unlock(&lock);
    if (!k) return mirrored_give(t, host);
    size_t bytes = mirrored_span_bytes(host);
    if (bytes) worker_send(t->worker, (cu_address)(uintptr_t)on.data, host->data, bytes);
    return on;
}

void *kept_host(const void *owner, const void *on_gpu)
{
    void *host = NULL;
    pthread_mutex_lock(&lock);
    for (const kept *k = all; k && !host; k = k->next)
        for (int i = 0; k->owner == owner && i < KEPT_PARTS && !host; i++)
            if (on_gpu && k->on[i].data == on_gpu) host = k->host[i];
    pthread_mutex_unlock(&lock);
    return host;
}

void kept_drop(const void *owner)
{
    pthread_mutex_lock(&lock);
    kept **place = &all;
    while (*place && (*place)->owner != owner)
        place = &(*place)->next;
    kept *k = *place;
    if (k) *place = k->next;
    pthread_mutex_unlock(&lock);
    if (!k) return;
    for (int i = 0; i < KEPT_PARTS; i++) {
        mirrored_forget(k->host[i]);
        free(k->host[i]);
    }
    free(k->counts);
    free(k);
}
