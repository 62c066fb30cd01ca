/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input: rank 1 of 3 makes one low-latency call with one wrong argument, the others make it right.
 *
 * Asserted each time, with calls that receive themselves and with hooks: rank 1 gets the status, and a text with the
 * words. The others get EXPAR_ERR_REMOTE with the rank, the status and the first word. Nothing was written. After it a
 * dispatch with its combines gives the oracle's bytes on the same buffer. */
#ifndef TESTS_EP_LOW_LATENCY_WRONG_H
#define TESTS_EP_LOW_LATENCY_WRONG_H

#include "ep/harness/ranks.h"
#include "ep/harness/setting.h"
#include "ep/low_latency/trial.h"
#include "oracle/unit.h"

#define WRONG_RANK  1
#define WRONG_WORDS 6

/* B, H (bf16), K, E of the buffer; rank 1 has 5 tokens. It is made for elements of 2 bytes. */
enum { WRONG_RANKS = 3, WRONG_TOKENS = 6, WRONG_HIDDEN = 16, WRONG_TOPK = 3, WRONG_EXPERTS = 6 };

typedef struct wrong_scene {
    expar_ll *ll, *other; /* another buffer of the group, of the same shape */
    int32_t rank;
    const lowlat_traffic *traffic;
    const expar_ll_handle *handle, *foreign; /* of earlier dispatches, on the buffer and on the other one */
} wrong_scene;

typedef struct wrong_case {
    const char *name;
    expar_status status;
    const char *words[WRONG_WORDS]; /* in the text; the first names the argument */
    /* One of them: a member of the arguments gets a value; changes the arguments of the call. */
    arg_setting set;
    void (*spoil_dispatch)(expar_ll_dispatch_args *args, const wrong_scene *scene);
    void (*spoil_combine)(expar_ll_combine_args *args, const wrong_scene *scene);
    /* Or makes it. */
    expar_status (*call)(const wrong_scene *scene);
    bool is_combine; /* of `set` and `call`: the kind of the call */
} wrong_case;

/* In a case: one member of the arguments gets the value (setting.h). */
#define WRONG_SET_DISPATCH(member, value) .set = SETTING(expar_ll_dispatch_args, member, value)
#define WRONG_SET_COMBINE(member, value)  .set = SETTING(expar_ll_combine_args, member, value), .is_combine = true

/* Runs all cases as tests of their names. */
int wrong_run(const char *program, const wrong_case *cases, size_t count);

/* An event that nobody holds any more. */
expar_event *wrong_event_gone(void);

/* The buffers and traffic of the cases, for other tests. */
expar_ll_config wrong_config(void);
lowlat_traffic *wrong_traffic(bool with_weights, random_source *random);

#endif
