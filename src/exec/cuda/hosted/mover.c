/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of the mover (kernels/hosted/mover.cu). A run is one launch, on the stream of its call. The thread that carries
 * the call out posts copies, and at last the end. It calls no function of the driver for that, so a driver that waits
 * for the kernel in another thread does not hold it up.
 *
 * A graph launches the mover with the arguments of its capture. The mover then numbers the run itself, and says which
 * call it is for. Such runs follow each other, so all of them use one ring.
 *
 * A call may fail before its run has begun, since work of the caller's is still on the stream. Then the thread does not
 * wait: it marks the run as over, and the mover leaves when it comes to it (mover_ring.started). */
#include "base/interrupt.h"
#include "exec/cuda/hosted/hosted.h"
#include "mem/fence.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static mover_ring *ring_at(const hosted_executor *self, int32_t ring)
{
    return &self->mover.rings[ring];
}

static uint64_t acquire(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* ---- rings ------------------------------------------------------------------------------------------------------- */

/* Returns a ring that the mover has left, for a run with the next number; -1: there is none. */
static int32_t claim_ring(hosted_executor *self, uint64_t *number)
{
    hosted_mover *mover = &self->mover;
    int32_t ring = 0;
    pthread_mutex_lock(&mover->lock);
    while (ring < HOSTED_RINGS && acquire(&ring_at(self, ring)->exited) != mover->run_of[ring])
        ring++;
    if (ring == HOSTED_RINGS) ring = -1;
    if (ring >= 0) mover->run_of[ring] = *number = ++mover->runs;
    pthread_mutex_unlock(&mover->lock);
    return ring;
}

/* The launch did not come about. */
static void return_ring(hosted_executor *self, int32_t ring)
{
    pthread_mutex_lock(&self->mover.lock);
    self->mover.run_of[ring] = acquire(&ring_at(self, ring)->exited);
    pthread_mutex_unlock(&self->mover.lock);
}

static expar_status await_ring(hosted_executor *self, hosted_run *run)
{
    expar_status status = EXPAR_OK;
    int64_t asked_ns = 0, looks = 0;
    while (status == EXPAR_OK && (run->ring = claim_ring(self, &run->number)) < 0) {
        gpu_rest_between(looks++);
        status = hosted_look(self, &asked_ns);
    }
    return status;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static void mark_run(const hosted_executor *self, const exec_call *call, hosted_run *run)
{
    if (cuda_enter(self->device) != EXPAR_OK) return;
    if (cuda_mark_make_in(self->device, call->stream, 0, &run->mark) != EXPAR_OK)
        LOG(LOG_WARN, "%s", expar_last_error());
    cuda_leave();
}

/* The mark follows the launch. record: the call of a graph; 0: no graph has the launch. */
static expar_status run_launch(hosted_executor *self, const exec_call *call, hosted_run *run, uint64_t record)
{
    exec_call own = {.stream = call->stream,
                     .has_stream = true,
                     .num_sms = call->num_sms,
                     .captured = record != 0,
                     .capture = record ? call->capture : 0};
    const gpu_scratch *scratch = self->mover.parts->scratch;
    mover_args args = {.ring = (mover_ring *)(uintptr_t)scratch->pinned.device + run->ring,
                       .state = (mover_state *)(uintptr_t)scratch->memory + run->ring,
                       .run = run->number,
                       .record = record};
    expar_status status = gpu_order_enter(&self->core, &own);
    if (status != EXPAR_OK) return status;
    const uint32_t blocks = (uint32_t)gpu_sms_of(&self->core, call);
    status = gpu_launch(&self->core, &own, self->mover.kernel, blocks, MOVER_THREADS, 0, &args);
    if (status == EXPAR_OK && !record) mark_run(self, call, run);
    const expar_status left = gpu_order_leave(&self->core, &own);
    if (record) return status == EXPAR_OK ? left : status;
    if (status == EXPAR_OK && left != EXPAR_OK) LOG(LOG_WARN, "%s", expar_last_error());
    return status;
}

expar_status hosted_run_begin(hosted_executor *self, const exec_call *call, hosted_run *run)
{
    *run = (hosted_run){0};
    expar_status status = await_ring(self, run);
    if (status != EXPAR_OK) {
        run->number = 0;
        return status;
    }
    status = run_launch(self, call, run, 0);
    if (status == EXPAR_OK) return EXPAR_OK;
    return_ring(self, run->ring);
    run->number = 0;
    return status;
}

expar_status hosted_run_record(hosted_executor *self, const exec_call *call, uint64_t record)
{
    hosted_run run = {.ring = HOSTED_GRAPH_RING};
    return run_launch(self, call, &run, record);
}

bool hosted_run_of_graph(const hosted_executor *self, uint64_t last, hosted_run *run, uint64_t *record)
{
    const mover_ring *ring = ring_at(self, HOSTED_GRAPH_RING);
    const uint64_t number = acquire(&ring->started);
    if (number == last) return false;
    *run = (hosted_run){.number = number, .ring = HOSTED_GRAPH_RING};
    *record = ring->record;
    return true;
}

void hosted_graph_ring_close(hosted_executor *self)
{
    mover_ring *ring = ring_at(self, HOSTED_GRAPH_RING);
    for (int i = 0; i < MOVER_COMMANDS; i++)
        ring->commands[i] = (mover_command){.kind = MOVER_END};
    __atomic_store_n(&ring->posted, UINT64_MAX, __ATOMIC_RELEASE);
}

static void run_post(const hosted_executor *self, hosted_run *run, const mover_command *command)
{
    mover_ring *ring = ring_at(self, run->ring);
    ring->commands[run->posted % MOVER_COMMANDS] = *command;
    __atomic_store_n(&ring->posted, mover_count(run->number, (uint32_t)++run->posted), __ATOMIC_RELEASE);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static bool has_begun(const hosted_executor *self, const hosted_run *run)
{
    return acquire(&ring_at(self, run->ring)->started) == run->number;
}

/* Asks the driver whether the context is lost, unless the driver waits for kernels in another thread: the run might be
   one of these. */
static expar_status look_at_context(const hosted_executor *self, const hosted_run *run)
{
    bool unused;
    if (!gpu_order_try_close(self->core.order)) return EXPAR_OK;
    const expar_status status = run->mark ? cuda_mark_query(run->mark, &unused) : gpu_order_look(&self->core);
    gpu_order_open(self->core.order);
    return status;
}

/* Copies that have begun end by themselves. Before that, the caller's work on the stream may last. */
static expar_status look_at_run(const hosted_executor *self, const hosted_run *run, int64_t *asked_ns, int64_t *next_ns)
{
    const int64_t now_ns = clock_ns();
    if (now_ns >= *next_ns) {
        *next_ns = now_ns + knob(KNOB_CUDA_HOSTED_LOOK_NS);
        const expar_status status = look_at_context(self, run);
        if (status != EXPAR_OK) return status;
    }
    return has_begun(self, run) ? EXPAR_OK : hosted_look(self, asked_ns);
}

/* Waits until the word is at least so much. */
static expar_status run_await_word(const hosted_executor *self, const hosted_run *run, const uint64_t *word,
                                   uint64_t wanted)
{
    const int64_t spins = knob(KNOB_CUDA_POLLS);
    int64_t asked_ns = 0, next_ns = clock_ns() + knob(KNOB_CUDA_HOSTED_LOOK_NS);
    expar_status status = EXPAR_OK;
    for (int64_t polls = 0; status == EXPAR_OK && acquire(word) < wanted; polls++) {
        if (polls < spins) continue;
        gpu_rest_between(polls - spins);
        status = look_at_run(self, run, &asked_ns, &next_ns);
    }
    return status;
}

expar_status hosted_run_reach(const hosted_executor *self, const hosted_run *run)
{
    return run_await_word(self, run, &ring_at(self, run->ring)->started, run->number);
}

/* Waits until so many commands are complete. */
static expar_status run_await_done(const hosted_executor *self, const hosted_run *run, uint64_t commands)
{
    return run_await_word(self, run, &ring_at(self, run->ring)->done, mover_count(run->number, (uint32_t)commands));
}

expar_status hosted_run_await(hosted_executor *self, hosted_run *run)
{
    return run->posted ? run_await_done(self, run, run->posted) : EXPAR_OK;
}

/* Waits until the next command has a place. One place stays free for the end. */
static expar_status hosted_run_claim(const hosted_executor *self, const hosted_run *run)
{
    const uint64_t most = MOVER_COMMANDS - 1;
    if (run->posted < most) return EXPAR_OK;
    return run_await_done(self, run, run->posted - most + 1);
}

expar_status hosted_run_post(hosted_executor *self, hosted_run *run, const mover_command *command)
{
    const expar_status status = hosted_run_claim(self, run);
    if (status == EXPAR_OK) run_post(self, run, command);
    return status;
}

expar_status hosted_run_post_list(hosted_executor *self, hosted_run *run, mover_command *command, const uint64_t *list,
                                  uint32_t words)
{
    const expar_status status = hosted_run_claim(self, run);
    if (status != EXPAR_OK) return status;
    const uint64_t place = (uint64_t)run->ring * MOVER_COMMANDS + run->posted % MOVER_COMMANDS;
    uint64_t *here = self->mover.lists + place * MOVER_LIST_WORDS;
    memcpy(here, list, words * sizeof *list);
    command->list = (uint64_t)(uintptr_t)here;
    run_post(self, run, command);
    return EXPAR_OK;
}

uint64_t hosted_run_done(const hosted_executor *self, const hosted_run *run)
{
    const uint64_t done = acquire(&ring_at(self, run->ring)->done), none = mover_count(run->number, 0);
    return done > none ? done - none : 0;
}

expar_status hosted_run_look(const hosted_executor *self, const hosted_run *run, int64_t *asked_ns, int64_t *next_ns)
{
    return look_at_run(self, run, asked_ns, next_ns);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

/* The mover may be carrying out a copy of a call that has failed. It ends soon, unless the context is lost. */
static void await_exit(const hosted_executor *self, const hosted_run *run)
{
    error_kept kept;
    error_save(&kept);
    if (run_await_word(self, run, &ring_at(self, run->ring)->exited, run->number) != EXPAR_OK)
        LOG(LOG_INFO, "%s", expar_last_error());
    error_put_back(&kept);
}

void hosted_run_end(hosted_executor *self, hosted_run *run)
{
    static const mover_command end = {.kind = MOVER_END};
    if (!run->number) return;
    mover_ring *ring = ring_at(self, run->ring);
    const bool complete = hosted_run_done(self, run) == run->posted;
    if (!complete) __atomic_store_n(&ring->over, run->number, __ATOMIC_RELAXED);
    run_post(self, run, &end);
    fence_full();
    if (!complete && has_begun(self, run)) await_exit(self, run);
    cuda_mark_give(run->mark);
    *run = (hosted_run){0};
}

/* ---- its parts --------------------------------------------------------------------------------------------------- */

static void mover_parts_free(cuda_task *task)
{
    hosted_parts *parts = (hosted_parts *)((uint8_t *)task - offsetof(hosted_parts, task));
    cuda_program_release(parts->program);
    gpu_scratch_give(parts->scratch);
    free(parts);
}

void hosted_parts_drop(hosted_parts *parts, bool in_driver)
{
    if (atomic_fetch_sub_explicit(&parts->references, 1, memory_order_acq_rel) > 1) return;
    parts->task.run = mover_parts_free;
    if (in_driver)
        cuda_later(&parts->task);
    else
        mover_parts_free(&parts->task);
}

static expar_status mover_parts_make(hosted_mover *mover)
{
    mover->parts = calloc(1, sizeof *mover->parts);
    if (!mover->parts) return error_set(EXPAR_ERR_MEMORY, "no memory for the mover's record");
    atomic_init(&mover->parts->references, 1);
    return EXPAR_OK;
}

/* ---- the mover --------------------------------------------------------------------------------------------------- */

static expar_status mover_take_memory(hosted_executor *self)
{
    hosted_mover *mover = &self->mover;
    const uint64_t states = HOSTED_ALL_RINGS * sizeof(mover_state), rings = HOSTED_ALL_RINGS * sizeof(mover_ring);
    const uint64_t lists = HOSTED_ALL_RINGS * MOVER_COMMANDS * MOVER_LIST_WORDS * sizeof *mover->lists;
    const uint64_t bounces = HOSTED_ALL_RINGS * hosted_bounce_bytes();
    expar_status status = gpu_scratch_take(self->device, states, rings + lists + bounces, &mover->parts->scratch);
    if (status != EXPAR_OK) return status;
    const mem_pinned *pinned = &mover->parts->scratch->pinned;
    if (pinned->device != (cu_address)(uintptr_t)pinned->host)
        return error_set(EXPAR_ERR_UNSUPPORTED, "the driver gives pinned memory another address on the GPU");
    mover->rings = pinned->host;
    mover->lists = (uint64_t *)(void *)((uint8_t *)pinned->host + rings);
    mover->bounces = (uint8_t *)pinned->host + rings + lists;
    status = cuda_enter(self->device);
    if (status != EXPAR_OK) return status;
    status = CUDA_CALL(MemsetD8Async, mover->parts->scratch->memory, 0, states, self->core.own_stream);
    if (status == EXPAR_OK) status = gpu_order_hold(&self->core);
    cuda_leave();
    return status == EXPAR_OK ? gpu_own_stream_await(&self->core) : status;
}

static void give_parts(hosted_executor *self)
{
    hosted_mover *mover = &self->mover;
    if (mover->parts) hosted_parts_drop(mover->parts, false);
    if (self->core.order && cuda_enter(self->device) == EXPAR_OK) {
        gpu_order_release(&self->core);
        self->core.fallback = NULL;
        cuda_leave();
    }
    mover->parts = NULL;
}

void hosted_mover_make(hosted_executor *self, int32_t num_sms)
{
    hosted_mover *mover = &self->mover;
    const int32_t usual = (int32_t)knob(KNOB_CUDA_HOSTED_SMS), all = self->device->num_sms;
    self->core.num_sms = num_sms ? num_sms : usual < all ? usual : all;
    expar_status status = mover_parts_make(mover);
    if (status == EXPAR_OK) status = gpu_program_load(&self->core, "hosted/mover.cu", NULL, 0, &mover->parts->program);
    if (status == EXPAR_OK) status = cuda_program_kernel(mover->parts->program, "ep_mover", 0, &mover->kernel);
    if (status == EXPAR_OK) status = mover_take_memory(self);
    if (status == EXPAR_OK) {
        pthread_mutex_init(&mover->lock, NULL);
        mover->on = true;
        return;
    }
    LOG(LOG_INFO, "calls on GPU %d end before they return, since no kernel copies their rows: %s", self->device->index,
        expar_last_error());
    give_parts(self);
}

/* A run that was never reached, on a stream that is stuck, is not waited for without end. */
static bool all_have_ended(hosted_executor *self)
{
    const int64_t wait_ns = self->core.sym->timeout_ms * 1000000, end_ns = clock_ns() + wait_ns;
    (void)hosted_replays_stop(self, wait_ns);
    if (self->late_replays) return false;
    for (int32_t ring = 0; ring < HOSTED_RINGS; ring++)
        for (int64_t looks = 0; acquire(&ring_at(self, ring)->exited) != self->mover.run_of[ring]; looks++) {
            if (gpu_order_look(&self->core) != EXPAR_OK) return true;
            if (clock_ns() >= end_ns) return false;
            gpu_rest_between(looks);
        }
    return true;
}

void hosted_mover_close(hosted_executor *self)
{
    hosted_mover *mover = &self->mover;
    if (!mover->on) return;
    if (!all_have_ended(self)) {
        LOG(LOG_WARN, "work on a stream of GPU %d has not ended: memory of a buffer stays", self->device->index);
        return;
    }
    mover->on = false;
    hosted_carrier_close(self);
    hosted_stages_trim(self);
    gpu_order_close(self->core.order);
    hosted_pool_close(self);
    gpu_order_open(self->core.order);
    pthread_mutex_destroy(&mover->lock);
    give_parts(self);
}
