/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between memory of any kind (mem/copier.h), on a driver that simulates GPUs. */
#include "base/knobs.h"
#include "mem/copier.h"
#include "mem/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define BYTES 600000
enum { KINDS = 3 };

typedef struct bench {
    cuda_device *device;
    mem_copier *copier;
    mem_pinned pinned[2];
    cu_address memory[2];
    uint8_t *ordinary[2];
} bench;
static bench b;

#define NEED(call) assert_int_equal((call), EXPAR_OK)

static int set_up(void **state)
{
    (void)state;
    NEED(cuda_device_open(0, &b.device));
    NEED(mem_copier_create(0, NULL, &b.copier));
    NEED(cuda_enter(b.device));
    for (int i = 0; i < 2; i++) {
        NEED(mem_pinned_create(BYTES, &b.pinned[i]));
        NEED(CUDA_CALL(MemAlloc, &b.memory[i], BYTES));
        b.ordinary[i] = malloc(BYTES);
    }
    cuda_leave();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    NEED(cuda_enter(b.device));
    for (int i = 0; i < 2; i++) {
        mem_pinned_free(&b.pinned[i]);
        NEED(CUDA_CALL(MemFree, b.memory[i]));
        free(b.ordinary[i]);
    }
    cuda_leave();
    mem_copier_destroy(b.copier);
    cuda_device_close(b.device);
    return 0;
}

static mem_side side(mem_side_kind kind, int number)
{
    void *const at[KINDS] = {b.ordinary[number], b.pinned[number].host, (void *)(uintptr_t)b.memory[number]};
    return (mem_side){.at = at[kind], .kind = kind};
}

/* Memory of the simulated GPU is the CPU's, too. */
static void check_copy(mem_side_kind to, mem_side_kind from, size_t bytes)
{
    uint8_t *dest = side(to, 0).at, *source = side(from, 1).at;
    memset(dest, 0xee, BYTES);
    for (size_t i = 0; i < BYTES; i++)
        source[i] = (uint8_t)(i * 7 + i / 251 + bytes);
    NEED(mem_copier_copy(b.copier, side(to, 0), side(from, 1), bytes));
    assert_memory_equal(dest, source, bytes);
    assert_true(bytes == BYTES || dest[bytes] == 0xee);
}

static void test_all_kinds(void **state)
{
    (void)state;
    const size_t piece = (size_t)knob(KNOB_COPY_PIECE_BYTES);
    const size_t sizes[] = {0, 1, 8, piece - 1, piece, piece + 1, 2 * piece, 3 * piece + 5, BYTES};
    for (int to = 0; to < KINDS; to++)
        for (int from = 0; from < KINDS; from++)
            for (size_t i = 0; i < ARRAY_LENGTH(sizes); i++)
                check_copy((mem_side_kind)to, (mem_side_kind)from, sizes[i]);
}

/* Calls that hold all lanes for their copies keep waiting neither those inside a GPU, nor the owner's thread. */
static void test_lanes_apart(void **state)
{
    (void)state;
    uint64_t bytes;
    mem_lane *first = mem_copier_borrow(b.copier), *second = mem_copier_borrow(b.copier);
    mem_lane *own = mem_copier_own_lane(b.copier);
    assert_true(first != second && own != first && own != second);
    assert_true(mem_lane_piece(first, 0, &bytes).at != mem_lane_piece(own, 0, &bytes).at);
    check_copy(MEM_DEVICE, MEM_DEVICE, BYTES);
    check_copy(MEM_PINNED, MEM_PAGEABLE, BYTES);
    NEED(mem_lane_copy(own, side(MEM_DEVICE, 0), side(MEM_PAGEABLE, 0), BYTES));
    mem_copier_return(b.copier, first);
    mem_copier_return(b.copier, second);
    check_copy(MEM_DEVICE, MEM_PINNED, BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_kinds),
        cmocka_unit_test(test_lanes_apart),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
