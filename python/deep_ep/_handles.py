# SPDX-License-Identifier: Apache-2.0
"""Handles: tuples of tensors for engines, routings of dispatches for the library.

An engine may keep a handle in autograd's context or a dict, unpack and repack it, or send its tensors through custom
operators. Only the memory of its tensors survives all of this. So the memory of one tensor, the first inside a node,
owns the library's handle, and the handle is found by it.
"""

from __future__ import annotations

import ctypes
from typing import Any, Sequence

from expar import _abi
from expar._copies import Shared
from expar._library import lib

from . import _place
from ._call import check, give_owner, held, owner_of


class Handle(Shared):
    """The routing of one dispatch, and this program's reference to it."""

    __slots__ = ("pointer", "num_tokens", "num_topk", "num_rows", "__weakref__")
    _no_pickle = "send topk_idx instead, and dispatch there"

    def __init__(self, pointer: int, num_tokens: int, num_topk: int, num_rows: int) -> None:
        self.pointer = pointer
        self.num_tokens = num_tokens
        self.num_topk = num_topk
        self.num_rows = num_rows  # of recv_x

    def __del__(self, destroy: Any = lib.expar_ep_handle_release) -> None:
        destroy(self.pointer)


_info_get = held("expar_ep_handle_get_info", ctypes.c_void_p, ctypes.c_void_p)
_INFO_BYTES = ctypes.sizeof(_abi.EpHandleInfo)


def read_prefix(handle: Handle, to: int, ranks: int) -> None:
    """Writes int32 [N] to that address on a CPU: the number of rows that come from ranks 0..i, as the handle knows
    it."""
    info = _abi.EpHandleInfo(_INFO_BYTES)
    check(_info_get(handle.pointer, ctypes.addressof(info)))
    ctypes.memmove(to, info.rank_prefix or 0, 4 * ranks)


def wrap(handle: Handle, prefix: Any, place: _place.Place, token_in_rank: Any) -> tuple[Any, ...]:
    """Returns the tuple of a dispatch on one node: prefix, three opaque tensors, token_in_rank, and another opaque one.

    prefix: int32 [N, N]. Row i of column `rank` has the number of rows that ranks 0..i send here; other columns are not
    filled."""
    give_owner(prefix, handle)
    opaque = place.opaque()
    return (prefix, opaque[0], opaque[1], opaque[2], token_in_rank, opaque[3])


# The item whose memory owns the routing in a tuple across nodes. token_in_rank cannot: it is the caller's.
_ACROSS_OWNER = 6


def wrap_across(handle: Handle, prefix: Any, place: _place.Place, token_in_rank: Any) -> tuple[Any, ...]:
    """Returns the tuple of a dispatch across nodes: token_in_rank, five opaque tensors, prefix, and three opaque ones.
    prefix: int32 [N], the number of rows from ranks 0..i."""
    give_owner(prefix, handle)
    opaque = place.opaque()
    return (token_in_rank, *opaque[:5], prefix, *opaque[5:])


def find(handle: Sequence[Any] | None) -> Handle:
    """AssertionError for what is no handle."""
    if not isinstance(handle, (tuple, list)):
        raise AssertionError(f"handle is {type(handle).__name__}: expected the tuple that a dispatch gave")
    if len(handle) not in (6, 10):
        raise AssertionError(f"handle has {len(handle)} items: expected the tuple that a dispatch gave, of 6 or 10")
    at = 0 if len(handle) == 6 else _ACROSS_OWNER
    found = owner_of(handle[at])
    if not isinstance(found, Handle):
        raise AssertionError(
            f"handle was not made by a dispatch of this process: expected its own tensor {at}, or a view of it"
        )
    return found


# ---- low latency -----------------------------------------------------------------------------------------------------


class LowLatencyHandle(Shared):
    """Where the rows of one low-latency dispatch came from, and this program's reference to it."""

    __slots__ = ("pointer", "buffer", "__weakref__")
    _no_pickle = "send topk_idx instead, and dispatch there"

    def __init__(self, pointer: int, buffer: Any) -> None:
        self.pointer = pointer
        self.buffer = buffer  # the key of the buffer for such calls

    def __del__(self, destroy: Any = lib.expar_ll_handle_release) -> None:
        destroy(self.pointer)


def wrap_low_latency(pointer: int, key: Any, src_info: Any, ranges: Any) -> tuple[Any, ...]:
    """Returns (src_info int32 [L, N*B], range int64 [L, N], B, H, E). The tensors are filled together with the rows.
    key: the buffer's."""
    src_info.untyped_storage().expar_owner = LowLatencyHandle(pointer, key)  # as `give_owner`
    return (src_info, ranges, key.tokens, key.hidden, key.experts)


def find_low_latency(handle: Sequence[Any]) -> LowLatencyHandle:
    """AssertionError for what is no handle."""
    if not isinstance(handle, (tuple, list)):
        raise AssertionError(f"handle is {type(handle).__name__}: expected the tuple that low_latency_dispatch gave")
    if len(handle) != 5:
        raise AssertionError(f"handle has {len(handle)} items: expected the tuple that low_latency_dispatch gave, of 5")
    found = owner_of(handle[0])
    if not isinstance(found, LowLatencyHandle):
        raise AssertionError(
            "handle was not made by a low-latency dispatch of this process: expected its own first tensor"
        )
    return found
