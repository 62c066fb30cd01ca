/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a combine to and from ranks that are not mapped. All rows for one rank go back in pieces to one place there,
 * which that rank has named with its dispatch. Rows are ordered by experts and, within each, by tokens; sums are in the
 * order of messages. Both sides know that order: the sender by the counts of the dispatch, the token's rank by its
 * experts. So the token's rank finds each row without further words. Flags say how many bytes there are from one row to
 * the next, which is not known before for coded rows. */
#include "exec/cpu/low_latency/far/links.h"

#include <string.h>

/* ---- send -------------------------------------------------------------------------------------------------------- */

/* The pieces that go back to one rank. */
typedef struct far_returns {
    const ll_combine *c;
    int32_t source, rows;
} far_returns;

/* The place of a row among those that go back to a source. */
typedef struct far_row {
    int32_t local, number; /* of the expert's rows of that source */
} far_row;

static int32_t rows_of_expert(const ll_combine *c, int32_t source, int32_t local)
{
    return ll_range_count(c->step->routing->range[(int64_t)local * c->self->shape.ranks + source]);
}

/* Moves from a row that exists, or from the end of its expert's rows, to the next row that exists. */
static void row_settle(const ll_combine *c, int32_t source, far_row *row)
{
    while (row->number >= rows_of_expert(c, source, row->local)) {
        row->number -= rows_of_expert(c, source, row->local);
        row->local++;
    }
}

static const void *row_at(const ll_combine *c, int32_t source, const far_row *row)
{
    const int64_t range = c->step->routing->range[(int64_t)row->local * c->self->shape.ranks + source];
    return (const uint8_t *)c->step->x + row->local * c->step->x_expert_pitch_bytes +
           (ll_range_begin(range) + (int64_t)row->number) * c->step->x_row_pitch_bytes;
}

/* Copies the rows of the piece one after the other; returns their pitch. */
static size_t copy_rows(const far_returns *returns, int32_t piece, uint8_t *out)
{
    const ll_combine *c = returns->c;
    const size_t pitch = ep_round(c->row_bytes, EP_LINE_BYTES);
    far_row row = {.number = piece * LL_PIECE_ROWS};
    for (int32_t i = 0; i < ll_piece_rows(returns->rows, piece); i++, row.number++) {
        row_settle(c, returns->source, &row);
        memcpy(out + (size_t)i * pitch, row_at(c, returns->source, &row), c->row_bytes);
    }
    return pitch;
}

/* Codes the rows, and moves them together once the longest is known. */
static size_t code_rows(const far_returns *returns, int32_t piece, uint8_t *out, uint64_t *bytes)
{
    const ll_combine *c = returns->c;
    const int32_t rows = ll_piece_rows(returns->rows, piece);
    const size_t spare = (size_t)c->self->space.place_bytes;
    far_row row = {.number = piece * LL_PIECE_ROWS};
    size_t longest = 0;
    for (int32_t i = 0; i < rows; i++, row.number++) {
        row_settle(c, returns->source, &row);
        const size_t length = ll_combine_code(c, row_at(c, returns->source, &row), out + (size_t)i * spare);
        longest = length > longest ? length : longest;
        *bytes += length;
    }
    const size_t pitch = ep_round(longest, EP_LINE_BYTES);
    for (int32_t i = 1; i < rows && pitch < spare; i++)
        memmove(out + (size_t)i * pitch, out + (size_t)i * spare, pitch);
    return pitch;
}

static size_t add_rows(const far_returns *returns, int32_t piece, const ll_scratch *scratch, uint8_t *out)
{
    const ll_combine *c = returns->c;
    const size_t pitch = ep_round(c->row_bytes, EP_LINE_BYTES);
    for (int32_t i = 0; i < ll_piece_rows(returns->rows, piece); i++)
        ll_combine_sum(c, scratch, returns->source, piece * LL_PIECE_ROWS + i, out + (size_t)i * pitch);
    return pitch;
}

static void return_piece(const far_returns *returns, int32_t piece, const ll_scratch *scratch, uint64_t *bytes)
{
    const ll_combine *c = returns->c;
    const ll_cpu *self = c->self;
    const uint64_t epoch = c->step->call.epoch;
    const int32_t source = returns->source, first = c->step->routing->returns[source];
    ll_slot *slot = ll_far_take(self, LL_COMBINE, epoch);
    size_t pitch;
    if (c->reduced)
        pitch = add_rows(returns, piece, scratch, slot->bytes);
    else if (c->coded)
        pitch = code_rows(returns, piece, slot->bytes, bytes);
    else
        pitch = copy_rows(returns, piece, slot->bytes);
    const ll_parcel to = {.pe = source,
                          .flag =
                              ll_return_flag_at(&self->space, epoch, ll_region_at(self, source, epoch), first + piece),
                          .word = ll_word(epoch, (uint32_t)pitch)};
    ll_far_send(self, slot, ll_piece_rows(returns->rows, piece), pitch, &to);
}

static void return_pieces(const void *context, const ll_scratch *scratch, int32_t begin, int32_t end)
{
    const far_returns *returns = context;
    uint64_t bytes = 0;
    for (int32_t piece = begin; piece < end; piece++)
        return_piece(returns, piece, scratch, &bytes);
    if (returns->c->coded) atomic_fetch_add_explicit(&returns->c->self->totals.bytes_sent, bytes, memory_order_relaxed);
}

/* If weights go ahead, rows wait for those of other ranks. */
void ll_far_combine_plan(const ll_combine *c, bool goes)
{
    const bool at_once = goes && !c->step->call.form.weights;
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        c->self->links->ranks[r].pieces = at_once ? ll_pieces((int32_t)ll_combine_rows_to(c, r)) : 0;
}

void ll_far_combine_rows(const ll_combine *c, int32_t pe)
{
    const far_returns returns = {.c = c, .source = pe, .rows = (int32_t)ll_combine_rows_to(c, pe)};
    ll_share_out(c->self, ll_pieces(returns.rows), (uint64_t)returns.rows * c->row_bytes, return_pieces, &returns);
}

/* Sends all weights at once, with the flag of the last one. */
void ll_far_combine_weights(const ll_combine *c, int32_t pe)
{
    const ll_cpu *self = c->self;
    const ep_route_view *route = &c->step->route;
    const uint64_t epoch = c->step->call.epoch;
    const int32_t own = self->sym->rank, topk = self->shape.topk;
    float *weights = ll_far_weights(self, pe);
    int32_t messages = 0;
    if (!weights) return;
    for (int32_t t = 0; t < c->step->routing->tokens; t++)
        if (ll_combine_goes_to(c, t, pe))
            memcpy(weights + (int64_t)topk * messages++, route->weights + t * route->weights_pitch,
                   (size_t)c->step->call.form.topk * sizeof(float));
    if (messages == 0) return;
    const ll_parcel to = {.pe = pe,
                          .at = ll_weights_at(&self->space, &self->shape, own, epoch, 0),
                          .flag = ll_weight_flag_at(&self->space, &self->shape, own, epoch, messages - 1),
                          .word = ll_word(epoch, 1)};
    ll_far_send_weights(self, (size_t)messages * (size_t)topk * sizeof(float), &to);
}

/* ---- receive ----------------------------------------------------------------------------------------------------- */

/* Numbers the rows of each rank in the order in which it sends them, and counts them. */
static void number_rows(const ll_combine *c)
{
    const ll_cpu *self = c->self;
    const ll_routing *routing = c->step->routing;
    const int32_t topk = self->shape.topk, locals = self->shape.local_experts;
    int32_t *next = self->links->rows_of;
    memset(next, 0, (size_t)self->shape.ranks * (size_t)locals * sizeof *next);
    for (int32_t t = 0; t < routing->tokens; t++)
        for (int32_t k = 0; k < routing->topk; k++)
            if (routing->idx[(int64_t)t * topk + k] >= 0) next[routing->idx[(int64_t)t * topk + k]]++;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        self->links->due_rows[r] = 0;
        for (int32_t e = r * locals; e < (r + 1) * locals; e++) {
            const int32_t rows = next[e];
            next[e] = self->links->due_rows[r];
            self->links->due_rows[r] += rows;
        }
    }
    for (int32_t t = 0; t < routing->tokens && !c->reduced; t++)
        for (int32_t k = 0; k < routing->topk; k++) {
            const int32_t expert = routing->idx[(int64_t)t * topk + k];
            if (expert >= 0) self->links->numbers[(int64_t)t * self->space.places + k] = next[expert]++;
        }
}

static void number_sums(const ll_combine *c)
{
    const ll_cpu *self = c->self;
    ll_part parts[LL_MOST_TOPK];
    memset(self->links->due_sums, 0, (size_t)self->shape.ranks * sizeof(int32_t));
    for (int32_t t = 0; t < c->step->routing->tokens; t++) {
        const int32_t count = ll_combine_ranks(c, t, parts);
        for (int32_t i = 0; i < count; i++) {
            int32_t *number = &self->links->due_sums[parts[i].rank];
            if (c->reduced) self->links->numbers[(int64_t)t * self->space.places + parts[i].place] = *number;
            (*number)++;
        }
    }
}

void ll_far_combine_expect(const ll_combine *c)
{
    number_rows(c);
    number_sums(c);
    ll_far_place_returns(c->self);
}

static int32_t row_number_of(const ll_combine *c, int32_t token, const ll_part *part)
{
    return c->self->links->numbers[(int64_t)token * c->self->space.places + part->place];
}

static uint64_t row_flag_of(const ll_combine *c, int32_t token, const ll_part *part)
{
    const ll_cpu *self = c->self;
    const uint64_t epoch = c->step->call.epoch;
    const int32_t piece = self->links->returns[part->rank] + row_number_of(c, token, part) / LL_PIECE_ROWS;
    return ll_return_flag_at(&self->space, epoch, ll_region_here(self, epoch), piece);
}

bool ll_far_row_came(const ll_combine *c, int32_t token, const ll_part *part)
{
    return ll_far_came(c->self, row_flag_of(c, token, part), c->step->call.epoch);
}

/* Comes after the flag, and acquires it. An invalid pitch can only come from a broken peer; then the bytes do not
   matter. */
const void *ll_far_row(const ll_combine *c, int32_t token, const ll_part *part)
{
    const ll_cpu *self = c->self;
    const uint64_t flag = row_flag_of(c, token, part), most = self->space.place_bytes;
    const int32_t number = row_number_of(c, token, part), piece = number / LL_PIECE_ROWS;
    const int32_t due = c->reduced ? self->links->due_sums[part->rank] : self->links->due_rows[part->rank];
    const uint64_t told = (uint32_t)ll_look(self, flag);
    const uint64_t pitch = told > 0 && told <= most && told % EP_LINE_BYTES == 0 ? told : most;
    return ll_here(self, flag - (uint64_t)(ll_piece_rows(due, piece) - number % LL_PIECE_ROWS) * pitch);
}
