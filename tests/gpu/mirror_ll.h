/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the CPU's tests of low-latency mode on GPUs, as mirror.h does those of normal mode. Arguments are copied to the
 * rank's GPU, and the call is made there. Results are copied back when the call, its hook or its event is done. Rows
 * that a call with a hook has sent are overwritten there, in stream order, for they may be used again.
 *
 * A plain call is made with async_finish, whose event tells all that the CPU tells at once. With EXPAR_TEST_PLAIN=1 it
 * is made without: then expar_ll_query tells, as for hooks, once the stream has come to its end. With
 * EXPAR_TEST_DEVICE=cpu all of this happens in other memory of the host's: what a test says then is said of the
 * mirror. */
#ifndef TESTS_GPU_MIRROR_LL_H
#define TESTS_GPU_MIRROR_LL_H

#include <expar/low_latency.h>

expar_status mirror_ll_create(expar_group *group, const expar_ll_config *config, expar_ll **ll);
expar_status mirror_ll_destroy(expar_ll *ll);
expar_status mirror_ll_dispatch(expar_ll *ll, const expar_ll_dispatch_args *args, expar_ll_dispatch_result *result);
expar_status mirror_ll_combine(expar_ll *ll, const expar_ll_combine_args *args, expar_ll_combine_result *result);
expar_status mirror_ll_get_combine_buffer(expar_ll *ll, const expar_ll_handle *handle, expar_dtype dtype,
                                          expar_tensor *x);
expar_status mirror_ll_hook_call(expar_ll_hook *hook, void *stream);
void mirror_ll_hook_release(expar_ll_hook *hook);
expar_status mirror_ll_handle_get_info(const expar_ll_handle *handle, expar_ll_handle_info *info);
void mirror_ll_handle_release(expar_ll_handle *handle);
expar_status mirror_ll_mask_query(expar_ll *ll, const expar_tensor *status, void *stream);
/* When this thread's stream has come past what counts. */
expar_status mirror_ll_get_stats(expar_ll *ll, expar_ll_stats *stats);

#ifdef MIRROR_RENAMES
#define expar_ll_create             mirror_ll_create
#define expar_ll_destroy            mirror_ll_destroy
#define expar_ll_dispatch           mirror_ll_dispatch
#define expar_ll_combine            mirror_ll_combine
#define expar_ll_get_combine_buffer mirror_ll_get_combine_buffer
#define expar_ll_hook_call          mirror_ll_hook_call
#define expar_ll_hook_release       mirror_ll_hook_release
#define expar_ll_handle_get_info    mirror_ll_handle_get_info
#define expar_ll_handle_release     mirror_ll_handle_release
#define expar_ll_mask_query         mirror_ll_mask_query
#define expar_ll_get_stats          mirror_ll_get_stats
#endif

#endif
