# SPDX-License-Identifier: Apache-2.0
"""Dispatches and combines of `ElasticBuffer` on a buffer of the library's.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts, R rows received,
X rows expanded, M tokens of a rank at most, A expert_alignment.
"""

from __future__ import annotations

import contextlib
from ctypes import addressof, c_void_p, sizeof
from typing import Any, Callable, NoReturn

import torch
from expar import _abi, Buffer as EpBuffer, Group, SumOrder, WeightsOf
from expar._event import Event

from . import _handles
from ._call import Output, check, ints_at, keep, plain, pool_tensor, put, put_view
from ._elastic_handle import Counts, EPHandle
from .utils.math import align

_dispatch = plain("expar_dispatch", c_void_p, c_void_p, c_void_p)
_combine = plain("expar_combine", c_void_p, c_void_p)

_Args = _abi.DispatchArgs
_Result = _abi.DispatchResult
_Sums = _abi.CombineArgs
_ARGS_BYTES, _RESULT_BYTES, _SUMS_BYTES = sizeof(_Args), sizeof(_Result), sizeof(_Sums)
_VIEW_BYTES = sizeof(_abi.Tensor)
_BIAS = getattr(_Sums, "bias").offset
_BY_SLOT, _EACH_SLOT, _OWNER = int(SumOrder.BY_SLOT), int(SumOrder.EACH_SLOT), int(WeightsOf.OWNER)

# The results of a dispatch: the arguments for memory of one's own, and where they are told.
_OUT = {
    "x": _Args.out_x.offset,
    "scales": _Args.out_scales.offset,
    "topk_idx": _Args.out_topk_idx.offset,
    "topk_weights": _Args.out_topk_weights.offset,
    "row_weights": _Args.out_row_weights.offset,
    "metadata": _Args.out_src_metadata.offset,
}
_RECV = {
    "x": _Result.recv_x.offset,
    "scales": _Result.recv_x_scales.offset,
    "topk_idx": _Result.recv_topk_idx.offset,
    "topk_weights": _Result.recv_topk_weights.offset,
    "row_weights": _Result.recv_row_weights.offset,
    "metadata": _Result.recv_src_metadata.offset,
}
_X, _SCALES = _Args.x.offset, _Args.x_scales.offset
_TOPK_IDX, _TOPK_WEIGHTS = _Args.topk_idx.offset, _Args.topk_weights.offset
_OF_ROWS = ("x", "scales", "row_weights")  # of results: a row each of recv_x; the others of tokens


class How:
    """What one call is asked for, beside its tensors."""

    __slots__ = ("threads", "previous", "asynchronous", "expand", "zero_padding", "column_major")

    def __init__(
        self,
        threads: int,
        previous: Event | None,
        asynchronous: bool,
        expand: bool = False,
        zero_padding: bool = False,
        column_major: bool = False,
    ) -> None:
        self.threads = threads
        self.previous = previous
        self.asynchronous = asynchronous
        self.expand = expand
        self.zero_padding = zero_padding
        self.column_major = column_major


class Routing:
    """What a fresh dispatch goes by. synced: as many rows as come; else the most that there can be. copied: the handle
    gets a topk_idx of its own."""

    __slots__ = (
        "topk_idx",
        "num_experts",
        "num_max_tokens_per_rank",
        "alignment",
        "synced",
        "copied",
        "local",
        "rows",
        "expanded",
    )

    def __init__(self, topk_idx: Any, num_experts: int, max_tokens: int, alignment: int, ranks: int) -> None:
        self.topk_idx = topk_idx
        self.num_experts = num_experts
        self.num_max_tokens_per_rank = max_tokens
        self.alignment = alignment
        self.synced = self.copied = True
        self.local = max(num_experts // ranks, 1)
        self.rows = ranks * max_tokens
        most = self.rows * min(topk_idx.shape[-1], self.local) + (alignment - 1) * self.local
        self.expanded = align(most, alignment)


class Received:
    """What a dispatch gives. finish: what is left to be done once the event has happened; None: nothing."""

    __slots__ = ("x", "scales", "topk_idx", "topk_weights", "handle", "event", "finish")

    def __init__(self, handle: EPHandle) -> None:
        self.handle = handle
        self.x: Any = None
        self.scales: Any = None
        self.topk_idx: Any = None
        self.topk_weights: Any = None
        self.event: Event | None = None
        self.finish: Callable[[], None] | None = None


class ElasticMode:
    """Calls on one buffer of the library's."""

    def __init__(self, group: Group) -> None:
        self.ep = EpBuffer(group)
        self._size = group.size

    # ---- refusals ----------------------------------------------------------------------------------------------------

    def refuse_dispatch(self, text: str) -> NoReturn:
        """RuntimeError for what the library does not look at. It gets a call that it refuses: so the other ranks, who
        are in theirs, learn of it."""
        args, result = _Args(_ARGS_BYTES), _Result(_RESULT_BYTES)
        put_view(args, _Args.x.offset, 0, -1, (0, 0))
        with contextlib.suppress(RuntimeError):
            check(_dispatch(self.ep.pointer, addressof(args), addressof(result)))
        raise RuntimeError(text)

    def refuse_combine(self, text: str) -> NoReturn:
        """Likewise."""
        args = _Sums(_SUMS_BYTES)
        put_view(args, _Sums.x.offset, 0, -1, (0, 0))
        with contextlib.suppress(RuntimeError):
            check(_combine(self.ep.pointer, addressof(args)))
        raise RuntimeError(text)

    # ---- dispatch ----------------------------------------------------------------------------------------------------

    def dispatch(
        self, x: Any, scales: Any, topk_weights: Any, routing: Routing, stats: Any, how: How
    ) -> Received:
        """A fresh one. stats: int32 [L], to which what comes is added; or None."""
        topk_idx, expand = routing.topk_idx, how.expand
        args, result = self._arguments(x, scales, topk_idx, topk_weights, how)
        args.num_experts, args.expert_alignment = routing.num_experts, routing.alignment
        args.keep_slots, args.src_stride = 1, routing.num_max_tokens_per_rank
        counts = Counts(self._size, routing.local, expand)
        args.recv_counts = addressof(counts.struct)
        parts = self._forms(x, scales, topk_idx, topk_weights, expand)
        parts["metadata"] = (2 + topk_idx.shape[1], torch.int32)
        own = None
        if not routing.synced:
            own = self._own(args, parts, routing.rows, routing.expanded if expand else routing.rows, how.column_major)
        check(_dispatch(self.ep.pointer, addressof(args), addressof(result)))
        aligned = ints_at(result.recv_tokens_per_expert, result.num_local_experts)
        made = _handles.Handle(result.handle or 0, x.shape[0], topk_idx.shape[1], result.num_recv_tokens)
        event_pointer = result.event
        found = self._take(result, parts, own)
        handle = self._handle(made, routing, counts, aligned, expand)
        handle.recv_src_metadata = found["metadata"]
        received = self._received(found, handle, expand)
        if not event_pointer:
            if stats is not None:
                stats.add_(counts.per_expert)
            return received

        def finish() -> None:
            stats.add_(counts.per_expert)

        received.finish = finish if stats is not None else None
        received.event = keep(event_pointer, [x, scales, routing, topk_weights, how.previous, counts, found, handle])
        return received

    def dispatch_again(
        self, x: Any, scales: Any, topk_weights: Any, handle: EPHandle, how: How
    ) -> Received:
        """One with a handle."""
        topk_idx = handle.topk_idx  # carried: it comes again
        args, result = self._arguments(x, scales, topk_idx, topk_weights, how)
        args.handle = handle._routing.pointer
        parts = self._forms(x, scales, topk_idx, topk_weights, how.expand)
        own = None
        if not handle._synced:
            rows, expanded = handle.num_recv_tokens, handle.num_expanded_tokens
            own = self._own(args, parts, rows, expanded if how.expand else rows, how.column_major)
        check(_dispatch(self.ep.pointer, addressof(args), addressof(result)))
        event_pointer = result.event
        found = self._take(result, parts, own)
        received = self._received(found, handle, how.expand)
        if event_pointer:
            received.event = keep(event_pointer, [x, scales, topk_idx, topk_weights, how.previous, found, handle])
        return received

    @staticmethod
    def _arguments(x: Any, scales: Any, topk_idx: Any, topk_weights: Any, how: How) -> tuple[Any, Any]:
        args = _Args(_ARGS_BYTES)
        put(args, _X, x, "x")
        if scales is not None:
            put(args, _SCALES, scales, "x[1]")
            args.column_scales = how.column_major
        if topk_idx is not None:
            put(args, _TOPK_IDX, topk_idx, "topk_idx")
        if topk_weights is not None:
            put(args, _TOPK_WEIGHTS, topk_weights, "topk_weights")
            args.row_weights = how.expand
        if how.expand:
            args.expert_major, args.zero_padding = 1, how.zero_padding
        args.num_sms, args.async_finish = how.threads, how.asynchronous
        if how.previous is not None:
            args.wait_event = how.previous.pointer
        return args, _Result(_RESULT_BYTES)

    @staticmethod
    def _forms(
        x: Any, scales: Any, topk_idx: Any, topk_weights: Any, expand: bool
    ) -> dict[str, tuple[int, Any]]:
        """Columns and dtype of each result that the caller gets; 0 columns: it has one dimension."""
        forms: dict[str, tuple[int, Any]] = {"x": (x.shape[1], x.dtype)}
        if scales is not None:
            forms["scales"] = (scales.shape[1], scales.dtype)
        if topk_idx is not None and not expand:
            forms["topk_idx"] = (topk_idx.shape[1], topk_idx.dtype)
        if topk_weights is not None:
            forms["row_weights" if expand else "topk_weights"] = (0 if expand else topk_weights.shape[1], torch.float32)
        return forms

    def _own(
        self, args: Any, forms: dict[str, tuple[int, Any]], rows: int, rows_of_x: int, column_major: bool
    ) -> dict[str, Any]:
        """Memory of the pool for more rows than may come. Numbers of those that do not are -1."""
        found = {}
        for name, (columns, dtype) in forms.items():
            many = rows_of_x if name in _OF_ROWS else rows
            if name == "scales" and column_major:
                memory = pool_tensor(self.ep.pointer, columns, align(many, 4), dtype, dtype.itemsize).t()[:many]
            else:
                memory = pool_tensor(self.ep.pointer, many, columns or 1, dtype, dtype.itemsize)
            if name in ("topk_idx", "metadata"):
                memory.fill_(-1)
            found[name] = memory if columns else memory.view(-1)
            put(args, _OUT[name], found[name], f"recv_{name}")
        return found

    @staticmethod
    def _take(result: Any, forms: dict[str, tuple[int, Any]], own: dict[str, Any] | None) -> dict[str, Any]:
        """The results, of which nobody else has a reference."""
        output = Output(result.output or 0)
        if own is not None:
            return own
        return {name: output.tensor(result, _RECV[name], dtype) for name, (_, dtype) in forms.items()}

    @staticmethod
    def _received(found: dict[str, Any], handle: EPHandle, expand: bool) -> Received:
        received = Received(handle)
        received.x, received.scales = found["x"], found.get("scales")
        received.topk_idx, received.topk_weights = found.get("topk_idx"), found.get("topk_weights")
        if expand:
            received.topk_weights = found.get("row_weights")
        return received

    @staticmethod
    def _handle(
        made: _handles.Handle, routing: Routing, counts: Counts, aligned: list[int], expand: bool
    ) -> EPHandle:
        handle = EPHandle(made, routing.topk_idx.clone() if routing.copied else routing.topk_idx)
        synced = routing.synced
        handle._num_exact_expanded, handle._synced = sum(aligned), synced
        handle.do_expand, handle.num_experts = expand, routing.num_experts
        handle.expert_alignment, handle.num_max_tokens_per_rank = routing.alignment, routing.num_max_tokens_per_rank
        handle.num_recv_tokens = made.num_rows if synced else routing.rows
        handle.num_expanded_tokens = handle._num_exact_expanded if synced else routing.expanded
        handle.num_recv_tokens_per_expert_list = aligned if synced else []
        handle.psum_num_recv_tokens_per_scaleup_rank = counts.rank_prefix
        handle.num_unaligned_recv_tokens_per_expert = counts.per_expert
        handle.psum_num_recv_tokens_per_expert = counts.ends
        handle._counts = counts
        return handle

    # ---- combine -----------------------------------------------------------------------------------------------------

    def combine(
        self, x: Any, handle: EPHandle, topk_weights: Any, biases: tuple[Any, ...], each_slot: bool, how: How
    ) -> tuple[Any, Any, Event | None]:
        """(y, topk_weights, event). each_slot: expanded rows are not summed on the ranks that they come from."""
        args, expand, routing = _Sums(_SUMS_BYTES), handle.do_expand, handle._routing
        rows = handle._num_exact_expanded if expand else routing.num_rows
        x = self._exactly(x, rows)
        put(args, _Sums.x.offset, x, "x")
        weights = None
        if topk_weights is not None:
            topk_weights = self._exactly(topk_weights.view(-1, 1) if expand else topk_weights, rows)
            put(args, _Sums.topk_weights.offset, topk_weights, "topk_weights")
            weights = torch.empty((routing.num_tokens, routing.num_topk), dtype=torch.float32, device="cpu")
            put(args, _Sums.out_topk_weights.offset, weights, "combined topk_weights")
            args.weights_of = _OWNER
        for index, bias in enumerate(biases):
            put(args, _BIAS + index * _VIEW_BYTES, bias, f"bias[{index}]")
        y = pool_tensor(self.ep.pointer, routing.num_tokens, x.shape[1], x.dtype, x.element_size())
        put(args, _Sums.y.offset, y, "y")
        args.handle, args.num_sms = routing.pointer, how.threads
        args.expert_major, args.sum_order = expand, _EACH_SLOT if each_slot else _BY_SLOT
        if how.previous is not None:
            args.wait_event = how.previous.pointer
        event = c_void_p()
        if how.asynchronous:
            args.async_finish, args.event = 1, addressof(event)
        check(_combine(self.ep.pointer, addressof(args)))
        return y, weights, keep(event.value, [x, topk_weights, biases, y, weights, handle, how.previous])

    @staticmethod
    def _exactly(tensor: Any, rows: int) -> Any:
        """With as many rows as the library knows of. What is behind those that are named is not read."""
        if tensor.shape[0] >= rows:
            return tensor[:rows]
        whole = torch.zeros((rows, tensor.shape[1]), dtype=tensor.dtype, device="cpu")
        whole[: tensor.shape[0]] = tensor
        return whole
