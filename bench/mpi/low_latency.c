/* SPDX-License-Identifier: Apache-2.0 */
/* The baseline of low-latency mode over MPI_Alltoallv. Buffers are made beforehand for the largest need; nothing is
 * allocated in a measured call, and this rank's own rows do not pass through MPI. */
#include "bench/mpi/baseline.h"
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

/* Counts and starts of one exchange, [N] each, this rank's own 0. */
struct exchange {
    int *send_counts, *send_starts, *receive_counts, *receive_starts;
};

struct ll_mpi_state {
    const struct problem *problem;
    const struct ll_layout *layout;
    const unsigned char *x, *rows;
    const float *weights;
    int num_ranks, rank, topk, locals;
    int32_t *tokens;      /* [N][T] tokens that go to each rank, */
    int *messages;        /* [N] and how many */
    int *tell, *told;     /* [N][L + 1] rows for each expert, and messages: to and from each rank */
    int64_t *next_row;    /* [L] where the next row of each expert goes */
    int64_t *places;      /* [messages here][K] rows here of each message, sources ascending; -1: none */
    int64_t *own_places;  /* [T][K] rows here of this rank's own tokens; -1: none */
    float *their_weights; /* [messages here][K], which would have come with them */
    size_t record_bytes;  /* row, token, K experts */
    MPI_Datatype record, row;
    struct exchange records, exact, reduced;
    int *next;                     /* [N] */
    unsigned char *send, *receive; /* of the largest exchange */
    unsigned char *own_sums;       /* [T][H] of reduced sums */
    unsigned char *received;       /* [L][N*B][H] */
    int32_t *counts, *src_info;    /* [L], [L][N*B] */
    size_t received_bytes;
};

static int starts_of(const int *counts, int *starts, int count)
{
    int total = 0;
    for (int i = 0; i < count; i++) {
        starts[i] = total;
        total += counts[i];
    }
    return total;
}

static void exchange_rows(struct ll_mpi_state *self, const struct exchange *exchange, MPI_Datatype type)
{
    MPI_Alltoallv(self->send, exchange->send_counts, exchange->send_starts, type, self->receive,
                  exchange->receive_counts, exchange->receive_starts, type, MPI_COMM_WORLD);
}

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

/* Lists the tokens for each rank, and counts the rows for each expert. */
static void list_tokens(struct ll_mpi_state *self)
{
    const int64_t tokens = self->problem->tokens;
    const int32_t *experts = problem_routing_of(self->problem, self->rank);
    memset(self->messages, 0, (size_t)self->num_ranks * sizeof *self->messages);
    memset(self->tell, 0, (size_t)self->num_ranks * (size_t)(self->locals + 1) * sizeof *self->tell);
    for (int32_t t = 0; t < tokens; t++)
        for (int k = 0; k < self->topk; k++) {
            const int32_t expert = experts[t * self->topk + k];
            if (expert < 0) continue;
            const int rank = expert / self->locals, count = self->messages[rank];
            self->tell[rank * (self->locals + 1) + expert % self->locals]++;
            if (count > 0 && self->tokens[rank * tokens + count - 1] == t) continue;
            self->tokens[rank * tokens + count] = t;
            self->messages[rank]++;
        }
    for (int rank = 0; rank < self->num_ranks; rank++)
        self->tell[rank * (self->locals + 1) + self->locals] = self->messages[rank];
}

static void exchange_counts_of(struct ll_mpi_state *self)
{
    const int ints = self->locals + 1;
    struct exchange *records = &self->records;
    MPI_Alltoall(self->tell, ints, MPI_INT, self->told, ints, MPI_INT, MPI_COMM_WORLD);
    for (int rank = 0; rank < self->num_ranks; rank++) {
        records->send_counts[rank] = rank == self->rank ? 0 : self->messages[rank];
        records->receive_counts[rank] = rank == self->rank ? 0 : self->told[rank * ints + self->locals];
    }
    starts_of(records->send_counts, records->send_starts, self->num_ranks);
    starts_of(records->receive_counts, records->receive_starts, self->num_ranks);
}

static void pack_records(struct ll_mpi_state *self)
{
    const struct problem *problem = self->problem;
    const int32_t *experts = problem_routing_of(problem, self->rank);
    unsigned char *record = self->send;
    for (int rank = 0; rank < self->num_ranks; rank++)
        for (int i = 0; i < self->records.send_counts[rank]; i++, record += self->record_bytes) {
            const int32_t token = self->tokens[rank * problem->tokens + i];
            int32_t *tail = (int32_t *)(record + problem->row_bytes);
            memcpy(record, self->x + (size_t)token * problem->row_bytes, problem->row_bytes);
            tail[0] = token;
            memcpy(tail + 1, experts + (size_t)token * (size_t)self->topk, (size_t)self->topk * sizeof *experts);
        }
}

/* Copies one row to the rows of its experts on this rank. places: receives their places. */
static void fan_out(struct ll_mpi_state *self, const void *row, int32_t token, const int32_t *experts, int64_t *places)
{
    const size_t row_bytes = self->problem->row_bytes;
    for (int k = 0; k < self->topk; k++) {
        places[k] = -1;
        if (experts[k] < 0 || experts[k] / self->locals != self->rank) continue;
        places[k] = self->next_row[experts[k] % self->locals]++;
        memcpy(self->received + (size_t)places[k] * row_bytes, row, row_bytes);
        self->src_info[places[k]] = token;
    }
}

static void unpack_own(struct ll_mpi_state *self, int64_t *places)
{
    const struct problem *problem = self->problem;
    const int32_t *experts = problem_routing_of(problem, self->rank);
    for (int i = 0; i < self->messages[self->rank]; i++) {
        const int32_t token = self->tokens[self->rank * problem->tokens + i];
        int64_t *here = self->own_places + (size_t)token * (size_t)self->topk;
        fan_out(self, self->x + (size_t)token * problem->row_bytes, token, experts + (size_t)token * (size_t)self->topk,
                here);
        memcpy(places + (size_t)i * (size_t)self->topk, here, (size_t)self->topk * sizeof *here);
    }
}

/* Unpacks the records. They are ordered by source, then by token, so the next free row of an expert is the right
   one. */
static void unpack_records(struct ll_mpi_state *self)
{
    const size_t row_bytes = self->problem->row_bytes;
    int64_t *places = self->places;
    for (int l = 0; l < self->locals; l++)
        self->next_row[l] = l * self->layout->rows_per_expert;
    for (int source = 0; source < self->num_ranks; source++) {
        const int messages = self->told[source * (self->locals + 1) + self->locals];
        const unsigned char *record = self->receive + (size_t)self->records.receive_starts[source] * self->record_bytes;
        if (source == self->rank) unpack_own(self, places);
        for (int i = 0; i < messages && source != self->rank; i++, record += self->record_bytes) {
            const int32_t *tail = (const int32_t *)(record + row_bytes);
            fan_out(self, record, tail[0], tail + 1, places + (size_t)i * (size_t)self->topk);
        }
        places += (size_t)messages * (size_t)self->topk;
    }
    for (int l = 0; l < self->locals; l++)
        self->counts[l] = (int32_t)(self->next_row[l] - l * self->layout->rows_per_expert);
}

static bool mpi_dispatch(void *context)
{
    struct ll_mpi_state *self = context;
    list_tokens(self);
    exchange_counts_of(self);
    pack_records(self);
    exchange_rows(self, &self->records, self->record);
    unpack_records(self);
    return true;
}

static struct bench_received mpi_received(const void *context)
{
    const struct ll_mpi_state *self = context;
    return (struct bench_received){.rows = self->received, .counts = self->counts, .src_info = self->src_info};
}

/* ---- combine ----------------------------------------------------------------------------------------------------- */

static const unsigned char *row_at(const struct ll_mpi_state *self, int64_t place)
{
    return self->rows + (size_t)place * self->problem->row_bytes;
}

/* Packs the rows of each message of the other ranks, in the order of its slots. */
static void pack_exact(struct ll_mpi_state *self)
{
    const size_t row_bytes = self->problem->row_bytes;
    const int64_t *places = self->places;
    unsigned char *next = self->send;
    for (int source = 0; source < self->num_ranks; source++) {
        const int slots = self->told[source * (self->locals + 1) + self->locals] * self->topk;
        for (int i = 0; i < slots && source != self->rank; i++) {
            if (places[i] < 0) continue;
            memcpy(next, row_at(self, places[i]), row_bytes);
            next += row_bytes;
        }
        places += slots;
    }
}

/* Sums rows. They come from each rank in the order of this rank's tokens and their slots. */
static void sum_exact(struct ll_mpi_state *self, unsigned char *y)
{
    const struct problem *problem = self->problem;
    const int32_t *experts = problem_routing_of(problem, self->rank);
    memcpy(self->next, self->exact.receive_starts, (size_t)self->num_ranks * sizeof *self->next);
    for (int64_t token = 0; token < problem->tokens; token++) {
        const void *rows[LL_MOST_ROWS];
        float weights[LL_MOST_ROWS];
        int count = 0;
        for (int64_t slot = token * self->topk; slot < (token + 1) * self->topk; slot++) {
            if (experts[slot] < 0) continue;
            const int rank = experts[slot] / self->locals;
            rows[count] = rank == self->rank ? row_at(self, self->own_places[slot])
                                             : self->receive + (size_t)self->next[rank]++ * problem->row_bytes;
            weights[count++] = self->weights[slot];
        }
        ll_sum_rows(problem->dtype, rows, weights, count, problem->hidden, y + (size_t)token * problem->row_bytes);
    }
}

/* Sums a message's rows on this rank. */
static void sum_message(struct ll_mpi_state *self, const int64_t *places, const float *their_weights, void *out)
{
    const void *rows[LL_MOST_ROWS];
    float weights[LL_MOST_ROWS];
    int count = 0;
    for (int k = 0; k < self->topk; k++) {
        if (places[k] < 0) continue;
        rows[count] = row_at(self, places[k]);
        weights[count++] = their_weights[k];
    }
    ll_sum_rows(self->problem->dtype, rows, weights, count, self->problem->hidden, out);
}

static void pack_reduced(struct ll_mpi_state *self)
{
    const size_t row_bytes = self->problem->row_bytes;
    size_t message = 0;
    unsigned char *next = self->send;
    for (int source = 0; source < self->num_ranks; source++) {
        const int messages = self->told[source * (self->locals + 1) + self->locals];
        for (int i = 0; i < messages; i++, message++) {
            unsigned char *out = source == self->rank ? self->own_sums + (size_t)i * row_bytes : next;
            const size_t slots = message * (size_t)self->topk;
            sum_message(self, self->places + slots, self->their_weights + slots, out);
            if (source != self->rank) next += row_bytes;
        }
    }
}

/* Sums one row of each rank that had the token. */
static void sum_reduced(struct ll_mpi_state *self, unsigned char *y)
{
    const struct problem *problem = self->problem;
    const size_t row_bytes = problem->row_bytes;
    int own = 0;
    memcpy(self->next, self->reduced.receive_starts, (size_t)self->num_ranks * sizeof *self->next);
    for (int64_t token = 0; token < problem->tokens; token++) {
        const void *rows[LL_MOST_ROWS];
        int count = 0;
        for (int rank = 0; rank < self->num_ranks; rank++) {
            if (problem->position[token * self->num_ranks + rank] < 0) continue;
            rows[count++] = rank == self->rank ? self->own_sums + (size_t)own++ * row_bytes
                                               : self->receive + (size_t)self->next[rank]++ * row_bytes;
        }
        ll_sum_rows(problem->dtype, rows, NULL, count, problem->hidden, y + (size_t)token * row_bytes);
    }
}

static bool mpi_combine(void *context, bool reduced, void *y)
{
    struct ll_mpi_state *self = context;
    if (reduced) {
        pack_reduced(self);
        exchange_rows(self, &self->reduced, self->row);
        sum_reduced(self, y);
        return true;
    }
    pack_exact(self);
    exchange_rows(self, &self->exact, self->row);
    sum_exact(self, y);
    return true;
}

/* ---- set-up ------------------------------------------------------------------------------------------------------ */

static void exchange_free(struct exchange *exchange)
{
    free(exchange->send_counts);
    free(exchange->send_starts);
    free(exchange->receive_counts);
    free(exchange->receive_starts);
}

static void mpi_close(void *context)
{
    struct ll_mpi_state *self = context;
    void *const arrays[] = {self->tokens,  self->messages, self->tell,       self->told,          self->next_row,
                            self->places,  self->next,     self->own_places, self->their_weights, self->send,
                            self->receive, self->own_sums, self->counts,     self->src_info};
    MPI_Type_free(&self->record);
    MPI_Type_free(&self->row);
    exchange_free(&self->records);
    exchange_free(&self->exact);
    exchange_free(&self->reduced);
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    ll_unreserve(self->received, self->received_bytes);
    free(self);
}

/* Allocates zeroed memory and touches it, so that no page fault is measured. */
static void *touched_memory(size_t bytes)
{
    void *memory = aligned_alloc(4096, (bytes / 4096 + 1) * 4096);
    if (memory) memset(memory, 0, bytes);
    return memory;
}

static bool exchange_make(struct exchange *exchange, int num_ranks)
{
    const size_t count = (size_t)num_ranks;
    exchange->send_counts = calloc(count, sizeof(int));
    exchange->send_starts = calloc(count, sizeof(int));
    exchange->receive_counts = calloc(count, sizeof(int));
    exchange->receive_starts = calloc(count, sizeof(int));
    return exchange->send_counts && exchange->send_starts && exchange->receive_counts && exchange->receive_starts;
}

static bool make_arrays(struct ll_mpi_state *self)
{
    const struct problem *problem = self->problem;
    const size_t ranks = (size_t)self->num_ranks, tokens = (size_t)problem->tokens, topk = (size_t)self->topk;
    const size_t locals = (size_t)self->locals, here = (size_t)problem->num_received + 1;
    self->tokens = calloc(ranks * tokens + 1, sizeof *self->tokens);
    self->messages = calloc(ranks, sizeof *self->messages);
    self->tell = calloc(ranks * (locals + 1), sizeof *self->tell);
    self->told = calloc(ranks * (locals + 1), sizeof *self->told);
    self->next_row = calloc(locals, sizeof *self->next_row);
    self->places = calloc(here * topk, sizeof *self->places);
    self->own_places = calloc((tokens + 1) * topk, sizeof *self->own_places);
    self->their_weights = calloc(here * topk, sizeof *self->their_weights);
    self->next = calloc(ranks, sizeof *self->next);
    self->counts = calloc(locals, sizeof *self->counts);
    self->src_info = calloc(locals * (size_t)self->layout->rows_per_expert, sizeof *self->src_info);
    return self->tokens && self->messages && self->tell && self->told && self->next_row && self->places &&
           self->own_places && self->their_weights && self->next && self->counts && self->src_info &&
           exchange_make(&self->records, self->num_ranks) && exchange_make(&self->exact, self->num_ranks) &&
           exchange_make(&self->reduced, self->num_ranks);
}

static bool make_rows(struct ll_mpi_state *self)
{
    const struct problem *problem = self->problem;
    const size_t rows = (size_t)self->layout->num_rows + (size_t)problem->tokens * (size_t)self->topk + 1;
    self->send = touched_memory(rows * self->record_bytes);
    self->receive = touched_memory(rows * self->record_bytes);
    self->own_sums = touched_memory((size_t)problem->tokens * problem->row_bytes);
    self->received_bytes = (size_t)self->locals * (size_t)self->layout->rows_per_expert * problem->row_bytes;
    self->received = ll_reserve(self->received_bytes);
    return self->send && self->receive && self->own_sums && self->received;
}

/* Plans combines. As many rows come back as were sent, so both sides know their numbers from the dispatch. */
static void plan_combines(struct ll_mpi_state *self)
{
    const int ints = self->locals + 1;
    for (int rank = 0; rank < self->num_ranks; rank++) {
        if (rank == self->rank) continue;
        for (int l = 0; l < self->locals; l++) {
            self->exact.send_counts[rank] += self->told[rank * ints + l];
            self->exact.receive_counts[rank] += self->tell[rank * ints + l];
        }
        self->reduced.send_counts[rank] = self->records.receive_counts[rank];
        self->reduced.receive_counts[rank] = self->records.send_counts[rank];
    }
    starts_of(self->exact.send_counts, self->exact.send_starts, self->num_ranks);
    starts_of(self->exact.receive_counts, self->exact.receive_starts, self->num_ranks);
    starts_of(self->reduced.send_counts, self->reduced.send_starts, self->num_ranks);
    starts_of(self->reduced.receive_counts, self->reduced.receive_starts, self->num_ranks);
    for (int64_t i = 0; i < self->problem->num_received; i++)
        for (int k = 0; k < self->topk; k++)
            self->their_weights[i * self->topk + k] =
                problem_weight(self->problem->received[i].rank, self->problem->received[i].token, k);
}

static void *mpi_open(const struct bench_session *session)
{
    const struct problem *problem = session->problem;
    struct ll_mpi_state *self = calloc(1, sizeof *self);
    if (!self) return NULL;
    *self = (struct ll_mpi_state){.problem = problem,
                                  .layout = session->layout,
                                  .x = session->x,
                                  .rows = session->rows,
                                  .weights = session->weights,
                                  .num_ranks = problem->num_ranks,
                                  .rank = problem->rank,
                                  .topk = problem->topk,
                                  .locals = session->layout->local_experts};
    self->record_bytes = problem->row_bytes + (size_t)(1 + problem->topk) * sizeof(int32_t);
    MPI_Type_contiguous((int)self->record_bytes, MPI_BYTE, &self->record);
    MPI_Type_commit(&self->record);
    MPI_Type_contiguous((int)problem->row_bytes, MPI_BYTE, &self->row);
    MPI_Type_commit(&self->row);
    bool made = make_arrays(self) && make_rows(self);
    MPI_Allreduce(MPI_IN_PLACE, &made, 1, MPI_C_BOOL, MPI_LAND, MPI_COMM_WORLD);
    if (!made) {
        mpi_close(self);
        return NULL;
    }
    mpi_dispatch(self); /* for combines that are measured without one; it also touches all memory */
    mpi_settle(self);
    plan_combines(self);
    return self;
}

const struct bench_baseline mpi_ll_baseline = {
    .open = mpi_open,
    .dispatch = mpi_dispatch,
    .received = mpi_received,
    .combine = mpi_combine,
    .settle = mpi_settle,
    .close = mpi_close,
};
