/* SPDX-License-Identifier: Apache-2.0 */
/* The oracle's other orders of sums: ranks by the slots of their experts, and all rows of a token slot by slot; and the
   weights of the slots' owners. */
#include "oracle.h"
#include <stdlib.h>
#include <string.h>

/* Where a token's row stands at each rank. */
typedef struct whereabouts {
    int64_t **rows; /* [N][T]: -1 where the token did not go, or was dropped */
} whereabouts;

static void *take(int64_t count, size_t bytes)
{
    void *memory = calloc((size_t)count + 1, bytes);
    if (!memory) abort();
    return memory;
}

static whereabouts find_tokens(const oracle_job *job, int32_t rank)
{
    whereabouts w = {take(job->num_ranks, sizeof *w.rows)};
    for (int32_t target = 0; target < job->num_ranks; target++) {
        w.rows[target] = take(job->inputs[rank].num_tokens, sizeof **w.rows);
        int64_t row = 0, end = oracle_num_kept(job, target);
        for (int32_t source = 0; source <= rank; source++)
            for (int64_t t = 0; t < job->inputs[source].num_tokens; t++) {
                bool goes = oracle_token_in_rank(job, source, t, target);
                if (source == rank) w.rows[target][t] = goes && row < end ? row : -1;
                row += goes;
            }
    }
    return w;
}

static void forget_tokens(const oracle_job *job, whereabouts w)
{
    for (int32_t r = 0; r < job->num_ranks; r++)
        free(w.rows[r]);
    free(w.rows);
}

/* The rank of the slot's expert, or -1. */
static int32_t owner_of(const oracle_job *job, int32_t rank, int64_t t, int32_t k)
{
    int64_t expert = job->inputs[rank].topk_idx[t * job->topk + k];
    return expert < 0 ? -1 : (int32_t)(expert / (job->num_experts / job->num_ranks));
}

/* s(r): the token's highest slot whose expert lives on `target`; -1: there is none. */
static int32_t last_slot(const oracle_job *job, int32_t rank, int64_t t, int32_t target)
{
    int32_t last = -1;
    for (int32_t k = 0; k < job->topk; k++)
        if (owner_of(job, rank, t, k) == target) last = k;
    return last;
}

/* sums[i] += row[i] */
static void add_row(const oracle_job *job, const void *rows, int64_t row, float *sums)
{
    for (int64_t i = 0; i < job->hidden; i++)
        sums[i] += oracle_widen(job->type, oracle_load(job->type, rows, row * job->hidden + i));
}

static void begin_sum(const oracle_job *job, const void *const biases[2], int64_t t, float *sums)
{
    for (int64_t i = 0; i < job->hidden; i++)
        sums[i] = 0.0f;
    for (int b = 0; b < 2; b++)
        if (biases[b]) add_row(job, biases[b], t, sums);
}

static void end_sum(const oracle_job *job, const float *sums, int64_t t, void *y)
{
    for (int64_t i = 0; i < job->hidden; i++)
        oracle_store(job->type, y, t * job->hidden + i, oracle_round(job->type, sums[i]));
}

/* The same of a node: of its ranks' slots the highest. */
static int32_t last_slot_on(const oracle_job *job, int32_t rank, int64_t t, int32_t node)
{
    int32_t last = -1;
    for (int32_t k = 0; k < job->topk; k++)
        if (owner_of(job, rank, t, k) >= 0 && owner_of(job, rank, t, k) / job->ranks_per_node == node) last = k;
    return last;
}

/* The rows that are added for token t, from the ranks of a node. */
typedef void add_fn(const oracle_job *job, int32_t rank, int64_t t, int32_t node, const void *context, float *sums);

/* Adds what a node adds, from +0 and rounded, unless it is to be exact. */
static void add_node_sum(const oracle_job *job, int32_t rank, int64_t t, int32_t node, add_fn *add, const void *context,
                         float *sums)
{
    float *of_node = take(job->hidden, sizeof *of_node);
    add(job, rank, t, node, context, of_node);
    for (int32_t i = 0; i < job->hidden; i++)
        sums[i] += job->nodes == ORACLE_NODES_EXACT ? of_node[i]
                                                    : oracle_widen(job->type, oracle_round(job->type, of_node[i]));
    free(of_node);
}

/* Adds what several nodes add: by their last slots; or the own node as it is, then the nodes before it, around. */
static void add_nodes(const oracle_job *job, int32_t rank, int64_t t, add_fn *add, const void *context, float *sums)
{
    const int32_t nodes = job->num_ranks / job->ranks_per_node, own = rank / job->ranks_per_node;
    if (job->nodes == ORACLE_NODES_OWN_FIRST) {
        add(job, rank, t, own, context, sums);
        for (int32_t i = 1; i < nodes; i++)
            add_node_sum(job, rank, t, (own + nodes - i) % nodes, add, context, sums);
        return;
    }
    for (int32_t s = -1; s < job->topk; s++)
        for (int32_t node = 0; node < nodes; node++)
            if (last_slot_on(job, rank, t, node) == s) add_node_sum(job, rank, t, node, add, context, sums);
}

/* Biases, then what the nodes add: one node as it is, or several. */
static void combine(const oracle_job *job, int32_t rank, const void *const biases[2], add_fn *add, const void *context,
                    void *y)
{
    float *sums = take(job->hidden, sizeof *sums);
    for (int64_t t = 0; t < job->inputs[rank].num_tokens; t++) {
        begin_sum(job, biases, t, sums);
        if (job->num_ranks == job->ranks_per_node)
            add(job, rank, t, 0, context, sums);
        else
            add_nodes(job, rank, t, add, context, sums);
        end_sum(job, sums, t, y);
    }
    free(sums);
}

/* The rows of the ranks, and their places. */
typedef struct given_rows {
    whereabouts at;
    const void *const *rows;
    const int32_t *const *maps; /* of expert-major rows */
} given_rows;

static void add_by_slot(const oracle_job *job, int32_t rank, int64_t t, int32_t node, const void *context, float *sums)
{
    const given_rows *given = context;
    for (int32_t s = -1; s < job->topk; s++)
        for (int32_t r = node * job->ranks_per_node; r < (node + 1) * job->ranks_per_node; r++)
            if (last_slot(job, rank, t, r) == s && given->at.rows[r][t] >= 0)
                add_row(job, given->rows[r], given->at.rows[r][t], sums);
}

static void add_each_slot(const oracle_job *job, int32_t rank, int64_t t, int32_t node, const void *context,
                          float *sums)
{
    const given_rows *given = context;
    for (int32_t k = 0; k < job->topk; k++) {
        int32_t r = owner_of(job, rank, t, k);
        if (r < 0 || r / job->ranks_per_node != node || given->at.rows[r][t] < 0) continue;
        int32_t row = given->maps[r][given->at.rows[r][t] * job->topk + k];
        if (row >= 0) add_row(job, given->rows[r], row, sums);
    }
}

void oracle_combine_by_slot(const oracle_job *job, int32_t rank, const void *const biases[2],
                            const void *const *expert_x, void *y)
{
    const given_rows given = {.at = find_tokens(job, rank), .rows = expert_x};
    const oracle_job sums = oracle_job_of_sums(job);
    combine(&sums, rank, biases, add_by_slot, &given, y);
    forget_tokens(job, given.at);
}

void oracle_combine_each_slot(const oracle_job *job, int32_t rank, const void *const biases[2],
                              const int32_t *const *maps, const void *const *expert_rows, void *y)
{
    const given_rows given = {.at = find_tokens(job, rank), .rows = expert_rows, .maps = maps};
    const oracle_job sums = oracle_job_of_sums(job);
    combine(&sums, rank, biases, add_each_slot, &given, y);
    forget_tokens(job, given.at);
}

void oracle_owners_weights(const oracle_job *job, int32_t rank, const uint32_t *const *expert_weights,
                           uint32_t *weights)
{
    whereabouts w = find_tokens(job, rank);
    for (int64_t t = 0; t < job->inputs[rank].num_tokens; t++)
        for (int32_t k = 0; k < job->topk; k++) {
            int32_t r = owner_of(job, rank, t, k);
            bool given = r >= 0 && w.rows[r][t] >= 0;
            weights[t * job->topk + k] = given ? expert_weights[r][w.rows[r][t] * job->topk + k] : 0;
        }
    forget_tokens(job, w);
}
