/* SPDX-License-Identifier: Apache-2.0 */
/* Expert parallelism, normal mode: layout, dispatch and combine.
 *
 * Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts, R rows that
 * this rank receives, C channels, M nodes, P ranks a node. Expert e lives on rank e / L and is local expert e % L
 * there.
 *
 * Calls on one group are issued in the same order on all its ranks. One thread at a time is in a call on an EP buffer
 * (EXPAR_ERR_BUSY for a second one); several buffers and groups may be used from several threads.
 *
 * With async_finish a call returns before its rows are there, and its event tells when they are. On the CPU any number
 * of them queue up on a buffer, as far as there is memory for what they use, and are carried out in the order in which
 * they were made: all return at once, without waiting for any other rank, but for a fresh dispatch and a route without
 * num_worst_tokens: these do when the call before has sent its rows and their own counts have come. A fresh dispatch or
 * a route that has not waited does not know its counts (num_recv_tokens -1, recv_tokens_per_expert NULL): recv_counts
 * are there with the event, by which also comes what is wrong with indices, or with another rank's arguments. Its
 * handle and output serve calls on the same buffer at once, others behind the event. A call without async_finish comes
 * behind all. What they use is in use meanwhile, room in the pool included; the structs of their arguments are copied,
 * and need not live on, what these point to has to. docs/internals/normal-mode.md, "Asynchronous calls", says which
 * part waits for which.
 *
 * Members of arguments that say yes or no are 1 or 0; any other value is refused.
 *
 * A rank whose arguments are refused returns its own error, and still tells the others: they return EXPAR_ERR_REMOTE
 * with that rank and reason. Arguments that do not fit between ranks (H, dtype, K, E, cached or not) are
 * EXPAR_ERR_MISMATCH on all. Either way the buffer stays usable. After EXPAR_ERR_PEER or EXPAR_ERR_ABORTED in a call,
 * and after EXPAR_ERR_CUDA where other ranks wait for its kernels, it is poisoned: later calls fail at once with the
 * same report. It may be so on some ranks alone; as long as the group is sound all ranks destroy it together all the
 * same, and can create another one.
 *
 * On GPUs (config.device) calls put their work on the stream that they are given, and results are there for what comes
 * behind them in that stream. docs/gpu.md, "Calls, streams and graphs", has the reasons; the facts are:
 *
 * A call waits on the host until it is known whether all ranks go on, a fresh dispatch until its counts are known as
 * well; rows may still be on their way. With async_finish a fresh dispatch waits for counts only, other calls wait
 * for nothing; what goes wrong comes with the event, or with expar_ep_query where nobody asks that. With
 * num_worst_tokens a fresh dispatch waits for nothing: num_recv_tokens is -1, recv_tokens_per_expert NULL, and what
 * goes wrong comes with the event, or with expar_ep_query where there is none, and is logged by a later call. Only
 * where a rank's pool has lacked room, and without async_finish, it waits until all ranks have called it, as for
 * counts, so that pools may grow; it tells what it always does. A wait_event that lies on a stream, made by
 * expar_event_record or by a call on a GPU, the call's stream waits for; any other one the host, so somebody else has
 * to make it happen, another thread or a call that was made before.
 *
 * A rank's calls on one GPU follow each other, whatever buffers of the group and streams they use, and a thread's call
 * waits while another one is in a call there; the order on all ranks is that in which calls go on behind their
 * wait_event. Freed memory of outputs and handles is used again in that order: whoever reads an output on another
 * stream keeps it until that is done.
 *
 * A stream that does not come to a call is waited for. Once the group has failed the call, or its event, ends with
 * that, and the tensors of its args must stay until the stream has come past it, for which expar_ep_destroy waits, too.
 * A wait that is given up on the device fails the event and the next call.
 *
 * Ranks that are threads of one process need streams other than the default one. Where they share a GPU as well, a
 * fresh dispatch returns only when all ranks have called it, and a call behind one that was not waited for only when
 * all have called that; and any wait_event is waited for on the host.
 *
 * On a stream that is being captured, dispatches with num_worst_tokens or a handle and combines become part of the
 * graph; other calls, and those with async_finish or a wait_event that was not recorded in the capture, are
 * EXPAR_ERR_ARGUMENT on that rank, and leave the capture as it was.
 * Calls in a ninth capture that goes on at a time are EXPAR_ERR_STATE. All ranks capture the same calls and launch
 * their graphs in the same order among their calls, as often as they like. A graph keeps the memory that its calls use
 * until it is destroyed, with all that was made of it; it is not launched any more once the buffer is destroyed. */
#ifndef EXPAR_EP_H
#define EXPAR_EP_H

#include <expar/ep_buffer.h>
#include <expar/ep_combine.h>
#include <expar/ep_dispatch.h>
#include <expar/ep_handle.h>
#include <expar/ep_output.h>
#include <expar/ep_routing.h>

#endif
