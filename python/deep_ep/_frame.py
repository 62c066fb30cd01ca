# SPDX-License-Identifier: Apache-2.0
"""Arguments and results of a dispatch in one block of memory.

The arguments of calls of one form differ only in their tensors. A caller keeps the frame of one call as bytes, copies
it, and overwrites the views of its tensors with those of the next call. Where PyTorch shows its tensors to C (DLPack's
exchange), one call of the library writes all views. Otherwise each tensor is read here.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, addressof, c_int32, c_uint64, c_void_p, sizeof, string_at
from typing import Any, Sequence

from expar import _abi
from expar._abi import EpDispatchArgs, EpDispatchResult, EpRecvCounts

from ._call import exchange, held, put

ARGS_BYTES, RESULT_BYTES, COUNTS_BYTES = sizeof(EpDispatchArgs), sizeof(EpDispatchResult), sizeof(EpRecvCounts)


class Frame(Structure):
    """A frame. differing: the number of views of the last `fill` that differ from those before in more than the
    address."""

    _fields_ = [
        ("args", EpDispatchArgs),
        ("counts", EpRecvCounts),
        ("result", EpDispatchResult),
        ("differing", c_uint64),
    ]


# A frame as words. Words are written and read faster than members of a struct.
Words = c_uint64 * (sizeof(Frame) // sizeof(c_uint64))


def _words(part: str, kind: Any, *names: str) -> tuple[int, ...]:
    """Returns the word offsets of these members of that part."""
    offsets = [getattr(Frame, part).offset + getattr(kind, name).offset for name in names]
    assert not any(offset % sizeof(c_uint64) for offset in offsets)
    return tuple(offset // sizeof(c_uint64) for offset in offsets)


W_TOPK_IDX_COPY, W_HANDLE, W_STREAM, W_WAIT_EVENT, W_ASYNC, W_RECV_COUNTS = _words(
    "args", EpDispatchArgs, "topk_idx_copy", "handle", "stream", "wait_event", "async_finish", "recv_counts"
)
W_RANK_PREFIX, W_PER_EXPERT, W_EXPERT_PREFIX, W_EXPERT_ENDS = _words(
    "counts", EpRecvCounts, "rank_prefix", "tokens_per_expert", "expert_prefix", "expert_ends"
)
W_MADE, W_OUTPUT, W_EVENT, W_NUM_RECV, W_ROUNDED = _words(
    "result", EpDispatchResult, "handle", "output", "event", "num_recv_tokens", "recv_tokens_per_expert"
)
COUNTS_AT, RESULT_AT = getattr(Frame, "counts").offset, getattr(Frame, "result").offset
_DIFFERING_AT = getattr(Frame, "differing").offset
_VIEW_BYTES = sizeof(_abi.Tensor)
_DATA_BYTES = sizeof(c_void_p)  # the address, a view's first member


_put_views = held("expar_python_view_tensors", c_void_p, c_void_p, c_void_p)
_view = exchange.view_of if exchange is not None else None
_item = ctypes.cast(ctypes.pythonapi.PyTuple_GetItem, c_void_p).value


class Places:
    """The arguments of a call that are tensors: their names in errors, and where in the call's frame their views are.

    differing: the word of the frame that counts the views of the last `fill` that differ from those before."""

    __slots__ = ("names", "offsets", "views", "at", "differing")

    def __init__(self, places: Sequence[tuple[str, int]], differing_at: int) -> None:
        """places: names and offsets. differing_at: the offset of `differing`."""
        self.names = tuple(name for name, _ in places)
        self.offsets = (c_int32 * len(places))(*(offset for _, offset in places))
        self.differing = differing_at // sizeof(c_uint64)
        self.views = _abi.PythonViews(_item, _view, id(None), addressof(self.offsets), len(places), differing_at)
        self.at = addressof(self.views)


def places_of_dispatch(**names: str) -> Places:
    """Returns the places in a `Frame`. It maps members of EpDispatchArgs to names."""
    return Places([(name, getattr(EpDispatchArgs, member).offset) for member, name in names.items()], _DIFFERING_AT)


def fill(frame: Any, at: int, places: Places, tensors: tuple[Any, ...]) -> bool:
    """Writes views of these tensors into the frame. Returns whether they equal those before in all but their addresses.

    A tensor of None leaves its view unchanged. at: the frame's address. AssertionError or RuntimeError, with the name,
    if an item is no tensor."""
    if _view:
        try:
            if not _put_views(places.at, id(tensors), at):
                return not frame[places.differing]
        except Exception:  # an error of PyTorch; the code below reports what is wrong
            pass
    return _fill_one_by_one(frame, at, places, tensors)


def _fill_one_by_one(frame: Any, at: int, places: Places, tensors: Sequence[Any]) -> bool:
    alike = True
    for name, offset, tensor in zip(places.names, places.offsets, tensors):
        if tensor is not None:
            before = string_at(at + offset + _DATA_BYTES, _VIEW_BYTES - _DATA_BYTES)
            put(frame, offset, tensor, name)
            alike = alike and before == string_at(at + offset + _DATA_BYTES, _VIEW_BYTES - _DATA_BYTES)
    return alike
