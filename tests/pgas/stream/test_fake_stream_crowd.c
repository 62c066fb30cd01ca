/* SPDX-License-Identifier: Apache-2.0 */
/* Many streams that wait at once, on the simulated driver: calls go on beside them, and the program is told when the
 * streams are as many as the GPU's queues. */
#include "ep/harness/idle_rank.h"
#include "pgas/memories.h"
#include "pgas/stream/parts.h"
#include <expar/stream.h>

#include <time.h>

enum { WAITS = 8 };

typedef struct crowd {
    idle_rank one;
    cu_stream streams[WAITS], beside;
    uint64_t *words, *block;
} crowd;

/* Until so many streams of the rank have come to their waits. */
static bool await_waits(const expar_group *group, int64_t number)
{
    const stream_service *service = stream_service_of(group);
    const int64_t end_ms = ranks_clock_ms() + RANKS_TIMEOUT_MS;
    while (service && atomic_load(&service->waiting) != number && ranks_clock_ms() < end_ms)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return CHECK(service && atomic_load(&service->waiting) == number, "other streams wait");
}

static bool crowd_begin(crowd *c, expar_group *group)
{
    *c = (crowd){.words = NULL};
    if (!idle_begin(&c->one, group)) return false;
    c->words = take_zeros(group, EXPAR_MEMORY_PINNED, WAITS * sizeof(uint64_t));
    c->block = take_zeros(group, EXPAR_MEMORY_DEVICE, 4096);
    for (int i = 0; i < WAITS; i++)
        CHECK_OK(CUDA_CALL(StreamCreate, &c->streams[i], CU_STREAM_NON_BLOCKING));
    CHECK_OK(CUDA_CALL(StreamCreate, &c->beside, CU_STREAM_NON_BLOCKING));
    return c->words && c->block && check_failures() == 0;
}

/* Dispatches, combines, and calls of the host and of another stream. */
static void calls_beside(crowd *c, expar_group *group)
{
    const int32_t next = (group->rank + 1) % group->size;
    uint64_t local[16] = {5}, seen = 0;
    CHECK(idle_dispatch(&c->one, EXPAR_F32) && idle_combine(&c->one), "no dispatch or no combine");
    CHECK_OK(CUDA_CALL(StreamSynchronize, c->one.stream));
    CHECK_OK(expar_put(group, c->block, local, sizeof local, next));
    CHECK_OK(expar_put_signal(group, NULL, NULL, 0, c->block + 20, 1, EXPAR_SIGNAL_SET, next));
    CHECK_OK(expar_wait_until_u64(group, c->block + 20, EXPAR_CMP_EQ, 1, &seen));
    CHECK_OK(expar_put_on_stream(group, c->block + 100, c->block, sizeof local, next, c->beside));
    CHECK_OK(expar_barrier_all_on_stream(group, c->beside));
    CHECK_OK(CUDA_CALL(StreamSynchronize, c->beside));
    CHECK_OK(expar_get(group, &seen, c->block + 100, sizeof seen, group->rank));
    CHECK(seen == 5, "%llu", (unsigned long long)seen);
}

static void wait_and_call(expar_group *group, void *shared)
{
    crowd c;
    (void)shared;
    if (!crowd_begin(&c, group)) return;
    for (int i = 0; i < WAITS; i++)
        CHECK_OK(expar_signal_wait_until_on_stream(group, c.words + i, EXPAR_CMP_EQ, 1, c.streams[i]));
    await_waits(group, WAITS);
    calls_beside(&c, group);
    const char *set = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    CHECK(atomic_load(&stream_service_of(group)->told_of_many) == !set, "%s", set ? "told" : "not told");
    CHECK_OK(expar_group_barrier(group));
    for (int i = 0; i < WAITS; i++)
        CHECK_OK(
            expar_put_signal(group, NULL, NULL, 0, c.words + i, 1, EXPAR_SIGNAL_SET, (group->rank + 1) % group->size));
    for (int i = 0; i < WAITS; i++) {
        CHECK_OK(CUDA_CALL(StreamSynchronize, c.streams[i]));
        CHECK_OK(CUDA_CALL(StreamDestroy, c.streams[i]));
    }
    await_waits(group, 0);
    CHECK_OK(CUDA_CALL(StreamDestroy, c.beside));
    idle_end(&c.one);
}

static void test_eight_waits(void **state)
{
    (void)state;
    unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    kind_run((ranks_plan){0}, 2, wait_and_call);
    kind_run_with("CUDA_DEVICE_MAX_CONNECTIONS", "32", 2, wait_and_call);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_eight_waits),
    };
    kind_read(argc, argv);
    num_gpus = 1; /* as idle_begin has it */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
