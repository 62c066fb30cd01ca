# SPDX-License-Identifier: Apache-2.0
"""Results of calls in normal mode: handles, counts and tensors.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts.
R rows that this rank receives, S scales a row. Expert e is local expert e % L of rank e // L.

A result is a tuple, so it may be unpacked and indexed. Members also have their names of C, such as `recv_x` for `x`.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from . import _abi
from ._abi import Dtype, EpPath
from ._arguments import Arguments
from ._device import name_of_device
from ._event import Event
from ._library import lib
from ._tensor import Counted, view_of

if TYPE_CHECKING:
    from ._types import Array

_Kind = TypeVar("_Kind")


def same_object(kind: type[_Kind]) -> type[_Kind]:
    """Lets objects of a tuple's class be equal only to themselves. Tuples would compare arrays element by element."""
    for name in ("__eq__", "__ne__", "__hash__"):
        setattr(kind, name, getattr(object, name))
    return kind


class Handle(Counted):
    """The routing of one dispatch, for its combine and for later dispatches with the same routing, on any buffer of the
    group. It lives as long as its references, also after buffer and group are gone."""

    __slots__ = ("_known",)
    _no_pickle = "send topk_idx instead, and make a handle there by Buffer.route"
    _retain = lib.expar_ep_handle_retain
    _release = lib.expar_ep_handle_release

    def __init__(self, pointer: int) -> None:
        super().__init__(pointer)
        self._known: _abi.EpHandleInfo | None = None

    @property
    def _info(self) -> _abi.EpHandleInfo:
        """Reads the facts when they are first needed; most programs only pass a handle on."""
        if self._known is None:
            info = _abi.EpHandleInfo(struct_size=ctypes.sizeof(_abi.EpHandleInfo))
            lib.expar_ep_handle_get_info(self.pointer, ctypes.byref(info))
            self._known = info
        return self._known

    @property
    def num_tokens(self) -> int:
        """T of the dispatch."""
        return self._info.num_tokens

    @property
    def num_recv_tokens(self) -> int:
        """R."""
        return self._info.num_recv_tokens

    @property
    def num_experts(self) -> int:
        """E."""
        return self._info.num_experts

    @property
    def num_topk(self) -> int:
        """K."""
        return self._info.num_topk


class RecvCounts:
    """Counts that a dispatch or a route writes into contiguous arrays of the caller, on the device of the tensors. None
    stands for a count that is not wanted.

    tokens_per_expert: [L] i32, the rows of each local expert, not rounded up, with the dropped ones.
    expert_prefix: [L+1] i32, the start of each expert's rows in an expert-major output, then its length.
    rank_prefix: [N] i32, the rows from ranks 0..i, with the dropped ones.
    num_recv_tokens: [1] i64, R.
    expert_ends: [L] i32, the end of each expert's rows in an expert-major output, before the padding rows.
    """

    __slots__ = ("_members",)

    def __init__(
        self,
        tokens_per_expert: Array | None = None,
        expert_prefix: Array | None = None,
        rank_prefix: Array | None = None,
        num_recv_tokens: Array | None = None,
        expert_ends: Array | None = None,
    ) -> None:
        self._members = {
            "tokens_per_expert": (tokens_per_expert, Dtype.I32),
            "expert_prefix": (expert_prefix, Dtype.I32),
            "rank_prefix": (rank_prefix, Dtype.I32),
            "num_recv_tokens": (num_recv_tokens, Dtype.I64),
            "expert_ends": (expert_ends, Dtype.I32),
        }

    def struct(self, num_local_experts: int, num_ranks: int, device: tuple[int, int], call: Arguments) -> int:
        """Returns the address of the library's struct. TypeError or ValueError, with the name, for an array that does
        not fit."""
        kept = call.kept
        struct = _abi.EpRecvCounts(struct_size=ctypes.sizeof(_abi.EpRecvCounts))
        lengths = (num_local_experts, num_local_experts + 1, num_ranks, 1, num_local_experts)
        for (name, (value, dtype)), length in zip(self._members.items(), lengths):
            if value is None:
                continue
            view = view_of(value, name, kept, stream=call.stream, writable=True)
            if view.dtype != dtype or (view.device.type, view.device.index) != device:
                raise TypeError(f"{name}: expected elements of {dtype.name.lower()} on {name_of_device(device)}")
            if view.ndim != 1 or view.shape[0] != length or (length > 1 and view.strides[0] != 1):
                shape = tuple(view.shape[: view.ndim])
                raise ValueError(f"{name} has the shape {shape}: expected {length} elements, contiguous")
            setattr(struct, name, view.data)
        kept.append(struct)
        return ctypes.addressof(struct)


@same_object
class Layout(NamedTuple):
    """Counts of this rank's tokens, computed from their experts alone.

    tokens_per_rank: [N] a token counts once for a rank, even if several of its experts are there.
    tokens_per_node: [M] a token counts once for a node.
    tokens_per_expert: [E] every occurrence counts.
    token_in_rank: [T, N] bool: NumPy's, on a GPU a tensor.
    """

    tokens_per_rank: Any
    tokens_per_node: Any
    tokens_per_expert: Any
    token_in_rank: Any


@same_object
class Route(NamedTuple):
    """The rows that a rank will receive.

    num_recv_tokens: R; -1 on a GPU with num_worst_tokens.
    num_rows: rows of outputs of dispatches with the handle: R, or num_worst_tokens.
    num_expert_rows: rows of expert-major outputs.
    tokens_per_expert: [L] rows for each local expert, rounded up to expert_alignment.
    """

    handle: Handle
    num_recv_tokens: int
    num_rows: int
    num_expert_rows: int
    num_dropped_tokens: int
    tokens_per_expert: list[int] | None

    @property
    def recv_tokens_per_expert(self) -> list[int] | None:
        """`tokens_per_expert`, as C names it."""
        return self.tokens_per_expert


@same_object
class Dispatched(NamedTuple):
    """The rows that a rank has received. Each tensor is the caller's if it was given (out_…), else the library's.

    x: [R, H], dtype of the dispatch's x; expert-major: [sum of tokens_per_expert, H].
    topk_idx: [R, K], dtype of the dispatch's topk_idx: local expert, -1 where it lives elsewhere. None without.
    topk_weights: [R, K] f32, 0 where topk_idx is -1. None without.
    scales: [R, S], dtype of x_scales; with column_scales column by column. None without.
    row_map: expert-major: [R, K] i32, row of x or -1. Else None.
    src_token: with src_tokens: [R] i32, the row's token number at its source. Else None.
    src_metadata: with src_stride M: [R, 2 + K] i32, source rank * M + token, source rank, row_map or -1.
    row_weights: expert-major, with row_weights: [rows of x] f32, the weight of each row's slot. Else None.
    tokens_per_expert: [L], rounded up to expert_alignment; None for a dispatch with a handle.
    num_recv_tokens: R. It is -1 with num_worst_tokens on a GPU, and with async_finish. recv_counts has it then.
    handle: for combines. A dispatch with a handle returns that one.
    path: the path that this rank's rows took.
    event: with async_finish: until it has happened the tensors are not filled.
    """

    x: Any
    topk_idx: Any
    topk_weights: Any
    scales: Any
    row_map: Any
    src_token: Any
    src_metadata: Any
    row_weights: Any
    tokens_per_expert: list[int] | None
    num_recv_tokens: int
    num_dropped_tokens: int
    handle: Handle
    path: EpPath
    event: Event | None

    @property
    def recv_x(self) -> Any:
        """`x`, as C names it."""
        return self.x

    @property
    def recv_topk_idx(self) -> Any:
        """`topk_idx`, as C names it."""
        return self.topk_idx

    @property
    def recv_topk_weights(self) -> Any:
        """`topk_weights`, as C names it."""
        return self.topk_weights

    @property
    def recv_scales(self) -> Any:
        """`scales`, as C names it."""
        return self.scales

    @property
    def recv_row_map(self) -> Any:
        """`row_map`, as C names it."""
        return self.row_map

    @property
    def recv_src_token(self) -> Any:
        """`src_token`, as C names it."""
        return self.src_token

    @property
    def recv_src_metadata(self) -> Any:
        """`src_metadata`, as C names it."""
        return self.src_metadata

    @property
    def recv_row_weights(self) -> Any:
        """`row_weights`, as C names it."""
        return self.row_weights

    @property
    def recv_tokens_per_expert(self) -> list[int] | None:
        """`tokens_per_expert`, as C names it."""
        return self.tokens_per_expert


@same_object
class Combined(NamedTuple):
    """Sums, back in the order of the tokens.

    y: [T, H], dtype of x: the caller's own, or the library's.
    topk_weights: [T, K] f32; None for a combine without weights.
    event: with async_finish: until it has happened the tensors are not filled.
    """

    y: Any
    topk_weights: Any
    event: Event | None
