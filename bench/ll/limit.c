/* SPDX-License-Identifier: Apache-2.0 */
/* The copy limit. Lists of copies and sums are made before; a turn goes through them. Nobody waits for anybody in it:
 * slots and places have the same contents from turn to turn. */
#include "bench/common/stream.h"
#include "bench/ll/session.h"
#include <stdlib.h>
#include <string.h>

#define LINE          64
#define LOGFMT_GROUP  128
#define LOGFMT_CODED  160 /* bytes of a coded group, and of its head */
#define LOGFMT_HEAD   8
#define HEADER_BYTES  8  /* of a message: token, place */
#define HEADER_A_SLOT 12 /* expert, row, weight */

/* One copy. rows that arrive have their scales and token number placed as well. */
struct limit_copy {
    const uint8_t *source;
    uint8_t *target;
    size_t bytes;
    bool small;       /* by memcpy in any case */
    uint32_t *scales; /* words behind the source go there, with the limit's stride; NULL: none */
    int32_t *info;    /* gets the token; NULL: none */
    int32_t token;
};

struct limit_sum {
    const void **rows; /* [count], in the limit's arrays */
    float *weights;    /* NULL: all 1 */
    int count;
    void *out;
};

struct limit_list {
    struct limit_copy *items;
    size_t count;
};

struct limit_sums {
    struct limit_sum *items;
    size_t count;
    const void **rows; /* of all sums, one behind the other */
    float *weights;
    size_t num_rows;
};

struct ll_limit {
    const struct ll_session *session;
    bool combine, reduced;
    void *symmetric; /* slots [N][B] of messages, or places [T][K] of rows */
    struct limit_list messages, rows;
    struct limit_sums partial, sums;
    uint8_t *headers, *coded;     /* dispatch: of each message; [T] coded rows of x, or NULL: x itself */
    size_t coded_bytes;           /* of one coded row with its scales, whole lines */
    uint8_t *received, *sum_rows; /* dispatch: [L][N*B][H]; combine: y [T][H] */
    uint32_t *scales;             /* dispatch: [L][words][N*B] */
    int32_t *src_info;            /* dispatch: [L][N*B] */
    size_t received_bytes, scales_bytes, info_bytes;
    int64_t *sent; /* [N] messages, while they are listed */
    int num_scales;
    struct limit_way {
        struct ll_limit *limit;
        bool stream_messages, stream_rows;
    } ways[LL_MAX_COPIES];
};

static size_t whole_lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

/* ---- a turn ------------------------------------------------------------------------------------------------------ */

static void copy_one(const struct ll_limit *limit, const struct limit_copy *copy, bool stream)
{
    if (stream && !copy->small)
        stream_copy(copy->target, copy->source, copy->bytes);
    else
        memcpy(copy->target, copy->source, copy->bytes);
    for (int w = 0; copy->scales && w < limit->num_scales; w++)
        memcpy(copy->scales + w * limit->session->layout->rows_per_expert, copy->source + copy->bytes + (size_t)w * 4,
               4);
    if (copy->info) *copy->info = copy->token;
}

static void copy_list(const struct ll_limit *limit, const struct limit_list *list, bool stream)
{
    for (size_t i = 0; i < list->count; i++)
        copy_one(limit, &list->items[i], stream);
    stream_end();
}

static void add_list(const struct ll_limit *limit, const struct limit_sums *list)
{
    const struct problem *problem = limit->session->problem;
    for (size_t i = 0; i < list->count; i++)
        ll_sum_rows(problem->dtype, list->items[i].rows, list->items[i].weights, list->items[i].count, problem->hidden,
                    list->items[i].out);
}

static bool limit_run(void *context)
{
    const struct limit_way *way = context;
    const struct ll_limit *limit = way->limit;
    copy_list(limit, &limit->messages, way->stream_messages);
    copy_list(limit, &limit->rows, way->stream_rows);
    add_list(limit, &limit->partial);
    add_list(limit, &limit->sums);
    return true;
}

int ll_limit_contenders(struct ll_limit *limit, struct contender *contenders)
{
    int count = 0;
    for (int i = 0; i < LL_MAX_COPIES; i++) {
        /* Where there is nothing to stream a way would be the one before it again. */
        if (limit->reduced && i != LL_LIMIT_MEMCPY) continue;
        if (limit->combine && i == LL_LIMIT_ROWS_STREAMED) continue;
        limit->ways[i] = (struct limit_way){
            .limit = limit, .stream_messages = i == LL_LIMIT_STREAMED, .stream_rows = i != LL_LIMIT_MEMCPY};
        contenders[count++] = (struct contender){.run = limit_run, .context = &limit->ways[i]};
    }
    return count;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

static struct limit_copy *add_copy(struct limit_list *list, const void *source, void *target, size_t bytes)
{
    struct limit_copy *copy = &list->items[list->count++];
    *copy = (struct limit_copy){.source = source, .target = target, .bytes = bytes};
    return copy;
}

static void add_row(struct limit_sums *list, const void *row, float weight)
{
    list->rows[list->num_rows] = row;
    list->weights[list->num_rows++] = weight;
}

/* Of the rows that were added since the last one; where there are none, of no row. */
static void end_sum(struct limit_sums *list, void *out)
{
    const size_t begin = list->count ? (size_t)(list->items[list->count - 1].rows - list->rows) +
                                           (size_t)list->items[list->count - 1].count
                                     : 0;
    list->items[list->count++] = (struct limit_sum){.rows = list->rows + begin,
                                                    .weights = list->weights + begin,
                                                    .count = (int)(list->num_rows - begin),
                                                    .out = out};
}

static bool list_make(struct limit_list *list, size_t room)
{
    list->items = calloc(room + 1, sizeof *list->items);
    return list->items != NULL;
}

static bool sums_room(struct limit_sums *list, size_t sums, size_t rows)
{
    list->items = calloc(sums + 1, sizeof *list->items);
    list->rows = calloc(rows + 1, sizeof *list->rows);
    list->weights = calloc(rows + 1, sizeof *list->weights);
    return list->items && list->rows && list->weights;
}

static void sums_free(struct limit_sums *list)
{
    free(list->items);
    free(list->rows);
    free(list->weights);
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

static size_t header_bytes(const struct ll_limit *limit)
{
    return HEADER_BYTES + HEADER_A_SLOT * (size_t)limit->session->problem->topk;
}

/* Of a message in its slot: the header in whole lines, then the payload. */
static size_t slot_bytes(const struct ll_limit *limit)
{
    return whole_lines(header_bytes(limit)) + limit->coded_bytes;
}

static uint8_t *slot_of(const struct ll_limit *limit, int rank, int source, int64_t message)
{
    const struct ll_session *session = limit->session;
    const int64_t most = session->layout->rows_per_expert / session->problem->num_ranks;
    uint8_t *slots = expar_ptr(session->world->group, limit->symmetric, rank);
    return slots ? slots + (size_t)(source * most + message) * slot_bytes(limit) : NULL;
}

static uint8_t *payload_of(const struct ll_limit *limit, int64_t token)
{
    const size_t bytes = limit->coded ? limit->coded_bytes : limit->session->problem->row_bytes;
    return (limit->coded ? limit->coded : (uint8_t *)limit->session->x) + (size_t)token * bytes;
}

static bool fill_messages(struct ll_limit *limit)
{
    const struct ll_session *session = limit->session;
    const struct problem *problem = session->problem;
    const size_t payload =
        ll_format_row_bytes(session->format, problem->dtype, problem->hidden) + 4 * (size_t)limit->num_scales;
    for (int64_t token = 0; token < problem->tokens; token++)
        for (int rank = 0; rank < problem->num_ranks; rank++) {
            if (rank == problem->rank || problem->position[token * problem->num_ranks + rank] < 0) continue;
            uint8_t *slot = slot_of(limit, rank, problem->rank, limit->sent[rank]++);
            if (!slot) return false;
            const size_t number = limit->messages.count / 2;
            add_copy(&limit->messages, limit->headers + number * whole_lines(header_bytes(limit)), slot,
                     header_bytes(limit))
                ->small = true;
            /* Scales make a payload no multiple of 16: whole ones are streamed. */
            add_copy(&limit->messages, payload_of(limit, token), slot + whole_lines(header_bytes(limit)),
                     (payload + 15) / 16 * 16);
        }
    return true;
}

/* Each payload that arrives, to the rows of its experts; this rank's own ones as well. */
static void fill_rows(struct ll_limit *limit)
{
    const struct ll_session *session = limit->session;
    const struct problem *problem = session->problem;
    const struct ll_layout *layout = session->layout;
    const size_t row_bytes = ll_format_row_bytes(session->format, problem->dtype, problem->hidden);
    int64_t message = 0;
    for (int64_t i = 0; i < problem->num_received; i++) {
        const struct problem_row *from = &problem->received[i];
        message = i > 0 && from->rank == problem->received[i - 1].rank ? message + 1 : 0;
        const uint8_t *payload = from->rank == problem->rank ? payload_of(limit, from->token)
                                                             : slot_of(limit, problem->rank, from->rank, message) +
                                                                   whole_lines(header_bytes(limit));
        for (int k = 0; k < problem->topk; k++) {
            if (ll_layout_rank(problem, from->rank, from->token, k) != problem->rank) continue;
            const int64_t row = ll_layout_row(problem, layout, from->rank, from->token, k);
            struct limit_copy *copy =
                add_copy(&limit->rows, payload, limit->received + (size_t)row * row_bytes, row_bytes);
            const int64_t expert = row / layout->rows_per_expert, number = row % layout->rows_per_expert;
            if (limit->num_scales)
                copy->scales = limit->scales + expert * limit->num_scales * layout->rows_per_expert + number;
            copy->info = limit->src_info + row;
            copy->token = from->token;
        }
    }
}

static bool dispatch_memory(struct ll_limit *limit)
{
    const struct ll_session *session = limit->session;
    const struct problem *problem = session->problem;
    const struct ll_layout *layout = session->layout;
    const size_t rows = (size_t)layout->local_experts * (size_t)layout->rows_per_expert;
    const size_t row_bytes = ll_format_row_bytes(session->format, problem->dtype, problem->hidden);
    limit->num_scales = ll_format_scales(session->format, problem->hidden);
    limit->coded_bytes = whole_lines(row_bytes + 4 * (size_t)limit->num_scales);
    limit->received_bytes = rows * row_bytes;
    limit->scales_bytes = rows * 4 * (size_t)limit->num_scales;
    limit->info_bytes = rows * sizeof *limit->src_info;
    limit->received = ll_reserve(limit->received_bytes);
    limit->scales = ll_reserve(limit->scales_bytes);
    limit->src_info = ll_reserve(limit->info_bytes);
    limit->sent = calloc((size_t)problem->num_ranks, sizeof *limit->sent);
    limit->headers = calloc((size_t)problem->num_sent + 1, whole_lines(header_bytes(limit)));
    if (!session->format->plain) limit->coded = aligned_alloc(LINE, ((size_t)problem->tokens + 1) * limit->coded_bytes);
    return limit->received && limit->scales && limit->src_info && limit->sent && limit->headers &&
           (session->format->plain || limit->coded) && list_make(&limit->messages, 2 * (size_t)problem->num_sent) &&
           list_make(&limit->rows, (size_t)layout->num_rows);
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

static uint8_t *place_of(const struct ll_limit *limit, int rank, int64_t token, int place)
{
    const struct problem *problem = limit->session->problem;
    uint8_t *places = expar_ptr(limit->session->world->group, limit->symmetric, rank);
    return places ? places + (size_t)(token * problem->topk + place) * problem->row_bytes : NULL;
}

static uint8_t *row_of(const struct ll_limit *limit, int source, int64_t token, int k)
{
    const struct ll_session *session = limit->session;
    const int64_t row = ll_layout_row(session->problem, session->layout, source, token, k);
    return (uint8_t *)session->rows + (size_t)row * session->problem->row_bytes;
}

/* Distinct ranks before this one in the token's slots. */
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

/* What goes back for one message. */
static bool send_back(struct ll_limit *limit, const struct problem_row *from, size_t bytes)
{
    const struct problem *problem = limit->session->problem;
    for (int k = 0; k < problem->topk; k++) {
        if (ll_layout_rank(problem, from->rank, from->token, k) != problem->rank) continue;
        const uint8_t *row = row_of(limit, from->rank, from->token, k);
        if (limit->reduced) {
            add_row(&limit->partial, row, problem_weight(from->rank, from->token, k));
        } else if (from->rank != problem->rank) {
            uint8_t *place = place_of(limit, from->rank, from->token, k);
            if (!place) return false;
            add_copy(&limit->messages, row, place, bytes);
        }
    }
    if (!limit->reduced) return true;
    uint8_t *place =
        place_of(limit, from->rank, from->token, place_of_rank(problem, from->rank, from->token, problem->rank));
    end_sum(&limit->partial, place);
    return place != NULL;
}

static void sum_token(struct ll_limit *limit, int64_t token)
{
    const struct problem *problem = limit->session->problem;
    for (int k = 0; k < problem->topk && !limit->reduced; k++) {
        const int rank = ll_layout_rank(problem, problem->rank, token, k);
        if (rank < 0) continue;
        const uint8_t *row =
            rank == problem->rank ? row_of(limit, problem->rank, token, k) : place_of(limit, problem->rank, token, k);
        add_row(&limit->sums, row, problem_weight(problem->rank, token, k));
    }
    for (int rank = 0; rank < problem->num_ranks && limit->reduced; rank++)
        if (problem->position[token * problem->num_ranks + rank] >= 0)
            add_row(&limit->sums,
                    place_of(limit, problem->rank, token, place_of_rank(problem, problem->rank, token, rank)), 1);
    end_sum(&limit->sums, limit->sum_rows + (size_t)token * problem->row_bytes);
}

/* Of a row that goes back. */
static size_t back_bytes(const struct ll_session *session)
{
    const struct problem *problem = session->problem;
    if (session->format->wire != EXPAR_LL_LOGFMT) return problem->row_bytes;
    const size_t coded = (size_t)(problem->hidden / LOGFMT_GROUP) * (LOGFMT_CODED + LOGFMT_HEAD);
    return (coded + 15) / 16 * 16;
}

static bool fill_combine(struct ll_limit *limit)
{
    const struct problem *problem = limit->session->problem;
    const size_t bytes = back_bytes(limit->session);
    for (int64_t i = 0; i < problem->num_received; i++)
        if (!send_back(limit, &problem->received[i], bytes)) return false;
    for (int64_t token = 0; token < problem->tokens; token++)
        sum_token(limit, token);
    return true;
}

static bool combine_memory(struct ll_limit *limit)
{
    const struct ll_session *session = limit->session;
    const struct problem *problem = session->problem;
    const size_t rows = (size_t)session->layout->num_rows, tokens = (size_t)problem->tokens;
    limit->sum_rows = session->world->device->alloc(session->world, tokens * problem->row_bytes);
    return limit->sum_rows && list_make(&limit->messages, rows) &&
           sums_room(&limit->partial, (size_t)problem->num_received, rows) &&
           sums_room(&limit->sums, tokens, tokens * (size_t)problem->topk);
}

/* ---- making ------------------------------------------------------------------------------------------------------ */

static size_t symmetric_bytes(const struct ll_limit *limit)
{
    const struct problem *problem = limit->session->problem;
    if (limit->combine) return (size_t)problem->tokens * (size_t)problem->topk * problem->row_bytes + LINE;
    return (size_t)limit->session->layout->rows_per_expert * slot_bytes(limit);
}

void ll_limit_refill(struct ll_limit *limit)
{
    const struct ll_session *session = limit->session;
    const struct problem *problem = session->problem;
    for (int64_t token = 0; limit->coded && token < problem->tokens; token++)
        ll_format_encode(session->format, problem->dtype, problem->hidden,
                         (const uint8_t *)session->x + (size_t)token * problem->row_bytes, payload_of(limit, token));
    /* Turns copy as many bytes as coded rows have, and add rows as they were. */
    for (size_t i = 0; limit->combine && i < limit->messages.count; i++)
        memcpy(limit->messages.items[i].target, limit->messages.items[i].source, problem->row_bytes);
}

static bool limit_make(struct ll_limit *limit)
{
    const struct bench_world *world = limit->session->world;
    bool good = (limit->combine ? combine_memory(limit) : dispatch_memory(limit)) ||
                bench_complain(world, "out of memory for the copies");
    if (!bench_all_true(world, good)) return false;
    good = bench_good(world, expar_malloc(world->group, symmetric_bytes(limit), &limit->symmetric));
    if (!bench_all_true(world, good)) return false;
    good = limit->combine ? fill_combine(limit) : fill_messages(limit);
    if (!good) bench_complain(world, "no pointer to a rank's memory for the copies");
    if (!bench_all_true(world, good)) return false;
    if (!limit->combine) fill_rows(limit);
    ll_limit_refill(limit);
    /* All memory is touched, so that no page fault is measured. */
    struct limit_way way = {.limit = limit};
    return limit_run(&way);
}

static struct ll_limit *limit_create(const struct ll_session *session, bool combine, bool reduced)
{
    struct ll_limit *limit = calloc(1, sizeof *limit);
    if (!bench_all_true(session->world, limit != NULL)) {
        free(limit);
        return NULL;
    }
    *limit = (struct ll_limit){.session = session, .combine = combine, .reduced = reduced};
    if (limit_make(limit)) return limit;
    ll_limit_free(limit, false);
    return NULL;
}

struct ll_limit *ll_limit_dispatch(const struct ll_session *session)
{
    return limit_create(session, false, false);
}

struct ll_limit *ll_limit_combine(const struct ll_session *session, bool reduced)
{
    return limit_create(session, true, reduced);
}

bool ll_limit_verify(struct ll_limit *limit, uint64_t salt)
{
    const struct ll_session *session = limit->session;
    if (limit->combine) return ll_verify_combine(session, salt, limit->reduced, false, limit->sum_rows);
    const int64_t per_expert = session->layout->rows_per_expert;
    const struct ll_rows rows = {.rows = limit->received,
                                 .scales = limit->scales,
                                 .scale_strides = {limit->num_scales * per_expert, 1, per_expert},
                                 .counts = session->layout->counts +
                                           (ptrdiff_t)session->problem->rank * session->layout->local_experts,
                                 .src_info = limit->src_info};
    return ll_verify_rows(session, salt, &rows);
}

void ll_limit_free(struct ll_limit *limit, bool sound)
{
    if (!limit) return;
    const struct bench_world *world = limit->session->world;
    if (sound) bench_good(world, expar_free(world->group, limit->symmetric));
    free(limit->messages.items);
    free(limit->rows.items);
    sums_free(&limit->partial);
    sums_free(&limit->sums);
    free(limit->sent);
    free(limit->headers);
    free(limit->coded);
    world->device->free(world, limit->sum_rows);
    ll_unreserve(limit->received, limit->received_bytes);
    ll_unreserve(limit->scales, limit->scales_bytes);
    ll_unreserve(limit->src_info, limit->info_bytes);
    free(limit);
}
