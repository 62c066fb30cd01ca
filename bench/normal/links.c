/* SPDX-License-Identifier: Apache-2.0 */
/* Links of normal mode. A row goes once to each rank of its own node that its token needs.
 * To another node it goes once, to the rank there with the source's place in its node, which forwards it. A combine
 * carries the same rows the other way. */
#include "bench/frame/links.h"
#include "bench/normal/mode.h"

struct course {
    const struct bench_session *session;
    struct bench_flow *flow;
    bool back; /* a combine */
    size_t row_bytes;
};

static void add(const struct course *course, int from, int to)
{
    bench_flow_add(course->flow, course->back ? to : from, course->back ? from : to, course->row_bytes);
}

/* Adds the rows of one token to the ranks of one node. */
static void add_node(const struct course *course, int source, int64_t token, int node)
{
    const struct bench_session *session = course->session;
    const int each = session->world->each;
    const int entry = source / each == node ? source : node * each + source % each;
    bool needed = false;
    for (int target = node * each; target < (node + 1) * each; target++) {
        if (!problem_goes_to(session->problem, source, token, target)) continue;
        add(course, entry, target);
        needed = true;
    }
    if (needed) add(course, source, entry);
}

static void add_all(const struct course *course)
{
    const struct bench_world *world = course->session->world;
    for (int source = 0; source < world->size; source++)
        for (int64_t token = 0; token < course->session->problem->tokens; token++)
            for (int node = 0; node < world->nodes; node++)
                add_node(course, source, token, node);
}

void normal_flows(const struct bench_call *call, struct bench_flow *flow)
{
    struct course course = {.session = call->session, .flow = flow, .row_bytes = call->session->problem->row_bytes};
    if (call->kind.dispatches) add_all(&course);
    course.back = true;
    if (((const struct normal_call *)call)->is_coded) course.row_bytes *= 2; /* rows of a combine are BF16 */
    if (call->kind.combines) add_all(&course);
}
