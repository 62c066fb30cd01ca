/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs whose rows the caller codes as FP8. Dispatches of normal mode carry FP8 rows as they are, and combines add
 * wider ones. So a caller with BF16 tokens codes them before each dispatch, and its experts return BF16 rows. The
 * coding is part of the pair, before the moment between its calls, and so part of the dispatch. */
#include "bench/low_latency/format.h"
#include "bench/normal/mode.h"
#include <stdlib.h>
#include <string.h>

#define TOKEN_BYTES(problem) ((size_t)(problem)->hidden * 2)

static const struct bench_world *world_of(const struct normal_call *self)
{
    return self->frame.session->world;
}

static size_t tokens_bytes(const struct bench_session *session)
{
    return (size_t)session->problem->tokens * TOKEN_BYTES(session->problem);
}

static size_t rows_bytes(const struct bench_session *session)
{
    return (size_t)session->problem->num_received * TOKEN_BYTES(session->problem);
}

bool coded_is_wanted(const struct bench_session *session)
{
    return (session->options->patterns & BENCH_PERIOD) && session->problem->dtype == EXPAR_F8E4M3;
}

uint64_t coded_bytes(const struct bench_session *session)
{
    const struct problem *problem = session->problem;
    const uint64_t scales = (uint64_t)problem->tokens * (uint64_t)problem->num_scales * sizeof(float);
    const uint64_t rows = (uint64_t)problem->most_received * TOKEN_BYTES(problem);
    return 2 * tokens_bytes(session) + (uint64_t)problem->tokens * problem->row_bytes + scales + rows;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

bool coded_open(struct normal_call *self)
{
    const struct bench_session *session = self->frame.session;
    const struct problem *problem = session->problem;
    const struct bench_device *device = session->world->device;
    struct normal_coded *coded = &self->coded;
    const size_t scales_bytes = (size_t)problem->tokens * (size_t)problem->num_scales * sizeof(float);
    coded->tokens = device->alloc(session->world, tokens_bytes(session));
    coded->x = device->alloc(session->world, (size_t)problem->tokens * problem->row_bytes);
    coded->scales = device->alloc(session->world, scales_bytes);
    coded->rows = device->alloc(session->world, rows_bytes(session));
    coded->y = device->alloc(session->world, tokens_bytes(session));
    return (coded->tokens && coded->x && coded->scales && coded->rows && coded->y) ||
           bench_complain(session->world, "out of memory for rows that are coded");
}

void coded_close(struct normal_call *self)
{
    const struct bench_world *world = world_of(self);
    void *const all[] = {self->coded.tokens, self->coded.x, self->coded.scales, self->coded.rows, self->coded.y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        world->device->free(world, all[i]);
    self->coded = (struct normal_coded){0};
}

/* ---- contents ---------------------------------------------------------------------------------------------------- */

/* Describes rows to write: the first `count` BF16 rows of this rank, by the salt. */
struct filling {
    uint64_t salt;
    int64_t count;
};

static void write_rows(const struct bench_session *session, const void *how, void *draft)
{
    const struct problem *problem = session->problem;
    const struct filling *filling = how;
    for (int64_t i = 0; i < filling->count; i++)
        pattern_row(EXPAR_BF16, pattern_key(filling->salt, problem->rank, i), problem->hidden,
                    (unsigned char *)draft + (size_t)i * TOKEN_BYTES(problem));
}

static void write_ones(const struct bench_session *session, const void *how, void *draft)
{
    (void)how;
    memset(draft, 0xff, tokens_bytes(session));
}

bool coded_fill(const struct normal_call *self, uint64_t salt)
{
    const struct bench_session *session = self->frame.session;
    const struct filling tokens = {salt, session->problem->tokens}, rows = {salt, session->problem->num_received};
    return bench_session_write(session, self->coded.tokens, tokens_bytes(session), write_rows, &tokens) &&
           bench_session_write(session, self->coded.rows, rows_bytes(session), write_rows, &rows) &&
           bench_session_write(session, self->coded.y, tokens_bytes(session), write_ones, NULL);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

void coded_set_args(struct normal_call *self)
{
    const struct bench_world *world = world_of(self);
    const struct problem *problem = self->frame.session->problem;
    const struct normal_coded *coded = &self->coded;
    self->dispatch_args.x = bench_tensor(world, coded->x, EXPAR_F8E4M3, problem->tokens, problem->hidden);
    self->dispatch_args.x_scales = bench_tensor(world, coded->scales, EXPAR_F32, problem->tokens, problem->num_scales);
    self->combine_args.x = bench_tensor(world, coded->rows, EXPAR_BF16, problem->num_received, problem->hidden);
    self->combine_args.out_y = bench_tensor(world, coded->y, EXPAR_BF16, problem->tokens, problem->hidden);
}

bool coded_encode(const struct normal_call *self)
{
    const struct bench_world *world = world_of(self);
    const struct problem *problem = self->frame.session->problem;
    const struct bench_coding coding = {.x = self->coded.tokens,
                                        .rows = problem->tokens,
                                        .hidden = problem->hidden,
                                        .payload = self->coded.x,
                                        .scales = self->coded.scales};
    return world->device->encode(world, &coding);
}

/* ---- verification ------------------------------------------------------------------------------------------------ */

static const struct ll_format *fp8(void)
{
    const struct ll_format *format = ll_formats;
    while (format->wire != EXPAR_LL_FORMAT_FP8)
        format++;
    return format;
}

bool coded_verify_rows(const struct problem *problem, uint64_t salt, const void *rows, const float *scales)
{
    const size_t row_bytes = problem->row_bytes, num_scales = (size_t)problem->num_scales;
    unsigned char *token = malloc(TOKEN_BYTES(problem)), *expected = malloc(row_bytes + num_scales * sizeof *scales);
    bool good = token && expected ? true : bench_wrong(problem, "out of memory for the comparison");
    for (int64_t i = 0; i < problem->num_received && good; i++) {
        const struct problem_row *source = &problem->received[i];
        pattern_row(EXPAR_BF16, pattern_key(salt, source->rank, source->token), problem->hidden, token);
        ll_format_encode(fp8(), EXPAR_BF16, problem->hidden, token, expected);
        if (memcmp((const unsigned char *)rows + (size_t)i * row_bytes, expected, row_bytes) ||
            memcmp(scales + (size_t)i * num_scales, expected + row_bytes, num_scales * sizeof *scales))
            good = bench_wrong(problem, "row %lld is not token %d of rank %d, coded", (long long)i, (int)source->token,
                               (int)source->rank);
    }
    free(expected);
    free(token);
    return good;
}

static bool verify_sums(const struct normal_call *self, uint64_t salt)
{
    const struct bench_session *session = self->frame.session;
    const struct bench_world *world = session->world;
    struct problem wide = *session->problem;
    wide.dtype = EXPAR_BF16;
    wide.row_bytes = TOKEN_BYTES(&wide);
    const void *y = world->device->view(world, self->coded.y, tokens_bytes(session));
    const bool good = y && verify_combine(&wide, salt, VERIFY_FILLED, world->each, y);
    world->device->unview(world, y);
    return good;
}

bool coded_verify(const struct normal_call *self, uint64_t salt)
{
    const struct bench_session *session = self->frame.session;
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    const size_t count = (size_t)problem->num_received, num_scales = (size_t)problem->num_scales;
    if (self->result.num_recv_tokens != problem->num_received)
        return bench_wrong(problem, "%lld rows received, %lld expected", (long long)self->result.num_recv_tokens,
                           (long long)problem->num_received);
    const void *rows = world->device->view(world, self->result.recv_x.data, count * problem->row_bytes);
    const void *scales = world->device->view(world, self->result.recv_scales.data, count * num_scales * sizeof(float));
    const bool good = rows && scales && coded_verify_rows(problem, salt, rows, scales);
    world->device->unview(world, scales);
    world->device->unview(world, rows);
    return verify_sums(self, salt) && good;
}
