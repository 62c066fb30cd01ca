/* SPDX-License-Identifier: Apache-2.0 */
/* Networks and ranks for tests. */
#include "netns/stage.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/mman.h>
#include <time.h>

#include <cmocka.h>

#define DEADLINE_MS 60000

static int set_up(void **state, int hosts)
{
    stage *self = mmap(NULL, sizeof *self, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (self == MAP_FAILED) return -1;
    *state = self;
    return netns_make_hosts(&self->net, hosts) ? 0 : -1;
}

int stage_set_up(void **state)
{
    return set_up(state, 2);
}

int stage_set_up_four(void **state)
{
    return set_up(state, 4);
}

int stage_tear_down(void **state)
{
    stage *self = *state;
    netns_drop(&self->net);
    return munmap(self, sizeof *self);
}

void stage_start(stage *self, const ranks_plan *plan, ranks_body body, stage_ranks *out)
{
    *out = (stage_ranks){.size = plan->size};
    assert_in_range(plan->size, 1, STAGE_RANKS);
    assert_true(ranks_host_start(&out->host));
    for (int32_t r = 0; r < plan->size; r++) {
        out->pids[r] = ranks_fork(plan, &out->host.id, r, body, self);
        assert_true(out->pids[r] > 0);
    }
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

void stage_await(const _Atomic int32_t *counter, int32_t count)
{
    int64_t deadline_ms = ranks_clock_ms() + DEADLINE_MS;
    while (atomic_load_explicit(counter, memory_order_relaxed) < count) {
        assert_true(ranks_clock_ms() < deadline_ms);
        nap();
    }
}

void stage_hold(const stage *self)
{
    int64_t deadline_ms = ranks_clock_ms() + DEADLINE_MS;
    while (atomic_load_explicit(&self->held, memory_order_relaxed) && ranks_clock_ms() < deadline_ms)
        nap();
}

bool stage_part(stage *self, int32_t size)
{
    int64_t deadline_ms = ranks_clock_ms() + DEADLINE_MS;
    atomic_fetch_add_explicit(&self->through, 1, memory_order_relaxed);
    while (atomic_load_explicit(&self->through, memory_order_relaxed) < size && ranks_clock_ms() < deadline_ms)
        nap();
    return atomic_load_explicit(&self->through, memory_order_relaxed) >= size;
}

void stage_finish(stage_ranks *ranks)
{
    bool late = false, passed = true;
    int64_t deadline_ms = ranks_clock_ms() + DEADLINE_MS;
    for (int32_t r = 0; r < ranks->size; r++)
        passed &= ranks_wait(ranks->pids[r], deadline_ms, &late) == 0;
    passed &= ranks_host_stop(&ranks->host);
    assert_false(late);
    assert_true(passed);
}
