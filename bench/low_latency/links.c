/* SPDX-License-Identifier: Apache-2.0 */
/* Links of low-latency mode. A dispatch carries one message for each token and rank that it goes to. A combine carries
 * the experts' rows, or with reduced sums one row for each message. */
#include "bench/frame/links.h"
#include "bench/low_latency/mode.h"

static void add_messages(const struct bench_session *session, size_t bytes, bool back, struct bench_flow *flow)
{
    const struct problem *problem = session->problem;
    for (int source = 0; source < problem->num_ranks; source++)
        for (int64_t token = 0; token < problem->tokens; token++)
            for (int target = 0; target < problem->num_ranks; target++)
                if (problem_goes_to(problem, source, token, target))
                    bench_flow_add(flow, back ? target : source, back ? source : target, bytes);
}

static void add_rows_back(const struct bench_session *session, size_t bytes, struct bench_flow *flow)
{
    const struct problem *problem = session->problem;
    for (int source = 0; source < problem->num_ranks; source++)
        for (int64_t token = 0; token < problem->tokens; token++)
            for (int k = 0; k < problem->topk; k++) {
                const int rank = ll_layout_rank(problem, source, token, k);
                if (rank >= 0) bench_flow_add(flow, rank, source, bytes);
            }
}

#define LOGFMT_GROUP       128
#define LOGFMT_GROUP_BYTES 168 /* 10 bits an element, and the least and largest magnitude */

/* LogFMT is for rows of combines, and all other formats are for dispatches. */
void ll_flows(const struct bench_call *call, struct bench_flow *flow)
{
    const struct bench_session *session = call->session;
    const bool coded = session->format->wire == EXPAR_LL_FORMAT_LOGFMT;
    const size_t coded_bytes = (size_t)session->problem->hidden / LOGFMT_GROUP * LOGFMT_GROUP_BYTES;
    const size_t back_bytes = coded ? coded_bytes : session->problem->row_bytes;
    if (call->kind.dispatches) add_messages(session, ll_wire_bytes(session), false, flow);
    if (!call->kind.combines) return;
    if (call->kind.reduced)
        add_messages(session, back_bytes, true, flow);
    else
        add_rows_back(session, back_bytes, flow);
}
