# SPDX-License-Identifier: Apache-2.0
"""Normal mode: layout, dispatch and combine of a buffer.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, M nodes, L = E/N, R rows received.
"""

from __future__ import annotations

import ctypes
from ctypes import addressof, c_int32, c_void_p, sizeof
from typing import Any, Tuple

import torch
from expar import _abi, Buffer as EpBuffer, DroppedError, Group
from expar._abi import EpPart, PythonKind
from expar._library import lib

from . import _handles, _place
from ._call import CODES, FP8, Output, Parts, check, ints_at, parts_of, plain, pool_tensor, put
from ._forms import Form, Kind
from ._frame import (
    ARGS_BYTES,
    COUNTS_AT,
    COUNTS_BYTES,
    fill,
    Frame,
    Places,
    RESULT_AT,
    RESULT_BYTES,
    W_ASYNC,
    W_EVENT,
    W_MADE,
    W_OUTPUT,
    W_PER_EXPERT_GIVEN,
    W_RANK_PREFIX,
    W_RECV_COUNTS,
    W_ROUNDED,
    W_STREAM,
    W_WAIT_EVENT,
    Words,
)
from .utils.event import EventHandle, EventOverlap, event_of

_dispatch = plain("expar_ep_dispatch", c_void_p, c_void_p, c_void_p)
_route = plain("expar_ep_route", c_void_p, c_void_p, c_void_p)
_layout = plain("expar_ep_get_layout", c_void_p, c_void_p, c_int32, c_void_p)
_query = plain("expar_ep_query", c_void_p)

_Args = _abi.EpDispatchArgs
_Result = _abi.EpDispatchResult
_Sums = _abi.EpCombineArgs
_IN_RANK = _Args.token_in_rank.offset
_OUT_X, _OUT_SCALES = _Args.out_x.offset, _Args.out_scales.offset
_OUT_IDX, _OUT_WEIGHTS = _Args.out_topk_idx.offset, _Args.out_topk_weights.offset
_PARTS = (int(EpPart.X), int(EpPart.SCALES), int(EpPart.TOPK_IDX), int(EpPart.TOPK_WEIGHTS))
_VIEW_BYTES = sizeof(_abi.Tensor)
_SUMS_BYTES = sizeof(_Sums)
_TENSORS = Places(
    x="x", x_scales="x[1]", topk_idx="topk_idx", topk_weights="topk_weights", token_in_rank="is_token_in_rank"
)
_MOST_FRAMES = 1024

AGAIN = Kind(
    PythonKind.DISPATCH,
    "expar_ep_dispatch",
    _Args,
    _Result,
    dict(x="x", x_scales="x[1]"),
    ("handle", "stream", "async_finish", "wait_event", "reader"),
)
COMBINE = Kind(
    PythonKind.COMBINE,
    "expar_ep_combine",
    _Sums,
    _abi.EpCombineResult,
    {
        "x": "x",
        "topk_weights": "topk_weights",
        "out_topk_weights": "combined topk_weights",
        "bias[0]": "bias[0]",
        "bias[1]": "bias[1]",
        "out_y": "y",
    },
    ("handle", "stream", "async_finish", "wait_event"),
)


def layout(
    group: Group, topk_idx: Any, num_experts: int, num_nodes: int, previous: EventHandle | None, async_finish: bool
) -> tuple[Any, Any, Any, Any, EventHandle | None]:
    """Returns (tokens per rank int32 [N], per node int32 [M] or None, per expert int32 [E], token in rank bool [T, N],
    event)."""
    place = _place.of(topk_idx, "topk_idx")
    turn = place.turn(previous, async_finish)
    if turn.previous is not None:
        turn.previous.wait()
    ranks = group.size
    tokens = topk_idx.shape[0] if topk_idx.dim() else 0
    with turn.work():
        counts = [place.vector(n, torch.int32) for n in (ranks, num_nodes, max(num_experts, 0))]
        in_rank = place.matrix(tokens, ranks, torch.bool)
    view = _abi.Tensor()
    put(view, 0, topk_idx, "topk_idx")
    arrays = [each.data_ptr() or None for each in (*counts, in_rank)]
    wanted = _abi.EpLayout(sizeof(_abi.EpLayout), *arrays, turn.stream or None)
    check(_layout(group.pointer, addressof(view), num_experts, addressof(wanted)))
    event = turn.end(None, [topk_idx], [*counts, in_rank], async_finish)
    if event is None and async_finish:
        event = event_of(None)  # the call is complete
    return counts[0], counts[1] if num_nodes > 1 else None, counts[2], in_rank, event


def _received(x: Any, scales: Any, topk_idx: Any, topk_weights: Any) -> Parts:
    """Returns the parts of a dispatch's results in the library's memory, for these tensors."""
    return parts_of(
        _PARTS,
        x.dtype,
        None if scales is None else scales.dtype,
        None if topk_idx is None else topk_idx.dtype,
        None if topk_idx is None or topk_weights is None else torch.float32,
    )


def _ask(place: _place.Place, ep: EpBuffer) -> None:
    """Raises errors of earlier calls on a GPU."""
    if place.on_gpu:
        check(_query(ep.pointer))


Again = Tuple[Any, None, None, None, None, EventOverlap]


class AgainForm:
    """Makes dispatches with a handle that have the same options, and tensors of the same shapes and types."""

    __slots__ = ("_place", "_form", "_ep")

    def __init__(self, place: _place.Place, form: Form, ep: EpBuffer) -> None:
        self._place, self._form, self._ep = place, form, ep

    def dispatch(
        self, x: Any, scales: Any, handle: _handles.Handle, previous: EventHandle | None, asked: bool, alike: bool = True
    ) -> Again | None:
        """Does what Buffer's dispatch does. asked: the caller wants an event.

        Returns None if alike is set and the tensors do not look alike."""
        turn = self._place.turn(previous, asked)
        call = self._form.call if alike else self._form.steps
        waits = 0 if turn.previous is None else turn.previous.pointer
        made = call(x, scales, handle.pointer, turn.stream, turn.asynchronous(asked), waits, turn.reader)
        if type(made) is not list:
            if made is None:
                return None
            check(made)
        event = made.pop()
        if event or turn.ends:
            event = turn.end(event, [x, scales, handle], (), asked)
            _ask(self._place, self._ep)
        check(0)
        rows = made[0] if scales is None else tuple(made)
        return rows, None, None, None, None, EventOverlap(event or None)


class CombineForm:
    """Makes combines that have the same options, and tensors of the same shapes and types."""

    __slots__ = ("_place", "_form", "_ep", "_y", "_weights", "_pooled")

    def __init__(self, place: _place.Place, form: Form, ep: EpBuffer, y: Any, weights: Any, pooled: bool) -> None:
        """y, weights: rows, columns and dtype of these results. pooled: y lies in the library's memory."""
        self._place, self._form, self._ep = place, form, ep
        self._y, self._weights, self._pooled = y, weights, pooled

    def combine(
        self,
        x: Any,
        handle: _handles.Handle,
        topk_weights: Any,
        biases: tuple[Any, ...],
        previous: EventHandle | None,
        asked: bool,
        alike: bool = True,
    ) -> tuple[Any, Any, EventOverlap] | None:
        """Does what Buffer's combine does. asked: the caller wants an event.

        Returns None if alike is set and the tensors do not look alike."""
        place, weights = self._place, None
        turn = place.turn(previous, asked)
        if self._weights is not None:
            weights = turn.run(place.matrix, *self._weights)
        if self._pooled:
            y = pool_tensor(self._ep.pointer, *self._y)
        else:
            y = turn.run(place.matrix, *self._y)
        call = self._form.call if alike else self._form.steps
        first, second = (*biases, None, None)[:2] if biases else _NO_BIASES
        waits = 0 if turn.previous is None else turn.previous.pointer
        beside = turn.asynchronous(asked)
        made = call(x, topk_weights, weights, first, second, y, handle.pointer, turn.stream, beside, waits)
        if type(made) is not list:
            if made is None:
                return None
            check(made)
        event = made[0]
        if event or turn.ends:
            event = turn.end(event, [x, topk_weights, biases, y, weights, handle], [y, weights], asked)
            _ask(place, self._ep)
        check(0)
        return y, weights, EventOverlap(event or None)


_NO_BIASES = (None, None)


class NormalMode:
    """Dispatches and combines on one library buffer.

    On a GPU the library's calls return before their outcome is known. A later call raises the error. That call has been
    submitted by then, so no rank waits for it."""

    def __init__(self, group: Group, place: _place.Place, pool_bytes: int, outputs_of_torch: bool) -> None:
        """pool_bytes: the memory that a GPU's pool gets at once. On a CPU it is ignored, because all ranks together may
        ask for more than the host has. outputs_of_torch: results lie in memory of PyTorch's."""
        self.ep = EpBuffer(group, device=place.pair, pool_bytes=pool_bytes if place.on_gpu else 0)
        place.opaque()  # makes the opaque tensors now, since they must not be made in a capture
        self._place = place
        self._rank, self._size = group.rank, group.size
        across = group.num_nodes > 1
        # The offset in bytes of this rank's column in the matrix of handles. Across nodes there is only that column.
        self._across = across
        self._own_column = 0 if across else 4 * self._size * self._rank
        self._wrap = _handles.wrap_across if across else _handles.wrap
        self._of_torch = outputs_of_torch
        self._frames: dict[tuple[int, int, int, int], bytes] = {}  # made by _first_frame

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
        previous: EventHandle | None,
        async_finish: bool,
    ) -> tuple[Any, Any, Any, Any, list[int], tuple[Any, ...], EventHandle | None]:
        """Makes a fresh dispatch: returns (x, scales, topk_idx, topk_weights, counts, handle, event)."""
        num_experts = tokens_per_expert.numel()
        key = num_experts, expert_alignment, num_worst_tokens, num_threads
        frame = Words.from_buffer_copy(self._frames.get(key) or self._first_frame(key))
        at, turn = addressof(frame), self._place.turn(previous, async_finish)
        frame[W_STREAM] = turn.stream
        if turn.previous is not None:
            frame[W_WAIT_EVENT] = turn.previous.pointer
        fill(frame, at, _TENSORS, (x, scales, topk_idx, topk_weights, token_in_rank))
        if topk_idx is None:
            frame[W_PER_EXPERT_GIVEN] = tokens_per_expert.data_ptr()
        kept = [x, scales, topk_idx, topk_weights, token_in_rank, tokens_per_expert]
        prefix = turn.run(self._prefix)
        if self._place.on_gpu:
            frame[W_RECV_COUNTS] = at + COUNTS_AT
            frame[W_RANK_PREFIX] = prefix.data_ptr() + self._own_column
        if self._of_torch:
            return self._dispatch_to_torch(frame, kept, turn, prefix, async_finish)
        handle = None
        if turn.asynchronous(async_finish, counted=True):
            frame[W_ASYNC] = 1
            if num_worst_tokens:  # the call would return before the handle knows its counts
                route = self._route_first(Frame.from_buffer(frame).args)
                handle = self._handle(route.handle or 0, route.num_rows, kept, prefix)
        self._carry_out(frame, at)
        output = Output(frame[W_OUTPUT])
        turn.give(output.pointer)
        recv_x, recv_scales, idx, weights = output.tensors(_received(x, scales, topk_idx, topk_weights))
        counts = [] if num_worst_tokens else ints_at(frame[W_ROUNDED], num_experts // self._size)
        if handle is None:
            handle = self._handle(frame[W_MADE], recv_x.shape[0], kept, prefix)
        event = turn.end(frame[W_EVENT], kept, (prefix,), async_finish)
        _ask(self._place, self.ep)
        return recv_x, recv_scales, idx, weights, counts, handle, event

    def _first_frame(self, key: tuple[int, int, int, int]) -> bytes:
        """Returns the bytes of a frame for dispatches with these options. Tensors, stream and event are missing."""
        frame = Frame()
        args = frame.args
        args.struct_size, frame.counts.struct_size, frame.result.struct_size = ARGS_BYTES, COUNTS_BYTES, RESULT_BYTES
        args.num_experts, args.expert_alignment, args.num_worst_tokens, args.num_sms = key
        if len(self._frames) >= _MOST_FRAMES:
            self._frames.clear()
        made = self._frames[key] = bytes(frame)
        return made

    def _prefix(self) -> Any:
        """Returns the prefix of a handle: int32 [N, N], in which each column is contiguous. Column `rank` has the
        number of rows that come from ranks 0..i; other columns are 0. Across nodes there is only that column.

        On a GPU the call writes it; on a CPU the handle has it at once."""
        strided, size = self._place.maker(), self._size
        if self._across:
            return strided((size,), (1,), torch.int32)
        matrix = strided((size, size), (1, size), torch.int32)
        return matrix.zero_() if size > 1 else matrix

    def _handle(self, pointer: int, rows: int, given: list[Any], prefix: Any) -> tuple[Any, ...]:
        """Wraps a library handle into the tuple for engines. given: the arguments of the dispatch."""
        x, _, topk_idx, _, token_in_rank, _ = given
        handle = _handles.Handle(pointer, x.shape[0], 0 if topk_idx is None else topk_idx.shape[1], rows)
        if not self._place.on_gpu:
            _handles.read_prefix(handle, prefix.data_ptr() + self._own_column, self._size)
        return self._wrap(handle, prefix, self._place, token_in_rank)

    def again_form(self, x: Any, scales: Any, num_threads: int, aside: bool) -> AgainForm:
        """Returns the form of dispatches with a handle and such tensors, with results in the library's memory. aside:
        the calls run beside later work on the current stream."""
        args = _Args(ARGS_BYTES, num_sms=num_threads)
        AGAIN.put(args, "x", x)
        if scales is not None:
            AGAIN.put(args, "x_scales", scales)
        alone = self._place.ends_alone and not aside
        form = Form(AGAIN, self.ep, args, _received(x, scales, None, None), alone, alone)
        return AgainForm(self._place, form, self.ep)

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
        args, result = _Args(ARGS_BYTES), _Result(RESULT_BYTES)
        turn = self._place.turn(previous, async_finish)
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
        _ask(self._place, self.ep)
        return own[0], own[1], event

    def _carry_out(self, frame: Any, at: int) -> None:
        """Calls the library. A dispatch that drops rows fills its result although it fails; then the objects in the
        result are released. at: the frame's address."""
        try:
            check(_dispatch(self.ep.pointer, at, at + RESULT_AT))
        except DroppedError:
            Output(frame[W_OUTPUT])
            if frame[W_MADE]:
                _handles.Handle(frame[W_MADE], 0, 0, 0)
            if frame[W_EVENT]:
                lib.expar_event_release(frame[W_EVENT])
            raise

    def _route_first(self, args: Any) -> Any:
        """Makes the routing of a fresh dispatch first. Then args has a handle, and the counts are known."""
        routing, route = _abi.EpRouteArgs(sizeof(_abi.EpRouteArgs)), _abi.EpRouteResult(sizeof(_abi.EpRouteResult))
        for name in ("topk_idx", "token_in_rank"):
            ctypes.memmove(
                addressof(routing) + getattr(_abi.EpRouteArgs, name).offset,
                addressof(args) + getattr(_Args, name).offset,
                _VIEW_BYTES,
            )
        routing.num_experts, routing.expert_alignment = args.num_experts, args.expert_alignment
        routing.tokens_per_expert, routing.num_worst_tokens = args.tokens_per_expert, args.num_worst_tokens
        routing.wait_event, routing.num_sms = args.wait_event, args.num_sms
        routing.stream, routing.recv_counts = args.stream, args.recv_counts
        check(_route(self.ep.pointer, addressof(routing), addressof(route)))
        args.handle = route.handle
        ctypes.memset(addressof(args) + _IN_RANK, 0, _VIEW_BYTES)
        args.tokens_per_expert, args.num_worst_tokens = None, 0
        return route

    # ---- results in memory of PyTorch's ------------------------------------------------------------------------------

    def _own_outputs(self, args: Any, rows: int, x: Any, scales: Any, topk_idx: Any, topk_weights: Any) -> list[Any]:
        outs = []
        for given, offset, name in (
            (x, _OUT_X, "recv_x"),
            (scales, _OUT_SCALES, "recv_scales"),
            (topk_idx, _OUT_IDX, "recv_topk_idx"),
            (topk_weights, _OUT_WEIGHTS, "recv_topk_weights"),
        ):
            out = None
            if given is not None:
                out = self._place.matrix(rows, given.shape[1], given.dtype)
                put(args, offset, out, name)
            outs.append(out)
        return outs

    def _dispatch_to_torch(
        self, frame: Any, kept: list[Any], turn: _place.Turn, prefix: Any, async_finish: bool
    ) -> tuple[Any, Any, Any, Any, list[int], tuple[Any, ...], EventHandle | None]:
        """Makes a dispatch with results in PyTorch's memory. Its routing comes first, so that their sizes are known."""
        x, scales, topk_idx, topk_weights, _, _ = kept
        args = Frame.from_buffer(frame).args
        tells = not args.num_worst_tokens
        route = self._route_first(args)
        counts: list[int] = []
        if tells:
            counts = ints_at(route.recv_tokens_per_expert, route.num_local_experts)
        handle = self._handle(route.handle or 0, route.num_rows, kept, prefix)
        args.async_finish, args.recv_counts = turn.asynchronous(async_finish), None
        with turn.work():
            own = self._own_outputs(args, route.num_rows, x, scales, topk_idx, topk_weights)
        self._carry_out(frame, addressof(frame))
        Output(frame[W_OUTPUT])
        event = turn.end(frame[W_EVENT], [*kept, *own, handle], [*own, prefix], async_finish)
        _ask(self._place, self.ep)
        rows, row_scales, idx, weights = own
        return rows, row_scales, idx, weights, counts, handle, event

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
        tokens, topk, matrix = handle.num_tokens, handle.num_topk, self._place.matrix
        weights = None
        if topk_weights is not None:
            COMBINE.put(args, "topk_weights", topk_weights)
            weights = (tokens, topk, torch.float32)
            COMBINE.put(args, "out_topk_weights", matrix(*weights))
        for index, bias in enumerate(biases):
            COMBINE.put(args, f"bias[{index}]", bias)
        y = (tokens, x.shape[1] if x.dim() == 2 else 0, x.dtype)
        COMBINE.put(args, "out_y", matrix(*y))
        pooled = not (self._of_torch or self._place.on_gpu or x.dtype not in CODES or x.dtype is FP8)
        alone = self._place.ends_alone and not aside
        form = Form(COMBINE, self.ep, args, None, alone, alone)
        return CombineForm(self._place, form, self.ep, y, weights, pooled)
