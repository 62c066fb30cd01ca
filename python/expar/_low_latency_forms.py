# SPDX-License-Identifier: Apache-2.0
"""Low-latency dispatches and combines that repeat an earlier, checked call, with PyTorch's tensors (`_quick`)."""

from __future__ import annotations

from typing import Any, Tuple

from . import _abi
from ._abi import EpPart, PythonKind
from ._event import Event
from ._library import lib
from ._quick import Call, Form, items_of
from ._tensor import Output, Tensor

_X, _SCALES, _COUNT = int(EpPart.X), int(EpPart.SCALES), int(EpPart.COUNT)
DISPATCH_TENSORS = "x topk_idx topk_weights global_scale out_x out_scales out_count expert_recv_stats wait_ns".split()
COMBINE_TENSORS = "x topk_idx topk_weights out_y wait_ns".split()
_DISPATCH = Call(
    PythonKind.LL_DISPATCH,
    lib.expar_ll_dispatch,
    _abi.LlDispatchArgs,
    DISPATCH_TENSORS,
    ("stream", "wait_event"),
    (_X, _SCALES, _COUNT),
)
_COMBINE = Call(
    PythonKind.LL_COMBINE,
    lib.expar_ll_combine,
    _abi.LlCombineArgs,
    COMBINE_TENSORS,
    ("handle", "stream", "wait_event"),
    (_X,),
)
Tensors = Tuple[Any, ...]
# A result's rows, scales and counts; then the addresses of handle, hook and event; the stream, and the output's memory.
Received = Tuple[Any, Any, Any, int, int, int, Any, Any]
Summed = Tuple[Any, int, int, Any, Any]  # the sums; hook and event; stream and memory


class DispatchForm(Form):
    """Dispatches with the same options."""

    __slots__ = ()

    def __init__(self, pointer: int, device: tuple[int, int], args: bytes) -> None:
        super().__init__(_DISPATCH, pointer, device, args)

    def dispatch(self, tensors: Tensors, wait_event: Event | None, stream: Any) -> Received | None:
        """Makes a dispatch. Returns None, and has done nothing, if these arguments are not of a form."""
        items = items_of(tensors)
        if items is None or not self.takes(wait_event, stream):
            return None
        on = self.stream(stream)
        made = self._call(*items, on or 0, 0 if wait_event is None else wait_event.pointer)
        if type(made) is not list:
            self.failed(made)
            return None
        x, scales, count, handle, hook, event, output = made
        memory = Output(output, on) if output else None
        return (
            tensors[4] if x is None else Tensor(None, memory, _X, x),
            tensors[5] if scales is None else Tensor(None, memory, _SCALES, scales),
            tensors[6] if count is None else Tensor(None, memory, _COUNT, count),
            handle,
            hook,
            event,
            on,
            memory,
        )


class CombineForm(Form):
    """Combines with the same options."""

    __slots__ = ()

    def __init__(self, pointer: int, device: tuple[int, int], args: bytes) -> None:
        super().__init__(_COMBINE, pointer, device, args)

    def combine(self, tensors: Tensors, handle: int, wait_event: Event | None, stream: Any) -> Summed | None:
        """Makes a combine. handle: its address. Returns None, and has done nothing, if these arguments are not of a
        form."""
        items = items_of(tensors)
        if items is None or not self.takes(wait_event, stream):
            return None
        on = self.stream(stream)
        made = self._call(*items, handle, on or 0, 0 if wait_event is None else wait_event.pointer)
        if type(made) is not list:
            self.failed(made)
            return None
        y, hook, event, output = made
        memory = Output(output, on) if output else None
        return tensors[3] if y is None else Tensor(None, memory, _X, y), hook, event, on, memory
