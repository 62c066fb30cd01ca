/* SPDX-License-Identifier: Apache-2.0 */
/* Runs traffic through the library on one rank, and compares all that comes out with the oracle, byte for byte. */
#ifndef TESTS_EP_HARNESS_TRIAL_H
#define TESTS_EP_HARNESS_TRIAL_H

#include "ep/harness/check.h"
#include "ep/harness/traffic.h"

/* Owners of the memory that a dispatch's rows go to, and a combine's rows lie in. */
typedef enum trial_place {
    PLACE_LIBRARY,  /* the library's output; combine: in place in recv_x */
    PLACE_PRIVATE,  /* the caller's own memory */
    PLACE_SYMMETRIC /* the caller's memory from expar_malloc */
} trial_place;

/* How one rank makes one call. All zero is the plain way. */
typedef struct trial_choice {
    expar_ep_path path;
    trial_place place;
    int32_t pad;        /* pitch of rows beyond their length: pad · 16 bytes for x and y, pad elements for the rest */
    int32_t spare_rows; /* rows that out_x has beyond R */
    bool null_if_empty; /* tensors with zero extents have no memory */
    bool sure_of_pool;  /* the pool cannot be used up: result.path is known */
} trial_choice;

/* A piece of the symmetric heap for one dispatch and its combines. */
typedef struct trial_area {
    void *out, *in;
    size_t bytes; /* of each */
} trial_area;

/* Collective. bytes: enough for R rows, and for R rows with weights. */
bool trial_area_take(expar_group *group, size_t bytes, trial_area *area);
void trial_area_give(expar_group *group, trial_area *area);

/* Results of a dispatch on this rank. */
typedef struct trial_arrival {
    const traffic *traffic;
    expar_ep_dispatch_result result;
    expar_ep_handle *handle; /* this arrival's own; NULL after a dispatch with a handle */
    void *own_out;           /* PLACE_PRIVATE */
    bool overwritten;        /* recv_x was used for a combine */
} trial_arrival;

/* The arguments of rank `rank`; x, topk_idx and topk_weights are laid out as chosen, in memory of their own. */
expar_ep_dispatch_args trial_dispatch_args(const traffic *t, int32_t rank, const trial_choice *choice,
                                           const trial_area *area, void **own_out);
void trial_dispatch_args_free(expar_ep_dispatch_args *args);

/* Dispatches; with a handle of an earlier arrival, repeats its routing. True when all was right. */
bool trial_dispatch(expar_ep *ep, const traffic *t, int32_t rank, const trial_choice *choice, const trial_area *area,
                    const expar_ep_handle *handle, trial_arrival *arrival);
/* Compares a result again: nobody may have written to it since. */
bool trial_check_arrival(const trial_arrival *arrival, int32_t rank);
/* Combines with the handle of the routing. */
bool trial_combine(expar_ep *ep, const traffic *t, const answers *a, int32_t rank, const trial_choice *choice,
                   const trial_area *area, const expar_ep_handle *handle, trial_arrival *arrival);
/* Frees output and handle in either order. */
void trial_release(trial_arrival *arrival, bool handle_first);

#endif
