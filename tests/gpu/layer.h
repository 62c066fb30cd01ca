/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's GPU, and a `layer` there and back on it: a dispatch and a combine on a given stream. Its inputs stay where
 * they are, so that a graph can repeat them with other bytes. */
#ifndef TESTS_GPU_LAYER_H
#define TESTS_GPU_LAYER_H

#include "cuda/cuda.h"
#include "ep/harness/check.h"
#include "ep/harness/ranks.h"
#include "ep/harness/traffic.h"

#define CARD_STREAMS 3

typedef struct card {
    cuda_device *device;
    cu_stream streams[CARD_STREAMS];
} card;

/* Rank r has GPU r modulo the number of GPUs; it is entered until card_close. */
bool card_open(card *c, int32_t rank);
/* When no kernel of any rank runs any more. On the simulated driver it also checks that no stream has ever had a host
   function. */
void card_close(card *c);
/* The config with this GPU as its device. */
expar_ep_config card_config(const card *c, const expar_ep_config *config);
/* Memory of that GPU, with a row to spare; taking and giving it back may wait for all kernels there. */
bool card_take(const card *c, expar_tensor *out, expar_dtype dtype, int64_t rows, int64_t columns);
void card_give(expar_tensor *tensor);
/* The first rows of it; the stream should be through, for a copy from ordinary memory may wait for kernels. */
bool card_put(const expar_tensor *to, int64_t rows, const void *from, cu_stream stream);
/* Waits for the stream; a copy in host memory, to be freed. */
void *card_fetch(const expar_tensor *from, cu_stream stream);

/* Says what the host waits for. */
typedef enum layer_wait { LAYER_WAITS, LAYER_WAITS_FOR_COUNTS, LAYER_WAITS_FOR_NOTHING } layer_wait;

typedef struct layer {
    const card *card;
    int32_t rank;
    expar_ep_path path;
    layer_wait wait; /* for nothing: with `worst` */
    int64_t worst;   /* rows of the outputs; 0: the host waits for counts */
    expar_tensor x, idx, weights, y, summed;
    expar_tensor back, back_weights; /* what the experts gave: `spare` rows */
    int64_t spare;
    expar_ep_dispatch_result result;
} layer;

/* Memory for traffic of the shape of t. */
bool layer_open(layer *p, const card *c, const traffic *t, int32_t rank);
void layer_close(layer *p);
/* Input of the next run; waits for the stream first. */
bool layer_upload(const layer *p, const traffic *t, const answers *a, cu_stream stream);
/* Each puts its call on the stream, or into its capture. */
expar_status layer_dispatch(layer *p, expar_ep *ep, const traffic *t, cu_stream stream);
expar_status layer_combine(const layer *p, expar_ep *ep, cu_stream stream);
/* On that path, whatever the path of `layer` is. */
expar_status layer_combine_by(const layer *p, expar_ep *ep, expar_ep_path path, cu_stream stream);
/* Like layer_combine, but asynchronous. The event belongs to the caller. */
expar_status layer_combine_async(const layer *p, expar_ep *ep, cu_stream stream, expar_event **event);
/* Both, in this order. */
bool layer_call(layer *p, expar_ep *ep, const traffic *t, cu_stream stream);
/* Waits for the stream, and compares all that came out. */
bool layer_verify(const layer *p, const traffic *t, const answers *a, cu_stream stream);
/* Gives output and handle back. */
void layer_release(layer *p);

/* Traffic and results of such a test. */
typedef struct layer_inputs {
    traffic *t;
    answers *a;
} layer_inputs;
/* Releases it, and makes it anew: uploads, calls, compares. */
bool layer_go(layer *p, expar_ep *ep, const layer_inputs *in, cu_stream stream);
#define LAYER_RANKS 4
/* Inputs for so many ranks: up to 40 tokens a rank, none on rank 2, 64 numbers each, K 3 of 8 experts. Answers are
   those of the plan's nodes. */
layer_inputs layers_make(const ranks_plan *plan, uint64_t seed);
void layers_free(layer_inputs *in);
/* Runs the body on LAYER_RANKS ranks, or on one if the plan's size is 1. `shared` has such inputs. True when no check
   failed. */
bool layers_run(const ranks_plan *plan, uint64_t seed, ranks_body body);

/* The state of a rank of such a test: a buffer, and two `layer` objects that take turns on it. */
typedef struct layer_pair {
    expar_group *group;
    const layer_inputs *in;
    card card;
    expar_ep *ep;
    layer layers[2];
} layer_pair;
/* Both of all ranks together. The config's device is set here; closing waits until all memory has been given back. */
bool layer_pair_open(layer_pair *pair, expar_group *group, const layer_inputs *in, const expar_ep_config *config);
void layer_pair_close(layer_pair *pair);
/* layer_go of one of them, on the first stream. */
bool layer_pair_go(layer_pair *pair, int32_t which);

#endif
