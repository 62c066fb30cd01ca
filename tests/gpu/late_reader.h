/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that runs on a stream of the test's and reads memory when the test lets it (cuda/kernels/late_copy.cu). */
#ifndef TESTS_GPU_LATE_READER_H
#define TESTS_GPU_LATE_READER_H

#include "gpu/layer.h"
#include "mem/device.h"

typedef struct late_reader {
    const card *card;
    cuda_program *program;
    cu_function copy;
    mem_pinned flag; /* a word, as the kernel's arguments say */
    expar_tensor seen;
} late_reader;

/* For as many bytes as the tensor of two dimensions has. Reads it once already: what the driver does with the first
   launch of a kernel may wait for others that run. */
bool late_reader_open(late_reader *reader, const card *c, const expar_tensor *like);
/* When no kernel of any rank waits; giving memory back may wait for it. */
void late_reader_close(late_reader *reader);
/* The kernel goes on the stream, and waits there. */
bool late_reader_start(late_reader *reader, const expar_tensor *source, cu_stream stream);
/* It reads; waits for the stream. True when it has seen those bytes. */
bool late_reader_finish(late_reader *reader, const void *expected, cu_stream stream);

#endif
