/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of handles share this: memory, handles, calls that succeed, and the model of a script. */
#ifndef TESTS_PGAS_DEVICE_SETTING_H
#define TESTS_PGAS_DEVICE_SETTING_H

#include "pgas/device/runner.h"
#include "pgas/late.h"
#include "shmem/kind.h"

/* After it, since it asks expar/device.h for checks. */
#include "pgas/device/parts.h"

#include <stdio.h>

#define RANKS  4
#define WORDS  4096
#define ROUNDS 4
#define BYTES  1000

/* ThreadSanitizer does not see how libfabric, which is not built with it, orders the data that one thread of it passes
   to another. */
#ifdef __SANITIZE_THREAD__
static const bool network_can_be_judged = false;
#else
static const bool network_can_be_judged = true;
#endif

/* of the ranks that run now */
static uint32_t seed;
static int64_t delay_ns; /* the longest one of operations of transports; 0: they are not late */

/* ---- memory and handles ------------------------------------------------------------------------------------------ */

static inline void *take(expar_group *group, expar_memory_kind kind, size_t bytes)
{
    void *block = NULL;
    expar_memory_options options = EXPAR_MEMORY_OPTIONS_INIT;
    options.kind = kind;
    options.device = kind == EXPAR_MEMORY_HOST ? 0 : runner_gpu(group);
    options.bytes = bytes;
    options.zeroed = 1;
    CHECK_OK(expar_memory_alloc(group, &options, &block));
    return block;
}

static expar_device_options options_for(expar_team *team)
{
    expar_device_options options = EXPAR_DEVICE_OPTIONS_INIT;
    options.target = runner_target();
    options.team = team;
    return options;
}

static expar_device_handle handle_for(expar_group *group, expar_team *team)
{
    expar_device_handle handle = {0};
    const expar_device_options options = options_for(team);
    CHECK_OK(expar_device_get(group, &options, &handle));
    return handle;
}

/* Kernels of this rank, a handle, and device memory, without which a GPU has no handle. */
typedef struct setting {
    runner runner;
    expar_device_handle handle;
    void *first;
} setting;

static inline bool setting_open(setting *s, expar_group *group, int32_t threads)
{
    if (delay_ns > 0) late_begin(group, delay_ns);
    /* Rings that are often full, and whose numbers wrap around. */
    group->sym->ring_slots = seed % 2 ? 2 : 8;
    group->sym->ring_first = 0 - (uint64_t)seed - 9;
    s->first = take(group, runner_kind(), 4096);
    if (!s->first || !runner_open(&s->runner, group, threads, seed)) return false;
    s->handle = handle_for(group, NULL);
    return CHECK_OK(expar_group_barrier(group));
}

static inline void setting_close(setting *s, expar_group *group)
{
    CHECK_OK(expar_group_barrier(group));
    runner_close(&s->runner);
    CHECK_OK(expar_free(group, s->first));
}

static expar_device_error error_of(const expar_device_handle *handle)
{
    expar_device_error error = EXPAR_DEVICE_ERROR_INIT;
    CHECK_OK(expar_device_get_error(handle, &error));
    return error;
}

/* How the handle's kernels get to memory of that kind (EXPAR_DEV_…) on that rank of the group. */
static inline expar_dev_entry entry_of(const expar_device_handle *handle, int32_t kind, int32_t rank)
{
    const handle_slot *slot = slot_find(handle->number);
    const expar_dev_entry *entries = (const expar_dev_entry *)(const void *)(slot->image + 1);
    const expar_dev_entry found = entries[kind * handle->ranks + rank];
    slot_done();
    return found;
}

/* ---- calls that succeed ------------------------------------------------------------------------------------------ */

/* Words and data of those kinds. */
static inline handles_call call_open(expar_group *group, handles_test test, expar_memory_kind words,
                                     expar_memory_kind data, runner *r)
{
    return (handles_call){.test = test,
                          .scope = EXPAR_DEV_BLOCK,
                          .rounds = ROUNDS,
                          .seed = 5 + seed,
                          .words = take(group, words, WORDS * sizeof(uint64_t)),
                          .data = take(group, data, (size_t)group->size * BYTES),
                          .bytes = BYTES,
                          .own = runner_alloc(r, HANDLES_OWN_BYTES(group->size, BYTES))};
}

static inline void call_close(expar_group *group, const handles_call *call, runner *r)
{
    runner_free(r, call->own);
    CHECK_OK(expar_free(group, call->words));
    CHECK_OK(expar_free(group, call->data));
}

static inline void run_well(setting *s, expar_group *group, const expar_device_handle *handle, const handles_call *call)
{
    runner *r = &s->runner;
    CHECK_OK(expar_group_barrier(group));
    runner_start(r, handle, call);
    runner_await(r);
    const expar_device_error error = error_of(handle);
    CHECK(error.status == EXPAR_OK, "test %d with %d, scope %d: %s", call->test, call->with, call->scope, error.text);
    CHECK(*r->wrong == 0, "test %d with %d, scope %d: %llu wrong", call->test, call->with, call->scope,
          (unsigned long long)*r->wrong);
    for (int32_t i = 0; i < r->threads; i++)
        CHECK(r->status[i] == EXPAR_OK, "test %d: thread %d ended with %d", call->test, i, r->status[i]);
    CHECK_OK(expar_group_barrier(group));
}

/* Compares this rank's data and words with what the scripts of all ranks leave there. */
static inline void check_script(expar_group *group, const handles_call *call)
{
    const size_t bytes = (size_t)group->size * BYTES;
    uint8_t *expected = calloc(1, bytes), *seen = malloc(bytes);
    uint64_t sums[RANKS] = {0}, sums_seen[RANKS];
    for (int32_t r = 0; r < group->size; r++)
        for (int32_t number = 0; number < call->rounds; number++) {
            const handles_step step = handles_step_of(call, r, group->size, number);
            uint8_t *at = expected + (size_t)r * BYTES + step.at;
            if (step.pe != group->rank) continue;
            if (step.kind == HANDLES_STEP_PUT || step.kind == HANDLES_STEP_PUT_SIGNAL)
                for (uint32_t i = 0; i < step.bytes; i++)
                    at[i] = handles_step_byte(&step, i);
            if (step.kind == HANDLES_STEP_P) *at = (uint8_t)step.value;
            if (step.kind == HANDLES_STEP_PUT_SIGNAL) sums[r]++;
            if (step.kind == HANDLES_STEP_ADD) sums[r] += step.value;
        }
    CHECK_OK(expar_get(group, seen, call->data, bytes, group->rank));
    CHECK_OK(expar_get(group, sums_seen, call->words + 8, (size_t)group->size * sizeof *sums, group->rank));
    CHECK(memcmp(seen, expected, bytes) == 0, "seed %u: a script left other bytes", call->seed);
    CHECK(memcmp(sums_seen, sums, (size_t)group->size * sizeof *sums) == 0, "seed %u: other sums", call->seed);
    free(expected);
    free(seen);
}

#endif
