/* SPDX-License-Identifier: Apache-2.0 */
/* Expert parallelism, low-latency mode: dispatch and combine of few tokens, for decoding.
 *
 * Letters in shapes: B is the largest number of tokens of a rank, T is this rank's number of tokens in a call (0 to B).
 * H is the hidden size, K is top-k, E counts experts, N counts ranks, and L = E/N counts local experts. Expert e lives
 * on rank e / L and is local expert e % L there.
 *
 * This mode has no header exchange before the rows. Every rank writes directly into slots that are large enough for the
 * worst case, and counts travel ahead of the rows. A buffer is made for B, H, K and E. It never grows, and a call
 * beyond these limits is rejected before anything is sent. docs/internals/low-latency.md explains slots, counts, epochs
 * and hooks.
 *
 * A call either sends and receives, or only sends and returns a hook. Calling the hook receives. Between the two no
 * thread or kernel of the library runs for the call. At most two dispatches and two combines of a buffer may be open at
 * once. A third one returns EXPAR_ERR_STATE, and the open hooks stay valid. Hooks may be called in any order, each
 * once.
 *
 * All ranks of a buffer make the calls on it in the same order. Only one thread at a time may be in a call on it; a
 * second one gets EXPAR_ERR_BUSY. Calling a hook counts as a call here, but ranks may call hooks in different orders.
 * Calls with async_finish return at once. Any number of them may be queued; they are carried out one after the other,
 * and each one receives before the next one sends. Other calls, and hooks, run after all queued calls. With and without
 * async_finish, a dispatch fails with EXPAR_ERR_STATE if the dispatch two before it still waits for its hook when it
 * starts. The same holds for combines.
 *
 * A rank whose arguments are rejected returns its own error and tells the others. They return EXPAR_ERR_REMOTE with
 * that rank and reason, from the call or from its hook (on a GPU see below). Calls whose forms differ between ranks
 * (format, dtype, sum, weights given or not) return EXPAR_ERR_MISMATCH. In both cases the buffer stays usable. A call
 * that has begun poisons the buffer when it ends with EXPAR_ERR_PEER, EXPAR_ERR_ABORTED or EXPAR_ERR_INTERRUPTED. So
 * does an expert that gets more rows than it has places (EXPAR_ERR_LIMIT, see expar_ll_dispatch). On a poisoned buffer
 * later calls and hooks return the same error at once. With config.masking the loss of a rank is no error: the rank is
 * masked.
 *
 * On a GPU a call is put on its stream and returns. Its event tells its result. For a call without an event,
 * expar_ll_query tells the result once the stream has passed the call. If expar_ll_query is not called, a later call
 * without a hook, or a later hook, returns the error. This is the first call or hook that finds that the failed call
 * has ended. It is carried out, but gives no result.
 *
 * Ranks may be on several nodes: they reach unmapped memory over the network. On GPUs the buffer then lies in pinned
 * host memory, as expar_memory_alloc gives it. That is so for several nodes, for config.unmapped, and if
 * EXPAR_TRANSPORTS leaves out mapped memory. Where ranks are not mapped, on CPUs or GPUs, config.reserve_bytes must
 * be 0. Otherwise expar_ll_create returns EXPAR_ERR_UNSUPPORTED. */
#ifndef EXPAR_LOW_LATENCY_H
#define EXPAR_LOW_LATENCY_H

#include <expar/ep_output.h>
#include <expar/event.h>
#include <expar/group.h>
#include <expar/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A low-latency buffer: slots, rows and flags in the symmetric heap. */
typedef struct expar_ll expar_ll;
/* A handle says where the rows of one dispatch came from. Combines need it. */
typedef struct expar_ll_handle expar_ll_handle;
/* A hook is the receiving part of a call that only sent. */
typedef struct expar_ll_hook expar_ll_hook;

/* The format of rows on their way. Rows are quantised in groups, so all formats but PLAIN need an H that is a multiple
   of 128. docs/reference/low-latency-formats.md has the arithmetic and the error bounds. Values are part of the ABI. */
typedef enum expar_ll_format {
    EXPAR_LL_FORMAT_PLAIN = 0,     /* as given: bf16, f16 or f32; no scales */
    EXPAR_LL_FORMAT_FP8 = 1,       /* f8e4m3, scales f32 */
    EXPAR_LL_FORMAT_FP8_ROUND = 2, /* f8e4m3, scales f32, each rounded up to a power of two */
    EXPAR_LL_FORMAT_FP8_UE8M0 = 3, /* f8e4m3, the exponents of such powers of two, four in an int32 */
    EXPAR_LL_FORMAT_INT8 = 4,      /* i8, scales f32 */
    /* only for combines with EXPAR_LL_SUM_EXACT: 10 bits an element, logarithmic; rows arrive in the dtype of x */
    EXPAR_LL_FORMAT_LOGFMT = 5,
    /* only for dispatches: e2m1, two elements in a byte, the first one in the lower half; scales f8e4m3 of 16 elements,
       and a global scale (args.global_scale) */
    EXPAR_LL_FORMAT_NVFP4 = 6
} expar_ll_format;

/* Says which ranks add the rows of a token. */
typedef enum expar_ll_sum {
    /* one row for each slot travels back; the token's rank adds them in the order of slots */
    EXPAR_LL_SUM_EXACT = 0,
    /* each rank adds its rows of a token, rounds the sum, and sends it back; the token's rank adds those sums */
    EXPAR_LL_SUM_REDUCED = 1
} expar_ll_sum;

typedef struct expar_ll_config {
    /* set by EXPAR_LL_CONFIG_INIT */
    size_t struct_size;

    /* ---- what calls may be ---- */
    /* B, 1 to 65535 */
    int32_t max_tokens;
    /* H of all calls */
    int32_t hidden;
    /* the most bytes in a row of x, a multiple of 16: 2 · H for bf16 and f16, or 4 · H if f32 is used, too. 0: 2 · H */
    int64_t max_row_bytes;
    /* largest K, 1 to 32 */
    int32_t max_topk;
    /* E, a multiple of N */
    int32_t num_experts;
    /* the set of sums that combines will use, (1 << EXPAR_LL_SUM_EXACT) | …; 0: all */
    int32_t sums;

    /* ---- workers and memory ---- */
    /* type 0 or EXPAR_CPU: the CPU; or a GPU. All tensors of all calls are in its memory */
    expar_device device;
    /* CPU: threads of a call on each rank, up to 1024. 0: the number in EXPAR_THREADS. Without that variable: the
       host's cores divided by its ranks, and fewer for a call with few rows */
    int32_t num_threads;
    /* CUDA: SMs of a call; 0: the library chooses. May differ between ranks */
    int32_t num_sms;
    /* 1: peers are reached only through transports, even if their memory is mapped */
    int32_t unmapped;
    /* 0: the members above give the shape. Else, with masking: the bytes to reserve for a shape that each rank gives
       later by expar_ll_set_shape. In that case max_tokens, hidden, max_row_bytes, max_topk and num_experts must be
       0 */
    size_t reserve_bytes;

    /* ---- masks ---- */
    /* 1: a rank that is lost is masked, and the calls of the others continue */
    int32_t masking;
    /* with masking: a rank that answers but is later than this limit is masked. The shorter of this limit and the
       group's late limit counts. 0: the group's late limit. May differ between ranks */
    int64_t late_limit_ms;
} expar_ll_config;
#define EXPAR_LL_CONFIG_INIT EXPAR_STRUCT_INIT(expar_ll_config)

/* Computes the bytes that expar_ll_create takes on each of num_ranks ranks: of the symmetric heap, or of a GPU's
   memory. Local; needs no group. If ranks do not map each other's memory, a buffer also takes space for 256 messages
   and for the rows that come back. It takes the same space again for each region that masks add. On a GPU it takes
   space for B messages and B rows of each top-k slot, twice, for each rank that is not mapped. This function counts
   that only with config.unmapped. Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (names the member; also when a size
   overflows 64 bits). */
EXPAR_API expar_status expar_ll_get_buffer_size(const expar_ll_config *config, int32_t num_ranks, size_t *bytes);
/* Creates a buffer. Collective. Every member of config except num_threads, num_sms, device.index and late_limit_ms must
   be the same on all ranks. Otherwise all return EXPAR_ERR_MISMATCH, whose text names a rank and both values. *ll is
   set on success only. The group must outlive it. Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT, EXPAR_ERR_UNSUPPORTED,
   EXPAR_ERR_MEMORY, EXPAR_ERR_SYSTEM; the other ranks then return EXPAR_ERR_REMOTE. Also EXPAR_ERR_PEER,
   EXPAR_ERR_ABORTED. */
EXPAR_API expar_status expar_ll_create(expar_group *group, const expar_ll_config *config, expar_ll **ll);
/* Gives a shape, once, to a buffer that was made with reserve_bytes. Before that, masks may be set, queried and
   cleaned; other calls return EXPAR_ERR_STATE. Local: it waits for no rank. The first dispatch or combine of each rank
   waits until the other ranks have a shape, and masks a rank that does not come. The shape must be the same on all
   ranks. A call that meets a rank with another shape returns EXPAR_ERR_MISMATCH, and so do all later calls.

   Only max_tokens, hidden, num_experts, max_row_bytes, sums and max_topk of config are used. The buffer gets the
   largest K with which the shape fits: at least max_topk, at most 32 and num_experts. *max_topk is set to that K unless
   max_topk is NULL.

   Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT, EXPAR_ERR_STATE (made without reserve_bytes, or has a shape),
   EXPAR_ERR_MEMORY, EXPAR_ERR_BUSY. EXPAR_ERR_LIMIT: the shape does not fit; the text has the bytes.
   EXPAR_ERR_UNSUPPORTED: the GPU cannot run calls of this shape. After an error the buffer has no shape. On a GPU
   another attempt is possible only after EXPAR_ERR_LIMIT and the errors that are found before it. */
EXPAR_API expar_status expar_ll_set_shape(expar_ll *ll, const expar_ll_config *config, int32_t *max_topk);
/* Destroys the buffer. Collective unless the group has failed. Waits for calls in flight. Hooks that were not called
   are allowed; calling them afterwards returns EXPAR_ERR_STATE. Outputs, handles and hooks still have to be released.
   NULL is allowed. EXPAR_ERR_BUSY: another thread is in a call on it. EXPAR_ERR_STATE also in a child of fork, which is
   no rank. */
EXPAR_API expar_status expar_ll_destroy(expar_ll *ll);
/* Gives the buffer up on this rank alone, as expar_ep_abandon does: any thread, without waiting for any rank. Calls of
   the other ranks on it end with EXPAR_ERR_PEER, or mask this rank. On a GPU, calls of this rank that have not ended
   within 0.1 s are aborted, which takes at most 0.1 s more. Their events end with EXPAR_ERR_ABORTED. Always
   EXPAR_OK. */
EXPAR_API expar_status expar_ll_abandon(expar_ll *ll);

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

typedef struct expar_ll_dispatch_args {
    /* set by EXPAR_LL_DISPATCH_ARGS_INIT */
    size_t struct_size;

    /* ---- inputs ---- */
    /* [T][H] bf16, f16 or f32, H contiguous, rows 16-byte aligned */
    expar_tensor x;
    /* [T][K] i32 or i64, K contiguous; -1: no expert. A token may name an expert in several slots */
    expar_tensor topk_idx;
    /* [T][K] f32, K contiguous; or none. They are sent with the rows, for a reduced combine. Either all ranks give
       weights or none does */
    expar_tensor topk_weights;

    /* ---- options ---- */
    /* the format of rows on their way and in recv_x; the same on all ranks, not LOGFMT */
    expar_ll_format format;
    /* CUDA: SMs of this call; 0: as the buffer says. CPU: ignored */
    int32_t num_sms;

    /* ---- the caller's outputs ---- */
    /* the caller's own tensor for recv_x, with its shape, dtype and strides; none: the library allocates */
    expar_tensor out_x;
    /* the caller's own tensor for recv_scales, with its shape, dtype and strides; none: the library allocates */
    expar_tensor out_scales;
    /* the caller's own tensor for recv_count, with its shape, dtype and strides; none: the library allocates */
    expar_tensor out_count;
    /* [L] i32; or none. The call adds to it the number of rows that arrived for each local expert, even if the call
       fails. If forms differ between ranks, no row arrives */
    expar_tensor expert_recv_stats;
    /* [N] i64; or none. The call adds to it the nanoseconds that this rank waited for each source */
    expar_tensor wait_ns;

    /* ---- completion ---- */
    /* no argument is read before this event has happened; or NULL */
    expar_event *wait_event;
    /* 1: the call only sends; result.hook receives */
    int32_t hook;
    /* 1: the call returns once it knows the addresses of the results. They are filled when result.event has happened;
       do not touch any tensor of the call before that. Not with hook */
    int32_t async_finish;
    /* CUDA: the CUstream that the call is put on */
    void *stream;

    /* ---- NVFP4 ---- */
    /* [1] f32 in the memory of x, with NVFP4 only, and needed there: the global scale, by which all scales are
       multiplied. The call reads it when it reads x. It may differ between ranks, but a GEMM takes one for all rows */
    expar_tensor global_scale;
} expar_ll_dispatch_args;
#define EXPAR_LL_DISPATCH_ARGS_INIT EXPAR_STRUCT_INIT(expar_ll_dispatch_args)

/* Rows of local expert e are in recv_x[e] from index 0 on, without gaps: source ranks ascending, and the tokens of each
   source ascending. The same input gives the same bytes. Rows from recv_count[e] on are not written. */
typedef struct expar_ll_dispatch_result {
    /* set by EXPAR_LL_DISPATCH_RESULT_INIT */
    size_t struct_size;

    /* [L][N*B][H], of the dtype of x with PLAIN, else of the dtype of the format. With NVFP4 u8 [L][N*B][H/2] */
    expar_tensor recv_x;
    /* f32 [L][N*B][H/128], with UE8M0 i32 [L][N*B][ceil(H/512)]; the token dimension is contiguous (strides [.., 1,
       N*B]). None for a format without scales.

       With NVFP4 f8e4m3 [L][ceil(N*B/128)][H/64][512], contiguous. The scale of block b of row r is in [r / 128][b / 4]
       at r % 32 · 16 + r % 128 / 32 · 4 + b % 4, as tensor cores read it. What belongs to no received row is not
       written */
    expar_tensor recv_scales;
    /* [L] i32: rows of each local expert */
    expar_tensor recv_count;
    /* belongs to the caller */
    expar_ll_handle *handle;
    /* belongs to the caller; owns the tensors here that the library allocated */
    expar_ep_output *output;
    /* with args.hook: belongs to the caller; else NULL. Until the hook has been called, no tensor above is filled, and
       only x may be reused */
    expar_ll_hook *hook;
    /* with async_finish: belongs to the caller. Else NULL */
    expar_event *event;
} expar_ll_dispatch_result;
#define EXPAR_LL_DISPATCH_RESULT_INIT EXPAR_STRUCT_INIT(expar_ll_dispatch_result)

/* Carries each token to the ranks that hold its experts, once for each rank, and places it there once for each expert.
   A token may name an expert in several slots; each slot gets a row of its own. *result is written on EXPAR_OK only.

   Errors of this rank's arguments, found before a row is sent: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT, EXPAR_ERR_DTYPE,
   EXPAR_ERR_SHAPE, EXPAR_ERR_STRIDE, EXPAR_ERR_ALIGNMENT, EXPAR_ERR_DEVICE, EXPAR_ERR_HANDLE (the last reference to
   wait_event was dropped), EXPAR_ERR_MEMORY. Also EXPAR_ERR_LIMIT (T over B, K over max_topk) and EXPAR_ERR_STATE (two
   dispatches are open; wait_event ended with an error).

   EXPAR_ERR_INDEX: an index is out of range. The token with that index went nowhere; all others have arrived. With a
   hook or async_finish the hook or the event returns this error, and the handle cannot be used for a combine.
   EXPAR_ERR_LIMIT is also returned if an expert of this rank gets more rows than its N*B places. The rows that fit have
   arrived, and no rank can use the buffer any more.

   Other errors: EXPAR_ERR_REMOTE, EXPAR_ERR_MISMATCH, EXPAR_ERR_PEER, EXPAR_ERR_ABORTED, EXPAR_ERR_INTERRUPTED,
   EXPAR_ERR_BUSY. */
EXPAR_API expar_status expar_ll_dispatch(expar_ll *ll, const expar_ll_dispatch_args *args,
                                         expar_ll_dispatch_result *result);

/* ---- combine ----------------------------------------------------------------------------------------------------- */

/* Signals of a GEMM that is still writing x. The combine reads rows of x only after all words that count equal `value`.
   It reads each word with acquire, and changes none. On a CPU the call waits before it tells the other ranks, and a
   time-out rejects the call. On a GPU one block waits on the call's stream, also in graphs, and a time-out fails the
   buffer. Both are EXPAR_ERR_STATE, and the text names the local expert, the word, its value and the one expected. */
typedef struct expar_ll_signals {
    /* set by EXPAR_LL_SIGNALS_INIT */
    size_t struct_size;
    /* i32, on the buffer's device. With block_rows 0: [L], a word for all rows of an expert. Else [L*S], where S is N*B
       / block_rows, rounded up: word l*S + j stands for block_rows rows of expert l, from row j * block_rows on */
    expar_tensor words;
    /* [L] i32, with block_rows alone: rows of each expert, as recv_count of the dispatch. Only the words of blocks with
       such rows count */
    expar_tensor count;
    /* 0, or the rows of a block: 1 or more */
    int32_t block_rows;
    int32_t value;
    /* milliseconds; 0: the group's time-out */
    int64_t timeout_ms;
} expar_ll_signals;
#define EXPAR_LL_SIGNALS_INIT EXPAR_STRUCT_INIT(expar_ll_signals)

typedef struct expar_ll_combine_args {
    /* set by EXPAR_LL_COMBINE_ARGS_INIT */
    size_t struct_size;

    /* ---- inputs ---- */
    /* [L][N*B][H] bf16, f16 or f32, in the layout of recv_x. For zero copy: the tensor of
       expar_ll_get_combine_buffer */
    expar_tensor x;
    /* [T][K], the same as in the dispatch; a call with other experts is rejected */
    expar_tensor topk_idx;
    /* [T][K] f32 */
    expar_tensor topk_weights;

    /* ---- routing ---- */
    /* the handle of the dispatch; it serves several combines */
    const expar_ll_handle *handle;

    /* ---- options ---- */
    /* the same on all ranks */
    expar_ll_sum sum;
    /* PLAIN, or LOGFMT with EXPAR_LL_SUM_EXACT; the same on all ranks */
    expar_ll_format format;
    /* as in expar_ll_dispatch_args */
    int32_t num_sms;

    /* ---- the caller's outputs ---- */
    /* [T][H], dtype of x: the caller's own tensor for y; none: the library allocates */
    expar_tensor out_y;
    /* [N] i64, as in expar_ll_dispatch_args; or none */
    expar_tensor wait_ns;

    /* ---- completion ---- */
    /* as in expar_ll_dispatch_args */
    expar_event *wait_event;
    /* 1: the call only sends; result.hook receives. Not for EXPAR_LL_SUM_REDUCED if the dispatch had no weights, since
       ranks then exchange weights first and wait for them */
    int32_t hook;
    /* as in expar_ll_dispatch_args */
    int32_t async_finish;
    /* as in expar_ll_dispatch_args */
    void *stream;

    /* ---- overlap ---- */
    /* what to wait for before x is read, or NULL; read during the call */
    const expar_ll_signals *signals;
} expar_ll_combine_args;
#define EXPAR_LL_COMBINE_ARGS_INIT EXPAR_STRUCT_INIT(expar_ll_combine_args)

typedef struct expar_ll_combine_result {
    /* set by EXPAR_LL_COMBINE_RESULT_INIT */
    size_t struct_size;
    /* [T][H], dtype of x */
    expar_tensor y;
    /* belongs to the caller; owns y, unless y is the caller's own tensor */
    expar_ep_output *output;
    /* as in expar_ll_dispatch_result. Until the hook has been called, y is not filled, and only x may be reused */
    expar_ll_hook *hook;
    /* as in expar_ll_dispatch_result */
    expar_event *event;
} expar_ll_combine_result;
#define EXPAR_LL_COMBINE_RESULT_INIT EXPAR_STRUCT_INIT(expar_ll_combine_result)

/* Brings the rows back and sums them: y[t] = Σ_k weight[t][k] · row(t, k) in FP32, k ascending, rounded once. Slots of
   -1 and slots of masked ranks add nothing. A token without experts gives 0. EXACT: each product is rounded, then each
   addition. REDUCED: each rank sums over its own slots in that way and rounds to the dtype of x; those sums are added,
   ranks ascending, and rounded. Errors are those of expar_ll_dispatch without EXPAR_ERR_INDEX; also EXPAR_ERR_HANDLE,
   and EXPAR_ERR_UNSUPPORTED (a hook where weights must be sent first, zero copy with LOGFMT). */
EXPAR_API expar_status expar_ll_combine(expar_ll *ll, const expar_ll_combine_args *args,
                                        expar_ll_combine_result *result);
/* Gives memory in the layout of recv_x. A GEMM may write to it, and a combine then sends from it without a copy. *x is
   [L][N*B][H] of the dtype. Its address stays the same as long as the buffer lives; the pitch of its rows may exceed H.
   The first such call allocates the memory. The caller may use it from this call until the combine has sent it. Not
   collective. Errors: EXPAR_ERR_NULL, EXPAR_ERR_DTYPE, EXPAR_ERR_HANDLE, EXPAR_ERR_MEMORY, EXPAR_ERR_BUSY. */
EXPAR_API expar_status expar_ll_get_combine_buffer(expar_ll *ll, const expar_ll_handle *handle, expar_dtype dtype,
                                                   expar_tensor *x);

/* ---- hooks and handles ------------------------------------------------------------------------------------------- */

/* Carries out the receiving part of the call. The call's results are filled when this returns; on a GPU they are filled
   for later work on the stream. A hook is called once; a second call returns EXPAR_ERR_STATE. Errors are those of the
   dispatch or combine; on a GPU expar_ll_query returns them. */
EXPAR_API expar_status expar_ll_hook_call(expar_ll_hook *hook, void *stream);
/* Adds a reference, which belongs to the caller. Any thread. EXPAR_ERR_NULL, EXPAR_ERR_HANDLE (the last reference was
   dropped). */
EXPAR_API expar_status expar_ll_hook_retain(expar_ll_hook *hook);
/* Drops a reference, whether the hook has been called or not. A call whose hook is never called keeps one of the two
   places of its kind. NULL is allowed. Any thread. */
EXPAR_API void expar_ll_hook_release(expar_ll_hook *hook);

/* The contents of a handle. Its tensors lie on the device of the buffer, and last as long as the handle. They are
   filled at the same time as recv_x. */
typedef struct expar_ll_handle_info {
    /* set by EXPAR_LL_HANDLE_INFO_INIT */
    size_t struct_size;
    /* [L][N*B] i32: the row's token number at its source; -1 for a row that did not come */
    expar_tensor src_info;
    /* [L][N] i64: for each source (index of its first row) << 32 | (number of its rows) */
    expar_tensor range;
    /* T of the dispatch */
    int32_t num_tokens;
    /* B, H, K, E */
    int32_t max_tokens, hidden, num_topk, num_experts;
} expar_ll_handle_info;
#define EXPAR_LL_HANDLE_INFO_INIT EXPAR_STRUCT_INIT(expar_ll_handle_info)
/* Local; any thread. EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (struct_size), EXPAR_ERR_HANDLE (the last reference was
   dropped). */
EXPAR_API expar_status expar_ll_handle_get_info(const expar_ll_handle *handle, expar_ll_handle_info *info);
/* Handles are counted by references, as outputs are (expar/ep_output.h); they may outlive buffer and group. Any
   thread. */
EXPAR_API expar_status expar_ll_handle_retain(expar_ll_handle *handle);
EXPAR_API void expar_ll_handle_release(expar_ll_handle *handle);

/* ---- masks ------------------------------------------------------------------------------------------------------- */

/* This rank sends nothing to a rank that it has masked, and does not wait for it. The experts of a masked rank add
   nothing to y, and weights are not renormalised. Rows that the masked rank announced in a dispatch, but that did not
   come, are zero, with src_info -1. With config.masking, the wait that finds a rank lost (dead, silent, gone, or late
   beyond the late limit) masks it, and the call continues without an error. Without config.masking such a wait ends
   with EXPAR_ERR_PEER. A live rank that was masked masks its masker when it next waits for it. Errors of all three
   calls: EXPAR_ERR_NULL, EXPAR_ERR_STATE (config.masking is 0), EXPAR_ERR_BUSY.

   A masked rank might still write late to the places that combines write to. So combines move to another region of
   memory, whose place that rank does not know. A buffer has min(N, 4) regions. Three ranks that were masked at
   different times use them up, as long as each of them lives or is silent. A fourth masked rank finds no region until
   one of the three is dead, has come back by a clean, or has left the buffer. (A dead rank that is not mapped here
   counts as silent, since rows that it sent may still arrive.) For that fourth rank expar_ll_mask_set returns
   EXPAR_ERR_LIMIT. A wait or clean that would have to mask it ends with EXPAR_ERR_PEER. The other ranks learn of that,
   and continue without this rank.

   On a GPU expar_ll_mask_set and expar_ll_mask_clean first wait until this rank's calls have ended there.
   expar_ll_mask_query is put on the stream, after the calls before it. If ranks are threads of a process, it returns
   EXPAR_ERR_ARGUMENT for the default stream. */

/* Masks the rank if masked is 1, and removes the mask if masked is 0. A mask can be removed only if no call has begun
   or ended since it was set, and the masked rank has not masked this one. Otherwise the call returns EXPAR_ERR_STATE,
   and only expar_ll_mask_clean takes the rank back in. Local. EXPAR_ERR_ARGUMENT: rank is not a rank of the group or is
   this one, or masked is neither 0 nor 1. EXPAR_ERR_LIMIT: see above. */
EXPAR_API expar_status expar_ll_mask_set(expar_ll *ll, int32_t rank, int32_t masked);
/* Writes the masks to status: [N] i32 on the device of the buffer, 1 for masked ranks, else 0. Local. Errors:
   EXPAR_ERR_NULL, EXPAR_ERR_DTYPE, EXPAR_ERR_SHAPE, EXPAR_ERR_STRIDE, EXPAR_ERR_DEVICE. */
EXPAR_API expar_status expar_ll_mask_query(expar_ll *ll, const expar_tensor *status, void *stream);
/* Makes epochs, masks and slots equal again on all living ranks, and takes ranks back in. Collective among the living
   ranks: it does not wait for dead ranks, and leaves out silent ones. A rank that was masked calls it, too, and waits
   until the others call it. Handles made before this call cannot be used for later combines (EXPAR_ERR_HANDLE). No call
   may be open. Otherwise the rank with the open call returns EXPAR_ERR_STATE, the others return EXPAR_ERR_REMOTE, and
   nothing changes. EXPAR_ERR_PEER, EXPAR_ERR_ABORTED, EXPAR_ERR_INTERRUPTED: the buffer is poisoned. */
EXPAR_API expar_status expar_ll_mask_clean(expar_ll *ll);

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* Counts of a buffer on this rank. */
typedef struct expar_ll_stats {
    /* set by EXPAR_LL_STATS_INIT */
    size_t struct_size;
    /* bytes that this buffer takes of the symmetric heap */
    uint64_t heap_bytes;
    /* dispatches that have sent their rows */
    uint64_t dispatches;
    /* combines that have sent their rows */
    uint64_t combines;
    /* messages sent: one for each pair of a token and a destination rank */
    uint64_t dispatch_messages;
    /* rows that combines have sent back */
    uint64_t combine_rows;
    /* bytes of rows, message headers and scales, to other ranks and to this one */
    uint64_t bytes_sent;
} expar_ll_stats;
#define EXPAR_LL_STATS_INIT EXPAR_STRUCT_INIT(expar_ll_stats)

/* Reports failures of calls and hooks on a GPU that returned before they ended and have no event. Returns EXPAR_OK, or
   the first such failure since the last report, with its text. It never waits, so it cannot report a call that the
   stream has not passed yet. For a poisoned buffer it returns the reason every time. On the CPU calls and hooks report
   all failures themselves. Local. EXPAR_ERR_NULL, EXPAR_ERR_STATE (destroyed), EXPAR_ERR_BUSY (another thread is in a
   call on the buffer). */
EXPAR_API expar_status expar_ll_query(expar_ll *ll);

/* Fills *stats. Any thread, also while a call is running. EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (struct_size). */
EXPAR_API expar_status expar_ll_get_stats(expar_ll *ll, expar_ll_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
