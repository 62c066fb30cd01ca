/* SPDX-License-Identifier: Apache-2.0 */
/* Combine: rows back to the places of their tokens, and sums there.
 *
 * Exact: one row for each slot goes to place [token][slot], and its token's rank adds all of a token, in the order of
 * slots. Reduced: the experts' rank adds its own rows of a token, by weights that came with the dispatch or go ahead of
 * the rows. One row goes to place [token][j], and the token's rank adds those, ranks ascending. A token waits for its
 * *parts*, in the order in which they are added. */
#include "exec/cpu/low_latency/far.h"

#include <string.h>

static ll_combine combine_of(ll_cpu *self, ll_combine_step *step)
{
    return (ll_combine){.self = self,
                        .step = step,
                        .record = ll_record_of(self, LL_COMBINE, step->call.epoch),
                        .row_bytes = (size_t)self->shape.hidden * expar_dtype_bytes((expar_dtype)step->call.form.dtype),
                        .header_bytes = ll_route_map_of(&self->shape).header_bytes,
                        .codec = ll_codec_of(&step->call.form),
                        .coded = step->call.form.format != EXPAR_LL_FORMAT_PLAIN,
                        .reduced = step->call.form.sum == EXPAR_LL_SUM_REDUCED};
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

/* Compares the experts with the dispatch's: rows for other experts would never come. */
static expar_status check_idx(const ll_combine *c)
{
    const ll_routing *routing = c->step->routing;
    const int32_t topk = c->self->shape.topk;
    for (int32_t t = 0; t < routing->tokens; t++)
        for (int32_t k = 0; k < routing->topk; k++) {
            const int32_t kept = routing->idx[(int64_t)t * topk + k];
            const int64_t given = ep_route_expert(&c->step->route, t, k);
            if (kept != given)
                return error_set(EXPAR_ERR_ARGUMENT,
                                 "topk_idx[%d][%d] is %lld; expected %d, as in the handle's dispatch", t, k,
                                 (long long)given, kept);
        }
    return EXPAR_OK;
}

/* ---- the send ---------------------------------------------------------------------------------------------------- */

/* Returns how many rows this rank sends for tokens of all ranks. */
static uint64_t count_rows(const ll_combine *c)
{
    uint64_t rows = 0;
    for (int32_t r = 0; r < c->self->shape.ranks; r++)
        rows += ll_is_masked(c->self, r) ? 0 : ll_combine_rows_to(c, r);
    return rows;
}

/* The bytes of coded rows are known, and counted, when they are sent. */
static void combine_count(const ll_combine *c, uint64_t rows)
{
    ll_counts *counts = &c->self->totals;
    ll_raise(&counts->combines, 1);
    ll_raise(&counts->combine_rows, rows);
    if (!c->coded) ll_raise(&counts->bytes_sent, rows * c->row_bytes);
}

expar_status ll_combine_send(ll_cpu *self, ll_combine_step *step)
{
    ll_call *call = &step->call;
    ll_combine c = combine_of(self, step);
    if (call->rejection.status == EXPAR_OK) {
        const expar_status checked = check_idx(&c);
        if (checked != EXPAR_OK) call->rejection = ep_rejection_of(checked);
    }
    if (self->far) self->far->combine_plan(&c, call->rejection.status == EXPAR_OK);
    expar_status status = ll_call_open(self, call, NULL);
    if (status != EXPAR_OK || !call->open) return status;
    c = combine_of(self, step);
    const uint64_t rows = count_rows(&c);
    combine_count(&c, rows);
    c.streaming = ll_streams(self, rows, c.row_bytes) || ll_pace_streams(&self->pace);
    return call->form.weights ? ll_combine_send_weighted(&c) : ll_combine_send_rows(&c, ll_combine_credit);
}

/* ---- receive ----------------------------------------------------------------------------------------------------- */

static int32_t owner_of_slot(const ll_combine *c, int32_t token, int32_t k)
{
    const int32_t expert = c->step->routing->idx[(int64_t)token * c->self->shape.topk + k];
    return expert < 0 ? -1 : expert / c->self->shape.local_experts;
}

static int32_t slots_of_token(const ll_combine *c, int32_t token, ll_part *parts)
{
    const ep_route_view *route = &c->step->route;
    int32_t count = 0;
    for (int32_t k = 0; k < c->step->call.form.topk; k++) {
        const int32_t rank = owner_of_slot(c, token, k);
        if (rank < 0) continue;
        parts[count++] =
            (ll_part){.rank = rank, .place = k, .weight = route->weights[token * route->weights_pitch + k]};
    }
    return count;
}

int32_t ll_combine_ranks(const ll_combine *c, int32_t token, ll_part *parts)
{
    int32_t count = 0;
    for (int32_t k = 0; k < c->step->call.form.topk; k++) {
        const int32_t rank = owner_of_slot(c, token, k);
        int32_t i = 0;
        while (i < count && parts[i].rank != rank)
            i++;
        if (rank < 0 || i < count) continue;
        for (i = count; i > 0 && parts[i - 1].rank > rank; i--)
            parts[i] = parts[i - 1];
        parts[i] = (ll_part){.rank = rank, .place = count++};
    }
    return count;
}

/* Finds the parts of a token that will come, in the order in which they are added. */
static int32_t parts_of_token(const ll_combine *c, int32_t token, ll_part parts[LL_MOST_TOPK])
{
    const int32_t all = c->reduced ? ll_combine_ranks(c, token, parts) : slots_of_token(c, token, parts);
    int32_t due = 0;
    for (int32_t i = 0; i < all; i++)
        if (ll_sends_data(c->self, c->record, parts[i].rank)) parts[due++] = parts[i];
    return due;
}

/* Says whether the part's row stays in x, and never comes to a place. */
static bool stays_here(const ll_combine *c, const ll_part *part)
{
    return part->rank == c->self->sym->rank && c->step->x_stays && !c->reduced && !c->coded;
}

/* Returns the row that came to a place as the i-th one of a sum, in x's type again. */
static const void *decode_row(const ll_combine *c, const ll_scratch *scratch, int32_t i, const uint8_t *place)
{
    const ll_cpu *self = c->self;
    const int64_t hidden = self->shape.hidden;
    const int32_t dtype = c->step->call.form.dtype;
    float *decoded = (float *)scratch->decoded;
    uint8_t *row = scratch->decoded + (size_t)hidden * sizeof(float) * (size_t)(i + 1);
    cpu_decode_row(c->codec, hidden, place + codec_scale_bytes(c->codec, hidden), place, decoded);
    cpu_encode_row(dtype, CODEC_F32, hidden, decoded, row, NULL);
    return row;
}

static uint64_t place_of_part(const ll_combine *c, int32_t token, const ll_part *part)
{
    const uint64_t epoch = c->step->call.epoch;
    return ll_place_number(&c->self->space, &c->self->shape, epoch, ll_region_here(c->self, epoch), token, part->place);
}

static bool part_has_come(const ll_combine *c, int32_t token, const ll_part *part)
{
    if (stays_here(c, part)) return true;
    if (ll_is_far(c->self, part->rank)) return c->self->far->row_came(c, token, part);
    const uint64_t flag = ll_row_flag_at(&c->self->space, place_of_part(c, token, part));
    return ll_word_is_of(ll_look(c->self, flag), c->step->call.epoch);
}

static const void *row_of_part(const ll_combine *c, int32_t token, const ll_part *part)
{
    const ll_cpu *self = c->self;
    if (ll_is_far(self, part->rank)) return self->far->row(c, token, part);
    if (!stays_here(c, part)) return ll_here(self, ll_row_at(&self->space, place_of_part(c, token, part)));
    return ll_row_of_slot(c, part->rank, ll_header_of(c, part->rank, self->own_messages[token]), part->place);
}

/* Adds the token if all of its parts are here. */
static bool add_token(const ll_combine *c, const ll_scratch *scratch, int32_t token)
{
    const ll_cpu *self = c->self;
    ll_part parts[LL_MOST_TOPK];
    const int32_t count = parts_of_token(c, token, parts);
    for (int32_t i = 0; i < count; i++)
        if (!part_has_come(c, token, &parts[i])) return false;
    ll_see(self);
    ll_step(self);
    for (int32_t i = 0; i < count; i++) {
        const void *row = row_of_part(c, token, &parts[i]);
        scratch->rows[i] = c->coded ? decode_row(c, scratch, i, row) : row;
        scratch->row_weights[i] = parts[i].weight;
    }
    cpu_sum_weighted((expar_dtype)c->step->call.form.dtype, (uint8_t *)c->step->y + token * c->step->y_pitch_bytes,
                     scratch->rows, c->reduced ? NULL : scratch->row_weights, count, self->shape.hidden);
    return true;
}

/* Returns how many rows are awaited from a rank, and how many of them are here. The text of a failed wait uses it, and
   so do threads that ask what the wait is for. */
static ll_due row_due(const void *context, int32_t rank)
{
    const ll_combine *c = context;
    ll_due due = {0};
    for (int32_t t = 0; t < c->step->routing->tokens; t++) {
        ll_part parts[LL_MOST_TOPK];
        const int32_t count = parts_of_token(c, t, parts);
        for (int32_t i = 0; i < count; i++) {
            due.all += parts[i].rank == rank;
            due.came += parts[i].rank == rank && part_has_come(c, t, &parts[i]);
        }
    }
    return due;
}

/* Finds, for each of this rank's tokens, the number of its message to this rank itself. */
static void combine_find_own(const ll_combine *c)
{
    ll_cpu *self = c->self;
    const int32_t own = self->sym->rank;
    for (int32_t t = 0; t < c->step->routing->tokens; t++)
        self->own_messages[t] = -1;
    for (int32_t m = 0; m < c->step->routing->messages[own]; m++)
        self->own_messages[ll_header_of(c, own, m)->token] = m;
}

/* Adds tokens of `waiting`, and sets the entry of each added one to -1. */
static void add_some(const void *context, const ll_scratch *scratch, int32_t begin, int32_t end)
{
    const ll_combine *c = context;
    int32_t *waiting = c->self->waiting;
    for (int32_t i = begin; i < end; i++)
        if (add_token(c, scratch, waiting[i])) waiting[i] = -1;
}

/* Returns the bytes that are ready to be added, by the example of the last token. */
static uint64_t bytes_to_add(const ll_combine *c, int32_t count)
{
    ll_part parts[LL_MOST_TOPK];
    if (c->self->num_workers == 1 || count == 0) return 0;
    const int32_t token = c->self->waiting[count - 1], num_parts = parts_of_token(c, token, parts);
    for (int32_t i = 0; i < num_parts; i++)
        if (!part_has_come(c, token, &parts[i])) return 0;
    return (uint64_t)count * (uint64_t)(num_parts + 1) * c->row_bytes;
}

/* Adds the tokens whose rows are all here; the others stay in `waiting`. */
static int32_t add_tokens(const ll_combine *c, int32_t count)
{
    ll_cpu *self = c->self;
    int32_t left = 0;
    ll_share_out(self, count, bytes_to_add(c, count), add_some, c);
    for (int32_t i = 0; i < count; i++)
        if (self->waiting[i] >= 0) self->waiting[left++] = self->waiting[i];
    return left;
}

/* Finds the ranks whose last rows have come since the last look: for their times. */
static void note_came(const ll_combine *c, ll_wait *wait, bool all)
{
    ll_cpu *self = c->self;
    if (!c->step->call.wait_ns) return;
    for (int32_t r = 0; r < self->shape.ranks; r++) {
        if (self->progress[r]) continue;
        const ll_due due = row_due(c, r);
        if (!all && due.came < due.all) continue;
        self->progress[r] = 1;
        ll_wait_came(wait, r);
    }
}

static int32_t await_tokens(const ll_combine *c)
{
    for (int32_t t = 0; t < c->step->routing->tokens; t++)
        c->self->waiting[t] = t;
    return c->step->routing->tokens;
}

expar_status ll_combine_receive(ll_cpu *self, ll_combine_step *step)
{
    const ll_combine combine = combine_of(self, step), *c = &combine;
    ll_wait wait = {.cpu = self,
                    .call = &c->step->call,
                    .what = "low-latency combine: rows",
                    .of = "rows",
                    .due = row_due,
                    .receives = true,
                    .context = c};
    expar_status status = EXPAR_OK;
    uint64_t changes = self->masks ? self->masks->changes : 0;
    int32_t left = await_tokens(c);
    memset(self->progress, 0, (size_t)self->shape.ranks * sizeof(int32_t));
    combine_find_own(c);
    if (self->far) self->far->combine_expect(c);
    for (;;) {
        /* A rank that was masked meanwhile adds to no token, so tokens that have its rows are added anew. */
        if (self->masks && self->masks->changes != changes) {
            changes = self->masks->changes;
            left = await_tokens(c);
        }
        const int32_t before = left;
        left = add_tokens(c, left);
        note_came(c, &wait, left == 0);
        if (left == 0) break;
        status = ll_wait_turn(&wait, left < before);
        if (status != EXPAR_OK) break;
    }
    return ll_wait_end(&wait, status);
}
