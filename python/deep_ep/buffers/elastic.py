# SPDX-License-Identifier: Apache-2.0
"""`ElasticBuffer`: dispatch and combine with the interface of the second generation.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts.
M num_max_tokens_per_rank, A expert_alignment, R rows received, X rows expanded.

Wrong use that is found here raises AssertionError. Errors that the library reports raise RuntimeError with its text.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

from .. import _place
from .._checks import integer
from .._elastic_handle import EPHandle
from ..utils.event import EventOverlap
from .elastic_core import CPU_TIMEOUT_SECS, ElasticCore, GPU_TIMEOUT_SECS
from .elastic_others import Others
from .legacy import Runtime


class ElasticBuffer(Others, ElasticCore):
    """The buffer with which the ranks of a group dispatch and combine. Creating it is collective, and ends with a
    barrier.

    group: a process group of torch.distributed, or an mpi4py communicator.
    num_bytes: memory for results, a multiple of 2 MiB. Without it, num_max_tokens_per_rank and hidden give the size.
        Neither is a limit, and memory is allocated when a call needs it.
    deterministic: results always are.
    allow_multiple_reduction: expanded rows of a token are summed on each rank first.
    prefer_overlap_with_compute: calls use fewer SMs by default.
    explicitly_destroy: the caller will call `destroy()`. Without it the garbage collector releases the buffer.
    num_cpu_timeout_secs, num_gpu_timeout_secs: how long a rank may be silent; the first buffer of a group sets it. The
        former holds on a CPU, the smaller one on GPUs, because the host watches their kernels. EXPAR_TIMEOUT overrides
        them. A late rank that answers is waited for. If the caller gives a time-out, it also ends waits for such a
        rank, unless EXPAR_LATE_LIMIT gives another limit.

    The other arguments are stored and shown.
    """

    def __init__(
        self,
        group: Any,
        num_bytes: int | None = None,
        num_cpu_bytes: int = 0,
        num_max_tokens_per_rank: int = 0,
        hidden: int = 0,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        deterministic: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
        prefer_overlap_with_compute: bool = True,
        sl_idx: int = 3,
        num_allocated_qps: int = 0,
        num_cpu_timeout_secs: int = CPU_TIMEOUT_SECS,
        num_gpu_timeout_secs: int = GPU_TIMEOUT_SECS,
        explicitly_destroy: bool = False,
    ) -> None:
        self.num_bytes = self._total_bytes(num_bytes, group, num_max_tokens_per_rank, hidden, num_topk)
        for name, given in (("num_cpu_bytes", num_cpu_bytes), ("sl_idx", sl_idx)):
            integer(given, name)
        self.num_cpu_bytes, self.sl_idx = num_cpu_bytes, sl_idx
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
        self.runtime = Runtime(self._group)
        self.explicitly_destroy = explicitly_destroy
        self._group.barrier()

    def destroy(self) -> None:
        """Destroys the buffer. Collective. Results and handles stay valid. A second call has no effect. AssertionError
        for a buffer without explicitly_destroy."""
        if self._modes is None:
            return
        if not self.explicitly_destroy:
            raise AssertionError(
                "destroy() is for buffers with explicitly_destroy=True; the garbage collector releases other buffers"
            )
        self._close()

    def __del__(self, warn: Any = warnings.warn) -> None:
        if self.explicitly_destroy and self._modes is not None:
            with contextlib.suppress(Exception):  # the interpreter may be shutting down
                warn("an ElasticBuffer with explicitly_destroy=True ends without destroy()", RuntimeWarning, 2)

    def barrier(self, use_comm_stream: bool = True, with_cpu_sync: bool = False, sequential: bool = True) -> None:
        """Waits until all ranks have come here, after their calls so far. Collective. On a GPU the streams wait. The
        host waits only with_cpu_sync, for all work of the GPU, before and after the barrier."""
        place = _place.usual()
        mode = self._at(place)
        self._settle(wait=True)
        if not isinstance(place, _place.Gpu):
            self._group.barrier()
            return
        if with_cpu_sync:
            place.synchronize()
        mode.meet(place.turn(None, use_comm_stream))
        if with_cpu_sync:
            place.synchronize()

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
        previous_event_before_epilogue: Any = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
        handle: EPHandle | None = None,
        do_handle_copy: bool = True,
        do_cpu_sync: bool | None = None,
        do_expand: bool = False,
        do_zero_padding: bool = False,
        use_tma_aligned_col_major_sf: bool = False,
    ) -> tuple[Any, Any, Any, EPHandle, EventOverlap]:
        """Carries tokens to the ranks that hold their experts. Collective.

        Returns (recv_x, recv_topk_idx, recv_topk_weights, handle, event). Rows are ordered by source rank, then token.
        docs/reference/deep_ep.md has a table of the results.

        x: bf16 [T, H], or a tuple of e4m3 [T, H] and scales of 4 bytes [T, n]. T <= M; M is the same on all ranks, and
            may be 0 if no rank has a token.
        topk_idx: int64 [T, K], -1 for none.
        topk_weights: float32 [T, K].
        cumulative_local_expert_recv_stats: int32 [L], to which the counts of received rows are added.
        handle: the handle of an earlier dispatch, in place of topk_idx. Rows and their places are the same.
        do_expand: one row for each (token, local expert), ordered by expert. do_zero_padding: rows between experts are
            zero.
        do_cpu_sync: with False, results have the largest possible number of rows.
        do_handle_copy: with False, the handle keeps the caller's topk_idx.
        """
        found: tuple[Any, Any, Any, EPHandle, EventOverlap] = self._dispatch(
            x,
            topk_idx,
            topk_weights,
            cumulative_local_expert_recv_stats,
            num_experts,
            num_max_tokens_per_rank,
            expert_alignment,
            num_sms,
            num_qps,
            previous_event,
            previous_event_before_epilogue,
            bool(async_with_compute_stream),
            allocate_on_comm_stream,
            handle,
            do_handle_copy,
            do_cpu_sync,
            (do_expand, do_zero_padding, use_tma_aligned_col_major_sf),
        )
        return found

    def combine(
        self,
        x: Any,
        handle: EPHandle,
        topk_weights: Any = None,
        bias: Any = None,
        num_sms: int = 0,
        num_qps: int = 0,
        previous_event: Any = None,
        previous_event_before_epilogue: Any = None,
        async_with_compute_stream: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, Any, EventOverlap]:
        """Brings rows back and sums them. Collective. Returns (y bf16 [T, H], topk_weights float32 [T, K] or None,
        event).

        x: bf16 [rows, H], in the dispatch's layout.
        topk_weights: float32 [rows, K], or expanded [rows]. The weight that comes back for a slot is the one given by
            its expert's rank, 0 without an expert. x is not multiplied by it.
        bias: bf16 [T, H], or a tuple of two.

        Sums are FP32 and rounded once. Biases come first, then ranks, ordered by the highest slot of the token on each.
        Each rank first sums a token's expanded rows by ascending slot, and rounds. Without allow_multiple_reduction all
        expanded rows are added by ascending slot. Across nodes with allow_multiple_reduction and allow_hybrid_mode,
        each node has a rounded sum, and nodes follow each other by their highest slots."""
        found: tuple[Any, Any, EventOverlap] = self._combine(
            x,
            handle,
            topk_weights,
            bias,
            num_sms,
            num_qps,
            previous_event,
            previous_event_before_epilogue,
            bool(async_with_compute_stream),
            allocate_on_comm_stream,
        )
        return found
