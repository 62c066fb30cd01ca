/* SPDX-License-Identifier: Apache-2.0 */
/* Results of a run, as rank 0 knows them. */
#ifndef EXPAR_DEMO_RESULTS_H
#define EXPAR_DEMO_RESULTS_H

#include "moe.h"
#include "task.h"

/* One prompt with its continuation, and how it compares. */
typedef struct demo_text {
    uint8_t *bytes; /* prompt and continuation */
    int32_t count;
    int32_t prompt_bytes;
    int32_t differs_at;               /* first byte that is not the reference's; -1: equal */
    uint8_t reference_byte;           /* there */
    float reference_gap;              /* the lead of the reference's best logit over its second at that byte */
    bool has_shipped, equals_shipped; /* the continuation that came with the model */
} demo_text;

typedef struct demo_results {
    demo_text *texts; /* [num_texts] in the order of the prompts */
    int32_t num_texts;
    expar_ep_path path;          /* the path of rank 0's rows */
    double seconds;              /* from the first prefill to the last byte, slowest rank */
    int64_t bytes_moved;         /* bytes of rows that dispatch and combine carried, all ranks */
    int64_t bytes_between_ranks; /* those of them that left their rank */
    /* The traffic to other nodes in normal mode and in low-latency mode, over all ranks. */
    moe_traffic prefill, decode;
    int64_t *expert_load; /* [num_experts] rows that each expert worked on, all layers */
    int32_t num_experts;
} demo_results;

bool demo_results_create(const demo_task *task, demo_results *results, demo_error *error);
void demo_results_free(demo_results *results);
/* The number of texts that equal the reference, that have a shipped continuation, and that equal it. */
typedef struct demo_verdict {
    int32_t equal, shipped, equal_shipped;
} demo_verdict;
demo_verdict demo_results_judge(const demo_results *results);
/* True if all texts equal the reference and, if there is one, the shipped continuation. */
bool demo_results_match(const demo_results *results);

#endif
