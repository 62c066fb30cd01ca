/* SPDX-License-Identifier: Apache-2.0 */
/* expar_ep_find_terms and expar_ep_sum_terms, on the GPU. */
#include "gpu/mirror.h"
#include "gpu/mirrored.h"
#include "group/group.h"

/* Waits for the stream, and ends the call. */
static void finish(mirrored *t, expar_status status)
{
    mirror_need(CUDA_CALL(StreamSynchronize, t->worker->stream), "wait for the call");
    mirrored_end(t, status == EXPAR_OK);
}

static expar_status find_terms(const expar_group *group, const expar_ep_terms_args *args)
{
    buffer place = {.rank = expar_group_rank(group)};
    mirrored *t = mirrored_begin(&place);
    expar_ep_terms_args given = *args;
    given.topk_idx = mirrored_give(t, &args->topk_idx);
    given.out_terms = mirrored_give(t, &args->out_terms);
    given.stream = t->worker->stream;
    mirrored_fetch(t, &given.out_terms, args->out_terms.data);
    const expar_status status = expar_ep_find_terms(group, &given);
    finish(t, status);
    return status;
}

expar_status mirror_ep_find_terms(const expar_group *group, const expar_ep_terms_args *args)
{
    const bool sound = group && args && args->struct_size == sizeof *args;
    return sound ? find_terms(group, args) : expar_ep_find_terms(group, args);
}

static expar_status sum_terms(const expar_group *group, const expar_ep_sum_args *args)
{
    buffer place = {.rank = expar_group_rank(group)};
    mirrored *t = mirrored_begin(&place);
    expar_ep_sum_args given = *args;
    given.x = mirrored_give(t, &args->x);
    given.terms = mirrored_give(t, &args->terms);
    for (int i = 0; i < 2; i++)
        given.bias[i] = mirrored_give(t, &args->bias[i]);
    given.out_y = mirrored_give(t, &args->out_y);
    given.stream = t->worker->stream;
    mirrored_fetch(t, &given.out_y, args->out_y.data);
    const expar_status status = expar_ep_sum_terms(group, &given);
    finish(t, status);
    return status;
}

expar_status mirror_ep_sum_terms(const expar_group *group, const expar_ep_sum_args *args)
{
    const bool sound = group && args && args->struct_size == sizeof *args;
    return sound ? sum_terms(group, args) : expar_ep_sum_terms(group, args);
}
