/* SPDX-License-Identifier: Apache-2.0 */
/* One dispatch and one combine while their rows move. These declarations are shared by the parts that carry rows inside
 * a node (dispatch.c, combine.c) and those that carry them across (nodes/). Private to the CPU executor. */
#ifndef EXPAR_EXEC_CPU_NORMAL_MOVES_H
#define EXPAR_EXEC_CPU_NORMAL_MOVES_H

#include "exec/cpu/normal/cpu.h"

/* ---- dispatch.c -------------------------------------------------------------------------------------------------- */

typedef struct cpu_dispatch_run {
    cpu_executor *self;
    const ep_dispatch_step *step;
    const ep_routing *routing;
    int32_t joined; /* channels of the routing in one ring */
    bool streaming;
    cpu_carrier *carrier; /* moves x; NULL: the workers do */
} cpu_dispatch_run;

/* The parts of a token, at its source or in a record. `entry` is its index in the route's arrays. */
typedef struct cpu_token {
    const uint8_t *x;
    const uint32_t *scales; /* scale i is scales[i * scales_pitch] */
    int64_t scales_pitch, entry;
    const ep_route_view *route;
    int32_t number; /* at its source */
    int32_t lane;   /* the worker that moves it */
} cpu_token;

/* The places of these parts, in an output or in a slot. Absent parts are NULL. */
typedef struct cpu_place {
    uint8_t *x, *idx;
    uint32_t *scales;
    float *weights;
    int32_t *src;
} cpu_place;

const ep_advert *cpu_dispatch_advert(const cpu_dispatch_run *run, int32_t receiver);
/* Writes the token as `rank` sees it to a row of its output, which is direct. Does nothing beyond the output's rows. */
void cpu_token_put(const cpu_dispatch_run *run, const cpu_token *token, int32_t rank, int64_t row);
/* Does the same in a slot of the ring towards it. That is the ring of `peer`: the rank itself, or the rank of its
   number on the node from which the token comes. Returns false while the ring is full. */
bool cpu_token_queue(const cpu_dispatch_run *run, const cpu_token *token, int32_t channel, int32_t rank, int32_t peer);

/* ---- combine.c --------------------------------------------------------------------------------------------------- */

typedef struct cpu_combine_run {
    cpu_executor *self;
    const ep_combine_step *step;
    const ep_routing *routing;
    ep_sum sum;
    int32_t joined;     /* channels of the routing in one ring */
    uint32_t parts;     /* parts of a row */
    int64_t part_bytes; /* bytes of a row in one slot of a ring */
    /* Every provider of this rank's tokens, and this rank itself, have advertised rows in place. */
    bool all_direct;
    cpu_carrier *carrier; /* adds rows, and has x, y and biases; NULL: the workers do */
} cpu_combine_run;

/* Returns the bytes of the part of a row that begins there. */
static inline int64_t cpu_part_bytes_at(const cpu_combine_run *run, int64_t begin)
{
    const int64_t left = run->step->row_bytes - begin;
    return left < run->part_bytes ? left : run->part_bytes;
}

/* A part of a token that is added here: a token of this rank's own, or one that came from another node. */
typedef struct cpu_token_part {
    int64_t token;
    int32_t channel;
    int64_t begin, bytes; /* within a row */
    /* the origin of a token from another node, for nodes/; NULL: the token is this rank's own */
    const struct cpu_origin *origin;
} cpu_token_part;

/* The row that a rank of this node returns for a token. */
typedef struct cpu_given {
    /* peer: the number under which this rank has the ring from it */
    int32_t rank, peer;
    int64_t row; /* its number among that rank's rows */
} cpu_given;
/* Says whose rows are added if sums go by slots: the places, as ep_sum_place numbers them for these owners. `find` gets
   the row of the rank of a place; it returns false if there is none, or not here. */
typedef struct cpu_places {
    ep_sum sum;
    const uint16_t *owners; /* [K]; NULL with EP_SUM_BY_RANK */
    bool (*find)(const cpu_combine_run *run, const cpu_token_part *part, int32_t rank, cpu_given *out);
} cpu_places;

const ep_advert *cpu_combine_advert(const cpu_combine_run *run, int32_t provider);
/* Says whether the row is in place, or at the front of its ring. Also true if it comes by no ring of this rank. */
bool cpu_given_ready(const cpu_combine_run *run, int32_t channel, const cpu_given *given);
/* Call this after adding the row. */
void cpu_given_pop(const cpu_combine_run *run, int32_t channel, const cpu_given *given);
/* Returns the row from the part's begin on. slot: the slot whose row it is, if each slot has one, else -1. Returns NULL
   if that slot has none there. */
const void *cpu_given_row(const cpu_combine_run *run, const cpu_token_part *part, const cpu_given *given, int32_t slot);
const float *cpu_given_weights(const cpu_combine_run *run, int32_t channel, const cpu_given *given);
/* Finds the part's rows in the order of these places. Returns how many there are. */
int32_t cpu_rows_by_place(const cpu_combine_run *run, const cpu_token_part *part, const cpu_places *places,
                          const void **rows);
/* Returns the places of this rank's own token. */
cpu_places cpu_places_of(const cpu_combine_run *run, int64_t token);
/* Takes the weight that each slot's owner gave for it, unchanged; 0 if there is none. */
void cpu_take_weights(const cpu_combine_run *run, const cpu_token_part *part, const cpu_places *places, float *out);
/* Finds the part's biases, for this rank's own token. Returns how many there are. */
int32_t cpu_find_biases(const ep_combine_step *step, const cpu_token_part *part, const void **rows);
/* Returns where the sum of the token's weights goes, or the weights of the owners. NULL: nowhere, or not with this
   part. */
float *cpu_weights_of(const cpu_combine_run *run, const cpu_token_part *part);
/* For this rank's own token. The first finds the part's rows at ranks of this node, in the order of the call. The
   second finds their weights, ranks ascending. Both return how many there are. */
int32_t cpu_find_rows(const cpu_combine_run *run, const cpu_token_part *part, const void **rows);
int32_t cpu_find_weights(const cpu_combine_run *run, const cpu_token_part *part, const void **rows);

#endif
