/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of the library, the benchmark and tests, compiled for the host with the vocabulary of simt.h, as the
 * simulated driver launches them. */
#include "bench/gpu/kernels/forms.h"
#include "cuda/fake/change_word.h"
#include "cuda/fake/fake.h"
#include "cuda/kernels/gda_programs.h"
#include "cuda/kernels/handles.h"
#include "cuda/kernels/late_copy.h"
#include "cuda/kernels/link.h"
#include "cuda/simt/launch.h"
#include "exec/cuda/kernels/hosted/mover_args.h"
#include "exec/cuda/kernels/low_latency/ll_args.h"
#include "exec/cuda/kernels/normal/args.h"

/* After handles.h, which asks expar/device.h for checks. */
#include "bench/gpu/kernels/rma_forms.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>

/* X(name, arguments) */
#define KERNELS(X)                                                                                                     \
    X(ep_notify, gpu_notify_args)                                                                                      \
    X(ep_check_topk, gpu_check_args)                                                                                   \
    X(ep_dispatch_impl, gpu_dispatch_args)                                                                             \
    X(ep_combine_impl, gpu_combine_args)                                                                               \
    X(ep_combine_impl_slots, gpu_combine_args)                                                                         \
    X(ep_count, gpu_count_args)                                                                                        \
    X(ep_find_terms, gpu_terms_args)                                                                                   \
    X(ep_sum_terms, gpu_sum_args)                                                                                      \
    X(ep_map, gpu_map_args)                                                                                            \
    X(ep_expand, gpu_expand_args)                                                                                      \
    X(ep_zero_padding, gpu_padding_args)                                                                               \
    X(ep_columns, gpu_columns_args)                                                                                    \
    X(ep_sources, gpu_sources_args)                                                                                    \
    X(ep_reduce, gpu_reduce_args)                                                                                      \
    X(ep_tell_counts, gpu_tell_args)                                                                                   \
    X(change_word, change_args)                                                                                        \
    X(ep_mover, mover_args)                                                                                            \
    X(ll_dispatch_impl, ll_dispatch_args)                                                                              \
    X(ll_combine_impl, ll_combine_args)                                                                                \
    X(ll_dispatch_impl_scaled, ll_dispatch_args)                                                                       \
    X(ll_combine_impl_log, ll_combine_args)                                                                            \
    X(ll_dispatch_impl_masks, ll_dispatch_args)                                                                        \
    X(ll_combine_impl_masks, ll_combine_args)                                                                          \
    X(ll_mask, ll_mask_args)                                                                                           \
    X(ll_await_signals, ll_signals_args)                                                                               \
    X(ll_dispatch_impl_far, ll_dispatch_args)                                                                          \
    X(ll_combine_impl_far, ll_combine_args)                                                                            \
    X(ll_dispatch_impl_far_masks, ll_dispatch_args)                                                                    \
    X(ll_combine_impl_far_masks, ll_combine_args)                                                                      \
    X(ll_mask_far, ll_mask_args)                                                                                       \
    X(bench_gate, gate_call)                                                                                           \
    X(bench_copy_push, copy_list)                                                                                      \
    X(bench_copy_pull, copy_list)                                                                                      \
    X(bench_encode, encode_call)                                                                                       \
    X(bench_rma, rma_gpu_call)                                                                                         \
    X(bench_rma_post, rma_gpu_call)                                                                                    \
    X(bench_ll_turn, ll_turn)                                                                                          \
    X(bench_ll_trip, ll_trip_call)                                                                                     \
    X(bench_ll_nothing, ll_nothing)                                                                                    \
    X(handles_run, handles_launch)                                                                                     \
    X(handles_grid, handles_launch)                                                                                    \
    X(handles_hold, handles_launch)                                                                                    \
    X(late_copy, late_copy_call)                                                                                       \
    X(link_mail, link_mail_call)                                                                                       \
    X(link_count, link_count_call)                                                                                     \
    X(link_bulk, link_bulk_call)                                                                                       \
    X(link_storm, link_storm_call)                                                                                     \
    X(link_rate, link_rate_call)                                                                                       \
    X(gda_programs, gdap_call)                                                                                         \
    X(gda_messages, gdap_call)                                                                                         \
    X(gda_fail, gdap_call)                                                                                             \
    X(gda_rate, gdap_call)

#define DECLARE(name, type)                                                                                            \
    void name(const type a);                                                                                           \
    static void name##_of(const void *arguments)                                                                       \
    {                                                                                                                  \
        name(*(const type *)arguments);                                                                                \
    }
KERNELS(DECLARE)

typedef struct known_kernel {
    const char *name;
    void (*run)(const void *arguments);
    size_t bytes;
} known_kernel;

#define ROW(name, type) {#name, name##_of, sizeof(type)},
static const known_kernel known[] = {KERNELS(ROW)};

/* A function is the address of its kernel's name: count_launch reads it. */
cu_function kernel_named(const char *name)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name)) return (cu_function)(void *)(uintptr_t)known[i].name;
    return NULL;
}

/* For the driver's interface, and for tests alone. All modules have one count of delays. */
cu_result cuModuleGetGlobal_v2(cu_address *at, size_t *bytes, cu_module module, const char *name)
{
    if (!module || strcmp(name, "gpu_delays")) return INVALID_VALUE;
    *at = (cu_address)(uintptr_t)simt_delays_place();
    *bytes = sizeof(uint64_t);
    return CU_OK;
}

/* The library has it as text for the driver. */
void change_word(const change_args a)
{
    fake_change_word(&a, (void *)(uintptr_t)a.word);
}

static const known_kernel *kernel_of(cu_function function)
{
    const known_kernel *one = known;
    while (one->name != (const char *)(void *)function)
        one++;
    return one;
}

size_t kernel_argument_bytes(cu_function function)
{
    return kernel_of(function)->bytes;
}

bool kernels_run_in_captures(void)
{
    return false;
}

bool kernel_awaits_host(cu_function function)
{
    (void)function;
    return false;
}

void kernels_delay(uint32_t seed)
{
    simt_delay(seed);
}

/* On a GPU such loads cross the bus, and many at a time queue up there. */
#define CROWD_NS 20000
static void watch_load(const void *address)
{
    static _Atomic int64_t last_ns;
    struct timespec now;
    if (!fake_is_pinned(address)) return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t now_ns = now.tv_sec * 1000000000 + now.tv_nsec;
    fake_controls *controls = fake_controls_of();
    atomic_fetch_add(&controls->host_loads, 1);
    atomic_fetch_or(&controls->host_threads, 1ULL << simt_thread() % 64);
    if (now_ns - atomic_exchange(&last_ns, now_ns) < CROWD_NS) atomic_fetch_add(&controls->host_crowds, 1);
}

bool kernel_trial(cu_function function, const kernel_grid *grid, void *arguments)
{
    const simt_launch launch = {.kernel = kernel_of(function)->run,
                                .arguments = arguments,
                                .blocks = grid->blocks,
                                .threads = grid->threads,
                                .shared_bytes = grid->shared_bytes};
    simt_watch_load = watch_load;
    /* One thread, which needs no simulation. */
    if (launch.kernel == change_word_of) {
        change_word_of(arguments);
        return true;
    }
    atomic_fetch_add(&fake_controls_of()->stored_bytes, simt_trial(&launch));
    return true;
}
