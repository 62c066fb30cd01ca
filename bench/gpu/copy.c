/* SPDX-License-Identifier: Apache-2.0 */
/* The copy roofline on GPUs: a kernel with as many SMs as the library's call, and the same list of (row, places). The
 * places are outputs of dispatches that the session keeps: one is pushed to, the other holds a combine's input and is
 * pulled from. */
#include "bench/gpu/gpu.h"
#include "bench/gpu/kernels/forms.h"
#include "ep/normal/tools.h"
#include "proto/serving.h"
#include "tool_kernels.h"
#include <stdio.h>
#include <stdlib.h>

/* One kernel with its list, and the moments of its warps. */
struct gpu_copy {
    const struct gpu_rank *rank;
    struct kernel_stamps stamps;
    struct bench_late late;
    cu_function function;
    copy_list list;
    uint32_t blocks, warps, shared_bytes;
};

struct gpu_copies {
    struct gpu_copy push, pull;
    expar_ep_dispatch_result pushed, rows; /* held */
};

/* The most of the shared memory that kernels take for themselves. */
#define STATIC_SHARED_BYTES 1024

expar_status gpu_copy_load(struct gpu_rank *rank)
{
    int32_t spare = rank->device->shared_bytes - STATIC_SHARED_BYTES;
    expar_status status = tool_kernel_load(rank->device, "bench/gpu/kernels/copy_limit.cu", &rank->copy_program);
    if (status == EXPAR_OK) status = cuda_program_kernel(rank->copy_program, "bench_copy_push", spare, &rank->push);
    if (status == EXPAR_OK) status = cuda_program_kernel(rank->copy_program, "bench_copy_pull", spare, &rank->pull);
    return status;
}

static bool copy_run(void *context)
{
    struct gpu_copy *self = context;
    void *parameters[] = {&self->list};
    const cuda_launch launch = {.function = self->function,
                                .stream = self->rank->stream,
                                .blocks = self->blocks,
                                .threads = self->warps * 32,
                                .shared_bytes = self->shared_bytes};
    if (!bench_good(&self->rank->world, cuda_launch_kernel(&launch, parameters))) return false;
    if (self->list.rows > (int64_t)self->blocks * self->warps) self->list.before += (uint32_t)self->list.rows;
    return true;
}

/* Runs after a turn, as bench_late_note does after a call. */
static bool copy_after(void *context, bool check)
{
    struct gpu_copy *self = context;
    struct bench_moments *at = check ? NULL : bench_late_next(&self->late);
    if (at && !kernel_stamps_of_rows(&self->stamps, at)) *at = (struct bench_moments){0};
    return true;
}

static struct contender copy_contender(struct gpu_copy *self)
{
    return (struct contender){.run = copy_run, .after = copy_after, .context = self, .late = &self->late};
}

static int gpu_copy_add(struct bench_session *session, bool combine, struct contender *contenders)
{
    struct gpu_copies *copies = session->copies;
    contenders[0] = copy_contender(&copies->push);
    if (combine) contenders[1] = copy_contender(&copies->pull);
    return combine ? 2 : 1;
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* Writes the places of each of this rank's rows in the blocks at `bases`, those of all ranks. The order is that of a
   dispatch. */
static bool fill_list(const struct bench_session *session, const uint64_t *bases, void *list)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    size_t size = (size_t)world->size, bytes = (size_t)problem->tokens * size * sizeof(uint64_t);
    uint64_t *draft = world->device->draft(world, list, bytes);
    if (!draft) return bench_complain(world, "out of memory");
    for (int64_t token = 0; token < problem->tokens; token++) {
        size_t count = 0;
        uint64_t *places = draft + (size_t)token * size;
        for (int number = 0; number < world->size; number++) {
            const size_t target = (size_t)ep_served(world->rank, world->size, number);
            int64_t position = problem->position[(size_t)token * size + target];
            if (position >= 0) places[count++] = bases[target] + (uint64_t)position * problem->row_bytes;
        }
        while (count < size)
            places[count++] = 0;
    }
    return world->device->commit(world, list, draft, bytes);
}

static bool make_list(const struct bench_session *session, const void *rows, copy_list *copies)
{
    const struct bench_world *world = session->world;
    uint64_t mine = (uint64_t)(uintptr_t)rows, *bases = calloc((size_t)world->size, sizeof *bases);
    size_t bytes = (size_t)session->problem->tokens * (size_t)world->size * sizeof *bases;
    void *list = world->device->alloc(world, bytes);
    copies->places = list;
    copies->dealt = world->device->alloc(world, sizeof *copies->dealt);
    bool good = bases && list && copies->dealt &&
                bench_good(world, expar_group_allgather(world->group, &mine, bases, sizeof mine)) &&
                fill_list(session, bases, list);
    free(bases);
    return good;
}

/* Returns the shared memory through which a warp copies rows of this size. stages_of returns the number of such stages
   that fit on an SM. */
static int64_t stage_of(size_t row_bytes)
{
    return ((int64_t)row_bytes + 127) / 128 * 128;
}

static int64_t stages_of(const cuda_device *device, int64_t stage)
{
    return (device->shared_bytes - STATIC_SHARED_BYTES) / (stage + 8);
}

/* Checks the size of rows. GPUs before 9.0 copy through registers. */
static bool check_rows(const struct bench_world *world, const struct bench_options *options)
{
    const struct gpu_rank *rank = world->gpu;
    char text[160];
    for (int i = 0; i < options->num_dtypes; i++) {
        size_t row_bytes = (size_t)options->hidden * expar_dtype_bytes(options->dtypes[i]);
        if (stages_of(rank->device, stage_of(row_bytes)) > 0) continue;
        snprintf(text, sizeof text, "--hidden %d: rows of %zu bytes do not fit into what an SM has for them, %d bytes",
                 options->hidden, row_bytes, rank->device->shared_bytes - STATIC_SHARED_BYTES);
        return bench_complain(world, text);
    }
    return true;
}

/* Checks the number of places. Each lane of the warp that pushes a row has one place. */
static bool check_places(const struct bench_world *world, const struct bench_options *options)
{
    char text[128];
    if (world->size <= COPY_PLACES || options->topk <= COPY_PLACES) return true;
    snprintf(text, sizeof text, "--topk %d: the copy limit pushes a row to %d ranks at most, and there are %d",
             options->topk, COPY_PLACES, world->size);
    return bench_complain(world, text);
}

bool gpu_copy_check(const struct bench_world *world, const struct bench_options *options)
{
    const struct gpu_rank *rank = world->gpu;
    return rank->device->major < 9 || (check_rows(world, options) && check_places(world, options));
}

static bool open_stamps(struct gpu_copy *copy, const struct bench_session *session)
{
    if (!bench_late_open(&copy->late, session)) return false;
    if (session->options->unstamped) return true;
    const size_t warps = (size_t)copy->blocks * copy->warps;
    if (!kernel_stamps_open(&copy->stamps, session->world, GPU_MOMENTS, warps)) return false;
    copy->list.stamps = copy->stamps.words;
    return true;
}

/* Plans the launch: as many warps as fit with a row each, but no more than a dispatch has in flight. */
static void plan(struct gpu_copy *copy, const struct bench_session *session, cu_function function, const void *own)
{
    const struct gpu_rank *rank = session->world->gpu;
    const struct problem *problem = session->problem;
    *copy = (struct gpu_copy){.rank = rank,
                              .function = function,
                              .list = {.own = (uint8_t *)(uintptr_t)own,
                                       .rows = problem->tokens,
                                       .row_bytes = (int64_t)problem->row_bytes,
                                       .most = session->world->size},
                              .blocks = (uint32_t)session->workers,
                              .warps = 32};
    if (rank->device->major < 9) return;
    int64_t stage = stage_of(problem->row_bytes), fit = stages_of(rank->device, stage);
    copy->warps = (uint32_t)ep_warps_under_way(session->workers, (int32_t)(fit < 32 ? fit : 32), 1);
    copy->list.stage_bytes = (int32_t)stage;
    copy->shared_bytes = copy->warps * (uint32_t)(stage + 8);
}

/* ---- outputs that are kept --------------------------------------------------------------------------------------- */

static bool hold(const struct bench_session *session, expar_ep_dispatch_result *result)
{
    const expar_ep_dispatch_args args = normal_dispatch_args(session, EXPAR_EP_PATH_DIRECT);
    *result = (expar_ep_dispatch_result)EXPAR_EP_DISPATCH_RESULT_INIT;
    if (!bench_good(session->world, expar_ep_dispatch(session->ep, &args, result))) return false;
    expar_ep_handle_release(result->handle);
    result->handle = NULL;
    return true;
}

static bool gpu_copy_open(struct bench_session *session)
{
    const struct gpu_rank *rank = session->world->gpu;
    struct gpu_copies *copies = calloc(1, sizeof *copies);
    if (!copies) return bench_complain(session->world, "out of memory");
    session->copies = copies;
    if (!hold(session, &copies->pushed) || !hold(session, &copies->rows)) return false;
    session->pushed = copies->pushed.recv_x.data;
    session->rows = copies->rows.recv_x.data;
    plan(&copies->push, session, rank->push, session->x);
    plan(&copies->pull, session, rank->pull, session->y);
    return make_list(session, session->pushed, &copies->push.list) &&
           make_list(session, session->rows, &copies->pull.list) && open_stamps(&copies->push, session) &&
           open_stamps(&copies->pull, session);
}

static void gpu_copy_close(struct bench_session *session, bool sound)
{
    const struct bench_world *world = session->world;
    struct gpu_copies *copies = session->copies;
    (void)sound;
    if (!copies) return;
    world->device->free(world, (void *)(uintptr_t)copies->push.list.places);
    world->device->free(world, (void *)(uintptr_t)copies->pull.list.places);
    world->device->free(world, copies->push.list.dealt);
    world->device->free(world, copies->pull.list.dealt);
    kernel_stamps_close(&copies->push.stamps);
    kernel_stamps_close(&copies->pull.stamps);
    bench_late_close(&copies->push.late);
    bench_late_close(&copies->pull.late);
    expar_ep_output_release(copies->pushed.output);
    expar_ep_output_release(copies->rows.output);
    free(copies);
}

/* ---- clocks read in the kernels ---------------------------------------------------------------------------------- */

/* Turns clocks on or off. A clock costs one store for each block and moment, to the GPU's own memory. */
static bool gpu_clocks(const struct bench_session *session, bool wanted)
{
    return bench_good(session->world, ep_times_take(session->ep, wanted));
}

static bool gpu_moments(const struct bench_session *session, struct bench_moments *out)
{
    ep_times times;
    if (!ep_times_last(session->ep, &times)) return false;
    *out = gpu_moments_of_rows(&times);
    return true;
}

/* ---- the site ---------------------------------------------------------------------------------------------------- */

/* The library's choice, within the rank's share of its GPU. */
static int shared_sms(const struct bench_world *world, knob_id usual)
{
    const struct gpu_rank *rank = world->gpu;
    const int gpus = rank->crew->options->num_gpus, sharers = (world->size + gpus - 1) / gpus;
    const int most = rank->device->num_sms / sharers, chosen = (int)knob(usual);
    return most < chosen ? most : chosen;
}

static int default_sms(const struct bench_world *world)
{
    return shared_sms(world, KNOB_CUDA_SMS);
}

static int default_mover_sms(const struct bench_world *world)
{
    return shared_sms(world, KNOB_CUDA_HOSTED_SMS);
}

const struct bench_site gpu_normal_nodes_site = {.default_workers = default_mover_sms, NODES_SITE};

const struct bench_site gpu_normal_site = {
    .default_workers = default_sms,
    .check = gpu_copy_check,
    .open = gpu_copy_open,
    .close = gpu_copy_close,
    .clocks = gpu_clocks,
    .moments = gpu_moments,
    .add_copies = gpu_copy_add,
};
