/* SPDX-License-Identifier: Apache-2.0 */
/* One dispatch and one combine while their rows move: what those parts share that carry them inside a node
 * (dispatch.c, combine.c) and those that carry them across (nodes/). Private to the CPU executor. */
#ifndef EXPAR_EXEC_CPU_NORMAL_MOVES_H
#define EXPAR_EXEC_CPU_NORMAL_MOVES_H

#include "exec/cpu/normal/cpu.h"

/* ---- dispatch.c -------------------------------------------------------------------------------------------------- */

typedef struct cpu_dispatch_run {
    cpu_executor *self;
    const ep_dispatch_step *step;
    const ep_routing *routing;
    int32_t joined; /* of its channels, by a ring */
    bool streaming;
} cpu_dispatch_run;

/* What there is of a token, at its source or in a record: entry says where in the route's arrays. */
typedef struct cpu_token {
    const uint8_t *x;
    const uint32_t *scales; /* each scales_pitch elements behind the last */
    int64_t scales_pitch, entry;
    const ep_route_view *route;
    int32_t number; /* at its source */
} cpu_token;

/* Where it goes: into an output, or into a slot. Parts that are absent are NULL. */
typedef struct cpu_place {
    uint8_t *x, *idx;
    uint32_t *scales;
    float *weights;
    int32_t *src;
} cpu_place;

const ep_offer *cpu_dispatch_offer(const cpu_dispatch_run *run, int32_t receiver);
/* The token as `rank` sees it, in a row of its output, which is direct; beyond that there is none. */
void cpu_token_put(const cpu_dispatch_run *run, const cpu_token *token, int32_t rank, int64_t row);
/* The same in a slot of the ring towards it, which is that of `peer`: the rank, or the rank of its number on the node
   that the token comes from. False while the ring is full. */
bool cpu_token_queue(const cpu_dispatch_run *run, const cpu_token *token, int32_t channel, int32_t rank, int32_t peer);

/* ---- combine.c --------------------------------------------------------------------------------------------------- */

typedef struct cpu_combine_run {
    cpu_executor *self;
    const ep_combine_step *step;
    const ep_routing *routing;
    ep_sum sum;
    int32_t joined;     /* of the routing's channels, by a ring */
    uint32_t parts;     /* of a row */
    int64_t part_bytes; /* in one slot of a ring */
    bool all_direct;    /* every provider of this rank's tokens, and this rank itself, offered rows in place */
} cpu_combine_run;

/* Of the part of a row that begins there. */
static inline int64_t cpu_part_bytes_at(const cpu_combine_run *run, int64_t begin)
{
    const int64_t left = run->step->row_bytes - begin;
    return left < run->part_bytes ? left : run->part_bytes;
}

/* A part of a token that is added here: one of this rank's own, or one that came from another node. */
typedef struct cpu_token_part {
    int64_t token;
    int32_t channel;
    int64_t begin, bytes;            /* of a row */
    const struct cpu_origin *origin; /* of what came from another node, for nodes/; NULL: it is this rank's own */
} cpu_token_part;

/* What a rank of this node gave for a token. */
typedef struct cpu_given {
    int32_t rank, peer; /* peer: by which number this rank has the ring from it */
    int64_t row;        /* of its rows */
} cpu_given;
/* Whose rows are added where sums go by slots: places, as ep_sum_place tells them of these owners, and what the rank of
   a place gave. False: nothing, or not here. */
typedef struct cpu_places {
    ep_sum sum;
    const uint16_t *owners; /* [K]; NULL by rank */
    bool (*find)(const cpu_combine_run *run, const cpu_token_part *part, int32_t rank, cpu_given *out);
} cpu_places;

const ep_offer *cpu_combine_offer(const cpu_combine_run *run, int32_t provider);
/* Whether it is in place, or at the front of its ring; true also for what comes by no ring of this rank's. */
bool cpu_given_ready(const cpu_combine_run *run, int32_t channel, const cpu_given *given);
/* It has been added. */
void cpu_given_pop(const cpu_combine_run *run, int32_t channel, const cpu_given *given);
/* From the part's begin on. slot: whose row, where each slot has one, else -1; NULL: that slot has none there. */
const void *cpu_given_row(const cpu_combine_run *run, const cpu_token_part *part, const cpu_given *given, int32_t slot);
const float *cpu_given_weights(const cpu_combine_run *run, int32_t channel, const cpu_given *given);
/* The part's rows in the order of these places. Returns how many there are. */
int32_t cpu_rows_by_place(const cpu_combine_run *run, const cpu_token_part *part, const cpu_places *places,
                          const void **rows);
/* Of this rank's own token. */
cpu_places cpu_places_of(const cpu_combine_run *run, int64_t token);
/* What each slot's owner gave for it, as it is; 0 where there is nothing. */
void cpu_take_weights(const cpu_combine_run *run, const cpu_token_part *part, const cpu_places *places, float *out);
/* This rank's own token: the part's biases. Returns how many there are. */
int32_t cpu_find_biases(const ep_combine_step *step, const cpu_token_part *part, const void **rows);
/* Where the sum of its weights goes, or those of its owners; NULL: nowhere, or not with this part. */
float *cpu_weights_of(const cpu_combine_run *run, const cpu_token_part *part);
/* This rank's own token: the part's rows at ranks of this node in the order of the call, or their weights, ranks
   ascending. Return how many there are. */
int32_t cpu_find_rows(const cpu_combine_run *run, const cpu_token_part *part, const void **rows);
int32_t cpu_find_weights(const cpu_combine_run *run, const cpu_token_part *part, const void **rows);

#endif
