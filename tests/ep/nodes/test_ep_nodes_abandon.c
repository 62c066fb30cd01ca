/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of one of two nodes abandons a buffer. Those of its node learn of it by its header, though nothing that comes
 * by its rail is forwarded any more. Those of the other node do, too. Thread ranks, or with the argument "processes"
 * process ranks. */
#include "ep/harness/stage.h"
#include "ep/normal/normal.h"
#include "exec/cpu/nodes/rails.h"
#include "oracle/unit.h"

#include <stdio.h>
#include <string.h>

#define RANKS          4
#define RANKS_PER_NODE 2

static ranks_kind kind;

typedef struct scene {
    traffic *traffic;
    answers *answers;
    int32_t leaver;
} scene;

static expar_status dispatch_alone(stage *s, expar_ep *ep, const traffic *t)
{
    static const trial_choice plain = {0};
    void *own_out = NULL;
    expar_ep_dispatch_result result = EXPAR_EP_DISPATCH_RESULT_INIT;
    expar_ep_dispatch_args args = trial_dispatch_args(t, s->rank, &plain, &s->area, &own_out);
    expar_status status = expar_ep_dispatch(ep, &args, &result);
    trial_dispatch_args_free(&args);
    return status;
}

static bool make_other(const stage *s, const scene *one, stage *other)
{
    const stage_plan plan = stage_plan_for(one->traffic, kind);
    *other = *s;
    return CHECK_OK(expar_ep_create(s->group, &plan.config, &other->ep));
}

/* On the leaver's node its header says it. Else its note does, that it does not come any more, which is found by
   asking: on the other node either may be first. */
static void check_told(stage *s, const scene *one, expar_ep *ep)
{
    const bool near = s->rank / RANKS_PER_NODE == one->leaver / RANKS_PER_NODE;
    char rank[16], text[64];
    snprintf(rank, sizeof rank, "rank %d", (int)one->leaver);
    snprintf(text, sizeof text, "%s has abandoned the buffer", rank);
    CHECK_STATUS(EXPAR_ERR_PEER, dispatch_alone(s, ep, one->traffic));
    CHECK_TEXT("expar_ep_dispatch", near ? text : rank, "abandoned the buffer");
}

/* The leaver is at once in its next buffer, where it waits for the others. */
static void trial_leaving(stage *s, void *shared)
{
    const scene *one = shared;
    stage other;
    for (int32_t calls = 0; calls < 2; calls++) {
        if (!make_other(s, one, &other)) return;
        if (calls) stage_round_trip(&other, one->traffic, one->answers, EXPAR_EP_PATH_QUEUE);
        if (s->rank != one->leaver) check_told(s, one, other.ep);
        CHECK_OK(s->rank == one->leaver ? expar_ep_abandon(other.ep) : expar_ep_destroy(other.ep));
        stage_round_trip(s, one->traffic, one->answers, EXPAR_EP_PATH_AUTO);
    }
}

static void run(stage_body body, int32_t leaver)
{
    static const int64_t num_tokens[RANKS] = {9, 3, 5, 12};
    const traffic_plan plan = traffic_plan_small(RANKS, RANKS_PER_NODE, num_tokens);
    random_source random = random_start(41);
    scene one = {.traffic = traffic_make(&plan, &random), .leaver = leaver};
    one.answers = answers_make(one.traffic, false, &random);
    stage_plan setting = stage_plan_for(one.traffic, kind);
    setting.spare_heap_bytes = (size_t)32 << 20;
    const bool passed = stage_run(&setting, body, &one);
    answers_free(one.answers);
    traffic_free(one.traffic);
    assert_true(passed);
}

static void test_all_learn_without_asking(void **state)
{
    (void)state;
    run(trial_leaving, 1);
    run(trial_leaving, 2);
}

int main(int argc, char **argv)
{
    kind = stage_kind(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_learn_without_asking)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
