# SPDX-License-Identifier: Apache-2.0
"""Dispatches and combines in normal mode that repeat an earlier, checked call, with PyTorch's tensors (`_quick`)."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Callable, Tuple

from . import _abi
from ._abi import EpPart, EpPath, PythonKind
from ._device import LEGACY
from ._event import Event
from ._library import lib
from ._quick import Call, Form, items_of
from ._results import Combined, Dispatched, Handle
from ._tensor import Output, Tensor

_WORDS = ("handle", "stream", "wait_event", "async_finish")
DISPATCH_TENSORS = (
    "x topk_idx topk_weights x_scales token_in_rank out_x out_topk_idx out_topk_weights out_scales out_row_map "
    "out_src_token out_src_metadata out_row_weights topk_idx_copy"
).split()
# In the order of Dispatched, and so that of its outs among the tensors.
_X, _IDX, _WEIGHTS, _SCALES, _ROW_MAP, _SRC_TOKEN, _METADATA, _ROW_WEIGHTS = _PARTS = tuple(
    int(part)
    for part in (
        EpPart.X, EpPart.TOPK_IDX, EpPart.TOPK_WEIGHTS, EpPart.SCALES, EpPart.ROW_MAP, EpPart.SRC_TOKEN,
        EpPart.SRC_METADATA, EpPart.ROW_WEIGHTS,
    )
)  # fmt: skip
_AGAIN = Call(PythonKind.DISPATCH, lib.expar_ep_dispatch, _abi.EpDispatchArgs, DISPATCH_TENSORS, _WORDS, _PARTS)
_FRESH = Call(PythonKind.FRESH, lib.expar_ep_dispatch, _abi.EpDispatchArgs, DISPATCH_TENSORS, _WORDS, _PARTS)
_COMBINE = Call(
    PythonKind.COMBINE,
    lib.expar_ep_combine,
    _abi.EpCombineArgs,
    ("x", "topk_weights", "expert_weights", "bias[0]", "bias[1]", "out_y", "out_topk_weights"),
    (*_WORDS, "reader"),
    (_X, _WEIGHTS),
)
_MOST = (1 << 63) - 1
Tensors = Tuple[Any, ...]

# Members of an enumeration, looked up once. Looking them up takes longer than some calls.
PATHS = {path.value: path for path in EpPath}
_readers: dict[int, tuple[Any, Callable[[Any], tuple[Any, ...]]]] = {}


def ints_at(address: int | None, count: int) -> list[int]:
    """Reads int32 [count] from the library's memory. A slice of an array of ctypes takes twice as long. Types are
    cached: making one takes longer than a call, and leaves garbage for the collector."""
    reader = _readers.get(count)
    if reader is None:
        reader = _readers[count] = ctypes.c_char * (4 * count), struct.Struct(f"={count}i").unpack_from
    kind, unpack = reader
    return list(unpack(kind.from_address(address or 0)))


class DispatchForm(Form):
    """Dispatches with the same options; all have a handle, or none has."""

    __slots__ = ("_fresh",)

    def __init__(self, pointer: int, device: tuple[int, int], args: bytes, fresh: bool) -> None:
        self._fresh = fresh
        if fresh:
            args = args.ljust(ctypes.sizeof(_abi.PythonFresh), b"\0")  # they are its first member
        super().__init__(_FRESH if fresh else _AGAIN, pointer, device, args)

    def dispatch(
        self, tensors: Tensors, handle: Handle | None, wait_event: Event | None, beside: bool, stream: Any
    ) -> Dispatched | None:
        """Does what Buffer.dispatch does. Returns None, and has done nothing, if these arguments are not of a form."""
        items = items_of(tensors)
        if items is None or type(beside) is not bool or not self.takes(wait_event, stream):
            return None
        pointer = 0
        if handle is not None:
            if type(handle) is not Handle:
                return None
            pointer = handle.pointer
        on = self.stream(stream)
        made = self._call(*items, pointer, on or 0, 0 if wait_event is None else wait_event.pointer, beside)
        if type(made) is not list:
            self.failed(made)
            return None
        counts = None
        if self._fresh:
            *parts, pointer, output, event, came, counts_at, dropped, path, local = made
            handle = Handle(pointer)
            counts = ints_at(counts_at, local) if counts_at else None
        else:
            *parts, event, output, came, dropped, path = made
        memory = Output(output, on) if output else None
        assert handle is not None
        x, idx, weights, scales, row_map, src_token, metadata, row_weights = parts
        return Dispatched(
            tensors[5] if x is None else Tensor(None, memory, _X, x),
            tensors[6] if idx is None else Tensor(None, memory, _IDX, idx),
            tensors[7] if weights is None else Tensor(None, memory, _WEIGHTS, weights),
            tensors[8] if scales is None else Tensor(None, memory, _SCALES, scales),
            tensors[9] if row_map is None else Tensor(None, memory, _ROW_MAP, row_map),
            tensors[10] if src_token is None else Tensor(None, memory, _SRC_TOKEN, src_token),
            tensors[11] if metadata is None else Tensor(None, memory, _METADATA, metadata),
            tensors[12] if row_weights is None else Tensor(None, memory, _ROW_WEIGHTS, row_weights),
            counts,
            came if came <= _MOST else came - 2 * _MOST - 2,
            dropped,
            handle,
            PATHS[path],
            self.end(event, on, tensors, (handle, wait_event, memory), stream is not None),
        )


class CombineForm(Form):
    """Combines with the same options."""

    __slots__ = ()

    def __init__(self, pointer: int, device: tuple[int, int], args: bytes) -> None:
        super().__init__(_COMBINE, pointer, device, args)

    def combine(
        self, tensors: Tensors, handle: Handle, wait_event: Event | None, beside: bool, stream: Any
    ) -> Combined | None:
        """Does what Buffer.combine does. Returns None, and has done nothing, if these arguments are not of a form."""
        items = items_of(tensors)
        if items is None or type(beside) is not bool or not self.takes(wait_event, stream):
            return None
        if type(handle) is not Handle or tensors[0] is None:
            return None
        on = self.stream(stream)
        waits = 0 if wait_event is None else wait_event.pointer
        # The program nearly always reads the sums on the current stream.
        reads = on is not None and stream is None
        reader = (on or LEGACY) if reads else 0
        made = self._call(*items, handle.pointer, on or 0, waits, beside, reader)
        if type(made) is not list:
            self.failed(made)
            return None
        y, weights, event, output = made
        memory = Output(output, on) if output else None
        if memory is not None and reads:
            memory.served = on
        return Combined(
            tensors[5] if y is None else Tensor(None, memory, _X, y),
            tensors[6] if weights is None else Tensor(None, memory, _WEIGHTS, weights),
            self.end(event, on, tensors, (handle, wait_event, memory), stream is not None),
        )
