/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that reads late: program, flag, launch, comparison. */
#include "gpu/late_reader.h"
#include "cuda/kernels/late_copy.h"
#include "cuda/test_sources.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define UNREAD 0x3c

static expar_status load(late_reader *reader)
{
    for (size_t i = 0; i < test_num_sources; i++)
        if (strstr(test_sources[i].name, "late_copy.cu"))
            return cuda_program_make(reader->card->device, &test_sources[i], NULL, 0, &reader->program);
    return error_set(EXPAR_ERR_ARGUMENT, "the tests have no kernel source late_copy.cu");
}

static size_t bytes_of(const expar_tensor *tensor)
{
    return (size_t)(tensor->shape[0] * tensor->shape[1]) * expar_dtype_bytes(tensor->dtype);
}

static void set_flag(late_reader *reader, uint64_t value)
{
    atomic_store_explicit((_Atomic uint64_t *)reader->flag.host, value, memory_order_release);
}

/* Its stream holds nothing yet. */
static bool forget(const late_reader *reader, cu_stream stream)
{
    const expar_tensor *seen = &reader->seen;
    return CHECK_OK(CUDA_CALL(MemsetD8Async, (cu_address)(uintptr_t)seen->data, UNREAD, bytes_of(seen), stream)) &&
           CHECK_OK(CUDA_CALL(StreamSynchronize, stream));
}

bool late_reader_open(late_reader *reader, const card *c, const expar_tensor *like)
{
    const cu_stream stream = c->streams[CARD_STREAMS - 1];
    *reader = (late_reader){.card = c};
    bool open = CHECK_OK(load(reader)) &&
                CHECK_OK(cuda_program_kernel(reader->program, "late_copy", 0, &reader->copy)) &&
                CHECK_OK(mem_pinned_create(sizeof(uint64_t), &reader->flag)) &&
                card_take(c, &reader->seen, like->dtype, like->shape[0], like->shape[1]);
    if (!open) return false;
    void *expected = card_fetch(like, stream);
    open = late_reader_start(reader, like, stream) && late_reader_finish(reader, expected, stream);
    free(expected);
    return open;
}

void late_reader_close(late_reader *reader)
{
    card_give(&reader->seen);
    mem_pinned_free(&reader->flag);
    cuda_program_release(reader->program);
}

bool late_reader_start(late_reader *reader, const expar_tensor *source, cu_stream stream)
{
    late_copy_call call = {.flag = (const uint64_t *)(uintptr_t)reader->flag.device,
                           .source = source->data,
                           .target = reader->seen.data,
                           .words = (int64_t)(bytes_of(&reader->seen) / sizeof(uint32_t)),
                           .timeout_ns = (uint64_t)RANKS_TIMEOUT_MS / 2 * 1000000};
    void *parameters[] = {&call};
    const cuda_launch launch = {.function = reader->copy, .stream = stream, .blocks = 1, .threads = 32};
    set_flag(reader, 0);
    return forget(reader, stream) && CHECK_OK(cuda_launch_kernel(&launch, parameters));
}

bool late_reader_finish(late_reader *reader, const void *expected, cu_stream stream)
{
    CHECK(cuda_driver()->StreamQuery(stream) == CU_ERROR_NOT_READY, "the reader does not wait");
    set_flag(reader, 1);
    void *seen = card_fetch(&reader->seen, stream);
    const bool same = memcmp(seen, expected, bytes_of(&reader->seen)) == 0;
    free(seen);
    return CHECK(same, "a kernel has read other bytes");
}
