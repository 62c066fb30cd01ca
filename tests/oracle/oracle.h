/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle: what dispatch and combine must give, computed in one process from the definitions alone.
 *
 * It shares nothing with the library, not even a header, and knows neither queues nor offsets: it walks over all ranks,
 * tokens and slots in the plainest order. Slow on purpose; tests compare the library's bytes with its own.
 *
 * Rows and weights are handled as bits, so that NaN payloads and signed zeros are compared as they are. Letters in
 * shapes: N ranks, T tokens of a rank, H hidden, K top-k, E experts, L = E/N, R rows that a rank
 * receives, C channels. */
#ifndef TESTS_ORACLE_ORACLE_H
#define TESTS_ORACLE_ORACLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The last two have no arithmetic here: their rows are only carried. */
typedef enum oracle_type { ORACLE_BF16, ORACLE_F16, ORACLE_F32, ORACLE_F8E4M3, ORACLE_I8 } oracle_type;

/* How rows of several nodes are summed: each node's are added, and rounded or not; or all in one order, as on one. With
   the own node first its rows are added one by one. Then come the rounded sums of the nodes before it, around. */
typedef enum oracle_nodes {
    ORACLE_NODES_ROUNDED,
    ORACLE_NODES_EXACT,
    ORACLE_NODES_ONE_ORDER,
    ORACLE_NODES_OWN_FIRST,
    ORACLE_NODES_KINDS
} oracle_nodes;

/* One rank's arguments, contiguous. */
typedef struct oracle_input {
    int64_t num_tokens;      /* T */
    const void *x;           /* [T][H] elements of the job's type */
    const int64_t *topk_idx; /* [T][K], -1: none */
    const uint32_t *weights; /* [T][K] bits of FP32; NULL: none */
    const uint32_t *scales;  /* [T][S] words; NULL: none */
    /* [T][N]: where each token goes, whatever its experts say; NULL: to the ranks of its experts. */
    const uint8_t *token_in_rank;
    const int32_t *tokens_per_expert; /* [E], used without topk_idx; NULL: zeros */
    int64_t num_worst_tokens;         /* rows that this rank receives into; 0: as many as come */
    int64_t num_expert_rows;          /* rows of its expert-major output; 0: as many as come, or may come */
} oracle_input;

/* The request of all ranks together. */
typedef struct oracle_job {
    int32_t num_ranks;
    int32_t ranks_per_node;
    oracle_nodes nodes;
    int32_t hidden;
    int32_t topk; /* 0: nobody gives topk_idx */
    int32_t num_scales;
    int32_t num_experts;
    int32_t expert_alignment; /* 0 or 1: none */
    oracle_type type;
    const oracle_input *inputs; /* [N] */
} oracle_job;

/* ---- numbers (oracle_float.c) ------------------------------------------------------------------------------------ */

size_t oracle_element_bytes(oracle_type type);
/* The FP32 value of an element's bits; exact for all types. */
float oracle_widen(oracle_type type, uint32_t bits);
/* The bits of an FP32 value rounded to nearest even; every NaN gives the type's positive NaN with all mantissa bits. */
uint32_t oracle_round(oracle_type type, float value);
/* Element `index` of an array. */
uint32_t oracle_load(oracle_type type, const void *array, int64_t index);
void oracle_store(oracle_type type, void *array, int64_t index, uint32_t bits);

/* ---- layout (oracle_layout.c) ------------------------------------------------------------------------------------ */

/* Whether token t of rank `source` goes to `target`. */
bool oracle_token_in_rank(const oracle_job *job, int32_t source, int64_t t, int32_t target);
/* Counts of one rank's own tokens, [N], [M], [E] and [T][N]. */
void oracle_tokens_per_rank(const oracle_job *job, int32_t rank, int32_t *counts);
void oracle_tokens_per_node(const oracle_job *job, int32_t rank, int32_t *counts);
void oracle_tokens_per_expert(const oracle_job *job, int32_t rank, int32_t *counts);
void oracle_routes(const oracle_job *job, int32_t rank, uint8_t *token_in_rank);

/* [N]: rows that `rank` receives from ranks 0..i. */
void oracle_rank_prefix(const oracle_job *job, int32_t rank, int32_t *prefix);
/* [N][C]: tokens that the channels 0..c of `rank` send to rank i. */
void oracle_channel_prefix(const oracle_job *job, int32_t rank, int32_t num_channels, int32_t *prefix);
/* R of a rank. */
int64_t oracle_num_received(const oracle_job *job, int32_t rank);
/* Among these, the rows that find space; and the rows of its outputs, those that nobody sent included. */
int64_t oracle_num_kept(const oracle_job *job, int32_t rank);
int64_t oracle_num_rows(const oracle_job *job, int32_t rank);
/* [L]: occurrences of each expert of `rank` in the tokens that come to it, rounded up to the alignment. */
void oracle_received_per_expert(const oracle_job *job, int32_t rank, int32_t *counts);
/* [L]: the last of each expert's rows in an expert-major output of all that comes, and one more; the rows after it only
   round up. */
void oracle_expert_ends(const oracle_job *job, int32_t rank, int32_t *ends);

/* ---- rows (oracle_rows.c) ---------------------------------------------------------------------------------------- */

/* The job whose nodes tell how rows are added: where that is in one order all ranks are of one. */
oracle_job oracle_job_of_sums(const oracle_job *job);
/* Rows that `rank` receives and keeps, R here: x [R][H], local expert numbers [R][K], bits of weights [R][K] (0 where
   the number is -1). Each may be NULL. */
void oracle_dispatch(const oracle_job *job, int32_t rank, void *recv_x, int64_t *recv_topk_idx, uint32_t *recv_weights);
/* [R]: the number of each row that `rank` receives and keeps among its source's tokens. */
void oracle_dispatch_sources(const oracle_job *job, int32_t rank, int32_t *sources);
/* recv_scales: [R][S] */
void oracle_dispatch_scales(const oracle_job *job, int32_t rank, uint32_t *recv_scales);
/* expert_x[r]: [R of r][H], what rank r gives back. y: [T][H]. Where the job has several nodes each node's sum is
   rounded before the nodes' sums are added, unless the job says otherwise; those of weights are FP32 throughout. */
void oracle_combine(const oracle_job *job, int32_t rank, const void *const *expert_x, void *y);
/* With two more rows [T][H] of this rank, each or NULL, added before all others. */
void oracle_combine_biased(const oracle_job *job, int32_t rank, const void *const biases[2],
                           const void *const *expert_x, void *y);
/* expert_weights[r]: [R of r][K] bits. weights: [T][K] bits. */
void oracle_combine_weights(const oracle_job *job, int32_t rank, const uint32_t *const *expert_weights,
                            uint32_t *weights);

/* ---- other orders of sums (oracle_sums.c) ------------------------------------------------------------------------ */

/* Jobs with topk_idx. Biases, then the ranks' rows by the highest slot whose expert lives on the rank. Ranks that have
   no such expert come first, in rank order. Over several nodes: biases, then the nodes' sums by the highest slot whose
   expert lives on the node, likewise. Each is that of its ranks in their order, rounded unless it is to be exact. In
   one order over all nodes: as on one. */
void oracle_combine_by_slot(const oracle_job *job, int32_t rank, const void *const biases[2],
                            const void *const *expert_x, void *y);
/* Biases, then the rows of all slots, slots ascending; over several nodes those of each node, and the nodes' sums as
   above. expert_rows[r]: expert-major rows of rank r; maps[r]: as of oracle_expert_map. */
void oracle_combine_each_slot(const oracle_job *job, int32_t rank, const void *const biases[2],
                              const int32_t *const *maps, const void *const *expert_rows, void *y);
/* weights: [T][K] bits, of each slot what its expert's rank gave for it: expert_weights[r] are [R of r][K]. */
void oracle_owners_weights(const oracle_job *job, int32_t rank, const uint32_t *const *expert_weights,
                           uint32_t *weights);

/* ---- expert-major rows (oracle_expert.c) ------------------------------------------------------------------------- */

/* Rows of an expert-major output. */
int64_t oracle_num_expert_rows(const oracle_job *job, int32_t rank);
/* map: [rows][K], the expert-major row of each slot whose expert lives on `rank`, else -1. */
void oracle_expert_map(const oracle_job *job, int32_t rank, int32_t *map);
/* Copies each of the rank's rows to its places; others are left alone. row_bytes: of rows and expert_rows alike. */
void oracle_expert_expand(const oracle_job *job, int32_t rank, size_t row_bytes, const void *rows, void *expert_rows);
/* row_weights: [rows of the output] bits, of each row the weight of its slot, as its source gave it; those of rows
   without a slot are left alone. */
void oracle_expert_weights(const oracle_job *job, int32_t rank, uint32_t *row_weights);
/* metadata: [R][2 + K], of each row that `rank` receives and keeps: source * stride + its number there; the source; map
   as above, or -1 without. */
void oracle_dispatch_metadata(const oracle_job *job, int32_t rank, int32_t stride, const int32_t *map,
                              int32_t *metadata);
/* rows: [R][H], each the sum of its slots' rows, slots ascending; weights: [rows][K] bits of FP32, NULL: all 1. */
void oracle_expert_reduce(const oracle_job *job, int32_t rank, const void *expert_rows, const uint32_t *weights,
                          void *rows);

#endif
