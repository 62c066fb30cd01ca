/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions. Small ones: everybody gives everybody its source, and combines them all itself. Larger ones in rounds:
 * the round's elements are dealt out in segments, one a member; everybody gives each member that one's segment, the
 * member combines what it got, and puts the result into everybody's dest. Either way elements are combined in the order
 * of members, so that all have the same bits.
 *
 * dest may be source: a member's result is put over a segment that it has been given already. */
#include "shmem/collective.h"

/* The most members for which everybody combines everything. */
#define FLAT_MEMBERS 16

typedef struct reduction {
    collective c;
    size_t element_bytes;
    expar_reduce_fn combine;
} reduction;

/* Combines one element range of all members into `into`: the others' by the pieces that they give, this one's from
   `own`, which is not `into`. */
static expar_status combine_pieces(const reduction *r, void *into, const void *own, size_t count)
{
    const expar_team *team = r->c.team;
    expar_status status = EXPAR_OK;
    for (int32_t member = 0; member < team->size && status == EXPAR_OK; member++) {
        const void *piece = own;
        if (member != team->me) status = channel_take(team, member, r->c.call, &piece);
        if (status != EXPAR_OK || count == 0) continue;
        if (member == 0)
            collective_copy(into, piece, count * r->element_bytes);
        else
            r->combine(into, piece, count);
    }
    return status;
}

/* `own` holds a copy of source that dest may not be. */
static expar_status reduce_flat(const reduction *r, size_t count, void *own)
{
    const size_t bytes = count * r->element_bytes;
    expar_status status = EXPAR_OK;
    collective_copy(own, r->c.source, bytes);
    for (int32_t step = 1; step < r->c.team->size && status == EXPAR_OK; step++)
        status = channel_give(r->c.team, collective_next(r->c.team, step), own, bytes);
    return status == EXPAR_OK ? combine_pieces(r, r->c.dest, own, count) : status;
}

/* One round's deal: the segment of member m starts at first + m·length; the last ones may be short or empty. */
typedef struct deal {
    size_t first, end, length; /* in elements */
} deal;

static size_t segment_start(const deal *d, int32_t member)
{
    size_t start = d->first + (size_t)member * d->length;
    return start < d->end ? start : d->end;
}

static size_t segment_count(const deal *d, int32_t member)
{
    return segment_start(d, member + 1) - segment_start(d, member);
}

static expar_status deal_out(const reduction *r, const deal *d)
{
    expar_status status = EXPAR_OK;
    for (int32_t step = 1; step < r->c.team->size && status == EXPAR_OK; step++) {
        int32_t to = collective_next(r->c.team, step);
        status = channel_give(r->c.team, to, (const uint8_t *)r->c.source + segment_start(d, to) * r->element_bytes,
                              segment_count(d, to) * r->element_bytes);
    }
    return status;
}

static expar_status hand_round(const reduction *r, const deal *d)
{
    const size_t at = segment_start(d, r->c.team->me) * r->element_bytes;
    const size_t bytes = segment_count(d, r->c.team->me) * r->element_bytes;
    expar_status status = EXPAR_OK;
    for (int32_t step = 1; step < r->c.team->size && status == EXPAR_OK; step++) {
        int32_t to = collective_next(r->c.team, step);
        status = channel_put(r->c.team, to, r->c.dest_offset + at, (const uint8_t *)r->c.dest + at, bytes);
        if (status == EXPAR_OK) status = channel_tell(r->c.team, to);
    }
    return status == EXPAR_OK ? collective_hear_others(&r->c) : status;
}

static expar_status reduce_round(const reduction *r, const deal *d, void *own)
{
    const int32_t me = r->c.team->me;
    const size_t at = segment_start(d, me) * r->element_bytes;
    collective_copy(own, (const uint8_t *)r->c.source + at, segment_count(d, me) * r->element_bytes);
    expar_status status = deal_out(r, d);
    if (status == EXPAR_OK) status = combine_pieces(r, (uint8_t *)r->c.dest + at, own, segment_count(d, me));
    return status == EXPAR_OK ? hand_round(r, d) : status;
}

static expar_status reduce_dealt(const reduction *r, size_t count, size_t piece_elements, void *own)
{
    const size_t members = (size_t)r->c.team->size;
    expar_status status = EXPAR_OK;
    for (deal d = {0}; d.first < count && status == EXPAR_OK; d.first = d.end) {
        size_t left = count - d.first, fair = left / members + (left % members != 0);
        d.length = fair < piece_elements ? fair : piece_elements;
        d.end = left / members >= d.length ? d.first + members * d.length : count;
        status = reduce_round(r, &d, own);
    }
    return status;
}

/* The scratch piece that this member would give itself serves for the copy of its own elements. */
static expar_status reduce_all(const reduction *r, size_t count)
{
    const expar_team *team = r->c.team;
    const size_t piece_elements = channel_piece_bytes(team) / r->element_bytes;
    void *own = channel_own_piece(team);
    if (team->size == 1) {
        collective_copy(r->c.dest, r->c.source, count * r->element_bytes);
        return EXPAR_OK;
    }
    if (team->size <= FLAT_MEMBERS && count <= piece_elements) return reduce_flat(r, count, own);
    return reduce_dealt(r, count, piece_elements, own);
}

static expar_status reduce(const char *call, expar_team *team, void *dest, const void *source, size_t count,
                           size_t element_bytes, expar_reduce_fn combine)
{
    size_t bytes = 0;
    reduction r = {.c = {.call = call, .team = team, .dest = dest, .source = source},
                   .element_bytes = element_bytes,
                   .combine = combine};
    expar_status status = collective_bytes(call, count, element_bytes, &bytes);
    if (status == EXPAR_OK) status = collective_check(&r.c, bytes, bytes);
    return status == EXPAR_OK ? reduce_all(&r, count) : status;
}

expar_status expar_reduce(expar_team *team, void *dest, const void *source, size_t count, size_t element_bytes,
                          expar_reduce_fn combine)
{
    static const char call[] = "expar_reduce";
    if (!combine) return error_set(EXPAR_ERR_NULL, "%s: combine is NULL", call);
    if (element_bytes < 1 || element_bytes > EXPAR_REDUCE_ELEMENT_BYTES)
        return error_set(EXPAR_ERR_ARGUMENT, "%s: element_bytes %zu, expected 1 to %d", call, element_bytes,
                         EXPAR_REDUCE_ELEMENT_BYTES);
    return reduce(call, team, dest, source, count, element_bytes, combine);
}

/* ---- the operations -----------------------------------------------------------------------------------------------
 */

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
        return reduce("expar_" #name "_reduce_" #S, team, dest, source, count, sizeof(T), combine_##name##_##S);       \
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

/* Neither source nor result is symmetric: the word is one piece. */
expar_status team_and(const char *call, expar_team *team, uint64_t *word)
{
    uint64_t own = *word, result = 0;
    reduction r = {.c = {.call = call, .team = team, .dest = &result, .source = &own},
                   .element_bytes = sizeof own,
                   .combine = combine_and_u64};
    expar_status status = reduce_flat(&r, 1, channel_own_piece(team));
    if (status == EXPAR_OK) *word = result;
    return status;
}
