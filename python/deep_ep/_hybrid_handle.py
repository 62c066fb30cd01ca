# SPDX-License-Identifier: Apache-2.0
"""Handles of `HybridEPBuffer`: tuples for engines, and the routings that their memory owns.

The memory of the first tensor owns the routing (`_handles` says why). Every dispatch makes its tensors anew. Letters in
shapes are those of hybrid_ep_buffer.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

from . import _handles
from ._call import give_owner, owner_of

PERMUTED_ITEMS, PLAIN_ITEMS = 11, 7


@dataclass
class HybridEpConfigInstance:
    """The configuration of a dispatch, as its handle shows it.

    token_data_type: the dtype of the rows. pad_multiple: None without padding."""

    hidden_dim: int
    max_num_of_tokens_per_rank: int
    num_of_experts_per_rank: int
    num_of_ranks_per_node: int
    num_of_nodes: int
    pad_multiple: int | None = None
    token_data_type: Any = None


@dataclass
class Counts:
    """The counts of a dispatch with permutation."""

    experts: Any  # int32 [L] on the device, real counts, cut by the capacity
    padded: Any  # int64 [L], these rounded up; on the CPU if the host has waited
    overflow: Any  # int32 [1] on the device
    rows: int  # that belong to an expert or pad it; -1: the host does not know it


class Routing:
    """The routing of one dispatch."""

    __slots__ = ("made", "slots", "dense", "experts", "alignment", "counts", "capacity", "rows")

    def __init__(
        self,
        made: _handles.Handle,
        slots: Any,
        dense: bool,
        experts: int,
        alignment: int,
        counts: Counts | None,
        capacity: int,
        rows: int,
    ) -> None:
        """Makes a routing of these parts.

        Slots are int32 or int64 [T, K], each token's experts, ascending, or -1. If they are dense, slot e stands for
        expert e. There are no counts without permutation. The capacity is the number of rows that the caller has got.
        The library has `rows` of them, which is at least 1 if there is a capacity."""
        self.made = made
        self.slots, self.dense = slots, dense
        self.experts, self.alignment = experts, alignment
        self.counts = counts
        self.capacity, self.rows = capacity, rows

    @property
    def tokens(self) -> int:
        """T"""
        return self.made.num_tokens


def wrap_permuted(routing: Routing, owner: Any, opaque: Sequence[Any], dispatched: Any, config: Any) -> tuple[Any, ...]:
    """Returns the tuple of a dispatch with permutation. owner: a tensor of its own memory. opaque: five tensors.
    dispatched: int32 [1], R."""
    counts = routing.counts
    assert counts is not None
    give_owner(owner, routing)
    first = (owner, opaque[0], opaque[1], dispatched, opaque[2], opaque[3], opaque[4])
    return (*first, counts.experts, routing.tokens, config, counts.overflow)


def wrap_plain(
    routing: Routing, owner: Any, opaque: Sequence[Any], dispatched: Any, experts: Any, config: Any
) -> tuple[Any, ...]:
    """Returns the tuple of a dispatch without permutation. experts: bool [R, L]."""
    give_owner(owner, routing)
    return (owner, opaque[0], opaque[1], dispatched, experts, routing.tokens, config)


def find(handle: Any, permuted: bool) -> Routing:
    """Returns the routing of a handle. AssertionError for anything else."""
    call, wanted = ("dispatch_with_permute", PERMUTED_ITEMS) if permuted else ("dispatch", PLAIN_ITEMS)
    if not isinstance(handle, (tuple, list)):
        raise AssertionError(f"handle is of type {type(handle).__name__}: expected the tuple that {call} gave")
    if len(handle) != wanted:
        raise AssertionError(f"handle has {len(handle)} items: expected the {wanted} that {call} gave")
    found = owner_of(handle[0])
    if not isinstance(found, Routing) or (found.counts is not None) != permuted:
        raise AssertionError(f"handle was not made by {call} of this process: expected its own tensor 0, or a view of it")
    return found
