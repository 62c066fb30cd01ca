# SPDX-License-Identifier: Apache-2.0
"""Dispatches and combines of `ElasticBuffer` on a buffer of the library's.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts, R rows received,
X rows expanded, M tokens of a rank at most, A expert_alignment.
"""

from __future__ import annotations

import contextlib
from ctypes import addressof, c_int32, c_void_p, sizeof
from typing import Any, Callable, NoReturn

import torch
from expar import _abi, Buffer as EpBuffer, Group, SumOrder, WeightsOf
from expar._event import Event

from . import _handles
from ._call import Output, check, keep, plain, pool_tensor, put, put_view
from ._elastic_handle import Counts, EPHandle, column_major, fill_metadata, ranks_of, weights_by_row
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
    "row_map": _Args.out_row_map.offset,
    "src_token": _Args.out_src_token.offset,
}
_RECV = {
    "x": _Result.recv_x.offset,
    "scales": _Result.recv_x_scales.offset,
    "topk_idx": _Result.recv_topk_idx.offset,
    "topk_weights": _Result.recv_topk_weights.offset,
    "row_map": _Result.recv_row_map.offset,
    "src_token": _Result.recv_src_token.offset,
}


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
    """What a dispatch gives. finish: makes the rest of it, once the event has happened; None: nothing is left."""

    __slots__ = ("x", "scales", "topk_idx", "topk_weights", "handle", "event", "finish")

    def __init__(self, handle: EPHandle) -> None:
        self.handle = handle
        self.x: Any = None
        self.scales: Any = None
        self.topk_idx: Any = None
        self.topk_weights: Any = None
        self.event: Event | None = None
        self.finish: Callable[[], None] | None = None

    def end(self, event: Event | None, finish: Callable[[], None] | None) -> None:
        self.event = event
        if event is None and finish is not None:
            finish()
        else:
            self.finish = finish


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
        args, result = self._arguments(x, scales, routing.topk_idx, topk_weights, how)
        args.num_experts, args.expert_alignment = routing.num_experts, routing.alignment
        args.keep_slots = args.src_tokens = 1
        counts = Counts(self._size, routing.local)
        told = counts.struct()
        args.recv_counts = addressof(told)
        parts = self._forms(x, scales, routing.topk_idx, topk_weights)
        parts["src_token"] = (1, torch.int32)
        if how.expand:
            parts["row_map"] = (routing.topk_idx.shape[-1], torch.int32)
        own = None
        if not routing.synced:
            own = self._own(args, parts, routing.rows, routing.expanded if how.expand else routing.rows)
        check(_dispatch(self.ep.pointer, addressof(args), addressof(result)))
        aligned = (c_int32 * result.num_local_experts).from_address(result.recv_tokens_per_expert or 0)[:]
        made = _handles.Handle(result.handle or 0, x.shape[0], routing.topk_idx.shape[1], result.num_recv_tokens)
        event_pointer = result.event
        found = self._take(result, parts, own)
        handle = self._handle(made, routing, counts, aligned, found.get("row_map"))
        received = Received(handle)
        finish_results = self._arrange(received, found, handle, how)
        source = found["src_token"]

        def finish() -> None:
            most = routing.num_max_tokens_per_rank
            fill_metadata(handle.recv_src_metadata, counts, source.view(-1), handle._row_map, most)
            handle.psum_num_recv_tokens_per_expert.copy_(counts.ends(how.expand))
            if stats is not None:
                stats.add_(counts.per_expert)
            if finish_results is not None:
                finish_results()

        kept = [x, scales, routing, topk_weights, how.previous, counts, told, found, handle]
        received.end(keep(event_pointer, kept), finish)
        return received

    def dispatch_again(
        self, x: Any, scales: Any, topk_weights: Any, handle: EPHandle, how: How
    ) -> Received:
        """One with a handle."""
        topk_idx = handle.topk_idx  # carried: it comes again
        args, result = self._arguments(x, scales, topk_idx, topk_weights, how)
        args.handle = handle._routing.pointer
        parts = self._forms(x, scales, topk_idx, topk_weights)
        own = None
        if not handle._synced:
            rows, expanded = handle.num_recv_tokens, handle.num_expanded_tokens
            own = self._own(args, parts, rows, expanded if how.expand else rows)
        check(_dispatch(self.ep.pointer, addressof(args), addressof(result)))
        event_pointer = result.event
        found = self._take(result, parts, own)
        received = Received(handle)
        finish = self._arrange(received, found, handle, how)
        kept = [x, scales, topk_idx, topk_weights, how.previous, found, handle]
        received.end(keep(event_pointer, kept), finish)
        return received

    @staticmethod
    def _arguments(x: Any, scales: Any, topk_idx: Any, topk_weights: Any, how: How) -> tuple[Any, Any]:
        args = _Args(_ARGS_BYTES)
        put(args, _Args.x.offset, x, "x")
        if scales is not None:
            put(args, _Args.x_scales.offset, scales, "x[1]")
        if topk_idx is not None:
            put(args, _Args.topk_idx.offset, topk_idx, "topk_idx")
        if topk_weights is not None:
            put(args, _Args.topk_weights.offset, topk_weights, "topk_weights")
        args.expert_major, args.zero_padding = how.expand, how.zero_padding
        args.num_sms, args.async_finish = how.threads, how.asynchronous
        if how.previous is not None:
            args.wait_event = how.previous.pointer
        return args, _Result(_RESULT_BYTES)

    @staticmethod
    def _forms(x: Any, scales: Any, topk_idx: Any, topk_weights: Any) -> dict[str, tuple[int, Any]]:
        """Columns and dtype of each result that there will be."""
        forms = {}
        for name, given in (("topk_idx", topk_idx), ("topk_weights", topk_weights), ("scales", scales), ("x", x)):
            if given is not None:
                forms[name] = (given.shape[-1], given.dtype)
        return forms

    def _own(self, args: Any, forms: dict[str, tuple[int, Any]], rows: int, rows_of_x: int) -> dict[str, Any]:
        """Memory of the pool for more rows than may come. Indices of those that do not are -1."""
        found = {}
        for name, (columns, dtype) in forms.items():
            many = rows_of_x if name in ("x", "scales") else rows
            memory = pool_tensor(self.ep.pointer, many, columns, dtype, dtype.itemsize)
            if name in ("topk_idx", "row_map", "src_token"):
                memory.fill_(-1)
            found[name] = memory
            put(args, _OUT[name], memory.view(-1) if name == "src_token" else memory, f"recv_{name}")
        return found

    @staticmethod
    def _take(result: Any, forms: dict[str, tuple[int, Any]], own: dict[str, Any] | None) -> dict[str, Any]:
        """The results, of which nobody else has a reference."""
        output = Output(result.output or 0)
        if own is not None:
            return own
        return {name: output.tensor(result, _RECV[name], dtype) for name, (_, dtype) in forms.items()}

    def _handle(
        self, made: _handles.Handle, routing: Routing, counts: Counts, aligned: list[int], row_map: Any
    ) -> EPHandle:
        handle = EPHandle(made, routing.topk_idx.clone() if routing.copied else routing.topk_idx)
        expand, synced = row_map is not None, routing.synced
        handle._row_map, handle._num_exact_expanded, handle._synced = row_map, sum(aligned), synced
        handle.do_expand, handle.num_experts = expand, routing.num_experts
        handle.expert_alignment, handle.num_max_tokens_per_rank = routing.alignment, routing.num_max_tokens_per_rank
        handle.num_recv_tokens = made.num_rows if synced else routing.rows
        handle.num_expanded_tokens = sum(aligned) if synced else routing.expanded
        handle.num_recv_tokens_per_expert_list = aligned if synced else []
        handle.psum_num_recv_tokens_per_scaleup_rank = counts.rank_prefix
        handle.num_unaligned_recv_tokens_per_expert = counts.per_expert
        handle.psum_num_recv_tokens_per_expert = torch.zeros_like(counts.per_expert)
        handle.recv_src_metadata = torch.full(
            (handle.num_recv_tokens, 2 + made.num_topk), -1, dtype=torch.int32, device="cpu"
        )
        handle.dst_buffer_slot_idx = ranks_of(routing.topk_idx, routing.local)
        return handle

    @staticmethod
    def _arrange(received: Received, found: dict[str, Any], handle: EPHandle, how: How) -> Callable[[], None] | None:
        """The results as the caller has them; what fills those that the library has in another form."""
        received.x, scales, weights = found["x"], found.get("scales"), found.get("topk_weights")
        received.scales, received.topk_weights = scales, weights
        if not how.expand:
            received.topk_idx = found.get("topk_idx")
        elif weights is not None:
            received.topk_weights = torch.zeros(len(received.x), dtype=torch.float32, device="cpu")
        if scales is not None and how.column_major:
            received.scales = column_major(scales)
        by_row = how.expand and weights is not None
        if not by_row and received.scales is scales:
            return None

        def finish() -> None:
            if by_row:
                weights_by_row(weights, handle._row_map, received_weights)
            if received_scales is not scales:
                received_scales.copy_(scales)

        received_weights, received_scales = received.topk_weights, received.scales
        return finish

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
