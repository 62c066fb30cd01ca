# SPDX-License-Identifier: Apache-2.0
"""Handles: tuples of tensors for engines, routings of dispatches for the library.

An engine may keep a handle in autograd's context, in a dict, unpack it and pack it again, or send its tensors through
custom operators: what stays is the memory of its first tensor. So that memory owns the library's handle, and is what
the handle is found by.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any, Sequence

import torch
from expar import _abi
from expar._library import lib

from . import _place
from ._call import check, plain


class Handle:
    """The routing of one dispatch, and this program's reference to it."""

    __slots__ = ("pointer", "num_tokens", "num_topk", "num_rows", "__weakref__")

    def __init__(self, pointer: int, num_tokens: int, num_topk: int, num_rows: int) -> None:
        self.pointer = pointer
        self.num_tokens = num_tokens
        self.num_topk = num_topk
        self.num_rows = num_rows  # of recv_x

    def __del__(self, destroy: Any = lib.expar_ep_handle_destroy) -> None:
        destroy(self.pointer)


class _Prefix(bytearray):
    """Memory of a handle's first tensor."""

    __slots__ = ("handle", "__weakref__")
    handle: Handle


# By the address of the first tensor's memory, which is nobody else's as long as an entry is there.
_prefixes: weakref.WeakValueDictionary[int, _Prefix] = weakref.WeakValueDictionary()

_info_get = plain("expar_ep_handle_info", ctypes.c_void_p, ctypes.c_void_p)
_INFO_BYTES = ctypes.sizeof(_abi.HandleInfo)


def wrap(pointer: int, num_rows: int, rank: int, size: int, token_in_rank: Any) -> tuple[Any, ...]:
    """The tuple of a dispatch on one node: what ranks 0..i send here in column `rank` of row i (int32 [N, N]; other
    columns are 0), three opaque tensors, token_in_rank, and another opaque one."""
    info = _abi.HandleInfo(_INFO_BYTES)
    check(_info_get(pointer, ctypes.addressof(info)))
    memory = _Prefix(4 * size * size)
    memory.handle = Handle(pointer, info.num_tokens, info.num_topk, num_rows)
    counts = (ctypes.c_int32 * size).from_address(info.rank_prefix or 0)
    memoryview(memory).cast("i")[rank::size] = memoryview(bytearray(counts)).cast("i")
    prefix = torch.frombuffer(memory, dtype=torch.int32)
    _prefixes[prefix.data_ptr()] = memory
    # An operator's results have memory of their own each.
    opaque = [torch.zeros(1, dtype=torch.int32, device="cpu") for _ in range(4)]
    return (prefix.view(size, size), opaque[0], opaque[1], opaque[2], token_in_rank, opaque[3])


class _Counts:
    """The memory of a first tensor on a GPU."""

    __slots__ = ("handle", "memory", "__weakref__")

    def __init__(self, handle: Handle, memory: Any) -> None:
        self.handle = handle
        self.memory = memory


def wrap_on_gpu(
    pointer: int, num_rows: int, place: _place.Place, counts: Any, token_in_rank: Any
) -> tuple[Any, ...]:
    """The same of a dispatch on a GPU. counts: int32 [N, N], of which row `rank` is written by the call; it is the tuple's
    first tensor, turned."""
    info = _abi.HandleInfo(_INFO_BYTES)
    check(_info_get(pointer, ctypes.addressof(info)))
    owner = _Counts(Handle(pointer, info.num_tokens, info.num_topk, num_rows), counts)
    shape = tuple(counts.shape)
    prefix = place.borrow(counts.data_ptr(), shape, (1, shape[0]), torch.int32, owner)
    _counts[prefix.data_ptr()] = owner
    opaque = [place.empty((1,), torch.int32) for _ in range(4)]
    return (prefix, opaque[0], opaque[1], opaque[2], token_in_rank, opaque[3])


# As _prefixes.
_counts: weakref.WeakValueDictionary[int, _Counts] = weakref.WeakValueDictionary()


def find(handle: Sequence[Any]) -> Handle:
    """AssertionError for what is no handle."""
    if not isinstance(handle, (tuple, list)) or len(handle) not in (6, 10):
        raise AssertionError(f"handle is {type(handle).__name__}: expected the tuple that a dispatch gave")
    first = handle[0]
    memory: Any = None
    if isinstance(first, torch.Tensor):
        memory = _prefixes.get(first.data_ptr()) or _counts.get(first.data_ptr())
    if memory is None:
        raise AssertionError("handle is of no dispatch of this process: its first tensor, or a view of it, is needed")
    found: Handle = memory.handle
    return found


# ---- low latency -----------------------------------------------------------------------------------------------------


class LowLatencyHandle:
    """Where the rows of one low-latency dispatch came from, and this program's reference to it."""

    __slots__ = ("pointer", "buffer", "num_tokens", "__weakref__")

    def __init__(self, pointer: int, buffer: Any, num_tokens: int) -> None:
        self.pointer = pointer
        self.buffer = buffer  # the key of the buffer for such calls
        self.num_tokens = num_tokens

    def __del__(self, destroy: Any = lib.expar_ll_handle_destroy) -> None:
        destroy(self.pointer)


# By the address of src_info, which is nobody else's as long as the handle is there.
_sources: weakref.WeakValueDictionary[int, LowLatencyHandle] = weakref.WeakValueDictionary()
_ll_info_get = plain("expar_ll_handle_info_get", ctypes.c_void_p, ctypes.c_void_p)
_LL_INFO_BYTES = ctypes.sizeof(_abi.LlHandleInfo)


def wrap_low_latency(
    pointer: int, key: Any, place: _place.Place, ranks: int, local_experts: int
) -> tuple[Any, ...]:
    """(src_info int32 [L, N*B], range int64 [L, N], B, H, E). Filled when rows are."""
    info = _abi.LlHandleInfo(_LL_INFO_BYTES)
    check(_ll_info_get(pointer, ctypes.addressof(info)))
    handle = LowLatencyHandle(pointer, key, info.num_tokens)
    rows, source, spans = ranks * info.max_tokens, info.src_info.data, info.range.data
    assert source is not None and spans is not None
    _sources[source] = handle
    return (
        place.borrow(source, (local_experts, rows), (rows, 1), torch.int32, handle),
        place.borrow(spans, (local_experts, ranks), (ranks, 1), torch.int64, handle),
        info.max_tokens,
        info.hidden,
        info.num_experts,
    )


def find_low_latency(handle: Sequence[Any]) -> LowLatencyHandle:
    """AssertionError for what is no handle."""
    if not isinstance(handle, (tuple, list)) or len(handle) != 5:
        raise AssertionError(f"handle is {type(handle).__name__}: expected the tuple that low_latency_dispatch gave")
    first = handle[0]
    found = _sources.get(first.data_ptr()) if isinstance(first, torch.Tensor) else None
    if found is None:
        raise AssertionError("handle is of no low-latency dispatch of this process: its first tensor is needed")
    return found
