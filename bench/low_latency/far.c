/* SPDX-License-Identifier: Apache-2.0 */
/* Across nodes: messages and rows that go there by the routing, and what the library has sent. */
#include "bench/low_latency/session.h"

static bool is_far(const struct ll_session *session, int rank)
{
    const struct bench_world *world = session->world;
    return rank / world->each != world->rank / world->each;
}

static int64_t messages_between(const struct problem *problem, int source, int target)
{
    int64_t messages = 0;
    for (int64_t token = 0; token < problem->tokens; token++)
        messages += problem_goes_to(problem, source, token, target);
    return messages;
}

int64_t ll_far_messages(const struct ll_session *session, int rank)
{
    return is_far(session, rank) ? messages_between(session->problem, session->problem->rank, rank) : 0;
}

int64_t ll_far_rows_back(const struct ll_session *session, int rank, bool reduced)
{
    const struct problem *problem = session->problem;
    int64_t rows = 0;
    if (!is_far(session, rank)) return 0;
    if (reduced) return messages_between(problem, rank, problem->rank);
    for (int64_t token = 0; token < problem->tokens; token++)
        for (int k = 0; k < problem->topk; k++)
            rows += ll_layout_rank(problem, rank, token, k) == problem->rank;
    return rows;
}

size_t ll_far_row_bytes(const struct ll_session *session)
{
    const struct problem *problem = session->problem;
    return ll_format_row_bytes(session->format, problem->dtype, problem->hidden) +
           4 * (size_t)ll_format_scales(session->format, problem->hidden);
}

/* ---- what was sent ----------------------------------------------------------------------------------------------- */

void ll_traffic_begin(const struct ll_session *session, struct ll_traffic *traffic)
{
    const struct bench_device *device = session->world->device;
    if (device->ll_sent) traffic->sent = device->ll_sent(session->ll);
}

void ll_traffic_end(const struct ll_session *session, struct ll_traffic *traffic)
{
    const struct bench_device *device = session->world->device;
    if (!device->ll_sent) return;
    const struct bench_sent now = device->ll_sent(session->ll), before = traffic->sent;
    traffic->counted = true;
    traffic->sent = bench_sent_between(&before, &now);
}

static bool verify(const struct ll_session *session, const struct ll_traffic *traffic, int64_t expected,
                   const char *what)
{
    return !traffic->counted || ll_verify_count(session, what, (uint64_t)traffic->sent.rows, (uint64_t)expected);
}

bool ll_traffic_verify_dispatch(const struct ll_session *session, const struct ll_traffic *traffic)
{
    int64_t expected = 0;
    for (int rank = 0; rank < session->world->size; rank++)
        expected += ll_far_messages(session, rank);
    return verify(session, traffic, expected, "messages to other nodes");
}

bool ll_traffic_verify_combine(const struct ll_session *session, bool reduced, const struct ll_traffic *traffic)
{
    int64_t expected = 0;
    for (int rank = 0; rank < session->world->size; rank++)
        expected += ll_far_rows_back(session, rank, reduced);
    return verify(session, traffic, expected, "rows to other nodes");
}

bool ll_traffic_mean(const struct bench_world *world, const struct ll_traffic *mine, struct ll_traffic *mean)
{
    *mean = *mine;
    return !mine->counted || bench_sent_mean(world, &mine->sent, &mean->sent);
}
