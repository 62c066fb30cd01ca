# SPDX-License-Identifier: Apache-2.0
"""Normal-mode calls that repeat an earlier, checked call: layouts, dispatches and combines.

Their tensors look alike, and their options are the same."""

from __future__ import annotations

from ctypes import c_void_p, sizeof
from operator import itemgetter
from typing import Any, Tuple, TYPE_CHECKING

import torch
from expar import _abi, Buffer as EpBuffer, Group
from expar._abi import EpPart, PythonKind

from . import _handles, _place
from ._call import check, ints_at, Output, Parts, parts_of, plain, pool_tensor
from ._forms import Form, FreshKind, Kind, LayoutKind
from .utils.event import EventHandle, EventOverlap, event_of

if TYPE_CHECKING:
    from ._normal import NormalMode

_query = plain("expar_ep_query", c_void_p)

_PARTS = (int(EpPart.X), int(EpPart.SCALES), int(EpPart.TOPK_IDX), int(EpPart.TOPK_WEIGHTS))
_ONE_BY_ONE = (1,)  # strides

LAYOUT = LayoutKind(
    dict(topk_idx="topk_idx"),
    (
        "layout.tokens_per_rank",
        "layout.tokens_per_node",
        "layout.tokens_per_expert",
        "layout.token_in_rank",
        "layout.stream",
    ),
)
FRESH = FreshKind(
    {
        "args.x": "x",
        "args.x_scales": "x[1]",
        "args.topk_idx": "topk_idx",
        "args.topk_weights": "topk_weights",
        "args.token_in_rank": "is_token_in_rank",
        "tokens_per_expert": "num_tokens_per_expert",
    },
    (
        "args.stream",
        "args.async_finish",
        "args.wait_event",
        "args.tokens_per_expert",
        "counts.rank_prefix",
        "reader",
    ),
)
AGAIN = Kind(
    PythonKind.DISPATCH,
    "expar_ep_dispatch",
    _abi.EpDispatchArgs,
    _abi.EpDispatchResult,
    dict(x="x", x_scales="x[1]"),
    ("handle", "stream", "async_finish", "wait_event", "reader"),
)
COMBINE = Kind(
    PythonKind.COMBINE,
    "expar_ep_combine",
    _abi.EpCombineArgs,
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


Layout = Tuple[Any, Any, Any, Any, EventOverlap]


class LayoutForm:
    """Makes layouts of as many experts, of topk_idx that look alike."""

    __slots__ = ("_place", "_form", "_sizes", "_in_rank")

    def __init__(self, group: Group, topk_idx: Any, num_experts: int) -> None:
        self._place = _place.of(topk_idx, "topk_idx")
        args = _abi.PythonLayout(num_experts=num_experts)
        args.layout.struct_size = sizeof(_abi.EpLayout)
        LAYOUT.put(args, "topk_idx", topk_idx)
        self._form = Form(LAYOUT, group, args)
        tokens = topk_idx.shape[0] if topk_idx.dim() else 0
        self._sizes = (group.size,), (group.num_nodes if group.num_nodes > 1 else 0,), (max(num_experts, 0),)
        self._in_rank = (tokens, group.size), (group.size, 1)

    def _outputs(self) -> tuple[Any, Any, Any, Any]:
        strided, (ranks, nodes, experts) = self._place.maker(), self._sizes
        return (
            strided(ranks, _ONE_BY_ONE, torch.int32),
            strided(nodes, _ONE_BY_ONE, torch.int32) if nodes[0] else None,
            strided(experts, _ONE_BY_ONE, torch.int32),
            strided(*self._in_rank, torch.bool),
        )

    def layout(self, topk_idx: Any, previous: EventHandle | None, asked: bool, alike: bool = True) -> Layout | None:
        """Does what Buffer's layout does. asked: the caller wants an event.

        Returns None if alike is set and topk_idx does not look alike."""
        turn = self._place.turn(previous, asked)
        if turn.previous is not None:
            turn.previous.wait()
        per_rank, per_node, per_expert, in_rank = own = turn.run(self._outputs)
        nodes = 0 if per_node is None else per_node.data_ptr()
        call = self._form.call if alike else self._form.steps
        made = call(
            topk_idx, per_rank.data_ptr(), nodes, per_expert.data_ptr(), in_rank.data_ptr(), turn.stream
        )
        if made is None:
            return None
        check(0 if type(made) is list else made)
        event = turn.end(None, [topk_idx], own, asked) if turn.ends else None
        if event is None and asked:
            event = event_of(None)  # the call is complete
        return per_rank, per_node, per_expert, in_rank, EventOverlap(event)


def received(x: Any, scales: Any, topk_idx: Any, topk_weights: Any) -> Parts:
    """Returns the parts of a dispatch's results in the library's memory, for these tensors."""
    return parts_of(
        _PARTS,
        x.dtype,
        None if scales is None else scales.dtype,
        None if topk_idx is None else topk_idx.dtype,
        None if topk_idx is None or topk_weights is None else torch.float32,
    )


def ask(place: _place.Place, ep: EpBuffer) -> None:
    """Raises errors of earlier calls on a GPU."""
    if place.on_gpu:
        check(_query(ep.pointer))


Given = Tuple[Any, Any, Any, Any, Any, Any]  # x, scales, topk_idx, topk_weights, token_in_rank, tokens_per_expert
Options = Tuple[int, int, int]  # expert_alignment, num_worst_tokens, threads or SMs
Fresh = Tuple[Any, Any, Any, "list[int]", Tuple[Any, ...], EventOverlap]


class FreshForm:
    """Makes dispatches without a handle that have the same options, and tensors of the same shapes and types."""

    __slots__ = ("_mode", "_form", "_pick", "_has_scales", "_local", "_late", "_counts_given")

    def __init__(self, mode: NormalMode, form: Form, parts: Parts, given: Given, local: int, late: bool) -> None:
        """local: the number of counts that the caller gets. late: the calls do not write the prefix of handles."""
        self._mode, self._form, self._local, self._late = mode, form, local, late
        self._has_scales, self._counts_given = given[1] is not None, given[2] is None
        places = [place for place, _ in parts.wanted]
        # Places in a list of the results that exist, with None at its end.
        self._pick = itemgetter(*[places.index(place) if place in places else -1 for place in range(len(_PARTS))])

    def dispatch(self, given: Given, previous: EventHandle | None, asked: bool, alike: bool = True) -> Fresh | None:
        """Does what Buffer's dispatch does. asked: the caller wants an event.

        Returns None if alike is set and the tensors do not look alike."""
        mode = self._mode
        turn = mode.place.turn(previous, asked)
        prefix = turn.run(mode.prefix)
        call = self._form.call if alike else self._form.steps
        made = call(
            *given,
            turn.stream,
            turn.asynchronous(asked),
            0 if turn.previous is None else turn.previous.pointer,
            given[5].data_ptr() if self._counts_given else 0,
            prefix.data_ptr() + mode.own_column,
            turn.reader,
        )
        if type(made) is not list:
            if made is None:
                return None
            check(made)
        routing, pointer, event, _, counts_at = made[-5:]
        output, made[-1] = Output(pointer), None
        rows, scales, idx, weights = self._pick(made)
        handle = mode.handle(routing, rows.shape[0], given, prefix, self._late)
        counts = ints_at(counts_at, self._local)
        if event or turn.ends:
            event = turn.end(event, [*given], (prefix,), asked)
            ask(mode.place, mode.ep)
        check(0)
        return (rows, scales) if self._has_scales else rows, idx, weights, counts, handle, EventOverlap(event or None)


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
            ask(self._place, self._ep)
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
            ask(place, self._ep)
        check(0)
        return y, weights, EventOverlap(event or None)


_NO_BIASES = (None, None)
