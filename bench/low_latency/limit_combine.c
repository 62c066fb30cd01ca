/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of a combine. Exact: each row to its place at its token's rank, this rank's own excepted; then each token's
 * sum. Reduced: the sum of a token's rows here into its place at the token's rank; then the sum of the places.
 */
#include "bench/low_latency/limit.h"
#include <stdlib.h>

#define LOGFMT_GROUP 128
#define LOGFMT_CODED 160 /* bytes of a coded group, and of its head */
#define LOGFMT_HEAD  8

static void add_row(struct limit_sums *list, const void *row, float weight)
{
    list->rows[list->num_rows] = row;
    list->weights[list->num_rows++] = weight;
}

/* Ends the sum of the rows that were added since the last one. If there are none, the sum is empty. */
static void end_sum(struct limit_sums *list, bool weighted, void *out)
{
    const size_t begin = list->count ? (size_t)(list->items[list->count - 1].rows - list->rows) +
                                           (size_t)list->items[list->count - 1].count
                                     : 0;
    list->items[list->count++] = (struct limit_sum){.rows = list->rows + begin,
                                                    .weights = weighted ? list->weights + begin : NULL,
                                                    .count = (int)(list->num_rows - begin),
                                                    .out = out};
}

static bool sums_space(struct limit_sums *list, size_t sums, size_t rows)
{
    list->items = calloc(sums + 1, sizeof *list->items);
    list->rows = calloc(rows + 1, sizeof *list->rows);
    list->weights = calloc(rows + 1, sizeof *list->weights);
    return list->items && list->rows && list->weights;
}

static uint8_t *place_of(const struct limit_way *way, int rank, int64_t token, int place)
{
    const struct problem *problem = way->session->problem;
    return way->bases[rank] + (size_t)(token * problem->topk + place) * problem->row_bytes;
}

static uint8_t *row_of(const struct limit_way *way, int source, int64_t token, int k)
{
    const struct bench_session *session = way->session;
    const int64_t row = ll_layout_row(session->problem, session->layout, source, token, k);
    return (uint8_t *)session->rows + (size_t)row * session->problem->row_bytes;
}

/* Returns the number of distinct ranks before this one in the token's slots. */
static int place_of_rank(const struct problem *problem, int source, int64_t token, int rank)
{
    int place = 0;
    for (int k = 0; k < problem->topk; k++) {
        const int of = ll_layout_rank(problem, source, token, k);
        if (of == rank) return place;
        bool seen = of < 0;
        for (int before = 0; before < k; before++)
            seen |= ll_layout_rank(problem, source, token, before) == of;
        place += !seen;
    }
    return place;
}

/* Adds the rows that go back for one message. */
static void send_back(struct limit_way *way, const struct problem_row *from, size_t bytes)
{
    const struct problem *problem = way->session->problem;
    for (int k = 0; k < problem->topk; k++) {
        if (ll_layout_rank(problem, from->rank, from->token, k) != problem->rank) continue;
        const uint8_t *row = row_of(way, from->rank, from->token, k);
        if (way->reduced) {
            add_row(&way->partial, row, problem_weight(from->rank, from->token, k));
        } else if (from->rank != problem->rank) {
            limit_list_add(&way->messages, row, place_of(way, from->rank, from->token, k), bytes);
        }
    }
    if (!way->reduced) return;
    end_sum(&way->partial, true,
            place_of(way, from->rank, from->token, place_of_rank(problem, from->rank, from->token, problem->rank)));
}

static void sum_token(struct limit_way *way, int64_t token)
{
    const struct problem *problem = way->session->problem;
    for (int k = 0; k < problem->topk && !way->reduced; k++) {
        const int rank = ll_layout_rank(problem, problem->rank, token, k);
        if (rank < 0) continue;
        const uint8_t *row =
            rank == problem->rank ? row_of(way, problem->rank, token, k) : place_of(way, problem->rank, token, k);
        add_row(&way->sums, row, problem_weight(problem->rank, token, k));
    }
    for (int rank = 0; rank < problem->num_ranks && way->reduced; rank++)
        if (problem->position[token * problem->num_ranks + rank] >= 0)
            add_row(&way->sums, place_of(way, problem->rank, token, place_of_rank(problem, problem->rank, token, rank)),
                    1);
    end_sum(&way->sums, !way->reduced, way->sum_rows + (size_t)token * problem->row_bytes);
}

/* Returns the bytes of a row's place at the token's rank. */
static size_t back_bytes(const struct bench_session *session)
{
    const struct problem *problem = session->problem;
    if (session->format->wire != EXPAR_LL_FORMAT_LOGFMT) return problem->row_bytes;
    const size_t coded = (size_t)(problem->hidden / LOGFMT_GROUP) * (LOGFMT_CODED + LOGFMT_HEAD);
    return (coded + 15) / 16 * 16;
}

void limit_combine_fill(struct limit_way *way)
{
    const struct problem *problem = way->session->problem;
    const size_t bytes = back_bytes(way->session);
    for (int64_t i = 0; i < problem->num_received; i++)
        send_back(way, &problem->received[i], bytes);
    for (int64_t token = 0; token < problem->tokens; token++)
        sum_token(way, token);
}

bool limit_combine_memory(struct limit_way *way)
{
    const struct bench_session *session = way->session;
    const struct problem *problem = session->problem;
    const size_t rows = (size_t)session->layout->num_rows, tokens = (size_t)problem->tokens;
    way->sum_rows = session->world->device->alloc(session->world, tokens * problem->row_bytes);
    return way->sum_rows && limit_list_make(&way->messages, rows) &&
           sums_space(&way->partial, (size_t)problem->num_received, rows) &&
           sums_space(&way->sums, tokens, tokens * (size_t)problem->topk);
}

size_t limit_combine_symmetric_bytes(const struct limit_way *way)
{
    const struct problem *problem = way->session->problem;
    return (size_t)problem->tokens * (size_t)problem->topk * problem->row_bytes + LIMIT_LINE;
}

/* Sets the contents. Turns copy as many bytes as coded rows have, and add rows that are not coded. */
bool limit_combine_refill(struct limit_way *way)
{
    return way->session->world->device->ll->way_copy(way, way->session->problem->row_bytes);
}
