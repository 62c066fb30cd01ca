/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: streams of one-sided operations, each completed apart from the others (model: OpenSHMEM 1.5, section 9.5).
 *
 * A context belongs to a team, and its calls take PEs by the team's numbers. Its quiet and fence cover only operations
 * on it; those of the group, and the barriers, cover operations on the group. Operations and their errors are those of
 * expar/rma.h and expar/atomics.h. All calls give EXPAR_ERR_NULL for no context, EXPAR_ERR_HANDLE for a context that
 * was destroyed or whose team was destroyed. They give EXPAR_ERR_STATE if another thread uses a private one.
 *
 * Any thread of the rank may use a context, several at once as well, except for a private one. A context must not be
 * used while it is being destroyed. Handles are valid until the group is destroyed. */
#ifndef EXPAR_CONTEXT_H
#define EXPAR_CONTEXT_H

#include <expar/atomics.h>
#include <expar/rma.h>
#include <expar/team.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct expar_ctx expar_ctx;

/* Promises of the caller. Only PRIVATE has an effect: the library does not use the freedom that the other two give. */
#define EXPAR_CTX_SERIALIZED UINT32_C(1) /* no two threads use it at once */
#define EXPAR_CTX_PRIVATE    UINT32_C(2) /* only the thread that makes it uses it, and destroys it */
#define EXPAR_CTX_NOSTORE    UINT32_C(4) /* its quiet and fence need not be about stores through expar_ptr */

typedef struct expar_ctx_options {
    /* set by EXPAR_CTX_OPTIONS_INIT */
    size_t struct_size;
    /* EXPAR_CTX_SERIALIZED, … */
    uint32_t flags;
} expar_ctx_options;
#define EXPAR_CTX_OPTIONS_INIT EXPAR_STRUCT_INIT(expar_ctx_options)

/* Makes a context. Local; any thread. options may be NULL. EXPAR_ERR_ARGUMENT (struct_size not set, a flag that is not
   known), EXPAR_ERR_MEMORY, and those of expar/team.h. */
EXPAR_API expar_status expar_ctx_create(expar_team *team, const expar_ctx_options *options, expar_ctx **ctx);
/* Completes its operations as expar_ctx_quiet does, then destroys it; local. It is also destroyed if an operation on it
   has failed; that error is returned. NULL is allowed. expar_team_destroy does the same to all contexts of its team. */
EXPAR_API expar_status expar_ctx_destroy(expar_ctx *ctx);
/* Returns the context's team; NULL for NULL, and for a context that was destroyed. Any thread. */
EXPAR_API expar_team *expar_ctx_team(const expar_ctx *ctx);

/* As expar_fence and expar_quiet, for the operations on this context. */
EXPAR_API expar_status expar_ctx_fence(expar_ctx *ctx);
EXPAR_API expar_status expar_ctx_quiet(expar_ctx *ctx);

/* ---- the operations of expar/rma.h ------------------------------------------------------------------------------- */

EXPAR_API expar_status expar_ctx_put(expar_ctx *ctx, void *dest, const void *source, size_t bytes, int32_t pe);
EXPAR_API expar_status expar_ctx_get(expar_ctx *ctx, void *dest, const void *source, size_t bytes, int32_t pe);
EXPAR_API expar_status expar_ctx_put_nbi(expar_ctx *ctx, void *dest, const void *source, size_t bytes, int32_t pe);
EXPAR_API expar_status expar_ctx_get_nbi(expar_ctx *ctx, void *dest, const void *source, size_t bytes, int32_t pe);
EXPAR_API expar_status expar_ctx_iput(expar_ctx *ctx, void *dest, const void *source, ptrdiff_t dest_stride,
                                      ptrdiff_t source_stride, size_t element_bytes, size_t count, int32_t pe);
EXPAR_API expar_status expar_ctx_iget(expar_ctx *ctx, void *dest, const void *source, ptrdiff_t dest_stride,
                                      ptrdiff_t source_stride, size_t element_bytes, size_t count, int32_t pe);
EXPAR_API expar_status expar_ctx_iput_nbi(expar_ctx *ctx, void *dest, const void *source, ptrdiff_t dest_stride,
                                          ptrdiff_t source_stride, size_t element_bytes, size_t count, int32_t pe);
EXPAR_API expar_status expar_ctx_iget_nbi(expar_ctx *ctx, void *dest, const void *source, ptrdiff_t dest_stride,
                                          ptrdiff_t source_stride, size_t element_bytes, size_t count, int32_t pe);
EXPAR_API expar_status expar_ctx_put_signal(expar_ctx *ctx, void *dest, const void *source, size_t bytes,
                                            uint64_t *signal, uint64_t value, expar_signal_op op, int32_t pe);
EXPAR_API expar_status expar_ctx_put_signal_nbi(expar_ctx *ctx, void *dest, const void *source, size_t bytes,
                                                uint64_t *signal, uint64_t value, expar_signal_op op, int32_t pe);

#define EXPAR_CTX_RMA_DECLARE(T, S) EXPAR_RMA_DECLARE_ON(expar_ctx_, expar_ctx *ctx, T, S)
EXPAR_DATA_TYPES(EXPAR_CTX_RMA_DECLARE)
#undef EXPAR_CTX_RMA_DECLARE

/* ---- the operations of expar/atomics.h --------------------------------------------------------------------------- */

#define EXPAR_CTX_SWAP_DECLARE(T, S)    EXPAR_ATOMICS_SWAP_DECLARE_ON(expar_ctx_, expar_ctx *ctx, T, S)
#define EXPAR_CTX_ATOMICS_DECLARE(T, S) EXPAR_ATOMICS_DECLARE_ON(expar_ctx_, expar_ctx *ctx, T, S)
EXPAR_FLOAT_TYPES(EXPAR_CTX_SWAP_DECLARE)
EXPAR_WORD_TYPES(EXPAR_CTX_ATOMICS_DECLARE)
#undef EXPAR_CTX_ATOMICS_DECLARE
#undef EXPAR_CTX_SWAP_DECLARE

#ifdef __cplusplus
}
#endif
#endif
