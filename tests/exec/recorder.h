/* SPDX-License-Identifier: Apache-2.0 */
/* A third executor, for tests of ep alone: it writes down what it is asked for, and carries nothing out. Whether facts
 * are known at once or when a stream comes there, how ranks answer and which step fails is the test's to say. */
#ifndef TESTS_EXEC_RECORDER_H
#define TESTS_EXEC_RECORDER_H

#include "exec/normal.h"

#define RECORDER_TEXT 1024

typedef struct recorder {
    executor base;
    executor_ops ops; /* its own copies: streams, stages and unit_bytes are the test's */
    normal_ops normal;
    void *memory; /* after the pool */
    ep_shape shape;
    char text[RECORDER_TEXT]; /* the operations in their order, a space after each */
    /* Set by the test: */
    int32_t coming;       /* rows that notify tells of, all from rank 0 */
    const char *fails;    /* the step that fails with EXPAR_ERR_MEMORY; NULL: none */
    const char *rejected; /* the step that finds rank 0's arguments refused; NULL: none */
    /* For the call that is to be told of its end: */
    executor_done_fn done;
    void *context;
} recorder;

/* For ep_create_with: facts are known when a step returns, or on a stream. */
extern const executor_kind recorder_at_once, recorder_on_streams;

static inline recorder *recorder_of(executor *base)
{
    return (recorder *)base;
}

#endif
