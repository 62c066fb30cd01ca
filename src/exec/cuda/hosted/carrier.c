/* SPDX-License-Identifier: Apache-2.0 */
/* The carrier of a buffer (exec/cpu/core/carrier.h): the mover copies and adds the payload of rows where it lies. The
 * CPU executor's workers ask for it by lists, while the run of the call goes on.
 *
 * A worker has a lane with an open list, of copies or of sums. The list goes to the mover when it is full, when the
 * worker ends a turn, or when a chunk is worth a command. A lane's work is numbered by lists. */
#include "exec/cuda/hosted/hosted.h"

#include <stdlib.h>
#include <string.h>

/* A chunk is worth a command if the open list has so many entries. A list has space for the addresses of so many rows
   of one sum, and for their weights. */
enum { WORTH_A_COMMAND = 16, MOST_ROWS = (MOVER_LIST_WORDS - MOVER_SUM_WORDS - 1) * 2 / 3 };

/* Only the lane's worker uses it. */
typedef struct carrier_lane {
    /* The open list, and the command for it. */
    mover_command command;
    uint32_t words;
    uint64_t list[MOVER_LIST_WORDS];
    uint64_t handed, complete; /* lists */
    /* By the lists' numbers: how many commands of the run are done when the list is complete. Of two lists with one
       place the later one has it. */
    uint64_t done_at[MOVER_COMMANDS];
    error_kept failed;
    int64_t asked_ns, next_ns; /* when the run was looked at, and will be */
} carrier_lane;

struct hosted_carrier {
    cpu_carrier base;
    hosted_executor *self;
    hosted_run *run;      /* of the call whose rows move */
    pthread_mutex_t lock; /* orders the commands of lanes */
    uint32_t sum_words;   /* of an entry, in this call */
    int32_t num_lanes;
    carrier_lane **lanes;
    void *memory;     /* of the rails, which is registered */
    uint64_t bases[]; /* [N] */
};

static hosted_carrier *carrier_of(cpu_carrier *base)
{
    return (hosted_carrier *)base;
}

static carrier_lane *lane_of(const cpu_carrier *base, int32_t lane)
{
    return ((const hosted_carrier *)base)->lanes[lane];
}

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

/* Makes lanes until there are so many; returns how many there are. */
static int32_t carrier_make_lanes(hosted_carrier *carrier, int32_t wanted)
{
    if (wanted <= carrier->num_lanes) return wanted;
    carrier_lane **lanes = realloc(carrier->lanes, (size_t)wanted * sizeof(carrier_lane *));
    if (!lanes) return carrier->num_lanes;
    carrier->lanes = lanes;
    while (carrier->num_lanes < wanted) {
        carrier_lane *lane = malloc(sizeof *lane);
        if (!lane) break;
        lanes[carrier->num_lanes++] = lane;
    }
    return carrier->num_lanes;
}

static int32_t carrier_begin(cpu_carrier *base, int32_t lanes, int32_t rows)
{
    hosted_carrier *carrier = carrier_of(base);
    const int32_t made = carrier_make_lanes(carrier, lanes);
    carrier->sum_words = MOVER_SUM_WORDS + (uint32_t)rows + ((uint32_t)rows + 1) / 2;
    for (int32_t i = 0; i < made; i++) {
        carrier_lane *lane = carrier->lanes[i];
        lane->command = (mover_command){.kind = 0};
        lane->words = 0;
        lane->handed = lane->complete = 0;
        lane->failed = (error_kept){0};
        lane->asked_ns = lane->next_ns = 0;
    }
    return made;
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

/* Passes the open list to the mover, unless the lane has failed. */
static void hand_over_list(hosted_carrier *carrier, carrier_lane *lane)
{
    if (lane->command.rows == 0) return;
    uint64_t done_at = 0;
    expar_status status = EXPAR_OK;
    if (lane->failed.status == EXPAR_OK) {
        pthread_mutex_lock(&carrier->lock);
        status = hosted_run_post_list(carrier->self, carrier->run, &lane->command, lane->list, lane->words);
        done_at = carrier->run->posted;
        pthread_mutex_unlock(&carrier->lock);
    }
    if (status != EXPAR_OK) error_keep(&lane->failed, status);
    /* Only lists that last are a reason to ask for the context. */
    if (lane->complete == lane->handed) lane->next_ns = clock_ns() + knob(KNOB_CUDA_HOSTED_LOOK_NS);
    lane->done_at[lane->handed++ % MOVER_COMMANDS] = done_at;
    lane->command.rows = 0;
    lane->words = 0;
}

static void carrier_hand_over(cpu_carrier *base, int32_t number, bool may_wait)
{
    carrier_lane *lane = lane_of(base, number);
    if (!may_wait || lane->command.rows >= WORTH_A_COMMAND) hand_over_list(carrier_of(base), lane);
}

/* Returns space for an entry of the open list, which has entries of this kind only. */
static uint64_t *add_entry(hosted_carrier *carrier, carrier_lane *lane, const mover_command *of)
{
    const bool other = lane->command.kind != of->kind || lane->command.row_bytes != of->row_bytes;
    if (other || lane->words + of->entry_words > MOVER_LIST_WORDS) hand_over_list(carrier, lane);
    if (lane->command.rows == 0) lane->command = *of;
    uint64_t *entry = lane->list + lane->words;
    lane->words += of->entry_words;
    lane->command.rows++;
    return entry;
}

static void carrier_copy(cpu_carrier *base, int32_t number, void *dest, const void *source, int64_t bytes)
{
    carrier_lane *lane = lane_of(base, number);
    const mover_command command = {
        .kind = MOVER_ROWS, .row_bytes = (uint64_t)bytes, .entry_words = sizeof(mover_row) / sizeof(uint64_t)};
    const mover_row row = {.dest = (uint64_t)(uintptr_t)dest, .source = (uint64_t)(uintptr_t)source};
    memcpy(add_entry(carrier_of(base), lane, &command), &row, sizeof row);
}

static void carrier_sum(cpu_carrier *base, int32_t number, const cpu_carried_sum *sum)
{
    carrier_lane *lane = lane_of(base, number);
    const mover_command command = {
        .kind = MOVER_SUMS, .row_bytes = (uint64_t)sum->bytes, .entry_words = carrier_of(base)->sum_words};
    const mover_sum head = {.sum = (uint64_t)(uintptr_t)sum->sum,
                            .dtype = (uint16_t)sum->dtype,
                            .flags =
                                (uint16_t)((sum->wide ? MOVER_WIDE_SUM : 0) | (sum->wide_group ? MOVER_WIDE_GROUP : 0) |
                                           (sum->weights ? MOVER_WEIGHTED : 0)),
                            .rows = (uint16_t)sum->count,
                            .group_rows = (uint16_t)sum->group_count,
                            .wide_from = (uint16_t)sum->wide_from,
                            .group_at = (uint16_t)sum->group_at};
    uint64_t *entry = add_entry(carrier_of(base), lane, &command);
    memcpy(entry, &head, sizeof head);
    entry += MOVER_SUM_WORDS;
    for (int32_t i = 0; i < sum->count; i++)
        *entry++ = (uint64_t)(uintptr_t)sum->rows[i];
    for (int32_t i = 0; i < sum->group_count; i++)
        *entry++ = (uint64_t)(uintptr_t)sum->group[i];
    if (sum->weights) memcpy(entry, sum->weights, (size_t)sum->count * sizeof *sum->weights);
}

static uint64_t carrier_asked(const cpu_carrier *base, int32_t lane)
{
    return lane_of(base, lane)->handed + (lane_of(base, lane)->command.rows > 0);
}

/* Now and then it asks whether the context is lost, since the mover then completes nothing. */
static expar_status carrier_complete(cpu_carrier *base, int32_t number, uint64_t *out)
{
    const hosted_carrier *carrier = carrier_of(base);
    carrier_lane *lane = lane_of(base, number);
    *out = lane->complete;
    if (lane->failed.status != EXPAR_OK) return error_restore(&lane->failed);
    if (lane->complete == lane->handed) return EXPAR_OK;
    const uint64_t done = hosted_run_done(carrier->self, carrier->run);
    while (lane->complete < lane->handed && lane->done_at[lane->complete % MOVER_COMMANDS] <= done)
        lane->complete++;
    *out = lane->complete;
    return hosted_run_look(carrier->self, carrier->run, &lane->asked_ns, &lane->next_ns);
}

static const cpu_carrier_ops carrier_ops = {
    .begin = carrier_begin,
    .copy = carrier_copy,
    .sum = carrier_sum,
    .asked = carrier_asked,
    .hand_over = carrier_hand_over,
    .complete = carrier_complete,
};

/* ---- making ------------------------------------------------------------------------------------------------------ */

void hosted_carrier_use(hosted_carrier *carrier, hosted_run *run)
{
    carrier->run = run;
}

void hosted_carrier_close(hosted_executor *self)
{
    hosted_carrier *carrier = self->carrier;
    if (!carrier) return;
    if (carrier->memory) {
        gpu_order_close(self->core.order);
        mem_host_unregister(self->device, carrier->memory);
        gpu_order_open(self->core.order);
    }
    for (int32_t i = 0; i < carrier->num_lanes; i++)
        free(carrier->lanes[i]);
    free(carrier->lanes);
    pthread_mutex_destroy(&carrier->lock);
    free(carrier);
    self->carrier = NULL;
}

static expar_status carrier_register(hosted_executor *self, void *data, uint64_t bytes)
{
    const uintptr_t page = 4096, begin = (uintptr_t)data & ~(page - 1);
    void *memory = (void *)begin;
    gpu_order_close(self->core.order);
    const expar_status status =
        mem_host_register(self->device, memory, align_up((uintptr_t)data - begin + bytes, page));
    gpu_order_open(self->core.order);
    if (status == EXPAR_OK) self->carrier->memory = memory;
    return status;
}

void hosted_carrier_make(hosted_executor *self)
{
    void *data;
    uint64_t bytes;
    const size_t ranks = (size_t)self->core.sym->size;
    if (!self->mover.on || (self->near_ranks > 1 && !self->mapped)) return;
    self->carrier = calloc(1, sizeof *self->carrier + ranks * sizeof *self->carrier->bases);
    if (!self->carrier) return;
    self->carrier->base = (cpu_carrier){.ops = &carrier_ops, .most_rows = MOST_ROWS, .bases = self->carrier->bases};
    if (self->mapped)
        memcpy(self->carrier->bases, device_heap_bases(self->core.heap), ranks * sizeof *self->carrier->bases);
    self->carrier->self = self;
    pthread_mutex_init(&self->carrier->lock, NULL);
    if (carrier_make_lanes(self->carrier, 1) == 1 && executor_cpu_rail_memory(self->inner, &data, &bytes)) {
        if (carrier_register(self, data, bytes) == EXPAR_OK) {
            executor_cpu_carry(self->inner, &self->carrier->base);
            return;
        }
        LOG(LOG_INFO, "the host copies and adds rows of calls on GPU %d: %s", self->device->index, expar_last_error());
    }
    hosted_carrier_close(self);
}
