/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic to other nodes: messages and rows by the routing, and by the library's counts. */
#include "bench/low_latency/mode.h"
#include "ep/low_latency/tools.h"

static bool is_far(const struct bench_session *session, int rank)
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

int64_t ll_far_messages(const struct bench_session *session, int rank)
{
    return is_far(session, rank) ? messages_between(session->problem, session->problem->rank, rank) : 0;
}

int64_t ll_far_rows_back(const struct bench_session *session, int rank, bool reduced)
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

/* ---- what was sent ----------------------------------------------------------------------------------------------- */

struct bench_traffic ll_traffic(const struct bench_session *session)
{
    const link_sent sent = ll_sent_so_far(session->ll);
    return (struct bench_traffic){.sent = BENCH_SENT(sent)};
}

bool ll_sent_right(const struct bench_call *call)
{
    const struct bench_session *session = call->session;
    const bool combine = call->kind.combines;
    int64_t expected = 0;
    for (int rank = 0; rank < session->world->size; rank++)
        expected += combine ? ll_far_rows_back(session, rank, call->kind.reduced) : ll_far_messages(session, rank);
    return ll_verify_count(session, combine ? "rows to other nodes" : "messages to other nodes",
                           (uint64_t)call->traffic.sent.rows, (uint64_t)expected);
}
