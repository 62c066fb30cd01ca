/* SPDX-License-Identifier: Apache-2.0 */
/* The codec in kernels against the codec on the CPU: the same rows must give the same bytes, and numbers back. */
#include "cuda/gpus.h"
#include "cuda/test_sources.h"
#include "mem/device.h"
#include "oracle/random.h"
#include "oracle/unit.h"
#include "proto/codec/codec.h"

#include <stdlib.h>
#include <string.h>

#define ROWS 64

#define ASSERT_OK(call)                                                                                                \
    do {                                                                                                               \
        expar_status status_of_call = (call);                                                                          \
        if (status_of_call != EXPAR_OK) fail_msg("%s: %s", #call, expar_last_error());                                 \
    } while (0)

static cuda_device *device;
static cuda_program *program;

/* Memory of one trial, which CPU and GPU see. */
typedef struct trial {
    int32_t format, dtype;
    int64_t hidden, rows;
    mem_pinned x, payload, scales, back;
} trial;

static size_t at_least_one(int64_t bytes)
{
    return bytes > 0 ? (size_t)bytes : 1;
}

static trial trial_make(int32_t format, int32_t dtype, int64_t hidden, int64_t rows)
{
    trial t = {.format = format, .dtype = dtype, .hidden = hidden, .rows = rows};
    ASSERT_OK(cuda_enter(device));
    ASSERT_OK(mem_pinned_create((size_t)(rows * hidden * (dtype == CODEC_F32 ? 4 : 2)), &t.x));
    ASSERT_OK(mem_pinned_create((size_t)(rows * codec_row_bytes(format, hidden)), &t.payload));
    ASSERT_OK(mem_pinned_create(at_least_one(rows * codec_scale_bytes(format, hidden)), &t.scales));
    ASSERT_OK(mem_pinned_create((size_t)(rows * hidden) * sizeof(float), &t.back));
    return t;
}

static void trial_free(trial *t)
{
    mem_pinned_free(&t->x);
    mem_pinned_free(&t->payload);
    mem_pinned_free(&t->scales);
    mem_pinned_free(&t->back);
    cuda_leave();
}

static void run_kernels(trial *t)
{
    cu_function encode, decode;
    ASSERT_OK(cuda_program_kernel(program, "codec_encode", 0, &encode));
    ASSERT_OK(cuda_program_kernel(program, "codec_decode", 0, &decode));
    cuda_launch launch = {.function = encode, .blocks = 8, .threads = 128};
    memset(t->scales.host, 0xee, at_least_one(t->rows * codec_scale_bytes(t->format, t->hidden)));
    ASSERT_OK(cuda_launch_kernel(&launch, (void *[]){&t->format, &t->dtype, &t->hidden, &t->rows, &t->x.device,
                                                     &t->payload.device, &t->scales.device}));
    launch.function = decode;
    ASSERT_OK(cuda_launch_kernel(
        &launch, (void *[]){&t->format, &t->hidden, &t->rows, &t->payload.device, &t->scales.device, &t->back.device}));
    ASSERT_OK(cuda_synchronize());
}

static void assert_row_is_the_cpus(const trial *t, int64_t r)
{
    int64_t bytes = codec_row_bytes(t->format, t->hidden), scale_bytes = codec_scale_bytes(t->format, t->hidden);
    const uint8_t *x = (const uint8_t *)t->x.host + r * t->hidden * (t->dtype == CODEC_F32 ? 4 : 2);
    void *payload = malloc((size_t)bytes), *scales = malloc(at_least_one(scale_bytes));
    float *back = malloc((size_t)t->hidden * sizeof *back);
    codec_encode_row(t->format, t->dtype, t->hidden, x, payload, scales);
    codec_decode_row(t->format, t->hidden, payload, scales, back);
    assert_memory_equal((const uint8_t *)t->scales.host + r * scale_bytes, scales, (size_t)scale_bytes);
    assert_memory_equal((const uint8_t *)t->payload.host + r * bytes, payload,
                        (size_t)codec_payload_bytes(t->format, t->hidden, scales));
    assert_memory_equal((const float *)t->back.host + r * t->hidden, back, (size_t)t->hidden * sizeof *back);
    free(payload);
    free(scales);
    free(back);
}

static void check_trial(trial *t)
{
    run_kernels(t);
    for (int64_t r = 0; r < t->rows; r++)
        assert_row_is_the_cpus(t, r);
}

/* Some rows of any bits, the rest of numbers of like size, below 1 in half of them. */
static void fill(random_source *random, const trial *t)
{
    size_t bytes = (size_t)(t->rows * t->hidden) * (t->dtype == CODEC_F32 ? 4 : 2);
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)t->x.host)[i] = (uint8_t)random_bits(random);
    for (int64_t i = 0; i < t->rows / 2 * t->hidden; i++)
        codec_store(t->dtype, t->x.host, i,
                    (float)((16 * random_unit(random) - 8) / (i < t->rows / 4 * t->hidden ? 8 : 1)));
}

static void random_rows_have_the_same_bytes(void **state)
{
    (void)state;
    random_source random = random_start(random_test_seed("test_gpu_codec"));
    for (int32_t dtype = CODEC_BF16; dtype <= CODEC_F32; dtype++)
        for (int32_t format = CODEC_BF16; format <= CODEC_LOGFMT; format++) {
            trial t = trial_make(format, dtype, CODEC_GROUP * random_between(&random, 1, 9), ROWS);
            fill(&random, &t);
            check_trial(&t);
            trial_free(&t);
        }
}

static void every_half_has_the_same_bytes(void **state)
{
    (void)state;
    for (int32_t dtype = CODEC_BF16; dtype <= CODEC_F16; dtype++)
        for (int32_t format = CODEC_BF16; format <= CODEC_LOGFMT; format++) {
            trial t = trial_make(format, dtype, 1024, 64);
            for (int32_t i = 0; i < 65536; i++)
                ((uint16_t *)t.x.host)[i] = (uint16_t)i;
            check_trial(&t);
            trial_free(&t);
        }
}

static int set_up(void **state)
{
    (void)state;
    for (size_t i = 0; i < test_num_sources; i++)
        if (strstr(test_sources[i].name, "codec.cu") && cuda_device_open(0, &device) == EXPAR_OK)
            return cuda_program_make(device, &test_sources[i], NULL, 0, &program) == EXPAR_OK ? 0 : -1;
    return -1;
}

static int tear_down(void **state)
{
    (void)state;
    cuda_program_release(program);
    cuda_device_close(device);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_rows_have_the_same_bytes),
        cmocka_unit_test(every_half_has_the_same_bytes),
    };
    if (gpus_count(1) < 1) return GPUS_SKIP;
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
