/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions. In small ones everybody gives everybody its source, and combines them all itself. By leaders, members
 * give theirs to their leader. Leaders give each other their combined sources, and pass the result to their nodes.
 * Larger ones go in rounds. The round's elements are dealt out in segments, one a member. Everybody gives each member
 * that one's segment, the member combines what it got, and puts the result into everybody's dest. By leaders this
 * happens twice: inside each node, where the results go to the leader alone, and in the circle of leaders.
 *
 * In every case the elements of a node are combined in the order of its members. The results of the nodes are combined
 * in the order of nodes, so that all have the same bits.
 *
 * dest may be source: a result is put over a segment that has been given already. */
#include "pgas/team/collective.h"

#include <stdlib.h>

typedef struct reduction {
    collective c;
    size_t element_bytes;
    expar_reduce_fn combine;
    /* Elements of a piece at most, which the CPU combines here if dest is memory of a GPU; else NULL. */
    void *scratch;
} reduction;

static expar_status give_all(const reduction *r, const circle *among, size_t bytes, const void *piece,
                             channel_batch *batch)
{
    expar_status status = EXPAR_OK;
    for (int32_t step = 1; step < among->count && status == EXPAR_OK; step++)
        status = channel_give(r->c.team, circle_next(among, step), piece, bytes, batch);
    return status;
}

/* Combines one element range of all in the circle into `into`, which the CPU writes. The others' ranges are the pieces
   that they give. This one's is at `own`, which is not `into`. */
static expar_status combine_on_cpu(const reduction *r, const circle *among, void *into, const void *own, size_t count)
{
    expar_status status = EXPAR_OK;
    for (int32_t place = 0; place < among->count && status == EXPAR_OK; place++) {
        const void *piece = own;
        if (place != among->me) status = channel_take(r->c.team, circle_member(among, place), r->c.call, &piece);
        if (status != EXPAR_OK || count == 0) continue;
        if (place == 0)
            status = collective_copy(r->c.team, into, piece, count * r->element_bytes);
        else
            r->combine(into, piece, count);
    }
    return status;
}

/* The same, if `into` is part of dest. */
static expar_status combine_pieces(const reduction *r, const circle *among, void *into, const void *own, size_t count)
{
    if (!r->scratch) return combine_on_cpu(r, among, into, own, count);
    expar_status status = combine_on_cpu(r, among, r->scratch, own, count);
    return status == EXPAR_OK ? collective_copy(r->c.team, into, r->scratch, count * r->element_bytes) : status;
}

/* ---- small ------------------------------------------------------------------------------------------------------- */

/* Combines the data at `from` of each member of the circle into `into`, which may be the same. */
static expar_status reduce_flat(const reduction *r, const circle *among, void *into, const void *from, size_t count)
{
    void *own = channel_own_piece(r->c.team, 0); /* `into` may not be given, nor combined with itself */
    channel_batch batch = {.copies = false};
    expar_status status = collective_copy(r->c.team, own, from, count * r->element_bytes);
    if (status == EXPAR_OK) status = give_all(r, among, count * r->element_bytes, own, &batch);
    if (status == EXPAR_OK) status = combine_pieces(r, among, into, own, count);
    return channel_finish(r->c.team, &batch, status);
}

/* All members' elements, combined into the leaders' `into`. */
static expar_status reduce_to_leaders(const reduction *r, const circle *node, void *into, size_t count)
{
    const size_t bytes = count * r->element_bytes;
    const circle leaders = circle_of_leaders(r->c.team);
    void *own = channel_own_piece(r->c.team, 0);
    channel_batch batch = {.copies = false};
    if (node->me > 0) {
        expar_status status = channel_give(r->c.team, node->first, r->c.source, bytes, &batch);
        return channel_finish(r->c.team, &batch, status);
    }
    expar_status status = collective_copy(r->c.team, own, r->c.source, bytes);
    if (status == EXPAR_OK) status = combine_pieces(r, node, into, own, count);
    return status == EXPAR_OK ? reduce_flat(r, &leaders, into, into, count) : status;
}

static expar_status reduce_by_leaders(const reduction *r, size_t count)
{
    const circle node = circle_of_node(r->c.team);
    expar_status status = reduce_to_leaders(r, &node, r->c.dest, count);
    return status == EXPAR_OK ? fan_out_dest(&r->c, (span){.bytes = count * r->element_bytes}) : status;
}

/* ---- in rounds --------------------------------------------------------------------------------------------------- */

/* The elements [first, end) in segments: that of place p starts at first + p·length; the last ones may be short or
   empty. */
typedef struct deal {
    size_t first, end, length;
} deal;

static deal deal_among(const circle *among, size_t first, size_t end)
{
    size_t places = (size_t)among->count, count = end - first;
    return (deal){.first = first, .end = end, .length = count / places + (count % places != 0)};
}

static size_t segment_start(const deal *d, int32_t place)
{
    size_t start = d->first + (size_t)place * d->length;
    return start < d->end ? start : d->end;
}

static size_t segment_count(const deal *d, int32_t place)
{
    return segment_start(d, place + 1) - segment_start(d, place);
}

/* In bytes of source and dest. */
static span segment_span(const reduction *r, const deal *d, int32_t place)
{
    return (span){.at = segment_start(d, place) * r->element_bytes,
                  .bytes = segment_count(d, place) * r->element_bytes};
}

/* Everybody's segment of what lies at `from` in each of the circle, combined into its dest. */
static expar_status reduce_segments(const reduction *r, const circle *among, const deal *d, const uint8_t *from)
{
    const span mine = segment_span(r, d, among->me);
    void *own = channel_own_piece(r->c.team, 0);
    channel_batch batch = {.copies = false};
    expar_status status = collective_copy(r->c.team, own, from + mine.at, mine.bytes);
    for (int32_t step = 1; step < among->count && status == EXPAR_OK; step++) {
        int32_t place = (int32_t)(((int64_t)among->me + step) % among->count);
        const span its = segment_span(r, d, place);
        status = channel_give(r->c.team, circle_member(among, place), from + its.at, its.bytes, &batch);
    }
    if (status == EXPAR_OK)
        status = combine_pieces(r, among, (uint8_t *)r->c.dest + mine.at, own, segment_count(d, among->me));
    return channel_finish(r->c.team, &batch, status);
}

/* [first, end) of what lies at `from`, combined into the dest of all in the circle. */
static expar_status reduce_circle(const reduction *r, const circle *among, size_t first, size_t end,
                                  const uint8_t *from)
{
    const deal d = deal_among(among, first, end);
    const span mine = segment_span(r, &d, among->me);
    expar_status status = reduce_segments(r, among, &d, from);
    return status == EXPAR_OK ? collective_spread(&r->c, among, (uint8_t *)r->c.dest + mine.at, mine) : status;
}

/* [first, end) of a node's sources, combined into its leader's dest. */
static expar_status reduce_node(const reduction *r, const circle *node, size_t first, size_t end)
{
    const deal d = deal_among(node, first, end);
    const span mine = segment_span(r, &d, node->me);
    uint8_t *dest = (uint8_t *)r->c.dest + mine.at;
    channel_batch batch = {.copies = false};
    if (node->count == 1) /* nothing is given, so it need not fit into a piece */
        return collective_copy(r->c.team, dest, (const uint8_t *)r->c.source + mine.at, mine.bytes);
    expar_status status = reduce_segments(r, node, &d, r->c.source);
    if (status != EXPAR_OK || node->me == 0) return status == EXPAR_OK ? circle_hear(node, r->c.call) : status;
    status = channel_send(r->c.team, node->first, place_after(r->c.dest_place, mine.at), dest, mine.bytes, &batch);
    return channel_finish(r->c.team, &batch, status);
}

static expar_status round_by_leaders(const reduction *r, size_t first, size_t end)
{
    const circle node = circle_of_node(r->c.team), leaders = circle_of_leaders(r->c.team);
    const span all = {.at = first * r->element_bytes, .bytes = (end - first) * r->element_bytes};
    expar_status status = reduce_node(r, &node, first, end);
    if (status == EXPAR_OK && node.me == 0) status = reduce_circle(r, &leaders, first, end, r->c.dest);
    return status == EXPAR_OK ? fan_out_dest(&r->c, all) : status;
}

/* The most elements of which every segment fits into a piece; a node of one deals nothing out. */
static size_t round_elements(const expar_team *team, size_t piece_elements)
{
    const team_reach *reach = &team->reach;
    if (!team_has_leaders(team)) return (size_t)team->size * piece_elements;
    return (size_t)(reach->num_nodes < reach->smallest ? reach->num_nodes : reach->smallest) * piece_elements;
}

static expar_status reduce_in_rounds(const reduction *r, size_t count, size_t piece_elements)
{
    const circle all = circle_of_all(r->c.team);
    const size_t most = round_elements(r->c.team, piece_elements);
    expar_status status = EXPAR_OK;
    for (size_t first = 0, end; first < count && status == EXPAR_OK; first = end) {
        end = count - first < most ? count : first + most;
        status = team_has_leaders(r->c.team) ? round_by_leaders(r, first, end)
                                             : reduce_circle(r, &all, first, end, r->c.source);
    }
    return status;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static expar_status reduce_all(const reduction *r, size_t count)
{
    const expar_team *team = r->c.team;
    const circle all = circle_of_all(team);
    const size_t piece_elements = channel_piece_bytes(team) / r->element_bytes;
    if (team->size == 1) return collective_copy(team, r->c.dest, r->c.source, count * r->element_bytes);
    if (count > piece_elements) return reduce_in_rounds(r, count, piece_elements);
    if (team->size <= CHOICE_FLAT_MEMBERS && !team_has_leaders(team))
        return reduce_flat(r, &all, r->c.dest, r->c.source, count);
    if (team->reach.largest <= CHOICE_FLAT_MEMBERS && team->reach.num_nodes <= CHOICE_FLAT_MEMBERS &&
        team_has_leaders(team))
        return reduce_by_leaders(r, count);
    return reduce_in_rounds(r, count, piece_elements);
}

/* Checks arguments that the typed calls always have right. */
static expar_status check_combine(const reduction *r)
{
    if (!r->combine) return team_note(r->c.team, error_set(EXPAR_ERR_NULL, "%s: combine is NULL", r->c.call));
    if (r->element_bytes >= 1 && r->element_bytes <= EXPAR_REDUCE_ELEMENT_BYTES) return EXPAR_OK;
    return team_note(r->c.team, error_set(EXPAR_ERR_ARGUMENT, "%s: element_bytes %zu, expected 1 to %d", r->c.call,
                                          r->element_bytes, EXPAR_REDUCE_ELEMENT_BYTES));
}

static expar_status reduce_scratch_make(reduction *r, size_t bytes)
{
    const size_t most = channel_piece_bytes(r->c.team), wanted = bytes < most ? bytes : most;
    if (wanted == 0 || r->c.dest_place.memory != TRANSPORT_DEVICE) return EXPAR_OK;
    r->scratch = malloc(wanted);
    if (r->scratch) return EXPAR_OK;
    return team_note(r->c.team, error_set(EXPAR_ERR_MEMORY, "%s: no memory for %zu bytes", r->c.call, wanted));
}

static expar_status reduction_run(const char *call, expar_team *team, void *dest, const void *source, size_t count,
                                  size_t element_bytes, expar_reduce_fn combine)
{
    size_t bytes = 0;
    reduction r = {.c = {.call = call, .team = team, .dest = dest, .source = source},
                   .element_bytes = element_bytes,
                   .combine = combine};
    expar_status status = team_check(call, team);
    if (status == EXPAR_OK) status = check_combine(&r);
    if (status == EXPAR_OK) status = collective_bytes(&r.c, "count", count, element_bytes, &bytes);
    if (status == EXPAR_OK) status = collective_check(&r.c, bytes, bytes);
    if (status == EXPAR_OK) status = reduce_scratch_make(&r, bytes);
    if (status == EXPAR_OK && (status = team_turn_begin(call, team)) == EXPAR_OK)
        status = team_turn_met(team, reduce_all(&r, count));
    free(r.scratch);
    return status;
}

expar_status expar_reduce(expar_team *team, void *dest, const void *source, size_t count, size_t element_bytes,
                          expar_reduce_fn combine)
{
    return team_ended(team, reduction_run("expar_reduce", team, dest, source, count, element_bytes, combine));
}

/* ---- the operations ---------------------------------------------------------------------------------------------- */

/* expression combines a and b. */
#define REDUCE_DEFINE(T, S, name, expression)                                                                          \
    static void combine_##name##_##S(void *into, const void *from, size_t count)                                       \
    {                                                                                                                  \
        T *result = into;                                                                                              \
        const T *other = from;                                                                                         \
        for (size_t i = 0; i < count; i++) {                                                                           \
            const T a = result[i], b = other[i];                                                                       \
            result[i] = (T)(expression);                                                                               \
        }                                                                                                              \
    }                                                                                                                  \
    expar_status expar_##name##_reduce_##S(expar_team *team, T *dest, const T *source, size_t count)                   \
    {                                                                                                                  \
        return team_ended(team, reduction_run("expar_" #name "_reduce_" #S, team, dest, source, count, sizeof(T),      \
                                              combine_##name##_##S));                                                  \
    }
#define BITS_DEFINE(T, S)                                                                                              \
    REDUCE_DEFINE(T, S, and, a &b)                                                                                     \
    REDUCE_DEFINE(T, S, or, a | b)                                                                                     \
    REDUCE_DEFINE(T, S, xor, a ^ b)
#define ORDER_DEFINE(T, S)                                                                                             \
    REDUCE_DEFINE(T, S, min, b < a ? b : a)                                                                            \
    REDUCE_DEFINE(T, S, max, b > a ? b : a)
/* Integers wrap: sums and products are those of the unsigned type, wide enough that nothing is promoted to int. */
#define WRAPPING_DEFINE(T, S)                                                                                          \
    REDUCE_DEFINE(T, S, sum, (uint64_t)a + (uint64_t)b)                                                                \
    REDUCE_DEFINE(T, S, prod, (uint64_t)a *(uint64_t)b)
#define FLOAT_DEFINE(T, S)                                                                                             \
    REDUCE_DEFINE(T, S, sum, a + b)                                                                                    \
    REDUCE_DEFINE(T, S, prod, a *b)

EXPAR_INTEGER_TYPES(BITS_DEFINE)
EXPAR_DATA_TYPES(ORDER_DEFINE)
EXPAR_INTEGER_TYPES(WRAPPING_DEFINE)
EXPAR_FLOAT_TYPES(FLOAT_DEFINE)

/* Neither source nor result is symmetric: both are one piece. */
static expar_status and_by_leaders(const reduction *r, uint64_t *result)
{
    const circle node = circle_of_node(r->c.team);
    const void *piece;
    channel_batch batch = {.copies = true};
    expar_status status = reduce_to_leaders(r, &node, result, 1);
    if (status != EXPAR_OK) return status;
    if (node.me == 0) return channel_finish(r->c.team, &batch, give_all(r, &node, sizeof *result, result, &batch));
    status = channel_take(r->c.team, node.first, r->c.call, &piece);
    if (status == EXPAR_OK) *result = *(const uint64_t *)piece;
    return status;
}

expar_status team_and(const char *call, expar_team *team, uint64_t *word)
{
    const circle all = circle_of_all(team);
    uint64_t own = *word, result = 0;
    reduction r = {.c = {.call = call, .team = team, .dest = &result, .source = &own},
                   .element_bytes = sizeof own,
                   .combine = combine_and_u64};
    expar_status status = team_turn_begin(call, team);
    if (status != EXPAR_OK) return status;
    status = team_turn_met(team, team_has_leaders(team) ? and_by_leaders(&r, &result)
                                                        : reduce_flat(&r, &all, &result, &own, 1));
    if (status == EXPAR_OK) *word = result;
    return status;
}
