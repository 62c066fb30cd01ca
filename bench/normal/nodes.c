/* SPDX-License-Identifier: Apache-2.0 */
/* Across nodes: the ranks' shares, the network limits of both operations, and the check that as many rows
 * were sent as the routing demands. */
#include "bench/frame/network.h"
#include "bench/normal/mode.h"
#include "ep/normal/tools.h"
#include <stdlib.h>
#include <string.h>

/* This rank's share of an operation's rows, by the routing alone. A token goes once to each other node that it has an
   expert on, to the rank there with the source's place in its node. It comes back from there once. A combine moves the
   same rows the other way. */
struct nodes_share {
    int64_t out;    /* tokens' records to other nodes */
    int64_t in;     /* records from there */
    int64_t inside; /* rows that it receives from other ranks of its node: their own tokens', and those they forward */
};

/* A session's `copies`. */
struct nodes_state {
    struct nodes_share share;
    struct network_limit *dispatch, *combine;
};

/* ---- what follows from the routing ------------------------------------------------------------------------------- */

static int first_of(const struct bench_world *world, int node)
{
    return node * world->each;
}

/* Returns the rank that forwards rows of the source on a node. On the source's own node it is the source. */
static int forwarder_of(const struct bench_world *world, int source, int node)
{
    return first_of(world, node) + source % world->each;
}

static bool goes_to_node(const struct bench_world *world, const struct problem *problem, int source, int64_t token,
                         int node)
{
    bool goes = false;
    for (int rank = first_of(world, node); rank < first_of(world, node + 1) && !goes; rank++)
        goes = problem_goes_to(problem, source, token, rank);
    return goes;
}

static int64_t records_to(const struct bench_world *world, const struct problem *problem, int source, int node)
{
    int64_t records = 0;
    for (int64_t token = 0; token < problem->tokens && source / world->each != node; token++)
        records += goes_to_node(world, problem, source, token, node);
    return records;
}

static struct nodes_share share_of(const struct bench_world *world, const struct problem *problem)
{
    const int own = world->rank / world->each;
    struct nodes_share share = {0};
    for (int node = 0; node < world->nodes; node++) {
        share.out += records_to(world, problem, world->rank, node);
        share.in += records_to(world, problem, forwarder_of(world, world->rank, node), own);
    }
    for (int64_t i = 0; i < problem->num_received; i++)
        share.inside += forwarder_of(world, problem->received[i].rank, own) != world->rank;
    return share;
}

/* ---- limits ------------------------------------------------------------------------------------------------------ */

/* Returns the smallest size of a record. Sums come back without further data. */
static size_t record_bytes(const struct problem *problem)
{
    const size_t slot = sizeof(int32_t) + sizeof(float);
    return problem->row_bytes + 4 * (size_t)problem->num_scales + (size_t)problem->topk * slot;
}

static struct network_limit *make_limit(const struct bench_session *session, bool combine)
{
    const struct bench_world *world = session->world;
    const struct problem *problem = session->problem;
    const int own = world->rank / world->each;
    size_t *bytes = calloc((size_t)world->size, sizeof *bytes);
    for (int node = 0; node < world->nodes && bytes; node++) {
        const int peer = forwarder_of(world, world->rank, node);
        const int64_t rows =
            combine ? records_to(world, problem, peer, own) : records_to(world, problem, world->rank, node);
        bytes[peer] = (size_t)rows * (combine ? problem->row_bytes : record_bytes(problem));
    }
    struct network_limit *limit = NULL;
    if (bench_all_true(world, bytes || bench_complain(world, "out of memory for bare puts")))
        limit = network_limit_create(world, bytes, 0);
    free(bytes);
    return limit;
}

static bool on_gpu(const struct bench_world *world)
{
    return world->place.type == EXPAR_CUDA;
}

/* Allocates rows in memory that peers of the node reach, as inside a node. On a GPU they are the caller's own. */
static bool make_rows(struct bench_session *session)
{
    const struct bench_world *world = session->world;
    const size_t bytes = (size_t)(session->problem->most_received + 1) * session->problem->row_bytes;
    void *rows = NULL;
    if (on_gpu(world)) {
        session->rows = world->device->alloc(world, bytes);
        return session->rows || bench_complain(world, "out of memory");
    }
    if (!bench_good(world, expar_malloc(world->group, bytes, &rows))) return false;
    memset(rows, 0, bytes);
    session->rows = rows;
    return true;
}

static void free_rows(const struct bench_session *session)
{
    const struct bench_world *world = session->world;
    if (on_gpu(world))
        world->device->free(world, session->rows);
    else
        bench_good(world, expar_free(world->group, session->rows));
}

bool nodes_open(struct bench_session *session)
{
    struct nodes_state *state = calloc(1, sizeof *state);
    if (!state) return bench_complain(session->world, "out of memory");
    session->copies = state;
    state->share = share_of(session->world, session->problem);
    return make_rows(session) && (state->dispatch = make_limit(session, false)) &&
           (state->combine = make_limit(session, true));
}

void nodes_close(struct bench_session *session, bool sound)
{
    struct nodes_state *state = session->copies;
    if (state) {
        network_limit_free(state->combine, sound);
        network_limit_free(state->dispatch, sound);
        free(state);
    }
    if (sound) free_rows(session);
}

int nodes_add_limits(struct bench_session *session, bool combine, struct contender *contenders)
{
    struct nodes_state *state = session->copies;
    return network_limit_contenders(combine ? state->combine : state->dispatch, contenders);
}

bool nodes_limit_verify(const struct bench_session *session, bool combine)
{
    const struct nodes_state *state = session->copies;
    return network_limit_verify(combine ? state->combine : state->dispatch);
}

/* ---- what was sent ----------------------------------------------------------------------------------------------- */

struct bench_traffic nodes_traffic(const struct bench_session *session)
{
    const struct nodes_state *state = session->copies;
    const link_sent sent = ep_sent_so_far(session->ep);
    return (struct bench_traffic){.sent = BENCH_SENT(sent), .inside_rows = (double)state->share.inside};
}

bool nodes_sent_right(const struct bench_call *call)
{
    const struct nodes_share *share = &((const struct nodes_state *)call->session->copies)->share;
    const bool combine = call->kind.combines;
    return call->traffic.sent.rows == (double)(combine ? share->in : share->out) ||
           bench_complain(call->session->world,
                          combine ? "a combine has not sent one sum for each record of its rail"
                                  : "a dispatch has not sent one record for each other node of a token");
}

const struct bench_site normal_nodes_site = {.default_workers = bench_cpu_threads, NODES_SITE};
