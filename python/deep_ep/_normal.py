# SPDX-License-Identifier: Apache-2.0
"""Normal mode: layout, dispatch and combine of a buffer.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, M nodes, L = E/N, R rows received.
"""

from __future__ import annotations

import ctypes
from ctypes import addressof, c_int32, c_void_p, sizeof
from typing import Any

import torch
from expar import _abi, Buffer as EpBuffer, Group
from expar._event import Event
from expar import DroppedError

from . import _handles
from ._call import CODES, FP8, Output, check, ints_at, keep, plain, pool_tensor, put, refuse_device

_dispatch = plain("expar_dispatch", c_void_p, c_void_p, c_void_p)
_combine = plain("expar_combine", c_void_p, c_void_p)
_route = plain("expar_ep_route", c_void_p, c_void_p, c_void_p)
_layout = plain("expar_ep_layout", c_void_p, c_void_p, c_int32, c_void_p)

_Args = _abi.DispatchArgs
_Result = _abi.DispatchResult
_Sums = _abi.CombineArgs
_X, _TOPK_IDX, _TOPK_WEIGHTS = _Args.x.offset, _Args.topk_idx.offset, _Args.topk_weights.offset
_SCALES, _IN_RANK = _Args.x_scales.offset, _Args.token_in_rank.offset
_OUT_X, _OUT_SCALES = _Args.out_x.offset, _Args.out_scales.offset
_OUT_IDX, _OUT_WEIGHTS = _Args.out_topk_idx.offset, _Args.out_topk_weights.offset
_RECV_X, _RECV_SCALES = _Result.recv_x.offset, _Result.recv_x_scales.offset
_RECV_IDX, _RECV_WEIGHTS = _Result.recv_topk_idx.offset, _Result.recv_topk_weights.offset
_SUM_X, _SUM_WEIGHTS, _SUM_Y = _Sums.x.offset, _Sums.topk_weights.offset, _Sums.y.offset
_SUM_OUT_WEIGHTS, _SUM_BIAS = _Sums.out_topk_weights.offset, getattr(_Sums, "bias").offset
_VIEW_BYTES = sizeof(_abi.Tensor)
_ARGS_BYTES, _RESULT_BYTES, _SUMS_BYTES = sizeof(_Args), sizeof(_Result), sizeof(_Sums)


def layout(
    group: Group, topk_idx: Any, num_experts: int, num_nodes: int, previous: Event | None
) -> tuple[Any, Any, Any, Any]:
    """(tokens per rank int32 [N], per node int32 [M] or None, per expert int32 [E], token in rank bool [T, N])"""
    refuse_device(topk_idx, "topk_idx")
    if previous is not None:
        previous.wait()
    ranks = group.size
    counts = [torch.empty(n, dtype=torch.int32, device="cpu") for n in (ranks, num_nodes, max(num_experts, 0))]
    tokens = topk_idx.shape[0] if topk_idx.dim() else 0
    in_rank = torch.empty((tokens, ranks), dtype=torch.bool, device="cpu")
    view = _abi.Tensor()
    put(view, 0, topk_idx, "topk_idx")
    wanted = _abi.Layout(sizeof(_abi.Layout), *[each.data_ptr() or None for each in (*counts, in_rank)])
    check(_layout(group.pointer, addressof(view), num_experts, addressof(wanted)))
    return counts[0], counts[1] if num_nodes > 1 else None, counts[2], in_rank


class NormalMode:
    """Dispatches and combines on one buffer of the library's."""

    def __init__(self, group: Group, pool_bytes: int, outputs_of_torch: bool) -> None:
        self.ep = EpBuffer(group, pool_bytes=pool_bytes)
        self._rank, self._size = group.rank, group.size
        self._of_torch = outputs_of_torch

    def dispatch(
        self,
        x: Any,
        scales: Any,
        topk_idx: Any,
        topk_weights: Any,
        token_in_rank: Any,
        tokens_per_expert: Any,
        expert_alignment: int,
        num_worst_tokens: int,
        num_threads: int,
        previous: Event | None,
        async_finish: bool,
    ) -> tuple[Any, Any, Any, Any, list[int], tuple[Any, ...], Event | None]:
        """A fresh one: (x, scales, topk_idx, topk_weights, counts, handle, event)"""
        args, result = _Args(_ARGS_BYTES), _Result(_RESULT_BYTES)
        put(args, _X, x, "x")
        put(args, _IN_RANK, token_in_rank, "is_token_in_rank")
        if topk_idx is not None:
            put(args, _TOPK_IDX, topk_idx, "topk_idx")
            if topk_weights is not None:
                put(args, _TOPK_WEIGHTS, topk_weights, "topk_weights")
        else:
            args.tokens_per_expert = tokens_per_expert.data_ptr()
        if scales is not None:
            put(args, _SCALES, scales, "x[1]")
        args.num_experts = tokens_per_expert.numel()
        args.expert_alignment, args.num_worst_tokens = expert_alignment, num_worst_tokens
        args.num_sms = num_threads
        kept = [x, scales, topk_idx, topk_weights, token_in_rank, tokens_per_expert, previous]
        if previous is not None:
            args.wait_event = previous.pointer
        if self._of_torch:
            return self._dispatch_to_torch(args, result, kept, async_finish)
        args.async_finish = async_finish
        handle = None
        if async_finish and num_worst_tokens:  # it would return before the handle knows its counts
            route = self._route_first(args)
            handle = _handles.wrap(route.handle or 0, route.num_rows, self._rank, self._size, token_in_rank)
        self._carry_out(args, result)
        output = Output(result.output or 0)
        idx = weights = recv_scales = None
        if topk_idx is not None:
            idx = output.tensor(result, _RECV_IDX, topk_idx.dtype)
            if topk_weights is not None:
                weights = output.tensor(result, _RECV_WEIGHTS, torch.float32)
        if scales is not None:
            recv_scales = output.tensor(result, _RECV_SCALES, scales.dtype)
        counts: list[int] = []
        if not num_worst_tokens:
            counts = ints_at(result.recv_tokens_per_expert, result.num_local_experts)
        recv_x = output.last(result, _RECV_X, x.dtype)
        if handle is None:
            handle = _handles.wrap(result.handle or 0, recv_x.shape[0], self._rank, self._size, token_in_rank)
        return recv_x, recv_scales, idx, weights, counts, handle, keep(result.event, kept)

    def dispatch_again(
        self,
        x: Any,
        scales: Any,
        handle: _handles.Handle,
        num_threads: int,
        previous: Event | None,
        async_finish: bool,
    ) -> tuple[Any, Any, Event | None]:
        """One with a handle: (x, scales, event)"""
        args, result = _Args(_ARGS_BYTES), _Result(_RESULT_BYTES)
        put(args, _X, x, "x")
        if scales is not None:
            put(args, _SCALES, scales, "x[1]")
        args.handle, args.num_sms, args.async_finish = handle.pointer, num_threads, async_finish
        if previous is not None:
            args.wait_event = previous.pointer
        kept = [x, scales, handle, previous]
        if self._of_torch:
            kept += self._own_outputs(args, handle.num_rows, x, scales, None, None)
        check(_dispatch(self.ep.pointer, addressof(args), addressof(result)))
        output = Output(result.output or 0)
        event = keep(result.event, kept)
        if self._of_torch:
            return kept[4], kept[5], event
        recv_scales = None if scales is None else output.tensor(result, _RECV_SCALES, scales.dtype)
        return output.last(result, _RECV_X, x.dtype), recv_scales, event

    def _carry_out(self, args: Any, result: Any) -> None:
        """What comes with an error that fills the result all the same is given back."""
        try:
            check(_dispatch(self.ep.pointer, addressof(args), addressof(result)))
        except DroppedError:
            Output(result.output or 0)
            if result.handle:
                _handles.Handle(result.handle, 0, 0, 0)
            keep(result.event, [])
            raise

    def _route_first(self, args: Any) -> Any:
        """The routing of a fresh dispatch, which has a handle then, and whose counts are known."""
        routing, route = _abi.RouteArgs(sizeof(_abi.RouteArgs)), _abi.RouteResult(sizeof(_abi.RouteResult))
        for name in ("topk_idx", "token_in_rank"):
            ctypes.memmove(
                addressof(routing) + getattr(_abi.RouteArgs, name).offset,
                addressof(args) + getattr(_Args, name).offset,
                _VIEW_BYTES,
            )
        routing.num_experts, routing.expert_alignment = args.num_experts, args.expert_alignment
        routing.tokens_per_expert, routing.num_worst_tokens = args.tokens_per_expert, args.num_worst_tokens
        routing.wait_event, routing.num_sms = args.wait_event, args.num_sms
        check(_route(self.ep.pointer, addressof(routing), addressof(route)))
        args.handle = route.handle
        ctypes.memset(addressof(args) + _IN_RANK, 0, _VIEW_BYTES)
        args.tokens_per_expert, args.num_worst_tokens = None, 0
        return route

    # ---- results in memory of PyTorch's ------------------------------------------------------------------------------

    @staticmethod
    def _own_outputs(args: Any, rows: int, x: Any, scales: Any, topk_idx: Any, topk_weights: Any) -> list[Any]:
        outs = []
        for given, offset, name in (
            (x, _OUT_X, "recv_x"),
            (scales, _OUT_SCALES, "recv_x_scales"),
            (topk_idx, _OUT_IDX, "recv_topk_idx"),
            (topk_weights, _OUT_WEIGHTS, "recv_topk_weights"),
        ):
            out = None
            if given is not None:
                out = torch.empty((rows, given.shape[1]), dtype=given.dtype, device="cpu")
                put(args, offset, out, name)
            outs.append(out)
        return outs

    def _dispatch_to_torch(
        self, args: Any, result: Any, kept: list[Any], async_finish: bool
    ) -> tuple[Any, Any, Any, Any, list[int], tuple[Any, ...], Event | None]:
        """Its routing first: then it is known how large they are."""
        x, scales, topk_idx, topk_weights, token_in_rank, _, _ = kept
        tells = not args.num_worst_tokens
        route = self._route_first(args)
        counts: list[int] = []
        if tells:
            counts = ints_at(route.recv_tokens_per_expert, route.num_local_experts)
        handle = _handles.wrap(route.handle or 0, route.num_rows, self._rank, self._size, token_in_rank)
        args.async_finish = async_finish
        recv_x, recv_scales, idx, weights = self._own_outputs(args, route.num_rows, x, scales, topk_idx, topk_weights)
        self._carry_out(args, result)
        Output(result.output or 0)
        kept += [recv_x, recv_scales, idx, weights, handle]
        return recv_x, recv_scales, idx, weights, counts, handle, keep(result.event, kept)

    # ---- combine -----------------------------------------------------------------------------------------------------

    def combine(
        self,
        x: Any,
        handle: _handles.Handle,
        topk_weights: Any,
        biases: tuple[Any, ...],
        num_threads: int,
        previous: Event | None,
        async_finish: bool,
    ) -> tuple[Any, Any, Event | None]:
        """(y, topk_weights, event)"""
        args = _Sums(_SUMS_BYTES)
        put(args, _SUM_X, x, "x")
        weights = None
        if topk_weights is not None:
            put(args, _SUM_WEIGHTS, topk_weights, "topk_weights")
            weights = torch.empty((handle.num_tokens, handle.num_topk), dtype=torch.float32, device="cpu")
            put(args, _SUM_OUT_WEIGHTS, weights, "combined topk_weights")
        for index, bias in enumerate(biases):
            put(args, _SUM_BIAS + index * _VIEW_BYTES, bias, f"bias[{index}]")
        hidden = x.shape[1] if x.dim() == 2 else 0
        if self._of_torch or x.dtype not in CODES or x.dtype is FP8:
            y = torch.empty((handle.num_tokens, hidden), dtype=x.dtype, device="cpu")
        else:
            y = pool_tensor(self.ep.pointer, handle.num_tokens, hidden, x.dtype, x.element_size())
        put(args, _SUM_Y, y, "y")
        args.handle, args.num_sms = handle.pointer, num_threads
        if previous is not None:
            args.wait_event = previous.pointer
        event = c_void_p()
        if async_finish:
            args.async_finish, args.event = 1, addressof(event)
        check(_combine(self.ep.pointer, addressof(args)))
        return y, weights, keep(event.value, [x, topk_weights, biases, y, weights, handle, previous])
