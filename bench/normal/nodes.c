/* SPDX-License-Identifier: Apache-2.0 */
/* Across nodes, on the CPU: shares of the ranks, network limits of both operations, what was sent and whether that is
 * as many rows as the routing demands. */
#include "bench/normal/nodes.h"
#include "bench/frame/network.h"
#include "ep/low_latency/tools.h"
#include "ep/normal/tools.h"
#include <stdlib.h>
#include <string.h>

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

/* The rank that forwards on a node what comes from the source: itself on its own. */
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

/* What a record cannot do without; sums come back bare. */
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
        limit = network_limit_create(world, bytes);
    free(bytes);
    return limit;
}

/* Rows lie where peers of the node reach them, as inside a node. */
static bool make_rows(struct bench_session *session)
{
    const struct bench_world *world = session->world;
    const size_t bytes = (size_t)(session->problem->most_received + 1) * session->problem->row_bytes;
    void *rows;
    if (!bench_good(world, expar_malloc(world->group, bytes, &rows))) return false;
    memset(rows, 0, bytes);
    session->rows = rows;
    return true;
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
    if (sound) bench_good(session->world, expar_free(session->world->group, session->rows));
}

int nodes_add_limits(struct bench_session *session, bool combine, struct contender *contenders)
{
    struct nodes_state *state = session->copies;
    return network_limit_contenders(combine ? state->combine : state->dispatch, contenders);
}

/* ---- what was sent ----------------------------------------------------------------------------------------------- */

static struct bench_sent sent_of(link_sent sent)
{
    return (struct bench_sent){.messages = (double)sent.messages,
                               .flags = (double)sent.flags,
                               .bytes = (double)sent.bytes,
                               .rows = (double)sent.rows};
}

struct bench_sent nodes_sent(const expar_ep *ep)
{
    return sent_of(ep_sent_so_far(ep));
}

struct bench_sent nodes_ll_sent(const expar_ll *ll)
{
    return sent_of(ll_sent_so_far(ll));
}

void bench_traffic_begin(const struct bench_session *session, struct bench_traffic *traffic)
{
    const struct bench_device *device = session->world->device;
    if (device->sent) traffic->sent = device->sent(session->ep);
}

void bench_traffic_end(const struct bench_session *session, struct bench_traffic *traffic)
{
    const struct bench_device *device = session->world->device;
    if (!device->sent) return;
    const struct bench_sent now = device->sent(session->ep), before = traffic->sent;
    const struct nodes_share *share = &((const struct nodes_state *)session->copies)->share;
    traffic->counted = true;
    traffic->sent = bench_sent_between(&before, &now);
    traffic->inside_rows = (double)share->inside;
}

bool bench_traffic_verify(const struct bench_session *session, bool combine, const struct bench_traffic *traffic)
{
    const struct nodes_state *state = session->copies;
    if (!traffic->counted) return true;
    const int64_t expected = combine ? state->share.in : state->share.out;
    if (!network_limit_verify(combine ? state->combine : state->dispatch)) return false;
    return traffic->sent.rows == (double)expected ||
           bench_complain(session->world, combine
                                              ? "a combine has not sent one sum for each record of its rail"
                                              : "a dispatch has not sent one record for each other node of a token");
}

bool bench_traffic_mean(const struct bench_world *world, const struct bench_traffic *mine, struct bench_traffic *mean)
{
    *mean = *mine;
    return !mine->counted || (bench_sent_mean(world, &mine->sent, &mean->sent) &&
                              bench_mean(world, mine->inside_rows, &mean->inside_rows));
}
