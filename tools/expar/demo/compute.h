/* SPDX-License-Identifier: Apache-2.0 */
/* compute: the device that runs the model, as a table of operations on its memory, one object for each rank.
 *
 *   compute_cpu.c   kernels.c, experts.c, router.c on ordinary memory
 *   compute_cuda.c  kernels/model.cu on a GPU, in order on a stream of its own
 *
 * Both round every product and sum alike and add in the same order, so that they give the same bits. Operations return
 * nothing. The next `read` or `settle` waits for all earlier operations, and reports the first that failed. */
#ifndef EXPAR_DEMO_COMPUTE_H
#define EXPAR_DEMO_COMPUTE_H

#include "config.h"
#include "demo/kernels/forms.h"
#include <expar/tensor.h>

typedef struct compute compute;

/* A batch's routing, in memory of the compute. */
typedef struct routed_rows {
    int64_t count;
    const float *x;            /* [count][D] */
    const int32_t *topk_idx;   /* [count][top_k] */
    const float *topk_weights; /* [count][top_k] */
} routed_rows;

typedef struct compute_ops {
    /* Allocates memory that is zero at first. NULL leaves a text. Releasing NULL is allowed. */
    void *(*alloc)(compute *c, size_t bytes, demo_error *error);
    void (*release)(compute *c, void *memory);
    /* Copy from and to the host's memory. */
    bool (*write)(compute *c, void *to, const void *from, size_t bytes, demo_error *error);
    bool (*read)(compute *c, void *to, const void *from, size_t bytes, demo_error *error);
    /* Waits for all operations, and for other work on its stream. */
    bool (*settle)(compute *c, demo_error *error);
    void (*copy)(compute *c, void *to, const void *from, size_t bytes);
    /* reserve allocates memory for batches of at most max_rows rows. The next function sets the rows of the next
       operations. */
    bool (*reserve)(compute *c, int64_t max_rows, demo_error *error);
    void (*begin)(compute *c, const compute_row *rows, int64_t count);

    /* These work on the rows of the batch. x, q, k, v, out: [count][D]. */
    void (*embed)(compute *c, const float *embedding, float *x);
    /* Rotates queries and keys by the angles of their positions, and stores keys and values with their sequences. */
    void (*file)(compute *c, int32_t layer, const float *cosines, const float *sines, float *q, float *k,
                 const float *v);
    void (*attend)(compute *c, int32_t layer, const float *q, float *out);

    /* These work on any rows; kernels.h and router.h define each. */
    void (*rmsnorm)(compute *c, const float *x, int64_t rows, const float *g, float *y);
    void (*matmul)(compute *c, const float *x, int64_t rows, int64_t inputs, const float *w, int64_t outputs, float *y);
    void (*sigmoid)(compute *c, float *a, int64_t n);
    void (*add)(compute *c, float *y, const float *x, int64_t n);
    void (*choose)(compute *c, const float *scores, const float *bias, int64_t rows, int32_t *topk_idx,
                   float *topk_weights);
    /* y[row] = the sum over the experts that take part, in rising order, of weight · expert(x[row]). */
    void (*run_experts)(compute *c, const expert_weights *w, const routed_rows *rows, float *y);
    void (*free)(compute *c);
} compute_ops;

struct compute {
    const compute_ops *ops;
    model_sizes sizes;
    expar_device device; /* of its memory, for tensors */
    void *stream;        /* of its operations, for the library's calls; NULL on the CPU */
    int32_t num_sms;     /* that those calls may take; 0 on the CPU */
};

/* A kind of device, as --device names it. */
typedef struct compute_kind {
    const char *name;  /* "cpu", "cuda" */
    const char *where; /* "on the CPU" */
    bool threads;      /* ranks that the demo starts are threads of one process */
    /* Returns false, with a text, if this machine does not support it. */
    bool (*check)(demo_error *error);
    /* Creates the object of the rank `local` of `num_local` on this host. NVRTC may have to compile, which takes a
       second. */
    bool (*create)(const model_sizes *sizes, int32_t local, int32_t num_local, compute **out, demo_error *error);
} compute_kind;
extern const compute_kind compute_cpu, compute_cuda;

/* NULL is allowed. */
void compute_free(compute *c);

/* A contiguous view of its memory, for the library's calls. Those that only read are given const rows. */
expar_tensor compute_tensor(const compute *c, const void *data, expar_dtype dtype, int64_t rows, int64_t columns);

#endif
