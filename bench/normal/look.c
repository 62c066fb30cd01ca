/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches outputs for the host and compares them in full (verify.c). */
#include "bench/normal/session.h"

static size_t tensor_bytes(const expar_tensor *tensor)
{
    return (size_t)(tensor->shape[0] * tensor->shape[1]) * expar_dtype_bytes(tensor->dtype);
}

bool bench_look_dispatch(const struct bench_session *session, uint64_t salt, const expar_dispatch_result *result,
                         bool cached)
{
    const struct bench_world *world = session->world;
    expar_dispatch_result seen = *result;
    expar_tensor *const tensors[] = {&seen.recv_x, &seen.recv_topk_idx, &seen.recv_topk_weights, &seen.recv_x_scales};
    const void *views[4] = {NULL};
    bool good = true;
    for (int i = 0; i < 4; i++) {
        if (!tensors[i]->data) continue;
        views[i] = world->device->view(world, tensors[i]->data, tensor_bytes(tensors[i]));
        good = good && views[i];
        tensors[i]->data = (void *)(uintptr_t)views[i];
    }
    good = good && verify_dispatch(session->problem, salt, &seen, cached);
    for (int i = 0; i < 4; i++)
        world->device->unview(world, views[i]);
    return good;
}

bool bench_look_sums(const struct bench_session *session, uint64_t salt, enum verify_rows_of rows_of, int each)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    const void *y = world->device->view(world, session->y, (size_t)problem->tokens * problem->row_bytes);
    bool good = y && verify_combine(problem, salt, rows_of, each, y);
    world->device->unview(world, y);
    return good;
}
