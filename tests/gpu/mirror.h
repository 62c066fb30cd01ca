/* SPDX-License-Identifier: Apache-2.0 */
/* Plays the CPU's tests on GPUs: the harness of tests/ep is compiled a second time with the library's calls renamed to
 * these. Each copies what the test gives to the rank's GPU, makes the call there on a stream of the rank's own, waits,
 * and copies back. The test sees host memory and compares with the same oracle.
 *
 * Rank r has GPU r modulo the number of GPUs. Rows for memory that peers cannot reach pass through the pool on a GPU,
 * where they come by the queue on the CPU: the test is told the latter. */
#ifndef TESTS_GPU_MIRROR_H
#define TESTS_GPU_MIRROR_H

#include <expar/expar.h>

expar_status mirror_ep_create(expar_group *group, const expar_ep_config *config, expar_ep **ep);
expar_status mirror_ep_destroy(expar_ep *ep);
expar_status mirror_dispatch(expar_ep *ep, const expar_dispatch_args *args, expar_dispatch_result *result);
expar_status mirror_combine(expar_ep *ep, const expar_combine_args *args);
void mirror_output_release(expar_ep_output *output);

#ifdef MIRROR_RENAMES
#define expar_ep_create         mirror_ep_create
#define expar_ep_destroy        mirror_ep_destroy
#define expar_dispatch          mirror_dispatch
#define expar_combine           mirror_combine
#define expar_ep_output_release mirror_output_release
#endif

#endif
