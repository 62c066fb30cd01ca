/* SPDX-License-Identifier: Apache-2.0 */
/* Loops of calls in a mode: dispatches, combines, or both, back to back; and what a result of any call begins with. */
#include "bench/frame/patterns.h"
#include "bench/frame/session.h"
#include <stdio.h>

static bool loop_call(void *context, bool last, expar_event **event)
{
    struct bench_call *call = context;
    const struct bench_mode *mode = call->session->mode;
    if (!mode->in_loop(call, event)) return false;
    if (!last) mode->release(call);
    return true;
}

/* Runs after a loop. All calls of this rank have ended, so its tensors are no longer read. */
static bool loop_after(void *context, int turn)
{
    struct bench_call *call = context;
    const struct bench_mode *mode = call->session->mode;
    const uint64_t salt = bench_measured_salt(call->session);
    bool good = mode->ended(call, turn);
    if (turn == BENCH_LOOPS) {
        good = good && mode->fill(call, salt);
        if (call->kind.combines) good = good && bench_spoil_y(call->session);
    }
    if (turn > BENCH_LOOPS) call->verified = good && mode->verify(call, salt);
    mode->release(call);
    return good;
}

struct bench_result *bench_result_of(const struct bench_call *call, struct bench_results *results)
{
    const struct bench_session *session = call->session;
    const struct bench_kind *kind = &call->kind;
    double messages = 0, bytes = 0;
    struct bench_result *result = bench_results_add(results);
    if (!result) {
        bench_complain(session->world, "out of memory");
        return NULL;
    }
    *result = (struct bench_result){.op = call->op,
                                    .pattern = kind->pattern,
                                    .dtype = session->problem->dtype,
                                    .workers = session->workers,
                                    .tokens = session->problem->tokens,
                                    .row_bytes = session->problem->row_bytes,
                                    .cached = kind->cached && (!kind->combines || kind->pattern == BENCH_PERIOD),
                                    .sum = !kind->combines ? NULL
                                           : kind->reduced ? "reduced"
                                                           : "exact",
                                    .verified = bench_all_true(session->world, call->verified)};
    session->mode->amounts(call, &messages, &bytes);
    if (session->world->rank == 0 && session->mode->flows && !bench_links_find(call, &result->links)) {
        bench_complain(session->world, "out of memory");
        return NULL;
    }
    bool good =
        bench_mean(session->world, messages, &result->messages) && bench_mean(session->world, bytes, &result->bytes);
    return good ? result : NULL;
}

static bool add_result(const struct bench_call *call, const struct bench_loop_times *times,
                       struct bench_results *results)
{
    struct bench_result *result = bench_result_of(call, results);
    if (!result) return false;
    result->phase = call->kind.hooked ? "hooks" : "call";
    result->loop = *times;
    result->expar = times->share;
    return call->session->mode->describe(call, result);
}

bool bench_loops(struct bench_call *call, struct bench_results *results)
{
    const struct bench_session *session = call->session;
    const struct bench_mode *mode = session->mode;
    struct bench_loop loop = {.call = loop_call, .after = loop_after, .context = call};
    struct bench_loop_times times = {0};
    char name[64], label[BENCH_LABEL_BYTES];
    snprintf(name, sizeof name, "%s %s", bench_pattern_name(call->kind.pattern), call->op);
    bench_session_label(session, name, label);
    bool good = mode->open(call) && bench_all_true(session->world, mode->fill(call, bench_first_salt(session))) &&
                bench_loop_measure(session->world, session->options, label, &loop, &times) &&
                add_result(call, &times, results);
    mode->close(call);
    return good;
}
