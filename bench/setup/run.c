/* SPDX-License-Identifier: Apache-2.0 */
/* Measures creating and destroying groups and buffers. The ranks also have a group in which they meet before each
 * turn. */
#include "bench/bench.h"
#include "bench/setup/setup.h"

/* The object that a contender makes. */
struct making {
    const struct bench_world *world;
    const expar_group_options *wanted; /* of its group: nodes as the world's are */
    const char *what;
    bool group, buffer;
    expar_group *own; /* NULL: there is none now */
    expar_ep *ep;     /* the same */
    bool served;
};

static expar_group *group_of(const struct making *m)
{
    return m->own ? m->own : m->world->group;
}

static bool make(void *context)
{
    struct making *m = context;
    const expar_ep_config config = EXPAR_EP_CONFIG_INIT; /* all limits 0 */
    if (m->group && !bench_good(m->world, expar_group_create(m->wanted, &m->own))) return false;
    return !m->buffer || bench_good(m->world, expar_ep_create(group_of(m), &config, &m->ep));
}

/* ---- whether it serves ------------------------------------------------------------------------------------------- */

/* Sends one token of each rank to the next rank. */
static bool send_round(const struct making *m)
{
    const int32_t rank = m->world->rank, size = m->world->size, before = (rank + size - 1) % size;
    _Alignas(16) float row[4] = {(float)rank, 1, 2, 3};
    int32_t expert = (rank + 1) % size;
    expar_ep_dispatch_args args = EXPAR_EP_DISPATCH_ARGS_INIT;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    args.x = expar_tensor_2d(row, EXPAR_F32, 1, 4);
    args.topk_idx = expar_tensor_2d(&expert, EXPAR_I32, 1, 1);
    args.num_experts = size;
    if (!bench_good(m->world, expar_ep_dispatch(m->ep, &args, &result))) return false;
    const float *came = result.recv_x.data;
    const bool right = result.num_recv_tokens == 1 && came[0] == (float)before && came[3] == 3;
    expar_ep_output_release(result.output);
    expar_ep_handle_release(result.handle);
    return right || bench_complain(m->world, "the row that came is another one");
}

static bool serves(const struct making *m)
{
    if (expar_group_rank(group_of(m)) != m->world->rank || expar_group_size(group_of(m)) != m->world->size)
        return bench_complain(m->world, "the group has other ranks");
    return bench_good(m->world, expar_group_barrier(group_of(m))) && (!m->buffer || send_round(m));
}

static bool end(void *context, bool check)
{
    struct making *m = context;
    bool good = true;
    if (check) m->served = serves(m);
    if (m->ep) good = bench_good(m->world, expar_ep_destroy(m->ep));
    if (m->own) good = bench_good(m->world, expar_group_destroy(m->own)) && good;
    m->ep = NULL;
    m->own = NULL;
    return good;
}

/* ---- all together ------------------------------------------------------------------------------------------------ */

#define COUNT 3

int setup_run(const struct bench_world *world, const struct bench_options *options)
{
    struct making all[COUNT] = {{.what = "group", .group = true},
                                {.what = "buffer", .buffer = true},
                                {.what = "group and buffer", .group = true, .buffer = true}};
    const expar_group_options wanted = bench_group_options(options);
    struct contender contenders[COUNT];
    struct setup_result results[COUNT];
    bool right = true;
    for (int i = 0; i < COUNT; i++) {
        all[i].world = world;
        all[i].wanted = &wanted;
        contenders[i] = (struct contender){.run = make, .after = end, .context = &all[i]};
    }
    if (!bench_measure(world, options, "setup", contenders, COUNT)) return 1;
    for (int i = 0; i < COUNT; i++) {
        results[i] = (struct setup_result){
            .what = all[i].what, .times = contenders[i].times, .verified = bench_all_true(world, all[i].served)};
        right = right && results[i].verified;
    }
    if (world->rank == 0 && !setup_report(world, options, results, COUNT)) return 1;
    return right ? 0 : 1;
}

void setup_options_check(struct argp_state *state, struct bench_options *options)
{
    if (!options->num_ranks) options->num_ranks = 8;
    if (options->dispatch || options->combine || options->layout || options->rma.wanted || options->ll.wanted)
        argp_error(state, "setup is measured by itself: its results are of another kind");
    if (options->mpi) argp_error(state, "--mpi is for dispatch, combine and ll");
    if (options->cuda || options->num_gpus) argp_error(state, "setup is measured on the CPU only");
    if (options->num_ranks % options->nodes)
        argp_error(state, "--nodes %d does not divide -n %d", options->nodes, options->num_ranks);
}
