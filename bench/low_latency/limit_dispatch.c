/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of a dispatch: each message once to its slot at each other rank. From the slots here, or from x, each payload
 * goes to the rows of its experts. */
#include "bench/low_latency/limit.h"
#include <stdlib.h>

#define HEADER_BYTES  8  /* of a message: token, place */
#define HEADER_A_SLOT 12 /* expert, row, weight */

static size_t header_bytes(const struct limit_way *way)
{
    return HEADER_BYTES + HEADER_A_SLOT * (size_t)way->session->problem->topk;
}

/* Returns the size of a message in its slot: the header in whole lines, then the payload. */
static size_t slot_bytes(const struct limit_way *way)
{
    return limit_whole_lines(header_bytes(way)) + way->coded_bytes;
}

static uint8_t *slot_of(const struct limit_way *way, int rank, int source, int64_t message)
{
    const struct bench_session *session = way->session;
    const int64_t most = session->layout->rows_per_expert / session->problem->num_ranks;
    return way->bases[rank] + (size_t)(source * most + message) * slot_bytes(way);
}

static uint8_t *payload_of(const struct limit_way *way, int64_t token)
{
    const size_t bytes = way->coded ? way->coded_bytes : way->session->problem->row_bytes;
    return (way->coded ? way->coded : (uint8_t *)way->session->x) + (size_t)token * bytes;
}

static void fill_messages(struct limit_way *way)
{
    const struct bench_session *session = way->session;
    const struct problem *problem = session->problem;
    const size_t payload =
        ll_format_row_bytes(session->format, problem->dtype, problem->hidden) + 4 * (size_t)way->num_scales;
    for (int64_t token = 0; token < problem->tokens; token++)
        for (int rank = 0; rank < problem->num_ranks; rank++) {
            if (rank == problem->rank || problem->position[token * problem->num_ranks + rank] < 0) continue;
            uint8_t *slot = slot_of(way, rank, problem->rank, way->sent[rank]++);
            const size_t number = way->messages.count / 2;
            limit_list_add(&way->messages, way->headers + number * limit_whole_lines(header_bytes(way)), slot,
                           header_bytes(way))
                ->small = true;
            /* With scales a payload is no multiple of 16 bytes, so whole lines are streamed. */
            limit_list_add(&way->messages, payload_of(way, token), slot + limit_whole_lines(header_bytes(way)),
                           (payload + 15) / 16 * 16);
        }
}

/* Lists the copies of each payload that arrives to the rows of its experts. This rank's own payloads are included. */
static void fill_rows(struct limit_way *way)
{
    const struct bench_session *session = way->session;
    const struct problem *problem = session->problem;
    const struct ll_layout *layout = session->layout;
    const size_t row_bytes = ll_format_row_bytes(session->format, problem->dtype, problem->hidden);
    int64_t message = 0;
    for (int64_t i = 0; i < problem->num_received; i++) {
        const struct problem_row *from = &problem->received[i];
        message = i > 0 && from->rank == problem->received[i - 1].rank ? message + 1 : 0;
        const uint8_t *payload = from->rank == problem->rank ? payload_of(way, from->token)
                                                             : slot_of(way, problem->rank, from->rank, message) +
                                                                   limit_whole_lines(header_bytes(way));
        for (int k = 0; k < problem->topk; k++) {
            if (ll_layout_rank(problem, from->rank, from->token, k) != problem->rank) continue;
            const int64_t row = ll_layout_row(problem, layout, from->rank, from->token, k);
            struct limit_copy *copy =
                limit_list_add(&way->rows, payload, way->received + (size_t)row * row_bytes, row_bytes);
            const int64_t expert = row / layout->rows_per_expert, number = row % layout->rows_per_expert;
            if (way->num_scales)
                copy->scales =
                    way->scales +
                    expert * ll_format_scale_words(session->format, way->num_scales, layout->rows_per_expert) +
                    ll_format_scale_at(session->format, way->num_scales, number);
            copy->info = way->src_info + row;
            copy->token = from->token;
        }
    }
}

static size_t all_coded_bytes(const struct limit_way *way)
{
    return ((size_t)way->session->problem->tokens + 1) * way->coded_bytes;
}

bool limit_dispatch_memory(struct limit_way *way)
{
    const struct bench_session *session = way->session;
    const struct bench_world *world = session->world;
    const struct ll_place *place = world->device->ll;
    const struct problem *problem = session->problem;
    const struct ll_layout *layout = session->layout;
    const size_t rows = (size_t)layout->local_experts * (size_t)layout->rows_per_expert;
    const size_t row_bytes = ll_format_row_bytes(session->format, problem->dtype, problem->hidden);
    way->num_scales = ll_format_scales(session->format, problem->hidden);
    way->coded_bytes = limit_whole_lines(row_bytes + 4 * (size_t)way->num_scales);
    way->received_bytes = rows * row_bytes;
    way->scales_bytes = (size_t)layout->local_experts * 4 *
                        (size_t)ll_format_scale_words(session->format, way->num_scales, layout->rows_per_expert);
    way->info_bytes = rows * sizeof *way->src_info;
    way->headers_bytes = ((size_t)problem->num_sent + 1) * limit_whole_lines(header_bytes(way));
    way->received = place->reserve(world, way->received_bytes);
    way->scales = place->reserve(world, way->scales_bytes);
    way->src_info = place->reserve(world, way->info_bytes);
    way->sent = calloc((size_t)problem->num_ranks, sizeof *way->sent);
    way->headers = world->device->alloc(world, way->headers_bytes);
    if (!session->format->plain) way->coded = world->device->alloc(world, all_coded_bytes(way));
    return way->received && way->scales && way->src_info && way->sent && way->headers &&
           (session->format->plain || way->coded) && limit_list_make(&way->messages, 2 * (size_t)problem->num_sent) &&
           limit_list_make(&way->rows, (size_t)layout->num_rows);
}

size_t limit_dispatch_symmetric_bytes(const struct limit_way *way)
{
    return (size_t)way->session->layout->rows_per_expert * slot_bytes(way);
}

void limit_dispatch_fill(struct limit_way *way)
{
    fill_messages(way);
    fill_rows(way);
}

bool limit_dispatch_refill(struct limit_way *way)
{
    const struct bench_session *session = way->session;
    const struct problem *problem = session->problem;
    const struct bench_device *device = session->world->device;
    const size_t bytes = (size_t)problem->tokens * problem->row_bytes;
    if (!way->coded) return true;
    uint8_t *draft = device->draft(session->world, way->coded, all_coded_bytes(way));
    const uint8_t *x = draft ? device->view(session->world, session->x, bytes) : NULL;
    if (!x) return bench_complain(session->world, "out of memory");
    for (int64_t token = 0; token < problem->tokens; token++)
        ll_format_encode(session->format, problem->dtype, problem->hidden, x + (size_t)token * problem->row_bytes,
                         draft + (size_t)token * way->coded_bytes);
    device->unview(session->world, x);
    return device->commit(session->world, way->coded, draft, all_coded_bytes(way));
}
