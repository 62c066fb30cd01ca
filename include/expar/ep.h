/* SPDX-License-Identifier: Apache-2.0 */
/* Expert parallelism, normal mode: layout, dispatch and combine.
 *
 * Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts. R rows that
 * this rank receives, C channels, M nodes, P ranks of a node. Expert e lives on rank e / L and is local expert e % L
 * there.
 *
 * All ranks of a group issue the calls on it in the same order. Only one thread at a time may be in a call on an EP
 * buffer; a second one gets EXPAR_ERR_BUSY. Several buffers and groups may be used from several threads.
 *
 * With async_finish a call returns before its rows have arrived, and its event says when they have. On the CPU any
 * number of such calls queue up on a buffer, as long as there is memory for what they use. They are carried out in the
 * order in which they were made. They return at once, without waiting for another rank. The exceptions are a fresh
 * dispatch and a route without num_worst_tokens: these return when the call before has sent its rows and their own
 * counts have come. A fresh dispatch or a route that has not waited does not know its counts (num_recv_tokens -1,
 * recv_tokens_per_expert NULL). Its recv_counts are filled when the event happens. The event also reports wrong indices
 * and errors of another rank's arguments. Calls on the same buffer may use the handle and the output of such a call at
 * once; other uses must wait for the event. A call without async_finish runs after all queued ones. Until it ends, a
 * queued call uses its tensors and its memory in the pool. The structs of its arguments are copied and need not stay;
 * the memory that they point to must. docs/internals/normal-mode.md, "Asynchronous calls", says which part waits for
 * which.
 *
 * Members of arguments that say yes or no are 1 or 0; any other value is rejected.
 *
 * A rank whose arguments are rejected returns its own error and still tells the others. They return EXPAR_ERR_REMOTE
 * with that rank and reason. Arguments that differ between ranks (H, dtype, K, E, cached or not) are EXPAR_ERR_MISMATCH
 * on all. In both cases the buffer stays usable. EXPAR_ERR_PEER or EXPAR_ERR_ABORTED in a call poisons the buffer, and
 * so does EXPAR_ERR_CUDA where other ranks wait for its kernels. Later calls on a poisoned buffer fail at once with the
 * same report. A buffer may be poisoned on some ranks only. Unless the group has failed, all ranks still destroy it
 * together, and can then create another one.
 *
 * On GPUs (config.device) a call puts its work on the stream that it is given. Its results are valid for later work on
 * that stream. docs/reference/gpu.md, "Calls, streams and graphs", has the reasons. The facts are these.
 *
 * A call waits on the host until it is known whether all ranks go on. A fresh dispatch also waits until its counts are
 * known. Rows may still be on their way when it returns. With async_finish a fresh dispatch waits for counts only, and
 * other calls wait for nothing. Their event reports errors; expar_ep_query does so if nobody waits for the event. With
 * num_worst_tokens a fresh dispatch waits for nothing: num_recv_tokens is -1 and recv_tokens_per_expert is NULL. Its
 * event reports errors. Without an event expar_ep_query reports them, and a later call logs them. If a rank's pool was
 * too small, and without async_finish, the call also waits for all ranks so that pools can grow. Its results are
 * reported as usual. If a wait_event lies on a stream (made by expar_event_record or by a call on a GPU), the call's
 * stream waits for it. The host waits for any other wait_event. Another thread, or a call that was made before, must
 * make that event happen.
 *
 * A rank's calls on one GPU follow each other, whatever buffers of the group and streams they use. A thread's call
 * waits while another thread is in a call there. The order on all ranks is the order in which calls continue after
 * their wait_event. Freed memory of outputs and handles is reused in that order. A caller that reads an output on
 * another stream keeps a reference until it has read it.
 *
 * A call waits for its stream, however long that takes to come to it. Once the group has failed, the call or its event
 * ends with that error. The tensors of its args must stay until the stream has passed the call; expar_ep_destroy waits
 * for that, too. A wait that is given up on the device fails the event and the next call.
 *
 * Ranks that are threads of one process need streams other than the default one. If they share a GPU as well, a fresh
 * dispatch returns only when all ranks have called it. A call after one that was not waited for then returns only when
 * all ranks have made that call. The host waits for any wait_event.
 *
 * On a stream that is being captured, dispatches with num_worst_tokens or a handle become part of the graph, and so do
 * combines. Other calls are EXPAR_ERR_ARGUMENT on that rank, and leave the capture as it was. The same holds for calls
 * with async_finish, or with a wait_event that was not recorded in the capture. At most eight captures may go on at a
 * time; calls in a ninth one are EXPAR_ERR_STATE. All ranks capture the same calls, and launch their graphs in the same
 * order among their calls, as often as they like. A graph keeps the memory that its calls use until the graph and
 * everything made from it are destroyed. It must not be launched after the buffer is destroyed. */
#ifndef EXPAR_EP_H
#define EXPAR_EP_H

#include <expar/ep_buffer.h>
#include <expar/ep_combine.h>
#include <expar/ep_dispatch.h>
#include <expar/ep_handle.h>
#include <expar/ep_output.h>
#include <expar/ep_routing.h>

#endif
