/* SPDX-License-Identifier: Apache-2.0 */
/* Memory outside the heap that the caller registers (expar_register): a device that takes no more memory still carries
 * out puts and gets in it. Ranks are threads on a simulated device (fake.h). */
#include "net/gda/parts.h"
#include "net/stage.h"

#include <expar/expar.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RANKS 2
#define BYTES (1 << 20) /* more than is copied */

static void registered_range(expar_group *group, void *shared)
{
    static uint8_t buffers[RANKS][2 * BYTES];
    uint8_t *mine = buffers[group->rank];
    const int32_t next = (group->rank + 1) % RANKS, before = (group->rank + RANKS - 1) % RANKS;
    uint8_t *area;
    (void)shared;
    CHECK_OK(expar_malloc(group, BYTES, (void **)&area));
    memset(mine, 'a' + group->rank, sizeof buffers[0]);
    for (int i = 0; i < 2; i++)
        CHECK_OK(expar_register(group, mine, BYTES));
    CHECK_OK(expar_barrier_all(group));
    setenv("FAKE_VERBS", "reg_mr", 1); /* both ranks do that; from here on nothing can be registered */
    CHECK_OK(expar_put(group, area, mine + 100, BYTES - 100, next));
    CHECK_OK(expar_barrier_all(group));
    CHECK(area[0] == 'a' + before && area[BYTES - 101] == 'a' + before, "the data is %d", area[0]);
    CHECK_OK(expar_barrier_all(group));
    /* a part of it is not registered; nor is it all once it has been taken back */
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_put(group, area, mine + 1, BYTES, next));
    CHECK_TEXT("ibv_reg_mr failed for 1048576 bytes of memory at ");
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_register(group, mine + BYTES, BYTES));
    CHECK_TEXT("expar_register: gda: mlx5_7: ibv_reg_mr failed for 1048576 bytes of memory at ");
    CHECK_OK(expar_unregister(group, mine));
    CHECK_OK(expar_get(group, mine, area, BYTES, next));
    CHECK_OK(expar_unregister(group, mine));
    CHECK_STATUS(EXPAR_ERR_UNSUPPORTED, expar_get(group, mine, area, BYTES, next));
    CHECK_OK(expar_barrier_all(group));
    setenv("FAKE_VERBS", "open", 1);
    CHECK_OK(expar_register(group, mine + BYTES, BYTES)); /* the group's end takes it back */
    CHECK_OK(expar_free(group, area));
}

static void test_registered_range(void **state)
{
    const ranks_plan plan = {.kind = RANKS_THREADS, .size = RANKS};
    (void)state;
    assert_true(ranks_run(&plan, registered_range, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_registered_range)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
