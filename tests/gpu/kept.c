/* SPDX-License-Identifier: Apache-2.0 */
/* Host copies of results. */
#include "gpu/kept.h"
#include <pthread.h>
#include <stdlib.h>

#define PARTS 6

typedef struct kept {
    const expar_ep_output *output;
    void *host[PARTS];
    int32_t *counts;
    expar_tensor x; /* the first one, as it lies on the GPU */
    struct kept *next;
} kept;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kept *all; /* guarded by lock */

static void *bring(trip *t, expar_tensor *tensor)
{
    if (!tensor->data && tensor->ndim == 0) return NULL;
    void *host = calloc(trip_span_bytes(tensor) + 1, 1);
    if (!host) abort();
    trip_fetch(t, tensor, host);
    tensor->data = host;
    tensor->device = (expar_device){.type = EXPAR_CPU};
    return host;
}

void kept_add(trip *t, expar_dispatch_result *result, const expar_dispatch_args *args)
{
    expar_tensor *const parts[PARTS] = {args->out_x.ndim ? NULL : &result->recv_x,
                                        args->out_topk_idx.ndim ? NULL : &result->recv_topk_idx,
                                        args->out_topk_weights.ndim ? NULL : &result->recv_topk_weights,
                                        args->out_scales.ndim ? NULL : &result->recv_x_scales,
                                        args->out_row_map.ndim ? NULL : &result->recv_row_map,
                                        args->out_src_token.ndim ? NULL : &result->recv_src_token};
    kept *k = calloc(1, sizeof *k);
    if (!k) abort();
    k->output = result->output;
    k->x = result->recv_x;
    for (int i = 0; i < PARTS; i++)
        if (parts[i]) k->host[i] = bring(t, parts[i]);
    pthread_mutex_lock(&lock);
    k->next = all;
    all = k;
    pthread_mutex_unlock(&lock);
}

const int32_t *kept_counts(const expar_ep_output *output, int32_t *counts)
{
    pthread_mutex_lock(&lock);
    kept *k = all;
    while (k && k->output != output)
        k = k->next;
    if (k) k->counts = counts;
    pthread_mutex_unlock(&lock);
    return counts;
}

bool kept_find(const void *host, expar_tensor *x)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (const kept *k = all; k && !found; k = k->next) {
        found = host && k->host[0] == host;
        if (found) *x = k->x;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void kept_drop(const expar_ep_output *output)
{
    pthread_mutex_lock(&lock);
    kept **place = &all;
    while (*place && (*place)->output != output)
        place = &(*place)->next;
    kept *k = *place;
    if (k) *place = k->next;
    pthread_mutex_unlock(&lock);
    if (!k) return;
    for (int i = 0; i < PARTS; i++) {
        trip_forget(k->host[i]);
        free(k->host[i]);
    }
    free(k->counts);
    free(k);
}
