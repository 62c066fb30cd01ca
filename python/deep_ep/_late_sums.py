# SPDX-License-Identifier: Apache-2.0
"""Combines of `EPBuffer` whose biases are read at the first wait.

Biases are added first, and the caller may write them until the wait. So the ranks send a token's rows back unsummed, by
a dispatch. The wait then sums them by one call of the library, in the order that a combine has.

Letters in shapes: T tokens on this rank, H hidden, K top-k, N ranks, X expanded rows.
"""

from __future__ import annotations

from ctypes import addressof, c_uint64, c_void_p, memmove, sizeof, Structure
from typing import Any, TYPE_CHECKING

import torch
from expar import _abi, EpSumOrder
from expar._abi import EpDispatchArgs, EpDispatchResult, EpNodesSum, EpSumArgs, EpTermsArgs
from expar._library import lib

from . import _place
from ._call import check, Output, plain, pool_tensor
from ._elastic_forms import combine_key
from ._elastic_handle import EPHandle
from ._frame import fill, Places
from .utils.event import EventHandle

if TYPE_CHECKING:
    from ._elastic import ElasticMode

_dispatch = plain("expar_ep_dispatch", c_void_p, c_void_p, c_void_p)
_find_terms = plain("expar_ep_find_terms", c_void_p, c_void_p)
_sum_terms = plain("expar_ep_sum_terms", c_void_p, c_void_p)
_release_handle = lib.expar_ep_handle_release

_BY_SLOT, _EACH_SLOT = int(EpSumOrder.BY_SLOT), int(EpSumOrder.EACH_SLOT)
_ROUNDED, _ONE_ORDER = int(EpNodesSum.ROUNDED), int(EpNodesSum.ONE_ORDER)
_FEWEST_COLUMNS = 8  # bf16 columns of a row of 16 bytes
_INT_BYTES = 4  # an element of recv_src_metadata

# ---- arguments -------------------------------------------------------------------------------------------------------


_KINDS: dict[str, Any] = dict(
    terms=EpTermsArgs, dispatch=EpDispatchArgs, sum=EpSumArgs, result=EpDispatchResult, differing=c_uint64
)


class _Frame(Structure):
    """The arguments of all calls of one combine: the terms of its sums, the dispatch, and the sums themselves.

    differing: as in `_frame.Frame`."""

    _fields_ = list(_KINDS.items())


_Words = c_uint64 * (sizeof(_Frame) // sizeof(c_uint64))
_VIEW_BYTES = sizeof(_abi.Tensor)


def _at(part: str, member: str = "", index: int = 0) -> int:
    """Returns the offset in a frame. index: in an array of tensors."""
    of_member = getattr(_KINDS[part], member).offset + index * _VIEW_BYTES if member else 0
    return int(getattr(_Frame, part).offset + of_member)


def _word(part: str, member: str) -> int:
    return _at(part, member) // sizeof(c_uint64)


_TERMS, _DISPATCH, _SUM, _RESULT, _DIFFERING = (_at(part) for part in _KINDS)
_W_STREAMS = _word("terms", "stream"), _word("dispatch", "stream")
_W_SUM_SIZE, _W_SUM_STREAM, _W_Y = (_word("sum", name) for name in ("struct_size", "stream", "out_y"))
_W_EVENT, _W_ASYNC = _word("dispatch", "wait_event"), _word("dispatch", "async_finish")
_W_SUM_TERMS, _W_OWNERS = _word("sum", "terms"), _word("dispatch", "topk_idx")
_W_COLUMNS = (getattr(_abi.Tensor, "shape").offset // sizeof(c_uint64)) + 1  # in a view
_W_MOST = _word("dispatch", "num_worst_tokens")
_W_MADE, _W_OUTPUT, _W_DONE = (_word("result", name) for name in ("handle", "output", "event"))
_SUM_X, _RECV_X = _at("sum", "x"), _at("result", "recv_x")
# The sums have the shape of the first bias, and get their address at the wait.
_TENSORS = Places(
    [
        ("topk_idx", _at("terms", "topk_idx")),
        ("terms", _at("terms", "out_terms")),
        ("terms", _at("sum", "terms")),
        ("x", _at("dispatch", "x")),
        ("owners", _at("dispatch", "topk_idx")),
        ("bias[0]", _at("sum", "bias")),
        ("bias[1]", _at("sum", "bias", 1)),
        ("y", _at("sum", "out_y")),
    ],
    _DIFFERING,
)
_LOCAL_TENSORS = Places([("x", _SUM_X), ("terms", _at("sum", "terms")), ("y", _at("sum", "out_y"))], _DIFFERING)


def _first_frame(mode: ElasticMode, experts: int, each_slot: bool, one_order: bool) -> bytes:
    """Returns what the frames of such combines share."""
    frame = _Frame()
    for part in (frame.terms, frame.dispatch, frame.sum, frame.result):
        part.struct_size = sizeof(part)
    frame.terms.num_experts = experts
    frame.terms.sum_order = _EACH_SLOT if each_slot else _BY_SLOT
    frame.terms.nodes_sum = _ONE_ORDER if one_order else _ROUNDED
    frame.dispatch.num_experts = mode.group.size
    return bytes(frame)


# ---- the call --------------------------------------------------------------------------------------------------------


def _check_local(mode: ElasticMode, status: int) -> None:
    """Raises the error of a local call. The other ranks, which are in the combine, learn of it."""
    try:
        check(status)
    except RuntimeError as error:
        mode.refuse_combine(str(error))


def _owners_of_rows(metadata: Any, rows: int) -> Any:
    """Returns int32 [rows, 1], the source rank of each expanded row, -1 for rows that no slot has."""
    owners = torch.full((rows + 1, 1), -1, dtype=torch.int32, device=metadata.device)
    owners[metadata[:, 2:].long()] = metadata[:, None, 1:2]  # places of -1 stand for the last one
    return owners[:rows]


def _cut(frame: Any, view: int, first: int, columns: int) -> None:
    """Cuts a view of recv_src_metadata, at that word of the frame, to these columns."""
    if frame[view]:  # it has rows
        frame[view] += first * _INT_BYTES
    frame[view + _W_COLUMNS] = columns


def _sums_of_rows(mode: ElasticMode, x: Any, metadata: Any, turn: _place.Turn) -> Any:
    """Returns the sums of each token's expanded rows, [n, H], rounded."""
    many, columns = metadata.shape
    y = _matrix(mode, many, x.shape[1], x.dtype)
    frame = _Words()
    at = addressof(frame)
    fill(frame, at, _LOCAL_TENSORS, (x, metadata, y))
    _cut(frame, _W_SUM_TERMS, 2, columns - 2)
    frame[_W_SUM_SIZE], frame[_W_SUM_STREAM] = sizeof(EpSumArgs), turn.stream
    _check_local(mode, _sum_terms(mode.group.pointer, at + _SUM))
    return y


def _matrix(mode: ElasticMode, rows: int, columns: int, dtype: Any) -> Any:
    """Allocates rows."""
    place = mode.place
    return place.matrix(rows, columns, dtype) if place.on_gpu else pool_tensor(mode.ep.pointer, rows, columns, dtype)


def _rows_to_send(
    mode: ElasticMode, x: Any, handle: EPHandle, each_slot: bool, turn: _place.Turn
) -> tuple[Any, Any]:
    """Returns the rows that this rank sends back, [n, H], and their owners. These are int32 [n, 1] with -1 for none, or
    recv_src_metadata, which has them in column 1.

    Rows are one for each received token, ordered as recv_src_metadata is: expanded rows of a token are summed and
    rounded. With each_slot they are x, as it is."""
    metadata = handle.recv_src_metadata
    if metadata.dtype is not torch.int32 or not metadata.is_contiguous():  # a caller may have set it
        metadata = metadata.int().contiguous()
    if not handle.do_expand:
        return x, metadata
    if turn.previous is not None:  # of a CPU: the library would wait, but what is below reads x at once
        turn.previous.wait()
    if each_slot:
        return x, _owners_of_rows(metadata, x.shape[0])
    return _sums_of_rows(mode, x, metadata, turn), metadata


def send_back(
    mode: ElasticMode,
    x: Any,
    handle: EPHandle,
    topk_weights: Any,
    biases: tuple[Any, ...],
    each_slot: bool,
    one_order: bool,
    workers: int,
    turn: _place.Turn,
) -> tuple[PendingSums, LateForm]:
    """Makes a combine whose biases are read later; the first wait for it makes the sums. It also returns the form of
    combines like this one. The other arguments are those of `ElasticMode.combine`."""
    weights = first = None
    if topk_weights is not None:  # by a combine of its own, of rows of zeros
        few = turn.run(mode.place.zeros, (x.shape[0], _FEWEST_COLUMNS), x.dtype)
        _, weights, first = mode.combine(few, handle, topk_weights, (), each_slot, one_order, workers, turn, True)
    form = LateForm(mode, _first_frame(mode, handle.num_experts, each_slot, one_order), each_slot)
    made = form.call(x, handle, biases, turn, weights, first, alike=False)
    assert made is not None
    return made, form


def late_key(x: Any, handle: Any, bias: Any, num_sms: Any, num_qps: Any) -> tuple[Any, ...] | None:
    """Returns the key of such combines, without weights; None if there is none, because an argument is wrong."""
    key = None if bias is None else combine_key(x, handle, None, num_sms, num_qps, True)
    if key is None or (type(bias) is tuple and (len(bias) != 2 or bias[0] is None or bias[1] is None)):
        return None
    return (*key, handle.num_metadata_rows(), type(bias) is tuple)


class LateForm:
    """Combines of the same kind, without weights, whose biases are read later."""

    __slots__ = ("_mode", "_each_slot", "_frame")

    def __init__(self, mode: ElasticMode, frame: bytes, each_slot: bool) -> None:
        """frame: of a call. The first one's has no tensors yet."""
        self._mode, self._frame, self._each_slot = mode, frame, each_slot

    @property
    def place(self) -> _place.Place:
        return self._mode.place

    def combine(self, x: Any, handle: EPHandle, biases: tuple[Any, ...]) -> PendingSums | None:
        """Makes a combine that waits for no event. Returns None if the tensors do not look like those of the first
        one, or an argument is wrong."""
        place = self._mode.place
        if place.on_comm() or x.dtype is not torch.bfloat16 or x.device != place.device or not x.is_contiguous():
            return None
        return self.call(x, handle, biases, place.turn(None, True), None, None)

    def call(
        self,
        x: Any,
        handle: EPHandle,
        biases: tuple[Any, ...],
        turn: _place.Turn,
        weights: Any,
        first: EventHandle | None,
        alike: bool = True,
    ) -> PendingSums | None:
        """Does the same on these streams. weights, first: of the combine that carries the weights, if there are any.
        alike: False for the first call, whose tensors have been checked."""
        mode, each_slot, idx = self._mode, self._each_slot, handle.topk_idx
        tokens, topk = idx.shape
        with turn.work():
            rows, owners = _rows_to_send(mode, x, handle, each_slot, turn)
            terms = mode.place.matrix(tokens, topk, torch.int64)
        frame = _Words.from_buffer_copy(self._frame)
        at, bias = addressof(frame), biases[0]
        tensors = idx, terms, terms, rows, owners, bias, biases[1] if len(biases) > 1 else None, bias
        if not fill(frame, at, _TENSORS, tensors) and alike:
            return None
        if not alike:
            self._frame = bytes(frame)
        if not each_slot:
            _cut(frame, _W_OWNERS, 1, 1)
        if turn.stream:
            for word in _W_STREAMS:
                frame[word] = turn.stream
        _check_local(mode, _find_terms(mode.group.pointer, at + _TERMS))
        if turn.previous is not None:
            frame[_W_EVENT] = turn.previous.pointer
        frame[_W_ASYNC] = turn.asynchronous(True)
        most = tokens * (topk if each_slot else min(topk, mode.ranks))
        frame[_W_MOST] = max(most, 1)  # 0 stands for "not given"
        check(_dispatch(mode.ep.pointer, at + _DISPATCH, at + _RESULT))
        output = Output(frame[_W_OUTPUT])
        _release_handle(frame[_W_MADE])
        memmove(at + _SUM_X, at + _RECV_X, _VIEW_BYTES)
        made = turn.end(frame[_W_DONE], [x, idx, rows, owners, terms], (terms,), True)
        mode.ask()
        return PendingSums(mode, frame, (tokens, x.shape[1], x.dtype), output, [terms, *biases], weights, first, made)


# ---- the wait --------------------------------------------------------------------------------------------------------


class PendingSums:
    """The sums of a deferred combine with biases. A call makes them on the current stream.

    event: when the rows have come."""

    __slots__ = ("_mode", "_frame", "_y", "_output", "_kept", "_weights", "_before", "event")

    def __init__(
        self,
        mode: ElasticMode,
        frame: Any,
        y: tuple[int, int, Any],
        output: Output,
        kept: list[Any],
        weights: Any,
        before: EventHandle | None,
        event: EventHandle | None,
    ) -> None:
        """frame: with the arguments of the sums. y: their rows, columns and dtype.

        The output has the rows that come. What is kept are terms and biases. before: when the weights have come, whose
        call was made first."""
        self._mode, self._frame, self._y, self._output, self._kept = mode, frame, y, output, kept
        self._weights, self._before, self.event = weights, before, event

    def __call__(self) -> tuple[Any, Any]:
        mode, frame, weights = self._mode, self._frame, self._weights
        if self._before is not None:
            self._before.current_stream_wait()
        turn = mode.place.turn(None, False)
        turn.give(self._output.pointer)
        y = _matrix(mode, *self._y)
        frame[_W_SUM_STREAM], frame[_W_Y] = turn.stream, y.data_ptr()
        check(_sum_terms(mode.group.pointer, addressof(frame) + _SUM))
        mode.place.claim(self._kept[:1] if weights is None else [self._kept[0], weights])
        return y, weights
