/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary by which kernels reach mapped memory (link/device), by itself. A thread that finds a flag sees the row
 * before it, whichever way both were stored. The last one at a counter sees what all have stored. Bulk copies move all
 * bytes and no others. Each also with threads that are late at random. On GPU 0, or on a simulated one. */
#include "cuda/cuda.h"
#include "cuda/gpus.h"
#include "cuda/kernels/link.h"
#include "cuda/test_sources.h"
#include "gpu/delays.h"
#include "mem/device.h"
#include "oracle/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAIRS      4
#define ROUNDS     24
#define SEEDS      3
#define WARPS      (LINK_THREADS / 32)
#define TIMEOUT_NS (UINT64_C(60) * 1000000000)
#define UNTOUCHED  0x5a

#define ASSERT_OK(call)                                                                                                \
    do {                                                                                                               \
        expar_status status_of_call = (call);                                                                          \
        if (status_of_call != EXPAR_OK) fail_msg("%s: %s", #call, expar_last_error());                                 \
    } while (0)

static cuda_device *device;

/* Words between the host and kernels. */
typedef struct words {
    mem_pinned memory;
    uint32_t *wrong, *late, *lasts, *has_bulk, *counter; /* on the host */
} words;

/* Memory of the GPU, or of the host that it maps. */
typedef struct place {
    bool on_host;
    mem_pinned pinned;
    cu_address address;
    size_t bytes;
} place;

static void *address_in(const mem_pinned *memory, const void *host)
{
    return (uint8_t *)(uintptr_t)memory->device + ((const uint8_t *)host - (const uint8_t *)memory->host);
}

static words words_make(void)
{
    words w;
    ASSERT_OK(mem_pinned_create(5 * 64, &w.memory));
    memset(w.memory.host, 0, 5 * 64);
    uint32_t *at = w.memory.host;
    w.wrong = at;
    w.late = at + 16;
    w.lasts = at + 32;
    w.has_bulk = at + 48;
    w.counter = at + 64;
    return w;
}

static place place_make(bool on_host, size_t bytes, int value)
{
    place p = {.on_host = on_host, .bytes = bytes};
    if (on_host) {
        ASSERT_OK(mem_pinned_create(bytes, &p.pinned));
        memset(p.pinned.host, value, bytes);
        p.address = (cu_address)(uintptr_t)p.pinned.device;
    } else {
        ASSERT_OK(CUDA_CALL(MemAlloc, &p.address, bytes));
        ASSERT_OK(CUDA_CALL(MemsetD8, p.address, (unsigned char)value, bytes));
        ASSERT_OK(cuda_synchronize());
    }
    return p;
}

static void place_free(place *p)
{
    if (p->on_host)
        mem_pinned_free(&p->pinned);
    else
        ASSERT_OK(CUDA_CALL(MemFree, p->address));
}

static void place_write(const place *p, const void *from)
{
    if (p->on_host)
        memcpy(p->pinned.host, from, p->bytes);
    else
        ASSERT_OK(CUDA_CALL(MemcpyHtoD, p->address, from, p->bytes));
}

static void place_read(const place *p, void *to)
{
    if (p->on_host)
        memcpy(to, p->pinned.host, p->bytes);
    else
        ASSERT_OK(CUDA_CALL(MemcpyDtoH, to, p->address, p->bytes));
}

/* seed: of the delays; 0: none. */
static expar_status program_load(int64_t seed, cuda_program **out)
{
    const cuda_macro late = {"EXPAR_DELAYS", seed};
    for (size_t i = 0; i < test_num_sources; i++)
        if (strstr(test_sources[i].name, "kernels/link.cu"))
            return cuda_program_make(device, &test_sources[i], &late, seed ? 1 : 0, out);
    return error_set(EXPAR_ERR_ARGUMENT, "the tests have no kernel source link.cu");
}

static void run(const cuda_program *program, const char *kernel, uint32_t blocks, uint32_t shared_bytes, void *call)
{
    cuda_launch launch = {.blocks = blocks, .threads = LINK_THREADS, .shared_bytes = shared_bytes};
    ASSERT_OK(cuda_program_kernel(program, kernel, (int32_t)shared_bytes, &launch.function));
    ASSERT_OK(cuda_launch_kernel(&launch, (void *[]){call}));
    ASSERT_OK(cuda_synchronize());
}

/* Bodies with each seed; a GPU without a compiler has none late. */
static void with_delays(void (*body)(const cuda_program *program))
{
    ASSERT_OK(cuda_enter(device));
    for (int64_t seed = 0; seed <= SEEDS; seed++) {
        cuda_program *program;
        ASSERT_OK(program_load(seed, &program));
        if (seed && cuda_program_is_generic(program))
            printf("SKIPPED: no compiler for kernels, seed %d of delays\n", (int)seed);
        else
            body(program);
        const bool late = seed && !cuda_program_is_generic(program);
        const uint64_t before = delays_made();
        cuda_program_release(program);
        if (late) assert_true(delays_made() > before);
    }
    cuda_leave();
}

/* ---- mail -------------------------------------------------------------------------------------------------------- */

static void assert_rows_of_last_round(const place *rows, int64_t row_bytes, bool stamped)
{
    uint8_t *seen = malloc(rows->bytes);
    place_read(rows, seen);
    for (int64_t i = 0; i < (int64_t)rows->bytes / 4; i++) {
        const int64_t word = i % (row_bytes / 4);
        const int32_t pair = (int32_t)(i / (row_bytes / 4));
        uint32_t value;
        memcpy(&value, seen + 4 * i, sizeof value);
        if (!stamped) assert_int_equal(value, link_unit_word(pair, ROUNDS, word));
        if (stamped) assert_int_equal(value, word % 2 ? ROUNDS : link_unit_word(pair, ROUNDS, word / 2));
    }
    free(seen);
}

static void send_mail(const cuda_program *program, link_way way, bool on_host, int64_t row_bytes)
{
    words w = words_make();
    place rows = place_make(on_host, (size_t)(PAIRS * row_bytes), 0);
    place flags = place_make(on_host, PAIRS * LINK_FLAG_WORDS * sizeof(uint64_t), 0);
    link_mail_call call = {.way = way,
                           .rounds = ROUNDS,
                           .rows = (uint8_t *)(uintptr_t)rows.address,
                           .row_bytes = row_bytes,
                           .flags = (uint64_t *)(uintptr_t)flags.address,
                           .wrong = address_in(&w.memory, w.wrong),
                           .late = address_in(&w.memory, w.late),
                           .timeout_ns = TIMEOUT_NS};
    run(program, "link_mail", 2 * PAIRS, way == LINK_WAY_BULK ? (uint32_t)row_bytes + 8 : 0, &call);
    assert_int_equal(*w.late, 0);
    assert_int_equal(*w.wrong, 0);
    assert_rows_of_last_round(&rows, row_bytes, way == LINK_WAY_WORDS);
    place_free(&flags);
    place_free(&rows);
    mem_pinned_free(&w.memory);
}

/* A piece, one for each thread and one more, and many. */
static void send_all_mail(const cuda_program *program)
{
    static const int64_t units[] = {1, LINK_THREADS + 1, 1000};
    for (int32_t way = 0; way < LINK_MAPPED_WAYS; way++)
        for (int32_t on_host = 0; on_host < 2; on_host++)
            for (size_t i = 0; i < ARRAY_LENGTH(units); i++)
                send_mail(program, (link_way)way, on_host, 16 * units[i]);
}

static void test_rows_are_seen_after_their_flags(void **state)
{
    (void)state;
    with_delays(send_all_mail);
}

/* ---- counters ---------------------------------------------------------------------------------------------------- */

static void count_rounds(const cuda_program *program, bool system, bool on_host)
{
    const int64_t row_bytes = 16 * (LINK_THREADS + 1);
    words w = words_make();
    place rows = place_make(on_host, (size_t)(2 * PAIRS * row_bytes), 0);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        link_count_call call = {.rows = (uint8_t *)(uintptr_t)rows.address,
                                .row_bytes = row_bytes,
                                .counter = address_in(&w.memory, w.counter),
                                .round = round,
                                .system = system,
                                .wrong = address_in(&w.memory, w.wrong),
                                .lasts = address_in(&w.memory, w.lasts)};
        run(program, "link_count", 2 * PAIRS, 0, &call);
        assert_int_equal(*w.counter, (round + 1) * 2 * PAIRS);
        assert_int_equal(*w.lasts, round + 1);
        assert_int_equal(*w.wrong, 0);
    }
    place_free(&rows);
    mem_pinned_free(&w.memory);
}

static void count_all(const cuda_program *program)
{
    for (int32_t i = 0; i < 4; i++)
        count_rounds(program, i & 1, i & 2);
}

static void test_the_last_one_sees_all_rows(void **state)
{
    (void)state;
    with_delays(count_all);
}

/* ---- bulk copies ------------------------------------------------------------------------------------------------- */

#define STAGE_BYTES 1024
#define PITCH       (3 * STAGE_BYTES + 64)

static uint8_t byte_at(int64_t i)
{
    return (uint8_t)(link_unit_word(7, 0, i) & 0xff);
}

/* False: this GPU has no bulk copies. */
static bool copy_bytes(const cuda_program *program, int64_t bytes, bool from_host, bool to_host)
{
    words w = words_make();
    place from = place_make(from_host, WARPS * PITCH, 0), to = place_make(to_host, WARPS * PITCH, UNTOUCHED);
    uint8_t *sent = malloc(from.bytes), *came = malloc(to.bytes);
    for (int64_t i = 0; i < WARPS * PITCH; i++)
        sent[i] = byte_at(i);
    place_write(&from, sent);
    link_bulk_call call = {.from = (const uint8_t *)(uintptr_t)from.address,
                           .to = (uint8_t *)(uintptr_t)to.address,
                           .bytes = bytes,
                           .pitch = PITCH,
                           .stage_bytes = STAGE_BYTES,
                           .has_bulk = address_in(&w.memory, w.has_bulk)};
    run(program, "link_bulk", 1, WARPS * (STAGE_BYTES + 8), &call);
    const bool has_bulk = *w.has_bulk;
    place_read(&to, came);
    for (int64_t i = 0; i < WARPS * PITCH && has_bulk; i++)
        assert_int_equal(came[i], i % PITCH < bytes ? byte_at(i) : UNTOUCHED);
    free(sent);
    free(came);
    place_free(&to);
    place_free(&from);
    mem_pinned_free(&w.memory);
    return has_bulk;
}

static bool had_no_bulk;

/* Around a piece, around the stage, and around several. */
static void copy_all(const cuda_program *program)
{
    static const int64_t around[] = {0, 16, STAGE_BYTES, 2 * STAGE_BYTES, 3 * STAGE_BYTES};
    for (size_t i = 0; i < ARRAY_LENGTH(around); i++)
        for (int64_t off = -17; off <= 17; off++) {
            const bool near_unit = off >= -1 && off <= 1, off_by_unit = off >= 15 || off <= -15;
            if ((!near_unit && !off_by_unit) || around[i] + off < 0) continue;
            had_no_bulk = had_no_bulk || !copy_bytes(program, around[i] + off, off & 1, off & 2);
        }
}

static void test_bulk_copies_move_these_bytes_alone(void **state)
{
    (void)state;
    had_no_bulk = false;
    with_delays(copy_all);
    if (had_no_bulk) {
        printf("SKIPPED: GPU 0 has no bulk copies (before sm_90)\n");
        skip();
    }
}

/* ------------------------------------------------------------------------------------------------------------------ */

static int set_up(void **state)
{
    (void)state;
    delays_watch();
    return cuda_device_open(0, &device) == EXPAR_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    cuda_device_close(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_seen_after_their_flags),
        cmocka_unit_test(test_the_last_one_sees_all_rows),
        cmocka_unit_test(test_bulk_copies_move_these_bytes_alone),
    };
    if (gpus_count(1) < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
