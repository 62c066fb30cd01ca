/* SPDX-License-Identifier: Apache-2.0 */
/* All of expar's public interface.
 *
 * Names. A call is expar_<object>_<verb>, and takes the object first: expar_ep_dispatch, expar_ll_handle_retain. Calls
 * that need no buffer yet take the group: expar_ep_create, expar_ep_get_layout.
 *
 *   all modes          expar_group, expar_team, expar_ctx, expar_event
 *   normal mode        expar_ep, expar_ep_handle, expar_ep_output
 *   low-latency mode   expar_ll, expar_ll_handle, expar_ll_hook
 *
 * - A call that returns a fact is named for it (expar_group_rank). One that fills memory of the caller's with it has
 *   `get` before it (expar_ep_get_stats), and the struct that it fills has the name without (expar_ep_stats).
 * - Arguments of a call are an expar_<call>_args, its results an expar_<call>_result, options at creation an
 *   expar_<object>_config or expar_<object>_options.
 * - Values of an enumeration begin with its name: EXPAR_EP_PATH_DIRECT of expar_ep_path. A last word that only says
 *   what kind of list it is (op, kind, level, type, code) is left out. Status, dtype and device type are short:
 *   EXPAR_OK, EXPAR_ERR_NULL, EXPAR_F32, EXPAR_CUDA.
 * - Members: max_ begins a limit, and num_ a count. out_ begins memory of the caller that a call writes to, and recv_
 *   begins results of a dispatch. A name ends with what it counts in: _bytes, _ms.
 * - Calls on symmetric memory have OpenSHMEM's names, with expar_ for shmem_: expar_put, expar_team_split_2d.
 * - Calls for programs in Python are expar_python_<verb> (expar/python.h).
 *
 * Lifetimes. Objects that calls return (handles, outputs, events, hooks) are counted: <object>_retain adds a
 * reference, <object>_release gives one back. Objects that ranks make together (groups, buffers, teams), and
 * contexts, have one owner: <object>_create makes one, <object>_destroy ends it. docs/internals/lifetimes.md,
 * docs/reference/compatibility.md. */
#ifndef EXPAR_EXPAR_H
#define EXPAR_EXPAR_H

#include <expar/atomics.h>
#include <expar/collective.h>
#include <expar/device_handle.h>
#include <expar/dlpack.h>
#include <expar/ep.h>
#include <expar/event.h>
#include <expar/globals.h>
#include <expar/group.h>
#include <expar/info.h>
#include <expar/interrupt.h>
#include <expar/lock.h>
#include <expar/log.h>
#include <expar/low_latency.h>
#include <expar/memory.h>
#include <expar/python.h>
#include <expar/rma.h>
#include <expar/status.h>
#include <expar/stream.h>
#include <expar/team.h>
#include <expar/tensor.h>
#include <expar/types.h>
#include <expar/wait.h>

#endif
