# SPDX-License-Identifier: Apache-2.0
"""`EPBuffer`: dispatch and combine with the interface of the third generation.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts.
M num_max_tokens_per_rank, A expert_alignment, R rows received, X rows expanded.

Wrong use that is found here raises AssertionError. Errors that the library reports raise RuntimeError with its text.
"""

from __future__ import annotations

from typing import Any, Literal, overload

from expar import Group

from .. import _elastic_sizes as sizes
from .. import _place
from .._checks import integer, whole
from .._elastic_handle import EPHandle
from .._replicas import Replicas
from ..comm import NCCLCommHandle
from ..utils.event import EventOverlap
from .allocator import BufferAllocator
from .base import BufferBase
from .elastic_core import CPU_TIMEOUT_SECS, ElasticCore, GPU_TIMEOUT_SECS
from .ep_sizes import EPSizes
from .legacy import Runtime

_MIB = 1 << 20


class EPRuntime(Runtime):
    """Facts about the group of a buffer, and its memory for replicas.

    lb_storage: uint8 [num_lb_bytes]."""

    def __init__(self, group: Group, lb_storage: Any) -> None:
        super().__init__(group)
        self.lb_storage = lb_storage


class Context:
    """Stands for the state of a buffer's communication, which is opaque."""


class EPBuffer(EPSizes, ElasticCore, BufferBase):
    """The buffer with which the ranks of a group dispatch and combine. Creating it is collective, and ends with a
    barrier.

    group: a process group of torch.distributed, or an mpi4py communicator.
    num_bytes: memory for results, a multiple of 2 MiB. Without it, num_max_tokens_per_rank and hidden give the size.
        Neither is a limit, and memory is allocated when a call needs it.
    lb_allocation_plan_or_num_bytes: memory for replicas of experts, in bytes, a multiple of 2 MiB. Or a
        BufferAllocator, whose tensors get the memory.
    deterministic: results always are.
    allow_multiple_reduction: expanded rows of a token are summed on each rank first.
    prefer_overlap_with_compute: calls use fewer SMs by default.
    explicitly_destroy: the caller will call `destroy()`. Without it the garbage collector releases the buffer.
    num_cpu_timeout_secs, num_gpu_timeout_secs: as of `ElasticBuffer`.

    The other arguments are stored and shown.
    """

    _watches = True

    def __init__(
        self,
        group: Any,
        num_bytes: int | None = None,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        lb_allocation_plan_or_num_bytes: int | BufferAllocator = 0,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int | None = None,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = CPU_TIMEOUT_SECS,
        num_gpu_timeout_secs: int = GPU_TIMEOUT_SECS,
        explicitly_destroy: bool = False,
    ) -> None:
        BufferBase.__init__(self)  # explicitly_destroy is set when there is something to destroy
        self.num_bytes = self._total_bytes(num_bytes, group, num_max_tokens_per_rank, hidden, num_topk)
        plan = lb_allocation_plan_or_num_bytes
        self.num_lb_bytes = _replica_bytes(plan)
        if sl_idx is not None:
            integer(sl_idx, "sl_idx")
        self.sl_idx = sl_idx
        self._open(
            group,
            num_max_tokens_per_rank,
            deterministic,
            allow_hybrid_mode,
            allow_multiple_reduction,
            prefer_overlap_with_compute,
            num_allocated_qps,
            num_cpu_timeout_secs,
            num_gpu_timeout_secs,
        )
        storage = _place.usual().zero_bytes(self.num_lb_bytes)
        if isinstance(plan, BufferAllocator):
            plan.materialize(storage)
        self.runtime: EPRuntime | None = EPRuntime(self._group, storage)
        self._replicas: Replicas | None = Replicas(self._group, storage)
        self.context: Context = Context()
        self.nccl_comm_handle: NCCLCommHandle | None = NCCLCommHandle()
        self.explicitly_destroy = explicitly_destroy
        self._group.barrier()

    def _close(self) -> None:
        self.nccl_comm_handle = None
        replicas, self._replicas = self._replicas, None
        if replicas is not None:
            replicas.close()
        super()._close()

    @property
    def main_context(self) -> Context:
        """The state of this buffer's communication."""
        return self.context

    def print_memory_usage(self) -> None:
        """Prints one line. AssertionError after `destroy`."""
        if self._modes is None:
            raise AssertionError("the buffer has been destroyed: expected one that has memory")
        reserved, used = (
            sum(mode.ep.stats()[name] for mode in self._modes.values()) / _MIB
            for name in ("reserved_bytes", "used_bytes")
        )
        print(
            f"EPBuffer of rank {self.rank_idx}: {reserved:.1f} MiB reserved, {used:.1f} MiB in use, "
            f"{self.num_lb_bytes / _MIB:.1f} MiB for replicas",
            flush=True,
        )

    # ---- streams -----------------------------------------------------------------------------------------------------

    def barrier(
        self,
        wait_comm_stream: bool = True,
        with_cpu_sync: bool = False,
        sequential: bool = True,
        context_idx: int | None = None,
    ) -> None:
        """Waits until all ranks have come here, after their calls so far. Collective. On a GPU the current stream
        waits. The host waits only with_cpu_sync, for all work of the GPU, before and after the barrier.

        wait_comm_stream: the current stream waits for the communication stream before, and that for it afterwards."""
        place = _place.usual()
        mode = self._at(place)
        self._settle(wait=True)
        if not isinstance(place, _place.Gpu):
            self._group.barrier()
            return
        if with_cpu_sync:
            place.synchronize()
        current, comm = place.current(), place.comm()
        if wait_comm_stream:
            current.wait_stream(comm)
        mode.meet(place.turn(None, False))
        if wait_comm_stream:
            comm.wait_stream(current)
        if with_cpu_sync:
            place.synchronize()

    # ---- replicas of experts -----------------------------------------------------------------------------------------

    def _with_replicas(self, num_sms: int) -> Replicas:
        integer(num_sms, "num_sms")
        if self._replicas is None:
            raise AssertionError("the buffer has been destroyed")
        return self._replicas

    def lb_prefetch_weights(
        self,
        redundant_expert_weights: Any,
        expert_weights: Any,
        redundancy_mapping: Any,
        num_sms: int = 0,
        previous_event: Any = None,
    ) -> EventOverlap:
        """Copies experts to slots of ranks of their node. Collective. Returns an event; its wait returns None.

        redundant_expert_weights: contiguous [C, ...] in lb_storage, or a sequence of up to 16.
        expert_weights: contiguous [L, ...] of any dtype, such as bf16, or as many. An expert has as many bytes in both,
            a multiple of 16.
        redundancy_mapping: int32 [ranks of a node, C], equal on the node. Entry (r, c) is the expert for slot c of
            local rank r: its owner's local rank * L + its local expert. Slots of -1 keep what they have.
        num_sms: without effect. previous_event: the call waits for it instead of the current stream."""
        moved = self._with_replicas(num_sms)
        return moved.prefetch(redundant_expert_weights, expert_weights, redundancy_mapping, previous_event)

    def lb_reduce_grads(
        self,
        redundant_expert_grads: Any,
        expert_grads: Any,
        redundancy_mapping: Any,
        num_sms: int = 0,
        previous_event: Any = None,
    ) -> EventOverlap:
        """Adds the gradients of slots to those of their experts. Collective. Returns an event; its wait returns None.

        redundant_expert_grads: float32 contiguous [C, H] in lb_storage; it is not cleared.
        expert_grads: float32 contiguous [L, H]. Each slot is one FP32 addition, by ascending rank, then slot.
        The other arguments are as in lb_prefetch_weights."""
        moved = self._with_replicas(num_sms)
        return moved.reduce(redundant_expert_grads, expert_grads, redundancy_mapping, previous_event)

    # ---- calls -------------------------------------------------------------------------------------------------------

    @overload
    def dispatch(
        self,
        x: Any,
        topk_idx: Any = ...,
        topk_weights: Any = ...,
        cumulative_local_expert_recv_stats: Any = ...,
        num_experts: int | None = ...,
        num_max_tokens_per_rank: int | None = ...,
        expert_alignment: int | None = ...,
        num_sms: int = ...,
        num_qps: int = ...,
        previous_event: Any = ...,
        async_with_compute_stream: bool = ...,
        allocate_on_comm_stream: bool = ...,
        handle: EPHandle | None = ...,
        do_handle_copy: bool = ...,
        do_cpu_sync: bool | None = ...,
        do_expand: bool = ...,
        do_zero_padding: bool = ...,
        use_tma_aligned_col_major_sf: bool = ...,
        defer_epilogue: Literal[False] = False,
    ) -> tuple[Any, Any, Any, EPHandle, EventOverlap]: ...

    @overload
    def dispatch(
        self,
        x: Any,
        topk_idx: Any = ...,
        topk_weights: Any = ...,
        cumulative_local_expert_recv_stats: Any = ...,
        num_experts: int | None = ...,
        num_max_tokens_per_rank: int | None = ...,
        expert_alignment: int | None = ...,
        num_sms: int = ...,
        num_qps: int = ...,
        previous_event: Any = ...,
        async_with_compute_stream: bool = ...,
        allocate_on_comm_stream: bool = ...,
        handle: EPHandle | None = ...,
        do_handle_copy: bool = ...,
        do_cpu_sync: bool | None = ...,
        do_expand: bool = ...,
        do_zero_padding: bool = ...,
        use_tma_aligned_col_major_sf: bool = ...,
        *,
        defer_epilogue: Literal[True],
    ) -> EventOverlap: ...

    @overload
    def dispatch(
        self,
        x: Any,
        topk_idx: Any = ...,
        topk_weights: Any = ...,
        cumulative_local_expert_recv_stats: Any = ...,
        num_experts: int | None = ...,
        num_max_tokens_per_rank: int | None = ...,
        expert_alignment: int | None = ...,
        num_sms: int = ...,
        num_qps: int = ...,
        previous_event: Any = ...,
        async_with_compute_stream: bool = ...,
        allocate_on_comm_stream: bool = ...,
        handle: EPHandle | None = ...,
        do_handle_copy: bool = ...,
        do_cpu_sync: bool | None = ...,
        do_expand: bool = ...,
        do_zero_padding: bool = ...,
        use_tma_aligned_col_major_sf: bool = ...,
        *,
        defer_epilogue: bool,
    ) -> Any: ...

    def dispatch(
        self,
        x: Any,
        topk_idx: Any = None,
        topk_weights: Any = None,
        cumulative_local_expert_recv_stats: Any = None,
        num_experts: int | None = None,
        num_max_tokens_per_rank: int | None = None,
        expert_alignment: int | None = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Any = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = False,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
        defer_epilogue: bool = False,
    ) -> Any:
        """Carries tokens to the ranks that hold their experts. Collective.

        Returns (recv_x, recv_topk_idx, recv_topk_weights, handle, event). With defer_epilogue it returns the event
        alone, whose first wait returns the first four. Rows are ordered by source rank, then token.
        docs/reference/deep_ep.md has a table of the results.

        x: bf16 [T, H], or a tuple of e4m3 [T, H] and scales of 4 bytes [T, n]. T <= M; M is the same on all ranks, and
            may be 0 if no rank has a token.
        topk_idx: int64 [T, K], -1 for none. It is the handle's topk_idx, and must not be changed in place while the
            handle is used.
        topk_weights: float32 [T, K].
        cumulative_local_expert_recv_stats: int32 [L], to which the counts of received rows are added.
        handle: the handle of an earlier dispatch, in place of topk_idx. Rows and their places are the same.
        do_expand: one row for each (token, local expert), ordered by expert. do_zero_padding: rows between experts are
            zero.
        do_cpu_sync: with False, results have the largest possible number of rows.
        defer_epilogue: the host waits for nothing until the first wait. Needs async_with_compute_stream. Any number of
            calls may be pending, and be waited for in any order.
        """
        if do_handle_copy:
            raise AssertionError("do_handle_copy is set: expected False, for the handle has the caller's topk_idx")
        return self._dispatch(
            x,
            topk_idx,
            topk_weights,
            cumulative_local_expert_recv_stats,
            num_experts,
            num_max_tokens_per_rank,
            expert_alignment,
            _even(num_sms),
            num_qps,
            previous_event,
            None,
            bool(async_with_compute_stream),
            allocate_on_comm_stream,
            handle,
            False,
            do_cpu_sync,
            (do_expand, do_zero_padding, use_tma_aligned_col_major_sf),
            bool(defer_epilogue),
        )

    @overload
    def combine(
        self,
        x: Any,
        handle: EPHandle,
        topk_weights: Any = ...,
        bias: Any = ...,
        num_sms: int = ...,
        num_qps: int = ...,
        previous_event: Any = ...,
        async_with_compute_stream: bool = ...,
        allocate_on_comm_stream: bool = ...,
        defer_epilogue: Literal[False] = False,
    ) -> tuple[Any, Any, EventOverlap]: ...

    @overload
    def combine(
        self,
        x: Any,
        handle: EPHandle,
        topk_weights: Any = ...,
        bias: Any = ...,
        num_sms: int = ...,
        num_qps: int = ...,
        previous_event: Any = ...,
        async_with_compute_stream: bool = ...,
        allocate_on_comm_stream: bool = ...,
        *,
        defer_epilogue: Literal[True],
    ) -> EventOverlap: ...

    @overload
    def combine(
        self,
        x: Any,
        handle: EPHandle,
        topk_weights: Any = ...,
        bias: Any = ...,
        num_sms: int = ...,
        num_qps: int = ...,
        previous_event: Any = ...,
        async_with_compute_stream: bool = ...,
        allocate_on_comm_stream: bool = ...,
        *,
        defer_epilogue: bool,
    ) -> Any: ...

    def combine(
        self,
        x: Any,
        handle: EPHandle,
        topk_weights: Any = None,
        bias: Any = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Any = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        defer_epilogue: bool = False,
    ) -> Any:
        """Brings rows back and sums them. Collective. Returns (y bf16 [T, H], topk_weights float32 [T, K] or None,
        event). With defer_epilogue it returns the event alone, whose first wait returns the first two.

        x: bf16 [rows, H], in the dispatch's layout.
        topk_weights: float32 [rows, K], or expanded [rows]. Weights that come back, and the order of sums, are those of
            `ElasticBuffer.combine`.
        bias: bf16 [T, H], or a tuple of two. With defer_epilogue it is read at the first wait, on the stream that is
            current then. All ranks, or none, must then give one.
        defer_epilogue: x is sent at the call. Needs async_with_compute_stream."""
        if isinstance(handle, EPHandle):
            handle.topk_idx  # raises an error if it was changed
        return self._combine(
            x,
            handle,
            topk_weights,
            bias,
            _even(num_sms),
            num_qps,
            previous_event,
            None,
            bool(async_with_compute_stream),
            allocate_on_comm_stream,
            bool(defer_epilogue),
        )


def _even(num_sms: int) -> int:
    """Returns the number of SMs, rounded up to an even one."""
    return num_sms + num_sms % 2 if type(num_sms) is int and num_sms > 0 else num_sms


def _replica_bytes(given: int | BufferAllocator) -> int:
    """Returns the bytes of memory for replicas that the constructor was given."""
    if isinstance(given, BufferAllocator):
        if given.materialized:
            raise AssertionError("the allocation plan has been materialized: expected one that has no memory yet")
        return given.num_bytes
    count = whole(given, "lb_allocation_plan_or_num_bytes", TypeError)
    if count < 0:
        raise AssertionError(f"lb_allocation_plan_or_num_bytes is {count}: expected 0 or more")
    if count % sizes.UNIT_BYTES:
        raise RuntimeError(f"lb_allocation_plan_or_num_bytes is {count}: expected a multiple of 2 MiB")
    return count
