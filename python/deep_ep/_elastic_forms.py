# SPDX-License-Identifier: Apache-2.0
"""`ElasticBuffer` calls that repeat an earlier, checked call.

Their tensors look alike, and their options are the same. They wait for no event, and have no biases or statistics."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Sequence, Tuple, TYPE_CHECKING

import torch
from expar import _abi
from expar._abi import PythonKind

from ._call import check, Output, pool_tensor
from ._deferred import Launched, PendingDispatch
from ._elastic_handle import EPHandle
from ._forms import Form as CallForm, FreshKind, Kind
from ._place import Place
from .utils.event import EventHandle

if TYPE_CHECKING:
    from ._elastic import ElasticMode, Form

AGAIN = Kind(
    PythonKind.DISPATCH,
    "expar_ep_dispatch",
    _abi.EpDispatchArgs,
    _abi.EpDispatchResult,
    dict(x="x", x_scales="x[1]", topk_idx="topk_idx", topk_weights="topk_weights"),
    ("handle", "stream", "async_finish", "reader"),
)
COMBINE = Kind(
    PythonKind.COMBINE,
    "expar_ep_combine",
    _abi.EpCombineArgs,
    _abi.EpCombineResult,
    dict(x="x", topk_weights="topk_weights", out_topk_weights="combined topk_weights", out_y="y"),
    ("handle", "stream", "async_finish"),
)


def _fresh_kind(places: str) -> FreshKind:
    """places: the counts by which rows of experts are found."""
    members = "x", "x_scales", "topk_idx", "topk_weights"
    counts = "rank_prefix", "tokens_per_expert", places
    return FreshKind(
        dict(zip((f"args.{member}" for member in members), ("x", "x[1]", "topk_idx", "topk_weights"))),
        ("args.stream", "args.async_finish", "args.topk_idx_copy", *(f"counts.{name}" for name in counts), "reader"),
    )


FRESH, FRESH_EXPANDED = _fresh_kind("expert_prefix"), _fresh_kind("expert_ends")
Tensors = Tuple[Any, Any, Any, Any]  # x, scales, topk_idx, topk_weights; None: not given
Made = Tuple[Any, Any, Any, EPHandle, Any]  # recv_x, topk_idx, topk_weights, handle, event or None
_RESULTS = 4  # of a dispatch: recv_x, scales, topk_idx, topk_weights
_ONE_BY_ONE = (1,)  # strides
_NUMBERS = (int, type(None))


def fresh_key(x: Any, topk_weights: Any, numbers: tuple[Any, ...], *more: Any) -> tuple[Any, ...] | None:
    """Returns the key that such fresh dispatches share; None if a number is of another type. more: their other
    options."""
    for number in numbers:
        if type(number) not in _NUMBERS:
            return None
    rows = x[0] if type(x) is tuple and len(x) == 2 else x
    return getattr(rows, "shape", None), rows is x, topk_weights is None, numbers, more


def dispatch_key(x: Any, handle: Any, numbers: tuple[Any, ...], *more: Any) -> tuple[Any, ...] | None:
    """Returns the key that such dispatches share; None if an argument is wrong. more: their other options."""
    if type(handle) is not EPHandle:
        return None
    for number in numbers:
        if type(number) not in _NUMBERS:
            return None
    rows = x[0] if type(x) is tuple and len(x) == 2 else x
    return getattr(rows, "shape", None), rows is x, handle._form, numbers, *more


def combine_key(
    x: Any, handle: Any, topk_weights: Any, num_sms: Any, num_qps: Any, asked: bool
) -> tuple[Any, ...] | None:
    """Returns the key of such combines. It is also None if x does not have the rows that the library knows, or if
    expanded rows have weights."""
    if type(handle) is not EPHandle or type(num_sms) is not int or type(num_qps) is not int:
        return None
    shape: Any = getattr(x, "shape", ())
    routing = handle._routing
    if len(shape) != 2:
        return None
    if handle.do_expand:
        if topk_weights is not None or shape[0] != handle._rows_of_library:
            return None
    elif shape[0] != routing.num_rows or shape[0] != handle.num_metadata_rows():
        return None
    form, tokens = handle._form, routing.num_tokens
    return shape, form, tokens, topk_weights is None, handle.num_sms, num_sms, num_qps, asked


def _picker(form: Form) -> itemgetter[Any]:
    """Returns a function that picks a dispatch's results from a list of those that exist, with None at its end."""
    assert form.parts is not None
    places = [place for place, _ in form.parts.wanted]
    return itemgetter(*[places.index(place) if place in places else -1 for place in range(_RESULTS)])


class FreshForm:
    """Dispatches without a handle that wait for no event. Their tensors look alike and their options are the same."""

    __slots__ = ("_mode", "_form", "_call", "_asked", "_pick", "_words", "_copy_at", "_per_expert_at", "_places_at")

    def __init__(self, mode: ElasticMode, form: Form, call: CallForm, asked: bool, copied_words: int) -> None:
        """asked: an event is asked for. copied_words: the number of indices in topk_idx, if the handle keeps a copy."""
        self._mode, self._form, self._asked, self._call = mode, form, asked, call
        self._pick, routing = _picker(form), form.routing
        assert routing is not None
        # The words of a handle's memory, and where in it the copy and the counts are, in bytes.
        self._words = (routing.count_words + copied_words,)
        self._copy_at = 8 * routing.count_words if copied_words else 0
        self._per_expert_at = 4 * routing.ranks
        self._places_at = 4 * (routing.ranks + routing.local + form.expand)

    @property
    def place(self) -> Place:
        return self._mode.place

    def dispatch(self, x: Any, topk_idx: Any, topk_weights: Any, _: Any) -> Made | None:
        """Does what the buffer's dispatch does, but returns an EventHandle or None as the event. Returns None if the
        tensors do not look alike, or an argument is wrong."""
        turn = self._mode.place.turn_unless_on_comm(self._asked)
        if turn is None:
            return None
        made = self._call_library(x, topk_idx, topk_weights, turn, turn.reader)
        if made is None:
            return None
        found, handle, _, _, event = made
        recv_x, recv_scales, idx, weights = self._mode.only_rows(found, handle, self._form, turn)
        return (recv_x, recv_scales) if type(x) is tuple else recv_x, idx, weights, handle, event

    def launch(self, x: Any, topk_idx: Any, topk_weights: Any) -> tuple[PendingDispatch, EventHandle | None] | None:
        """Does the same for a deferred dispatch: returns what makes its results, and its event."""
        turn = self._mode.place.turn_unless_on_comm(self._asked)
        made = None if turn is None else self._call_library(x, topk_idx, topk_weights, turn, 0)
        if made is None:
            return None
        found, handle, output, memory, event = made
        launched = Launched(handle, output, None, memory, found)
        return PendingDispatch(self._mode, launched, self._form, type(x) is tuple), event

    def _call_library(self, x: Any, topk_idx: Any, topk_weights: Any, turn: Any, reader: int) -> Any:
        """Makes the call. Returns the results with space for all rows, the handle, the output, the handle's memory, and
        an EventHandle or None. None for what `dispatch` does not take.

        reader: the stream that reads the results, or 0 if it is not known yet."""
        mode, asked = self._mode, self._asked
        rows, scales = x if type(x) is tuple else (x, None)
        memory = turn.run(mode.place.maker(), self._words, _ONE_BY_ONE, torch.int64)
        at, copy_at = memory.data_ptr(), self._copy_at
        made = self._call.call(
            rows,
            scales,
            topk_idx,
            topk_weights,
            turn.stream,
            turn.asynchronous(asked),
            at + copy_at if copy_at else 0,
            at,
            at + self._per_expert_at,
            at + self._places_at,
            reader,
        )
        if type(made) is not list:
            if made is None:
                return None
            check(made)
        routing, pointer, event, many, aligned = made[-5:]
        made[-1] = None
        found: Sequence[Any] = self._pick(made)
        output = Output(pointer)
        handle = mode.handle(routing, output, many, aligned, topk_idx, memory, self._form)
        if event or turn.ends:
            event = turn.end(event, [rows, scales, topk_idx, topk_weights, *found, handle], (memory,), asked)
            mode.ask()
        check(0)
        return found, handle, output, memory, event or None


class AgainForm:
    """Dispatches with a handle that wait for no event. Their tensors look alike and their options are the same."""

    __slots__ = ("_mode", "_form", "_call", "_asked", "_pick")

    def __init__(self, mode: ElasticMode, form: Form, call: CallForm, asked: bool) -> None:
        """asked: an event is asked for."""
        self._mode, self._form, self._asked, self._call = mode, form, asked, call
        self._pick = _picker(form)

    @property
    def place(self) -> Place:
        return self._mode.place

    def dispatch(self, x: Any, _: Any, topk_weights: Any, handle: Any) -> Made | None:
        """Does what the buffer's dispatch does, but returns an EventHandle or None as the event. Returns None if the
        tensors do not look alike, or an argument is wrong."""
        mode, asked = self._mode, self._asked
        turn = mode.place.turn_unless_on_comm(asked)
        if turn is None:
            return None
        rows, scales = x if type(x) is tuple else (x, None)
        tensors = rows, scales, handle.topk_idx, topk_weights
        beside = turn.asynchronous(asked)
        made = self._call.call(*tensors, handle._routing.pointer, turn.stream, beside, turn.reader)
        if type(made) is not list:
            if made is None:
                return None
            check(made)
        event, made[-1] = made[-1], None
        found: Sequence[Any] = self._pick(made)
        if event or turn.ends:
            event = turn.end(event, [*tensors, *found, handle], (), asked)
            mode.ask()
        check(0)
        recv_x, recv_scales, idx, weights = mode.only_rows(found, handle, self._form, turn)
        return recv_x if scales is None else (recv_x, recv_scales), idx, weights, handle, event or None


class CombineForm:
    """Combines of the same kind, without biases. Rows that are not expanded are as many as the library knows."""

    __slots__ = ("_mode", "_call", "_asked", "_y", "_weights")

    def __init__(self, mode: ElasticMode, call: CallForm, asked: bool, y: Any, weights: Any) -> None:
        """y, weights: their rows, columns and dtype."""
        self._mode, self._call, self._asked, self._y, self._weights = mode, call, asked, y, weights

    @property
    def place(self) -> Place:
        return self._mode.place

    def combine(self, x: Any, handle: EPHandle, topk_weights: Any) -> tuple[Any, Any, EventHandle | None] | None:
        """Does what ElasticMode's combine does. Returns None if the tensors do not look alike, or an argument is
        wrong."""
        mode, asked, weights = self._mode, self._asked, None
        place = mode.place
        turn = place.turn_unless_on_comm(asked)
        if turn is None:
            return None
        if self._weights is not None:
            weights = turn.run(place.matrix, *self._weights)
        y = turn.run(place.matrix, *self._y) if place.on_gpu else pool_tensor(mode.ep.pointer, *self._y)
        beside, routing = turn.asynchronous(asked), handle._routing
        made = self._call.call(x, topk_weights, weights, y, routing.pointer, turn.stream, beside)
        if type(made) is not list:
            if made is None:
                return None
            check(made)
        event = made[0]
        if event or turn.ends:
            event = turn.end(event, [x, topk_weights, y, weights, handle], [y, weights], asked)
            mode.ask()
        check(0)
        return y, weights, event or None
