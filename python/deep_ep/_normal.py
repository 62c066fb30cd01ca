# SPDX-License-Identifier: Apache-2.0
"""Normal mode: layout, dispatch and combine of a buffer.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, M nodes, L = E/N, R rows received.
"""

from __future__ import annotations

import ctypes
from ctypes import addressof, c_void_p, sizeof
from typing import Any

import torch
from expar import _abi, Buffer as EpBuffer, DroppedError, Group
from expar._library import lib

from . import _handles, _place
from ._call import check, CODES, FP8, ints_at, Output, plain, put
from ._forms import Form
from ._normal_forms import (
    AGAIN,
    AgainForm,
    ask,
    COMBINE,
    CombineForm,
    FRESH,
    Fresh,
    FreshForm,
    Given,
    Options,
    received,
)
from .utils.event import EventHandle, EventOverlap

_dispatch = plain("expar_ep_dispatch", c_void_p, c_void_p, c_void_p)
_route = plain("expar_ep_route", c_void_p, c_void_p, c_void_p)

_Args = _abi.EpDispatchArgs
_Result = _abi.EpDispatchResult
_Sums = _abi.EpCombineArgs
_ARGS_BYTES, _RESULT_BYTES, _COUNTS_BYTES = sizeof(_Args), sizeof(_Result), sizeof(_abi.EpRecvCounts)
_IN_RANK = _Args.token_in_rank.offset
_OUT_X, _OUT_SCALES = _Args.out_x.offset, _Args.out_scales.offset
_OUT_IDX, _OUT_WEIGHTS = _Args.out_topk_idx.offset, _Args.out_topk_weights.offset
_VIEW_BYTES = sizeof(_abi.Tensor)
_SUMS_BYTES = sizeof(_Sums)
# The tensors of a fresh dispatch, except its counts: where their views are, and their names.
_GIVEN = tuple(
    (getattr(_Args, member).offset, name)
    for member, name in dict(
        x="x", x_scales="x[1]", topk_idx="topk_idx", topk_weights="topk_weights", token_in_rank="is_token_in_rank"
    ).items()
)


class NormalMode:
    """Dispatches and combines on one library buffer.

    On a GPU the library's calls return before their outcome is known. A later call raises the error. That call has been
    submitted by then, so no rank waits for it."""

    def __init__(self, group: Group, place: _place.Place, pool_bytes: int, outputs_of_torch: bool) -> None:
        """pool_bytes: the memory that a GPU's pool gets at once. On a CPU it is ignored, because all ranks together may
        ask for more than the host has. outputs_of_torch: results lie in memory of PyTorch's."""
        self.ep = EpBuffer(group, device=place.pair, pool_bytes=pool_bytes if place.on_gpu else 0)
        place.opaque()  # makes the opaque tensors now, since they must not be made in a capture
        self.place = place
        self._size = size = group.size
        across = group.num_nodes > 1
        # The offset in bytes of this rank's column in the matrix of handles. Across nodes there is only that column.
        self.own_column = 0 if across else 4 * size * group.rank
        self._prefix_layout = ((size,), (1,)) if across else ((size, size), (1, size))  # sizes and strides
        self._wrap = _handles.wrap_across if across else _handles.wrap
        self._of_torch = outputs_of_torch

    # ---- fresh dispatches --------------------------------------------------------------------------------------------

    def routes_first(self, num_worst_tokens: int, async_finish: bool) -> bool:
        """Returns whether fresh dispatches make their routing first: for results in PyTorch's memory, whose sizes are
        needed, and where the call would return before the handle knows its counts."""
        return self._of_torch or bool(num_worst_tokens and async_finish and not self.place.on_gpu)

    def fresh_form(self, given: Given, options: Options, aside: bool) -> FreshForm:
        """Returns the form of fresh dispatches with such tensors, with results in the library's memory. aside: as in
        again_form."""
        args = _abi.PythonFresh()
        self._put_given(args, given)
        FRESH.put(args, "tokens_per_expert", given[5])
        self._put_options(args.args, given, options)
        late = aside and not self.place.on_gpu
        if not late:
            args.counts.struct_size = _COUNTS_BYTES
        parts, alone = received(*given[:4]), self.place.ends_alone and not aside
        local = 0 if options[1] else args.args.num_experts // self._size
        return FreshForm(self, Form(FRESH, self.ep, args, parts, alone, alone), parts, given, local, late)

    @staticmethod
    def _put_options(args: Any, given: Given, options: Options) -> None:
        args.struct_size, args.num_experts = _ARGS_BYTES, given[5].numel()
        args.expert_alignment, args.num_worst_tokens, args.num_sms = options

    def prefix(self) -> Any:
        """Returns the prefix of a handle: int32 [N, N], in which each column is contiguous. Column `rank` has the
        number of rows that come from ranks 0..i; other columns are not filled. Across nodes there is only that column.

        The call writes it. If that is late, on a CPU, the handle has it at once."""
        sizes, strides = self._prefix_layout
        return self.place.strided(sizes, strides, torch.int32)

    def handle(self, pointer: int, rows: int, given: Given, prefix: Any, late: bool) -> tuple[Any, ...]:
        """Wraps a library handle into the tuple for engines. given: the arguments of the dispatch. late: the call does
        not write the prefix."""
        x, _, topk_idx, _, token_in_rank, _ = given
        handle = _handles.Handle(pointer, x.shape[0], 0 if topk_idx is None else topk_idx.shape[1], rows)
        if late:
            _handles.read_prefix(handle, prefix.data_ptr() + self.own_column, self._size)
        return self._wrap(handle, prefix, self.place, token_in_rank)

    def dispatch_routed(
        self, given: Given, options: Options, previous: EventHandle | None, async_finish: bool
    ) -> Fresh:
        """Makes a fresh dispatch whose routing comes first."""
        x, scales, topk_idx, topk_weights, _, tokens_per_expert = given
        args, result = _Args(), _Result(_RESULT_BYTES)
        turn = self.place.turn(previous, async_finish)
        turn.begin(args)
        self._put_given(args, given)
        self._put_options(args, given, options)
        if topk_idx is None:
            args.tokens_per_expert = tokens_per_expert.data_ptr()
        prefix = turn.run(self.prefix)
        route = self._route_first(args, prefix)
        handle = self.handle(route.handle or 0, route.num_rows, given, prefix, False)
        counts = [] if options[1] else ints_at(route.recv_tokens_per_expert, route.num_local_experts)
        args.async_finish, own = turn.asynchronous(async_finish), []
        if self._of_torch:
            with turn.work():
                own = self._own_outputs(args, route.num_rows, x, scales, topk_idx, topk_weights)
        self._carry_out(args, result)
        output = Output(result.output or 0)
        found = own or output.tensors(received(*given[:4]))
        event = turn.end(result.event, [*given, *own, handle], [*own, prefix], async_finish)
        ask(self.place, self.ep)
        rows = found[0] if scales is None else (found[0], found[1])
        return rows, found[2], found[3], counts, handle, EventOverlap(event)

    @staticmethod
    def _put_given(args: Any, given: Given) -> None:
        """Writes the views of a fresh dispatch's tensors, except its counts. args: those of the dispatch come first."""
        for (offset, name), tensor in zip(_GIVEN, given):
            if tensor is not None:
                put(args, offset, tensor, name)

    def _carry_out(self, args: Any, result: Any) -> None:
        """Calls the library. A dispatch that drops rows fills its result although it fails; then the objects in the
        result are released."""
        try:
            check(_dispatch(self.ep.pointer, addressof(args), addressof(result)))
        except DroppedError:
            Output(result.output or 0)
            if result.event:
                lib.expar_event_release(result.event)
            raise

    def _route_first(self, args: Any, prefix: Any) -> Any:
        """Makes the routing of a fresh dispatch. Then args has a handle, the counts are known, and the prefix is
        written."""
        routing, route = _abi.EpRouteArgs(sizeof(_abi.EpRouteArgs)), _abi.EpRouteResult(sizeof(_abi.EpRouteResult))
        for name in ("topk_idx", "token_in_rank"):
            ctypes.memmove(
                addressof(routing) + getattr(_abi.EpRouteArgs, name).offset,
                addressof(args) + getattr(_Args, name).offset,
                _VIEW_BYTES,
            )
        routing.num_experts, routing.expert_alignment = args.num_experts, args.expert_alignment
        routing.tokens_per_expert, routing.num_worst_tokens = args.tokens_per_expert, args.num_worst_tokens
        routing.wait_event, routing.num_sms, routing.stream = args.wait_event, args.num_sms, args.stream
        counts = _abi.EpRecvCounts(_COUNTS_BYTES, rank_prefix=prefix.data_ptr() + self.own_column)
        routing.recv_counts = addressof(counts)
        check(_route(self.ep.pointer, addressof(routing), addressof(route)))
        args.handle = route.handle
        ctypes.memset(addressof(args) + _IN_RANK, 0, _VIEW_BYTES)
        args.tokens_per_expert, args.num_worst_tokens = None, 0
        return route

    def _own_outputs(self, args: Any, rows: int, x: Any, scales: Any, topk_idx: Any, topk_weights: Any) -> list[Any]:
        """Makes results in PyTorch's memory."""
        outs = []
        for given, offset, name in (
            (x, _OUT_X, "recv_x"),
            (scales, _OUT_SCALES, "recv_scales"),
            (topk_idx, _OUT_IDX, "recv_topk_idx"),
            (topk_weights, _OUT_WEIGHTS, "recv_topk_weights"),
        ):
            out = None
            if given is not None:
                out = self.place.matrix(rows, given.shape[1], given.dtype)
                put(args, offset, out, name)
            outs.append(out)
        return outs

    # ---- dispatches with a handle ------------------------------------------------------------------------------------

    def again_form(self, x: Any, scales: Any, num_threads: int, aside: bool) -> AgainForm:
        """Returns the form of dispatches with a handle and such tensors, with results in the library's memory. aside:
        the calls run beside later work on the current stream."""
        args = _Args(_ARGS_BYTES, num_sms=num_threads)
        AGAIN.put(args, "x", x)
        if scales is not None:
            AGAIN.put(args, "x_scales", scales)
        alone = self.place.ends_alone and not aside
        form = Form(AGAIN, self.ep, args, received(x, scales, None, None), alone, alone)
        return AgainForm(self.place, form, self.ep)

    def dispatch_again(
        self,
        x: Any,
        scales: Any,
        handle: _handles.Handle,
        num_threads: int,
        previous: EventHandle | None,
        async_finish: bool,
    ) -> tuple[Any, Any, EventHandle | None]:
        """Makes a dispatch with a handle and results in PyTorch's memory: returns (x, scales, event)."""
        args, result = _Args(_ARGS_BYTES), _Result(_RESULT_BYTES)
        turn = self.place.turn(previous, async_finish)
        turn.begin(args)
        AGAIN.put(args, "x", x)
        if scales is not None:
            AGAIN.put(args, "x_scales", scales)
        args.handle, args.num_sms = handle.pointer, num_threads
        args.async_finish = turn.asynchronous(async_finish)
        with turn.work():
            own = self._own_outputs(args, handle.num_rows, x, scales, None, None)
        check(_dispatch(self.ep.pointer, addressof(args), addressof(result)))
        Output(result.output or 0)
        event = turn.end(result.event, [x, scales, handle, *own], own, async_finish)
        ask(self.place, self.ep)
        return own[0], own[1], event

    # ---- combine -----------------------------------------------------------------------------------------------------

    def combine_form(
        self,
        x: Any,
        handle: _handles.Handle,
        topk_weights: Any,
        biases: tuple[Any, ...],
        num_threads: int,
        aside: bool,
    ) -> CombineForm:
        """Returns the form of combines with such tensors, after checking them. aside: as in again_form."""
        args = _Sums(_SUMS_BYTES, num_sms=num_threads)
        COMBINE.put(args, "x", x)
        tokens, topk, matrix = handle.num_tokens, handle.num_topk, self.place.matrix
        weights = None
        if topk_weights is not None:
            COMBINE.put(args, "topk_weights", topk_weights)
            weights = (tokens, topk, torch.float32)
            COMBINE.put(args, "out_topk_weights", matrix(*weights))
        for index, bias in enumerate(biases):
            COMBINE.put(args, f"bias[{index}]", bias)
        y = (tokens, x.shape[1] if x.dim() == 2 else 0, x.dtype)
        COMBINE.put(args, "out_y", matrix(*y))
        pooled = not (self._of_torch or self.place.on_gpu or x.dtype not in CODES or x.dtype is FP8)
        alone = self.place.ends_alone and not aside
        form = Form(COMBINE, self.ep, args, None, alone, alone)
        return CombineForm(self.place, form, self.ep, y, weights, pooled)
