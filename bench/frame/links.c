/* SPDX-License-Identifier: Apache-2.0 */
/* Links of a call. */
#include "bench/frame/links.h"
#include "bench/frame/session.h"
#include <expar/info.h>
#include <stdlib.h>

/* Returns the class of a link between two GPUs. Only NVLink carries out atomic operations on a peer's memory. */
static const char *class_of_gpus(const struct bench_options *options, int from, int to)
{
    const int source = from % options->num_gpus, target = to % options->num_gpus;
    int32_t atomics = 0;
    if (source == target) return "device";
    return expar_cuda_get_link(source, target, NULL, NULL, &atomics) == EXPAR_OK && atomics ? "nvlink" : "pcie";
}

static const char *class_of(const struct bench_session *session, int from, int to)
{
    const struct bench_world *world = session->world;
    if (world->nodes > 1 && from / world->each != to / world->each) return "network";
    return world->place.type == EXPAR_CUDA ? class_of_gpus(session->options, from, to) : "memory";
}

static bool list(const struct bench_session *session, const struct bench_flow *flow, struct bench_links *links)
{
    const int cells = flow->size * flow->size;
    *links = (struct bench_links){.known = true, .items = calloc((size_t)cells, sizeof *links->items)};
    for (int i = 0; links->items && i < cells; i++) {
        const int from = i / flow->size, to = i % flow->size;
        if (!flow->messages[i]) continue;
        links->items[links->count++] = (struct bench_link){.class = class_of(session, from, to),
                                                           .from = from,
                                                           .to = to,
                                                           .bytes = flow->bytes[i],
                                                           .messages = flow->messages[i]};
        if (flow->bytes[i] > links->most_bytes) links->most_bytes = flow->bytes[i];
    }
    return links->items != NULL;
}

bool bench_links_find(const struct bench_call *call, struct bench_links *links)
{
    const struct bench_session *session = call->session;
    const size_t size = (size_t)session->world->size;
    struct bench_flow flow = {.size = session->world->size,
                              .bytes = calloc(size * size, sizeof *flow.bytes),
                              .messages = calloc(size * size, sizeof *flow.messages)};
    bool good = flow.bytes && flow.messages;
    if (good) session->mode->flows(call, &flow);
    good = good && list(session, &flow, links);
    free(flow.bytes);
    free(flow.messages);
    return good;
}
