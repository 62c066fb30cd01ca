/* SPDX-License-Identifier: Apache-2.0 */
/* The baseline over MPI_Alltoallv. Buffers are made beforehand for the largest need; nothing is allocated in a measured
 * call. */
#include "bench/mpi/baseline.h"
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

struct mpi_state {
    const struct problem *problem;
    const unsigned char *x;
    const float *weights;
    const void *given;                    /* rows that combines send back */
    size_t record_bytes;                  /* row, then K experts, then K weights */
    int *send_counts, *send_starts;       /* [N] records, later rows */
    int *receive_counts, *receive_starts; /* [N] */
    int *next;                            /* [N] */
    unsigned char *send, *receive;        /* records of the largest exchange */
    unsigned char *rows;                  /* [R][H] */
    int32_t *experts;                     /* [R][K] */
    float *received_weights;              /* [R][K] */
    float *sum;                           /* [H] */
    MPI_Datatype record, row;
};

static int prefix(const int *counts, int *starts, int count)
{
    int total = 0;
    for (int i = 0; i < count; i++) {
        starts[i] = total;
        total += counts[i];
    }
    return total;
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

static void count_tokens(struct mpi_state *self)
{
    const struct problem *problem = self->problem;
    memset(self->send_counts, 0, (size_t)problem->num_ranks * sizeof *self->send_counts);
    for (int64_t token = 0; token < problem->tokens; token++)
        for (int rank = 0; rank < problem->num_ranks; rank++)
            self->send_counts[rank] += problem->position[token * problem->num_ranks + rank] >= 0;
}

static void pack_record(struct mpi_state *self, int64_t token, unsigned char *record)
{
    const struct problem *problem = self->problem;
    size_t topk = (size_t)problem->topk, first = (size_t)token * topk;
    const int32_t *experts = problem_routing_of(problem, problem->rank) + first;
    memcpy(record, self->x + (size_t)token * problem->row_bytes, problem->row_bytes);
    memcpy(record + problem->row_bytes, experts, topk * sizeof *experts);
    memcpy(record + problem->row_bytes + topk * sizeof *experts, self->weights + first, topk * sizeof(float));
}

static void pack(struct mpi_state *self)
{
    const struct problem *problem = self->problem;
    memcpy(self->next, self->send_starts, (size_t)problem->num_ranks * sizeof *self->next);
    for (int64_t token = 0; token < problem->tokens; token++)
        for (int rank = 0; rank < problem->num_ranks; rank++)
            if (problem->position[token * problem->num_ranks + rank] >= 0)
                pack_record(self, token, self->send + (size_t)self->next[rank]++ * self->record_bytes);
}

/* Unpacks the top-k. Experts of this rank get their local number, others -1 and weight 0, as in expar's output. */
static void unpack_topk(struct mpi_state *self, size_t i, const unsigned char *record)
{
    size_t topk = (size_t)self->problem->topk;
    int per_rank = self->problem->experts / self->problem->num_ranks, first = self->problem->rank * per_rank;
    int32_t *experts = self->experts + i * topk;
    float *weights = self->received_weights + i * topk;
    memcpy(experts, record, topk * sizeof *experts);
    memcpy(weights, record + topk * sizeof *experts, topk * sizeof *weights);
    for (size_t k = 0; k < topk; k++) {
        bool here = experts[k] >= first && experts[k] < first + per_rank;
        experts[k] = here ? experts[k] - first : -1;
        if (!here) weights[k] = 0;
    }
}

static void unpack(struct mpi_state *self, size_t count)
{
    size_t row_bytes = self->problem->row_bytes;
    for (size_t i = 0; i < count; i++) {
        const unsigned char *record = self->receive + i * self->record_bytes;
        memcpy(self->rows + i * row_bytes, record, row_bytes);
        unpack_topk(self, i, record + row_bytes);
    }
}

static bool baseline_dispatch(void *context)
{
    struct mpi_state *self = context;
    int num_ranks = self->problem->num_ranks;
    count_tokens(self);
    MPI_Alltoall(self->send_counts, 1, MPI_INT, self->receive_counts, 1, MPI_INT, MPI_COMM_WORLD);
    prefix(self->send_counts, self->send_starts, num_ranks);
    int count = prefix(self->receive_counts, self->receive_starts, num_ranks);
    if (count != self->problem->num_received) return false;
    pack(self);
    MPI_Alltoallv(self->send, self->send_counts, self->send_starts, self->record, self->receive, self->receive_counts,
                  self->receive_starts, self->record, MPI_COMM_WORLD);
    unpack(self, (size_t)count);
    return true;
}

static struct bench_received baseline_received(const void *context)
{
    return (struct bench_received){.rows = ((const struct mpi_state *)context)->rows};
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

/* Sums the rows of tokens. Rows of one holder come back in token order, so each token takes the next row of each rank
   that held it. */
static void sum_tokens(struct mpi_state *self, unsigned char *y)
{
    const struct problem *problem = self->problem;
    memcpy(self->next, self->send_starts, (size_t)problem->num_ranks * sizeof *self->next);
    for (int64_t token = 0; token < problem->tokens; token++) {
        memset(self->sum, 0, (size_t)problem->hidden * sizeof *self->sum);
        for (int rank = 0; rank < problem->num_ranks; rank++) {
            if (problem->position[token * problem->num_ranks + rank] < 0) continue;
            const unsigned char *row = self->receive + (size_t)self->next[rank]++ * problem->row_bytes;
            mpi_sum_add(problem->dtype, row, problem->hidden, self->sum);
        }
        mpi_sum_round(problem->dtype, self->sum, problem->hidden, y + (size_t)token * problem->row_bytes);
    }
}

/* Runs the dispatch in reverse: rows that were received are sent, and rows that were sent are received. */
static bool baseline_combine(void *context, bool reduced, void *y)
{
    struct mpi_state *self = context;
    (void)reduced;
    memcpy(self->send, self->given, (size_t)self->problem->num_received * self->problem->row_bytes); /* pack */
    MPI_Alltoallv(self->send, self->receive_counts, self->receive_starts, self->row, self->receive, self->send_counts,
                  self->send_starts, self->row, MPI_COMM_WORLD);
    sum_tokens(self, y);
    return true;
}

/* ---- set-up ------------------------------------------------------------------------------------------------------ */

static void baseline_close(void *context)
{
    struct mpi_state *self = context;
    MPI_Type_free(&self->record);
    MPI_Type_free(&self->row);
    free(self->send_counts);
    free(self->send_starts);
    free(self->receive_counts);
    free(self->receive_starts);
    free(self->next);
    free(self->send);
    free(self->receive);
    free(self->rows);
    free(self->experts);
    free(self->received_weights);
    free(self->sum);
    free(self);
}

/* Allocates zeroed memory and touches it, so that no page fault is measured. */
static void *touched(size_t bytes)
{
    void *memory = aligned_alloc(4096, (bytes / 4096 + 1) * 4096);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

static bool make_buffers(struct mpi_state *self)
{
    const struct problem *problem = self->problem;
    size_t num_ranks = (size_t)problem->num_ranks, received = (size_t)problem->num_received;
    size_t most = received > (size_t)problem->num_sent ? received : (size_t)problem->num_sent;
    size_t entries = received * (size_t)problem->topk;
    self->send_counts = calloc(num_ranks, sizeof *self->send_counts);
    self->send_starts = calloc(num_ranks, sizeof *self->send_starts);
    self->receive_counts = calloc(num_ranks, sizeof *self->receive_counts);
    self->receive_starts = calloc(num_ranks, sizeof *self->receive_starts);
    self->next = calloc(num_ranks, sizeof *self->next);
    self->send = touched(most * self->record_bytes);
    self->receive = touched(most * self->record_bytes);
    self->rows = touched(received * problem->row_bytes);
    self->experts = touched(entries * sizeof *self->experts);
    self->received_weights = touched(entries * sizeof *self->received_weights);
    self->sum = touched((size_t)problem->hidden * sizeof *self->sum);
    return self->send_counts && self->send_starts && self->receive_counts && self->receive_starts && self->next &&
           self->send && self->receive && self->rows && self->experts && self->received_weights && self->sum;
}

void mpi_settle(void *self)
{
    (void)self;
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Exchanges the counts once, so that combine can be measured without a dispatch of the baseline before it. */
static void exchange_counts(struct mpi_state *self)
{
    count_tokens(self);
    MPI_Alltoall(self->send_counts, 1, MPI_INT, self->receive_counts, 1, MPI_INT, MPI_COMM_WORLD);
    prefix(self->send_counts, self->send_starts, self->problem->num_ranks);
    prefix(self->receive_counts, self->receive_starts, self->problem->num_ranks);
}

static void *baseline_open(const struct bench_session *session)
{
    const struct problem *problem = session->problem;
    struct mpi_state *self = calloc(1, sizeof *self);
    if (!self) return NULL;
    self->problem = problem;
    self->x = session->x;
    self->weights = session->weights;
    self->given = session->rows;
    self->record_bytes = problem->row_bytes + (size_t)problem->topk * (sizeof(int32_t) + sizeof(float));
    MPI_Type_contiguous((int)self->record_bytes, MPI_BYTE, &self->record);
    MPI_Type_commit(&self->record);
    MPI_Type_contiguous((int)problem->row_bytes, MPI_BYTE, &self->row);
    MPI_Type_commit(&self->row);
    bool made = make_buffers(self);
    MPI_Allreduce(MPI_IN_PLACE, &made, 1, MPI_C_BOOL, MPI_LAND, MPI_COMM_WORLD);
    if (!made) {
        baseline_close(self);
        return NULL;
    }
    exchange_counts(self);
    mpi_settle(self);
    return self;
}

const struct bench_baseline mpi_baseline = {
    .open = baseline_open,
    .dispatch = baseline_dispatch,
    .received = baseline_received,
    .combine = baseline_combine,
    .settle = mpi_settle,
    .close = baseline_close,
};
