/* SPDX-License-Identifier: Apache-2.0 */
/* Makes low-latency calls on one rank, and compares all that comes out with the oracle, byte for byte.
 *
 * A call is prepared, started, ended, checked and cleaned; between start and end there may be others. */
#ifndef TESTS_EP_LOW_LATENCY_TRIAL_H
#define TESTS_EP_LOW_LATENCY_TRIAL_H

#include "ep/harness/check.h"
#include "ep/low_latency/traffic.h"

/* How one rank makes one call. All zero is the plain way. */
typedef struct lowlat_choice {
    bool hook, async;                  /* what receives, if not the call itself; one of them at most */
    bool own_x, own_scales, own_count; /* results in the caller's own memory; own_x is y's, too */
    bool stats, waits;                 /* they are given */
    bool late;          /* wait_event happens after an asynchronous call's return, else before the call */
    bool zero_copy;     /* combine: rows lie in the buffer's own memory */
    bool null_if_empty; /* tensors with zero extents have no memory */
    int32_t pad;        /* pitch of rows beyond their length: pad · 16 bytes of x, pad elements of the rest */
    int32_t threads;    /* args.num_sms */
} lowlat_choice;

typedef struct lowlat_call {
    float global_scale; /* of NVFP4 */
    expar_ll *ll;
    const lowlat_traffic *traffic;
    const lowlat_answers *answers; /* of a combine; NULL: a dispatch */
    int32_t rank;
    lowlat_choice choice;
    expar_ll_dispatch_args there_args;
    expar_ll_dispatch_result there;
    expar_ll_combine_args back_args;
    expar_ll_combine_result back;
    expar_event *wait_event;
    int64_t *waits;    /* [N], given and added to */
    int32_t *stats;    /* [L], with lowlat_first_stat in them */
    bool wants_finish; /* hook or event are still to be called or waited for */
} lowlat_call;

static inline int32_t lowlat_first_stat(int32_t expert)
{
    return 7 * expert - 3;
}

/* Arguments in memory of their own, which tests may spoil before the start. */
void lowlat_prepare_dispatch(lowlat_call *call, expar_ll *ll, const lowlat_traffic *t, int32_t rank,
                             const lowlat_choice *choice);
/* With the handle of a dispatch of the same traffic, which has ended. */
void lowlat_prepare_combine(lowlat_call *call, expar_ll *ll, const lowlat_traffic *t, const lowlat_answers *a,
                            int32_t rank, const lowlat_choice *choice, const expar_ll_handle *handle);
/* Makes the call. With a hook its rows are then overwritten, for they may be used again. */
expar_status lowlat_start(lowlat_call *call);
/* Calls the hook, waits for the event, or does nothing. */
expar_status lowlat_end(lowlat_call *call);
/* Whether all that came is the oracle's. May be asked again. */
bool lowlat_is_right(const lowlat_call *call);
/* The call's arguments and results; the handle, too. */
void lowlat_clean(lowlat_call *call);

/* All but the cleaning; true when both statuses were EXPAR_OK and the results right. */
bool lowlat_trial(lowlat_call *call);
/* A dispatch and combines of all given answers, all with one choice. */
bool lowlat_round_trip(expar_ll *ll, const lowlat_traffic *t, lowlat_answers *const *back, int32_t num_back,
                       int32_t rank, const lowlat_choice *choice);

#endif
