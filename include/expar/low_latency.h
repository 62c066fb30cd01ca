/* SPDX-License-Identifier: Apache-2.0 */
/* Expert parallelism, low-latency mode: dispatch and combine of few tokens, for decoding.
 *
 * Letters in shapes: B tokens a rank at most, T tokens of this rank in a call (0 to B), H hidden, K top-k, E experts, N
 * ranks, L = E/N local experts. Expert e lives on rank e / L and is local expert e % L there.
 *
 * There is no notify: every rank writes straight into slots that are large enough for the worst case, and counts travel
 * with the rows. A buffer is made for B, H, K, E; it never grows, and a call beyond it is refused before anything is
 * sent. docs/internals/low-latency.md explains slots, counts, epochs, halves and hooks.
 *
 * A call sends and receives, or it only sends and gives back a hook, which receives when it is called. Between the two
 * nothing of the library runs for it. At most two dispatches and two combines of a buffer may be open at once; a third
 * is EXPAR_ERR_STATE, and the hooks that are open stay good. Hooks are called in any order, each once.
 *
 * Calls on one buffer are made in the same order on all its ranks; one thread at a time is in a call on it
 * (EXPAR_ERR_BUSY for a second one). Hooks count as calls there, but not in that order. Calls with async_finish return
 * at once, any number of them, and are carried out one behind the other; other calls, and hooks, come behind all of
 * them. Each is received before the next is sent; one that comes to its turn while the call before the last of its kind
 * still waits for its hook ends with EXPAR_ERR_STATE, as it would without.
 *
 * A rank whose arguments are refused returns its own error, and tells the others: they return EXPAR_ERR_REMOTE with
 * that rank and reason, from the call or its hook (GPU: see below). Calls whose forms do not fit between ranks (format,
 * dtype, sum, weights given or not) are EXPAR_ERR_MISMATCH. Either way the buffer stays usable. After EXPAR_ERR_PEER,
 * EXPAR_ERR_ABORTED, EXPAR_ERR_INTERRUPTED, or rows beyond an expert's places (EXPAR_ERR_LIMIT, see expar_ll_dispatch)
 * in a call that had begun it is poisoned: later calls and hooks return that
 * report at once. With config.masking the loss of a rank is no error: it is masked.
 *
 * On a GPU a call is put on its stream and returns. How it ended is told by its event. Without one expar_ll_query tells
 * it, once the stream has come past the call; or else the buffer's next call without a hook, or hook, that finds it
 * ended: that one is carried out, returns the error, and gives no result.
 *
 * Ranks on the CPU may be on several nodes: the network reaches those whose memory is not mapped. Ranks on GPUs must
 * all be mapped: expar_ll_create returns EXPAR_ERR_UNSUPPORTED for several nodes, for config.unmapped, and where
 * EXPAR_TRANSPORTS leaves out mapped memory. */
#ifndef EXPAR_LOW_LATENCY_H
#define EXPAR_LOW_LATENCY_H

#include <expar/ep_output.h>
#include <expar/event.h>
#include <expar/group.h>
#include <expar/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct expar_ll expar_ll;               /* a low-latency buffer: slots, units and words in the symmetric heap */
typedef struct expar_ll_handle expar_ll_handle; /* where the rows of one dispatch came from: for combines */
typedef struct expar_ll_hook expar_ll_hook;     /* the second half of a call */

/* How rows travel. Quantised ones go in groups of 128 elements, so H is a multiple of 128.
   docs/low-latency-formats.md has the arithmetic and the bounds of errors. Values are part of the ABI. */
typedef enum expar_ll_format {
    EXPAR_LL_FORMAT_PLAIN = 0,     /* as given: bf16, f16 or f32; no scales */
    EXPAR_LL_FORMAT_FP8 = 1,       /* f8e4m3, scales f32 */
    EXPAR_LL_FORMAT_FP8_ROUND = 2, /* f8e4m3, scales f32, each rounded up to a power of two */
    EXPAR_LL_FORMAT_FP8_UE8M0 = 3, /* f8e4m3, the exponents of such scales, four in an int32 */
    EXPAR_LL_FORMAT_INT8 = 4,      /* i8, scales f32 */
    EXPAR_LL_FORMAT_LOGFMT =
        5 /* combine with EXPAR_LL_SUM_EXACT only: 10 bits an element, logarithmic; what arrives is x's
                               dtype again */
} expar_ll_format;

/* Who sums a token's rows. */
typedef enum expar_ll_sum {
    EXPAR_LL_SUM_EXACT = 0, /* one row a slot travels back; the token's rank sums in the order of slots */
    EXPAR_LL_SUM_REDUCED =
        1 /* each rank sums its rows of a token, rounds, and sends one; the token's rank adds those */
} expar_ll_sum;

typedef struct expar_ll_config {
    /* set by EXPAR_LL_CONFIG_INIT */
    size_t struct_size;

    /* ---- what calls may be ---- */
    /* B, 1 to 65535 */
    int32_t max_tokens;
    /* H of all calls */
    int32_t hidden;
    /* largest H · bytes of an element of x, a multiple of 16: 2 · H (bf16, f16) or 4 · H (f32, too); 0: 2 · H */
    int64_t max_row_bytes;
    /* largest K, 1 to 32 */
    int32_t max_topk;
    /* E, a multiple of N */
    int32_t num_experts;
    /* the combines that will be made, (1 << EXPAR_LL_SUM_EXACT) | …; 0: all */
    int32_t sums;

    /* ---- workers and memory ---- */
    /* type 0 or EXPAR_CPU: the CPU; or a GPU. All tensors of all calls lie there */
    expar_device device;
    /* CPU: threads of a call on each rank, up to 1024; 0: as EXPAR_THREADS says, or else as the host has cores for
       its ranks and the call has rows for them */
    int32_t num_threads;
    /* CUDA: SMs of a call; 0 chooses. May differ between ranks */
    int32_t num_sms;
    /* CPU: 1: peers are reached through transports alone, even where their memory is mapped */
    int32_t unmapped;
    /* with masking: bytes for a shape that each rank names later, by expar_ll_set_shape; max_tokens, hidden,
       max_row_bytes, max_topk and num_experts are 0 then. 0: the buffer is made for these */
    size_t reserve_bytes;

    /* ---- masks ---- */
    /* 1: a rank that is lost is masked, and the calls of the others go on */
    int32_t masking;
    /* with masking: how long a rank that answers is waited for before it is masked, where that is less than the late
       limit of the group; 0: as that says. May differ between ranks */
    int64_t late_limit_ms;
} expar_ll_config;
#define EXPAR_LL_CONFIG_INIT EXPAR_STRUCT_INIT(expar_ll_config)

/* Bytes of symmetric heap (of a GPU: of its memory) that expar_ll_create takes on each of num_ranks ranks. Local, no
   group needed. Where ranks are not mapped, and with config.unmapped alone this counts it, 256 messages and room for
   the rows that come back more, and as much for each region that masks add. Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT
   (names the member; also when a size overflows 64 bits). */
EXPAR_API expar_status expar_ll_get_buffer_size(const expar_ll_config *config, int32_t num_ranks, size_t *bytes);
/* Collective; every member of config but num_threads, num_sms, device.index and late_limit_ms is the same on all ranks
   (EXPAR_ERR_MISMATCH, names a rank and both values). *ll is set on success only; the group must outlive it. Errors:
   EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT, EXPAR_ERR_UNSUPPORTED, EXPAR_ERR_MEMORY, EXPAR_ERR_SYSTEM; on the other ranks
   then EXPAR_ERR_REMOTE; EXPAR_ERR_PEER, EXPAR_ERR_ABORTED. */
EXPAR_API expar_status expar_ll_create(expar_group *group, const expar_ll_config *config, expar_ll **ll);
/* Gives a buffer that was made with reserve_bytes its shape, once: before that its masks may be set, queried and
   cleaned, and other calls are EXPAR_ERR_STATE. Local, so a rank that never makes its first call keeps nobody: the
   first call of each other rank waits until it has come, and masks it as any that does not come. The shape is the same
   on all ranks; a call that meets a rank with another one is EXPAR_ERR_MISMATCH, and so are all later ones. Of config
   max_tokens, hidden, num_experts, max_row_bytes and sums are looked at, and max_topk: the buffer gets the largest K,
   to 32 and to num_experts, with which the shape fits, that at least; *max_topk is set to it, where it is not NULL.
   Errors: EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT, EXPAR_ERR_STATE (made without reserve_bytes, or has a shape),
   EXPAR_ERR_LIMIT (the shape does not fit; the text has the bytes), EXPAR_ERR_UNSUPPORTED (a GPU cannot carry it out),
   EXPAR_ERR_MEMORY, EXPAR_ERR_BUSY; the buffer has no shape then, and on a GPU gets none any more but after
   EXPAR_ERR_LIMIT and what comes before that. */
EXPAR_API expar_status expar_ll_set_shape(expar_ll *ll, const expar_ll_config *config, int32_t *max_topk);
/* Collective while the group is sound. Waits for calls in flight; hooks that were not called are allowed, and return
   EXPAR_ERR_STATE from then on. Outputs, handles and hooks still have to be freed. NULL is allowed. EXPAR_ERR_BUSY:
   another thread is in a call on it; EXPAR_ERR_STATE also in a child of fork, which is no rank. */
EXPAR_API expar_status expar_ll_destroy(expar_ll *ll);
/* Gives the buffer up on this rank alone, as expar_ep_abandon does: any thread, waits for nobody. Calls of the others
   on it end with EXPAR_ERR_PEER, or mask this rank. On a GPU calls of this rank's that have not ended within 0.1 s are
   broken off, which takes as long again at most: their events end with EXPAR_ERR_ABORTED. Always EXPAR_OK. */
EXPAR_API expar_status expar_ll_abandon(expar_ll *ll);

/* ---- dispatch ---------------------------------------------------------------------------------------------------- */

typedef struct expar_ll_dispatch_args {
    /* set by EXPAR_LL_DISPATCH_ARGS_INIT */
    size_t struct_size;

    /* ---- inputs ---- */
    /* [T][H] bf16, f16 or f32, H contiguous, rows 16-byte aligned */
    expar_tensor x;
    /* [T][K] i32 or i64, K contiguous; -1: no expert. An expert stands at most once in a token */
    expar_tensor topk_idx;
    /* [T][K] f32, K contiguous: travel along, for a reduced combine; or none. All ranks give them, or none does */
    expar_tensor topk_weights;

    /* ---- options ---- */
    /* of rows on their way and in recv_x; the same on all ranks, not LOGFMT */
    expar_ll_format format;
    /* CUDA: SMs of this call; 0: the buffer's. CPU: not looked at */
    int32_t num_sms;

    /* ---- the caller's outputs ---- */
    /* the caller's own results, each with shape, dtype and strides of the result of its name; or none: the library's */
    expar_tensor out_x;
    /* the caller's own results, each with shape, dtype and strides of the result of its name; or none: the library's */
    expar_tensor out_scales;
    /* the caller's own results, each with shape, dtype and strides of the result of its name; or none: the library's */
    expar_tensor out_count;
    /* [L] i32: rows received are added to it; or none. Rows that came count in a call that fails, too; where forms
       differ nothing comes */
    expar_tensor expert_recv_stats;
    /* [N] i64: nanoseconds that this rank has waited for each source are added; or none */
    expar_tensor wait_ns;

    /* ---- completion ---- */
    /* nothing of the arguments is read before it has happened; or NULL */
    expar_event *wait_event;
    /* 1: only sends; result.hook receives */
    int32_t hook;
    /* 1: returns once the results' places are known; they are filled when result.event has happened, and all tensors
       are left alone until then. Not with hook */
    int32_t async_finish;
    /* CUDA: the CUstream that the call is put on */
    void *stream;
} expar_ll_dispatch_args;
#define EXPAR_LL_DISPATCH_ARGS_INIT EXPAR_STRUCT_INIT(expar_ll_dispatch_args)

/* Rows of local expert e stand in recv_x[e] from 0 on without gaps: source ranks ascending, each one's tokens
   ascending. The same input gives the same bytes. Rows from recv_count[e] on are not written. */
typedef struct expar_ll_dispatch_result {
    /* set by EXPAR_LL_DISPATCH_RESULT_INIT */
    size_t struct_size;

    /* [L][N*B][H], dtype of x, or of the format */
    expar_tensor recv_x;
    /* f32 [L][N*B][H/128], UE8M0: i32 [L][N*B][ceil(H/512)]; the token dimension is contiguous (strides [.., 1,
       N*B]). None without scales */
    expar_tensor recv_scales;
    /* [L] i32: rows of each local expert */
    expar_tensor recv_count;
    /* the caller's */
    expar_ll_handle *handle;
    /* the caller's; owns the tensors here that are the library's own */
    expar_ep_output *output;
    /* with args.hook: the caller's; until it has been called nothing above is filled, and x alone may be used again.
       Else NULL */
    expar_ll_hook *hook;
    /* with async_finish: the caller's. Else NULL */
    expar_event *event;
} expar_ll_dispatch_result;
#define EXPAR_LL_DISPATCH_RESULT_INIT EXPAR_STRUCT_INIT(expar_ll_dispatch_result)

/* Carries each token to the ranks that hold its experts, once a rank, and places it there once an expert. *result is
   written on EXPAR_OK only. Errors of this rank's arguments, found before a row is sent: EXPAR_ERR_NULL,
   EXPAR_ERR_ARGUMENT, EXPAR_ERR_DTYPE, EXPAR_ERR_SHAPE, EXPAR_ERR_STRIDE, EXPAR_ERR_ALIGNMENT, EXPAR_ERR_DEVICE,
   EXPAR_ERR_LIMIT (T over B, K over max_topk), EXPAR_ERR_STATE (two are open; wait_event ended badly),
   EXPAR_ERR_HANDLE (wait_event has come to its end), EXPAR_ERR_MEMORY. EXPAR_ERR_INDEX: an index is out of range:
   that token went nowhere, all others have arrived; with a hook or async_finish it comes from there, and the handle
   serves no combine. A token may name an expert in several slots; each slot is a row of its own. EXPAR_ERR_LIMIT also
   says that an expert of this rank gets more rows than its N*B places: the rows that fit have arrived, and the buffer
   cannot be used any more on any rank. Of all ranks together: EXPAR_ERR_REMOTE, EXPAR_ERR_MISMATCH, EXPAR_ERR_PEER,
   EXPAR_ERR_ABORTED, EXPAR_ERR_INTERRUPTED; and EXPAR_ERR_BUSY. */
EXPAR_API expar_status expar_ll_dispatch(expar_ll *ll, const expar_ll_dispatch_args *args,
                                         expar_ll_dispatch_result *result);

/* ---- combine ----------------------------------------------------------------------------------------------------- */

typedef struct expar_ll_combine_args {
    /* set by EXPAR_LL_COMBINE_ARGS_INIT */
    size_t struct_size;

    /* ---- inputs ---- */
    /* [L][N*B][H] bf16, f16 or f32, in dispatch's layout; zero copy: the tensor of expar_ll_get_combine_buffer */
    expar_tensor x;
    /* [T][K] of the dispatch: with other experts the call is refused */
    expar_tensor topk_idx;
    /* [T][K] f32 */
    expar_tensor topk_weights;

    /* ---- routing ---- */
    /* of the dispatch; serves several combines */
    const expar_ll_handle *handle;

    /* ---- options ---- */
    /* the same on all ranks */
    expar_ll_sum sum;
    /* PLAIN, or LOGFMT with EXPAR_LL_SUM_EXACT; the same on all ranks */
    expar_ll_format format;
    /* as of dispatch */
    int32_t num_sms;

    /* ---- the caller's outputs ---- */
    /* [T][H], dtype of x: the caller's own y; or none: the library's */
    expar_tensor out_y;
    /* [N] i64, as of dispatch; or none */
    expar_tensor wait_ns;

    /* ---- completion ---- */
    /* as of dispatch */
    expar_event *wait_event;
    /* 1: only sends; result.hook receives. Not for EXPAR_LL_SUM_REDUCED where the dispatch had no weights, since
       those go ahead and are waited for */
    int32_t hook;
    /* as of dispatch */
    int32_t async_finish;
    /* as of dispatch */
    void *stream;
} expar_ll_combine_args;
#define EXPAR_LL_COMBINE_ARGS_INIT EXPAR_STRUCT_INIT(expar_ll_combine_args)

typedef struct expar_ll_combine_result {
    /* set by EXPAR_LL_COMBINE_RESULT_INIT */
    size_t struct_size;
    /* [T][H], dtype of x */
    expar_tensor y;
    /* the caller's; owns y, unless that is the caller's own */
    expar_ep_output *output;
    /* as of dispatch: until it has been called y is not filled; x alone may be used again */
    expar_ll_hook *hook;
    /* as of dispatch */
    expar_event *event;
} expar_ll_combine_result;
#define EXPAR_LL_COMBINE_RESULT_INIT EXPAR_STRUCT_INIT(expar_ll_combine_result)

/* y[t] = Σ_k weight[t][k] · row(t, k) in FP32, k ascending, rounded once: slots of -1, and those of masked ranks, add
   nothing, and a token without experts gives 0. EXACT: product, then addition, each rounded. REDUCED: each rank sums so
   over its own slots and rounds to the dtype of x; those sums are added, ranks ascending, and rounded. Errors as of
   expar_ll_dispatch, but for EXPAR_ERR_INDEX; and EXPAR_ERR_HANDLE, EXPAR_ERR_UNSUPPORTED (hook with weights to send
   ahead, zero copy with LOGFMT). */
EXPAR_API expar_status expar_ll_combine(expar_ll *ll, const expar_ll_combine_args *args,
                                        expar_ll_combine_result *result);
/* Memory in dispatch's layout that a GEMM may write to and a combine then sends from without a copy: *x is [L][N*B][H]
   of the dtype, with an address that stays the same as long as the buffer lives; the pitch of its rows may exceed H.
   The first such call takes the memory. It is the caller's from this call until the send of the combine is done. Not
   collective. Errors: EXPAR_ERR_NULL, EXPAR_ERR_DTYPE, EXPAR_ERR_HANDLE, EXPAR_ERR_MEMORY, EXPAR_ERR_BUSY. */
EXPAR_API expar_status expar_ll_get_combine_buffer(expar_ll *ll, const expar_ll_handle *handle, expar_dtype dtype,
                                                   expar_tensor *x);

/* ---- hooks and handles ------------------------------------------------------------------------------------------- */

/* Receives: what the call's result names is filled when this returns; on a GPU for what comes behind it in the stream.
   Once: EXPAR_ERR_STATE after that. Errors as of the call; on a GPU by expar_ll_query. */
EXPAR_API expar_status expar_ll_hook_call(expar_ll_hook *hook, void *stream);
/* One more reference, of the caller's. Any thread. EXPAR_ERR_NULL, EXPAR_ERR_HANDLE (it has come to its end). */
EXPAR_API expar_status expar_ll_hook_retain(expar_ll_hook *hook);
/* Gives a reference back, whether the hook has been called or not. A call whose hook is never called holds one of the
   two places of its kind. NULL is allowed. Any thread. */
EXPAR_API void expar_ll_hook_release(expar_ll_hook *hook);

/* What a handle knows. Tensors lie where the data lies, last as long as the handle, and are filled when recv_x is. */
typedef struct expar_ll_handle_info {
    /* set by EXPAR_LL_HANDLE_INFO_INIT */
    size_t struct_size;
    /* [L][N*B] i32: the row's token number at its source; -1 for a row that did not come */
    expar_tensor src_info;
    /* [L][N] i64: where the rows of each source begin << 32 | how many there are */
    expar_tensor range;
    /* T of the dispatch */
    int32_t num_tokens;
    /* B, H, K, E */
    int32_t max_tokens, hidden, num_topk, num_experts;
} expar_ll_handle_info;
#define EXPAR_LL_HANDLE_INFO_INIT EXPAR_STRUCT_INIT(expar_ll_handle_info)
/* Local; any thread. EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (struct_size), EXPAR_ERR_HANDLE (it has come to its end). */
EXPAR_API expar_status expar_ll_handle_get_info(const expar_ll_handle *handle, expar_ll_handle_info *info);
/* Handles are counted, as outputs are (expar/ep_output.h); they may outlive buffer and group. Any thread. */
EXPAR_API expar_status expar_ll_handle_retain(expar_ll_handle *handle);
EXPAR_API void expar_ll_handle_release(expar_ll_handle *handle);

/* ---- masks ------------------------------------------------------------------------------------------------------- */

/* A masked rank is sent nothing and waited for by nobody here; its experts add nothing to y, and weights are not
   changed for it. Rows of a dispatch that it had counted and that did not come are zero, with src_info -1. With
   config.masking a rank that is lost (dead, silent, gone, or late beyond the late limit) is masked by the wait
   that finds it, and the call goes on without an error; else such a wait ends with EXPAR_ERR_PEER. Who is masked, and
   lives, masks back as soon as it waits for one who has masked it. All three: EXPAR_ERR_NULL, EXPAR_ERR_STATE
   (config.masking is 0), EXPAR_ERR_BUSY.

   Combines write to places that a masked rank might still write to, late; so each of their halves moves away from where
   that rank knows it. There are four regions for that, or as many as ranks: a fourth rank that is masked apart from
   three others, which all live, or are silent, finds none, until one of them is dead, back by a clean, or has left the
   buffer. (A rank that is not mapped here counts as silent when it is dead, since what it has sent may still come.) Its
   mask is EXPAR_ERR_LIMIT, and a wait or clean that had to go on without it ends with EXPAR_ERR_PEER; the others learn
   that, and go on without this rank.

   On a GPU set and clean first wait until this rank's calls have come to their ends there. A query is put on the
   stream, behind the calls before it; the default one is EXPAR_ERR_ARGUMENT where ranks are threads of a process. */

/* Masks the rank, or, with 0, does not any more where no call has begun or ended meanwhile (else EXPAR_ERR_STATE:
   clean takes it in again). Local. EXPAR_ERR_ARGUMENT: no rank of the group, or this one; masked is neither 0 nor 1.
   EXPAR_ERR_LIMIT: above. */
EXPAR_API expar_status expar_ll_mask_set(expar_ll *ll, int32_t rank, int32_t masked);
/* status: [N] i32 where the data lies: 1 for masked ranks, else 0. Local. Errors: EXPAR_ERR_NULL, EXPAR_ERR_DTYPE,
   EXPAR_ERR_SHAPE, EXPAR_ERR_STRIDE, EXPAR_ERR_DEVICE. */
EXPAR_API expar_status expar_ll_mask_query(expar_ll *ll, const expar_tensor *status, void *stream);
/* Collective among the living; nobody waits for the dead, and a rank that is silent is left out. Agrees epochs, masks
   and halves, and takes a rank that has come back in again: one that was masked calls it, too, and waits there until
   the others do. Handles of before serve no combine behind it (EXPAR_ERR_HANDLE). No call may be open:
   EXPAR_ERR_STATE where one is, EXPAR_ERR_REMOTE on the others, and all stays as it was. EXPAR_ERR_PEER,
   EXPAR_ERR_ABORTED, EXPAR_ERR_INTERRUPTED: the buffer is poisoned. */
EXPAR_API expar_status expar_ll_mask_clean(expar_ll *ll);

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* What a buffer has done on this rank. */
typedef struct expar_ll_stats {
    /* set by EXPAR_LL_STATS_INIT */
    size_t struct_size;
    /* of symmetric heap */
    uint64_t heap_bytes;
    /* calls that sent */
    uint64_t dispatches;
    /* likewise */
    uint64_t combines;
    /* one for each (token, destination rank) */
    uint64_t dispatch_messages;
    /* rows sent back */
    uint64_t combine_rows;
    /* payload, headers and scales, to other ranks and this one */
    uint64_t bytes_sent;
} expar_ll_stats;
#define EXPAR_LL_STATS_INIT EXPAR_STRUCT_INIT(expar_ll_stats)

/* What went wrong in calls and hooks on a GPU that returned before it was known, and have no event: EXPAR_OK, or the
   first such failure since the last that was told, with its text. Never waits: of what its stream has not come past
   nothing is known yet. A buffer that is poisoned says so every time. On the CPU calls and hooks say all themselves.
   Local. EXPAR_ERR_NULL, EXPAR_ERR_STATE (destroyed), EXPAR_ERR_BUSY (another thread is in a call on the buffer). */
EXPAR_API expar_status expar_ll_query(expar_ll *ll);

/* Any thread, also while a call is running. EXPAR_ERR_NULL, EXPAR_ERR_ARGUMENT (struct_size). */
EXPAR_API expar_status expar_ll_get_stats(expar_ll *ll, expar_ll_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
