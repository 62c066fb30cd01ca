/* SPDX-License-Identifier: Apache-2.0 */
/* The copy limit on GPUs: a kernel with as many SMs as the library's call, and the same list of (row, places). The
 * places are outputs of dispatches that the session keeps: one is pushed to, the other holds a combine's input and is
 * pulled from. */
#include "bench/gpu/gpu.h"
#include "bench/gpu/kernels/forms.h"
#include "ep/tools.h"
#include "tool_kernels.h"
#include <stdio.h>
#include <stdlib.h>

/* One kernel with its list. */
struct gpu_copy {
    const struct gpu_rank *rank;
    cu_function function;
    copy_list list;
    uint32_t blocks, warps, shared_bytes;
};

struct gpu_copies {
    ep_serving servings[BENCH_MAX_SERVINGS]; /* the options' */
    struct gpu_copy push[BENCH_MAX_SERVINGS], pull[BENCH_MAX_SERVINGS];
    expar_dispatch_result pushed, rows; /* held */
};

/* What kernels take of the shared memory for themselves, at most. */
#define STATIC_SHARED_BYTES 1024

expar_status gpu_copy_load(struct gpu_rank *rank)
{
    int32_t room = rank->device->shared_bytes - STATIC_SHARED_BYTES;
    expar_status status = tool_kernel_load(rank->device, "bench/gpu/kernels/copy_limit.cu", &rank->copy_program);
    if (status == EXPAR_OK) status = cuda_program_kernel(rank->copy_program, "bench_copy_push", room, &rank->push);
    if (status == EXPAR_OK) status = cuda_program_kernel(rank->copy_program, "bench_copy_pull", room, &rank->pull);
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
    return bench_good(&self->rank->world, cuda_launch_kernel(&launch, parameters));
}

int gpu_copy_add(struct bench_session *session, bool combine, struct contender *contenders)
{
    struct gpu_copies *copies = session->copies;
    contenders[0] = (struct contender){.run = copy_run, .context = &copies->push[session->serving]};
    if (combine) contenders[1] = (struct contender){.run = copy_run, .context = &copies->pull[session->serving]};
    return combine ? 2 : 1;
}

void gpu_copy_serve(const struct bench_session *session, int serving)
{
    const struct gpu_copies *copies = session->copies;
    if (*session->options->servings[serving].text) ep_serve(session->ep, &copies->servings[serving]);
}

/* ---- the list ---------------------------------------------------------------------------------------------------- */

/* Where a token's row belongs at a rank, whose block begins at `base`; 0: it does not go there. */
static uint64_t place_at(const struct problem *problem, int64_t token, int32_t rank, uint64_t base)
{
    int64_t position = problem->position[(size_t)token * (size_t)problem->num_ranks + (size_t)rank];
    return position < 0 ? 0 : base + (uint64_t)position * problem->row_bytes;
}

/* The places of each of this rank's rows, in the blocks that begin at `bases`, those of all ranks; as they are served.
   Of a push with warps for own rows, first the own one or 0. */
static bool fill_list(const struct bench_session *session, const uint64_t *bases, const struct gpu_copy *copy,
                      const ep_serving *serving, void *list)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    const int32_t size = world->size, own = world->rank;
    const bool apart = copy->list.own_warps > 0;
    size_t bytes = (size_t)problem->tokens * (size_t)size * sizeof(uint64_t);
    uint64_t *draft = world->device->draft(world, list, bytes);
    if (!draft) return bench_complain(world, "out of memory");
    for (int64_t token = 0; token < problem->tokens; token++) {
        int32_t count = 0;
        uint64_t *places = draft + token * size;
        if (apart) places[count++] = place_at(problem, token, own, bases[own]);
        for (int32_t number = 0; number < size; number++) {
            int32_t rank = ep_served(serving, own, size, token, number);
            uint64_t place = place_at(problem, token, rank, bases[rank]);
            if (place && !(apart && rank == own)) places[count++] = place;
        }
        while (count < size)
            places[count++] = 0;
    }
    return world->device->commit(world, list, draft, bytes);
}

static bool make_list(const struct bench_session *session, const void *rows, const ep_serving *serving,
                      struct gpu_copy *copy)
{
    const struct bench_world *world = session->world;
    uint64_t mine = (uint64_t)(uintptr_t)rows, *bases = calloc((size_t)world->size, sizeof *bases);
    size_t bytes = (size_t)session->problem->tokens * (size_t)world->size * sizeof *bases;
    void *list = world->device->alloc(world, bytes);
    copy->list.places = list;
    bool good = bases && list && bench_good(world, expar_group_allgather(world->group, &mine, bases, sizeof mine)) &&
                fill_list(session, bases, copy, serving, list);
    free(bases);
    return good;
}

/* Shared memory that a warp passes rows of this size through, and how many such stages an SM has room for. */
static int64_t stage_of(size_t row_bytes)
{
    return ((int64_t)row_bytes + 127) / 128 * 128;
}

static int64_t stages_of(const cuda_device *device, int64_t stage)
{
    return (device->shared_bytes - STATIC_SHARED_BYTES) / (stage + 8);
}

/* GPUs before 9.0 copy through registers. */
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

/* How ranks may be served; an empty one is the library's choice, and ascending for copies. */
static bool check_servings(const struct bench_world *world, const struct bench_options *options)
{
    char text[192];
    ep_serving unused;
    for (int i = 0; i < options->num_servings; i++) {
        if (!*options->servings[i].text || exec_serving_read(options->servings[i].text, &unused)) continue;
        snprintf(text, sizeof text, "--serve %s: " EXEC_SERVINGS " is expected", options->servings[i].text);
        return bench_complain(world, text);
    }
    return true;
}

/* A lane of the warp that pushes a row has one of its places. */
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
    if (!check_servings(world, options)) return false;
    return rank->device->major < 9 || (check_rows(world, options) && check_places(world, options));
}

/* The warps that have a row each on their way. */
static void choose_warps(struct gpu_copy *copy, const ep_serving *serving, int64_t fit)
{
    if (serving->rows && serving->rows / copy->blocks < fit) fit = serving->rows / copy->blocks;
    copy->warps = (uint32_t)(fit < 1 ? 1 : fit < 32 ? fit : 32);
    copy->list.own_warps = serving->own_warps;
    if (copy->list.own_warps >= (int32_t)copy->warps) copy->list.own_warps = (int32_t)copy->warps - 1;
}

/* As many warps as have room for a row each, or are to have one. */
static void plan(struct gpu_copy *copy, const struct bench_session *session, const ep_serving *serving,
                 cu_function function, const void *own)
{
    const struct gpu_rank *rank = session->world->gpu;
    const struct problem *problem = session->problem;
    *copy = (struct gpu_copy){.rank = rank,
                              .function = function,
                              .list = {.own = (uint8_t *)(uintptr_t)own,
                                       .rows = problem->tokens,
                                       .row_bytes = (int64_t)problem->row_bytes,
                                       .most = session->world->size},
                              .blocks = (uint32_t)session->workers};
    int64_t stage = stage_of(problem->row_bytes), fit = stages_of(rank->device, stage);
    choose_warps(copy, serving, rank->device->major < 9 ? 32 : fit);
    if (rank->device->major < 9) return;
    copy->list.stage_bytes = (int32_t)stage;
    copy->shared_bytes = copy->warps * (uint32_t)(stage + 8);
}

/* ---- outputs that are kept --------------------------------------------------------------------------------------- */

static bool hold(const struct bench_session *session, expar_dispatch_result *result)
{
    const expar_dispatch_args args = bench_dispatch_args(session, EXPAR_PATH_DIRECT);
    *result = (expar_dispatch_result)EXPAR_DISPATCH_RESULT_INIT;
    if (!bench_good(session->world, expar_dispatch(session->ep, &args, result))) return false;
    expar_ep_handle_destroy(result->handle);
    result->handle = NULL;
    return true;
}

/* A kernel of each kind as this serving says. Those that read have one list of places, and no first one. */
static bool open_serving(struct bench_session *session, int which)
{
    const struct gpu_rank *rank = session->world->gpu;
    struct gpu_copies *copies = session->copies;
    const ep_serving *serving = &copies->servings[which];
    struct gpu_copy *push = &copies->push[which], *pull = &copies->pull[which];
    plan(push, session, serving, rank->push, session->x);
    plan(pull, session, serving, rank->pull, session->y);
    pull->list.own_warps = 0;
    return make_list(session, session->pushed, serving, push) && make_list(session, session->rows, serving, pull);
}

bool gpu_copy_open(struct bench_session *session)
{
    struct gpu_copies *copies = calloc(1, sizeof *copies);
    if (!copies) return bench_complain(session->world, "out of memory");
    session->copies = copies;
    for (int i = 0; i < session->options->num_servings; i++)
        exec_serving_read(session->options->servings[i].text, &copies->servings[i]);
    if (!hold(session, &copies->pushed) || !hold(session, &copies->rows)) return false;
    session->pushed = copies->pushed.recv_x.data;
    session->rows = copies->rows.recv_x.data;
    for (int i = 0; i < session->options->num_servings; i++)
        if (!open_serving(session, i)) return false;
    return true;
}

void gpu_copy_close(struct bench_session *session, bool sound)
{
    const struct bench_world *world = session->world;
    struct gpu_copies *copies = session->copies;
    (void)sound;
    if (!copies) return;
    for (int i = 0; i < session->options->num_servings; i++) {
        world->device->free(world, (void *)(uintptr_t)copies->push[i].list.places);
        world->device->free(world, (void *)(uintptr_t)copies->pull[i].list.places);
    }
    expar_ep_output_release(copies->pushed.output);
    expar_ep_output_release(copies->rows.output);
    free(copies);
}
