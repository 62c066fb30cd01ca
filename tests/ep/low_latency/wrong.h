/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input: rank 1 of 3 makes one low-latency call with one wrong argument, the others make it right.
 *
 * Asserted each time, with calls that receive themselves and with hooks: rank 1 gets the status, and a text with the
 * words; the others get EXPAR_ERR_REMOTE with the rank, the status and the first word; nothing was written; and after
 * it a dispatch with its combines gives the oracle's bytes on the same buffer. */
#ifndef TESTS_EP_LOW_LATENCY_WRONG_H
#define TESTS_EP_LOW_LATENCY_WRONG_H

#include "ep/harness/ranks.h"
#include "ep/low_latency/play.h"
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
    /* One of them: changes the arguments of the call. */
    void (*spoil_dispatch)(expar_ll_dispatch_args *args, const wrong_scene *scene);
    void (*spoil_combine)(expar_ll_combine_args *args, const wrong_scene *scene);
    /* Or makes it, and says of which kind it is. */
    expar_status (*call)(const wrong_scene *scene);
    bool is_combine;
} wrong_case;

/* Runs all cases as tests of their names. */
int wrong_run(const char *program, const wrong_case *cases, size_t count);

/* An event that nobody holds any more. */
expar_event *wrong_event_gone(void);

/* The buffers and traffic of the cases, for other tests. */
expar_ll_config wrong_config(void);
lowlat_traffic *wrong_traffic(bool with_weights, random_source *random);

#endif
