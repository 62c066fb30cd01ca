/* SPDX-License-Identifier: Apache-2.0 */
/* Scripts over all options together: deals on one or two buffers of one group, their moves interleaved, some of them
 * asynchronous and finished later. A script follows from its seed; each rank draws it by itself as it goes. */
#ifndef TESTS_EP_HARNESS_OPTIONS_SCRIPT_H
#define TESTS_EP_HARNESS_OPTIONS_SCRIPT_H

#include "ep/harness/ranks.h"
#include "oracle/random.h"

#define OPTIONS_BUFFERS 2

typedef struct options_script {
    uint64_t seed;
    ranks_plan ranks;
    int32_t num_buffers;
    expar_ep_config configs[OPTIONS_BUFFERS];
    bool ample_pool;
    bool unlimited; /* the buffers are made without the limits that the configs name */
    size_t area_bytes;
    int64_t num_moves; /* of the whole run: calls of the library */
    /* May be NULL: called by rank 0 now and then, between calls. */
    void (*watch)(void *context, int64_t moves);
    void *watch_context;
    /* May be NULL: called by each rank with each of its buffers before the first call. */
    void (*prepare)(void *context, expar_ep *ep, int32_t rank);
    void *prepare_context;
} options_script;

/* On such ranks; size 0: so many as are drawn. */
options_script options_script_make_on(uint64_t seed, const ranks_plan *ranks, int64_t num_moves);
/* ranks 0: drawn. */
options_script options_script_make(uint64_t seed, ranks_kind kind, int32_t ranks, int64_t num_moves);
/* Gives it many tokens, of short rows, instead of few: so many that a GPU lays them out by several blocks. */
void options_script_widen(options_script *s);
/* Makes the heap large enough again, after configs were changed. */
void options_script_fit(options_script *s);
/* Runs it on its ranks, and describes it in one line where that fails. */
bool options_script_run(options_script *s);

#endif
