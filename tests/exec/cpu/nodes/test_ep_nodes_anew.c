/* SPDX-License-Identifier: Apache-2.0 */
/* A buffer across nodes that is made in memory of the heap which has served others: words of the first call's epoch
 * stand there, wherever a flag may. None does when the buffer is made, and its first calls give the oracle's bytes. */
#include "ep/harness/stage.h"
#include "ep/normal/normal.h"
#include "exec/cpu/nodes/rails.h"
#include "oracle/unit.h"

enum { RANKS = 4, RANKS_PER_NODE = 2, SPARE_BYTES = 8 << 20 };

typedef struct scene {
    traffic *traffic;
    answers *answers;
    expar_ep_config config;
} scene;

/* Each says that the first thing of the first call is there. */
static void leave_words(expar_group *group)
{
    uint64_t *words = NULL;
    if (!CHECK_OK(expar_malloc(group, SPARE_BYTES, (void **)&words))) return;
    for (size_t i = 0; i < SPARE_BYTES / sizeof *words; i++)
        words[i] = ep_word(1, 1);
    CHECK_OK(expar_free(group, words));
}

/* At the ends of what peers put here; the rest of a place is as it was. */
static void check_words(const cpu_executor *cpu)
{
    const cpu_rails *rails = cpu->rails;
    const ep_rail_space *space = &rails->space;
    const int32_t nodes = rails->shape.nodes;
    for (uint64_t ring = 0; ring < (uint64_t)nodes * (uint64_t)cpu->shape.channels; ring++)
        for (int32_t place = 0; place < rails->shape.chunks; place++) {
            const ep_rail_end *end = rail_at(cpu, space->places + ep_rail_chunk_end(&rails->shape, ring, place));
            CHECK(end->tail == 0, "the tail of place %d of ring %llu", place, (unsigned long long)ring);
        }
    for (uint32_t epoch = 0; epoch < 2; epoch++)
        for (int32_t node = 0; node < nodes; node++) {
            const ep_rail_header *header = rail_at(cpu, ep_rail_header_at(space, nodes, epoch, node));
            CHECK(header->flag == 0, "the hello of node %d", node);
        }
    const uint64_t *begin = rail_at(cpu, space->replies), *end = rail_at(cpu, space->places);
    for (const uint64_t *word = begin; word < end; word++)
        if (!CHECK(*word == 0, "word %td of replies, dones and heads", word - begin)) return;
    CHECK(begin[(space->places - space->replies) / sizeof *begin] == ep_word(1, 1), "the memory is not what was left");
}

static void trial_anew(expar_group *group, void *shared)
{
    const scene *s = shared;
    const int32_t rank = expar_group_rank(group);
    const trial_choice plain = {0};
    const trial_area none = {0};
    trial_arrival arrival;
    expar_ep *ep = NULL;
    leave_words(group);
    if (!CHECK_OK(expar_ep_create(group, &s->config, &ep))) return;
    check_words((const cpu_executor *)ep->base.exec);
    CHECK_OK(expar_group_barrier(group));
    if (CHECK(trial_dispatch(ep, s->traffic, rank, &plain, &none, NULL, &arrival), "the dispatch")) {
        CHECK(trial_combine(ep, s->traffic, s->answers, rank, &plain, &none, arrival.handle, &arrival), "the combine");
        trial_release(&arrival, true);
    }
    CHECK_OK(expar_ep_destroy(ep));
}

static void test_in_used_memory(void **state)
{
    (void)state;
    static const int64_t num_tokens[RANKS] = {40, 3, 25, 12};
    const traffic_plan plan = traffic_plan_small(RANKS, RANKS_PER_NODE, num_tokens);
    random_source random = random_start(61);
    scene s = {.traffic = traffic_make(&plan, &random)};
    s.answers = answers_make(s.traffic, false, &random);
    const stage_plan setting = stage_plan_for(s.traffic, RANKS_THREADS);
    s.config = setting.config;
    ranks_plan ranks = setting.ranks;
    ranks.heap_bytes = 2 * (size_t)SPARE_BYTES;
    const bool passed = ranks_run(&ranks, trial_anew, &s);
    answers_free(s.answers);
    traffic_free(s.traffic);
    assert_true(passed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_in_used_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
