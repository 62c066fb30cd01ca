# SPDX-License-Identifier: Apache-2.0
"""Replicas of experts inside a node: weights go to other ranks' slots, and gradients of slots come back.

Both are dispatches of rows that are parts of an expert's bytes. To prefetch, each slot of a rank is an expert of the
library, and the owner's rows name the slots. To reduce, each slot's rows name the expert. They come by rank, then by
slot, which is the order of the additions. Each node has a group of its own for that, so it waits for no other node.

Letters in shapes: G ranks of a node, L experts of a rank, C slots of a rank. Experts are numbered in the node: the
owner's local rank * L + its local expert.
"""

from __future__ import annotations

from ctypes import sizeof
from typing import Any, Sequence

import torch
from expar import _abi, Group, UniqueId

from . import _place
from ._hybrid import HybridMode, Slots
from .utils.event import event_of, EventHandle, EventOverlap

_UNIT_BYTES = 16  # of rows of the library
_MOST_ROW_BYTES = 16384
_MOST_TENSORS = 16
_ID_BYTES = sizeof(_abi.UniqueId)


def _row_bytes(total: int) -> int:
    """Returns the bytes of the longest rows that an expert's bytes can be cut into."""
    units = total // _UNIT_BYTES
    parts = max(-(-total // _MOST_ROW_BYTES), 1)
    while units % parts:
        parts += 1
    return total // parts


def _as_sequence(tensors: Any, name: str) -> list[Any]:
    found = list(tensors) if isinstance(tensors, (tuple, list)) else [tensors]
    for tensor in found:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is of type {type(tensor).__name__}: expected a tensor, or a sequence of tensors")
        if tensor.dim() < 1 or not tensor.is_contiguous():
            raise RuntimeError(f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}: expected contiguous")
    if not 1 <= len(found) <= _MOST_TENSORS:
        raise RuntimeError(f"{name} has {len(found)} tensors: expected 1 to {_MOST_TENSORS}")
    return found


def _bytes_of(tensor: Any) -> int:
    """Returns the bytes of one expert."""
    return int(tensor[0].numel() * tensor.element_size()) if tensor.shape[0] else 0


def _as_bytes(tensor: Any, columns: int) -> Any:
    """Returns the same memory as int8 [rows, columns]."""
    return tensor.view(-1).view(torch.uint8).view(torch.int8).view(-1, columns)


def event_before(given: Any) -> EventHandle | None:
    handle = given.event if isinstance(given, EventOverlap) else given
    if handle is not None and not isinstance(handle, EventHandle):
        raise TypeError(f"previous_event is of type {type(given).__name__}: expected an EventHandle")
    return handle


def _group_of_node(group: Group) -> Group:
    """Joins the ranks of this rank's node as a group of their own. Collective over the group."""
    each = group.ranks_per_node
    unique_id = UniqueId() if group.local_rank == 0 else None
    try:
        words = group.allgather(bytes(_ID_BYTES) if unique_id is None else bytes(unique_id))
        return Group.from_id(words[group.node * each], group.local_rank, each, ranks_per_node=each)
    finally:
        if unique_id is not None:
            unique_id.retire()


class Replicas:
    """Moves experts and their gradients between the ranks of each node. Calls are collective over the node.

    storage: uint8, the memory that destinations must lie in. Collective over the group, if there are several nodes."""

    def __init__(self, group: Group, storage: Any) -> None:
        self._group, self._storage = group, storage
        self._own: Group | None = None
        self._modes: dict[_place.Place, HybridMode] = {}
        if group.num_nodes > 1 and any(group.allgather(b"\1" if storage.numel() else b"\0")):
            self._group = self._own = _group_of_node(group)

    def close(self) -> None:
        """Destroys what calls have made. Collective over the node."""
        modes, self._modes = self._modes, {}
        for mode in modes.values():  # in the order of the first calls, which is that of all ranks of the node
            mode.ep.close()
        if self._own is not None:
            self._own.close()

    def _at(self, place: _place.Place) -> HybridMode:
        found = self._modes.get(place)
        if found is None:
            found = self._modes[place] = HybridMode(self._group, place)
        return found

    # ---- arguments ---------------------------------------------------------------------------------------------------

    def _mapping(self, mapping: Any, slots: int, local: int) -> list[list[int]]:
        """Returns the mapping as numbers. On a GPU the host waits for it."""
        each = self._group.ranks_per_node
        if not isinstance(mapping, torch.Tensor):
            raise TypeError(f"redundancy_mapping is of type {type(mapping).__name__}: expected a tensor")
        if mapping.dtype is not torch.int32 or tuple(mapping.shape) != (each, slots) or not mapping.is_contiguous():
            raise RuntimeError(
                f"redundancy_mapping is {mapping.dtype} {tuple(mapping.shape)}: expected contiguous torch.int32 {(each, slots)}"
            )
        found: list[list[int]] = mapping.tolist()
        for rank, row in enumerate(found):
            for slot, expert in enumerate(row):
                if not -1 <= expert < each * local:
                    raise RuntimeError(
                        f"redundancy_mapping[{rank}][{slot}] is {expert}: expected -1 or an expert of the node, 0 to {each * local - 1}"
                    )
        return found

    def _check_inside(self, tensor: Any, name: str) -> None:
        """RuntimeError if the tensor does not lie in the memory for replicas."""
        begin, end = self._storage.data_ptr(), self._storage.data_ptr() + self._storage.numel()
        at = tensor.data_ptr()
        if tensor.numel() and not (begin <= at and at + tensor.numel() * tensor.element_size() <= end):
            raise RuntimeError(f"{name} lies outside of the buffer's memory for replicas: expected a part of it")

    @staticmethod
    def _check_bytes(one: Any, other: Any, names: tuple[str, str]) -> int:
        size, same = _bytes_of(one), _bytes_of(other)
        if size != same and one.shape[0] and other.shape[0]:
            raise RuntimeError(f"{names[0]} has {size} bytes an expert: expected the {same} of {names[1]}")
        size = max(size, same)
        if size % _UNIT_BYTES:
            raise RuntimeError(f"{names[0]} has {size} bytes an expert: expected a multiple of {_UNIT_BYTES}")
        return size

    # ---- streams -----------------------------------------------------------------------------------------------------

    def _run(self, place: _place.Place, previous: Any, used: Sequence[Any], work: Any) -> EventOverlap:
        """Runs the work on the stream for communication, after the event or the current stream. On a CPU it is done at
        the return."""
        before = event_before(previous)
        if not isinstance(place, _place.Gpu):
            if before is not None:
                before.current_stream_wait()
            work()
            return EventOverlap(event_of(None))
        stream = place.comm()
        if before is None or before.point is None:
            stream.wait_stream(place.current())
        with place.on(stream):
            if before is not None:
                before.current_stream_wait()
            work()
        for tensor in used:
            place.used_on(tensor, stream)
        made = event_of(None)
        made.point = place.record(stream)
        return EventOverlap(made)

    def _sent(self, mode: HybridMode, x: Any, idx: list[list[int]], experts: int, rows: int) -> Any:
        """Returns the rows that come, by expert. idx: the experts of each row of x. rows: their number, which the host
        knows."""
        topk = torch.tensor(idx, dtype=torch.int32).view(x.shape[0], -1).to(mode.place.device)
        found, *_ = mode.dispatch(x, None, Slots(topk, False, experts, None), 1, rows, max(rows, 1))
        return found[0][:rows]

    # ---- calls -------------------------------------------------------------------------------------------------------

    def prefetch(self, redundant: Any, weights: Any, mapping: Any, previous: Any) -> EventOverlap:
        """Copies experts to the slots that the mapping names.

        The slots are `redundant`, contiguous [C, ...] in the memory for replicas, or a sequence of such tensors. The
        experts are `weights`, contiguous [L, ...], or as many. The mapping is int32 [G, C]. Slots of -1 keep what they
        have."""
        to, of = _as_sequence(redundant, "redundant_expert_weights"), _as_sequence(weights, "expert_weights")
        if len(to) != len(of):
            raise RuntimeError(f"redundant_expert_weights has {len(to)} tensors: expected the {len(of)} of expert_weights")
        slots, local = to[0].shape[0], of[0].shape[0]
        for index, (slot, source) in enumerate(zip(to, of)):
            names = f"redundant_expert_weights[{index}]", f"expert_weights[{index}]"
            if slot.shape[0] != slots or source.shape[0] != local:
                raise RuntimeError(f"{names[0]} has {slot.shape[0]} slots of {source.shape[0]} experts: expected {slots} of {local}")
            self._check_inside(slot, names[0])
            self._check_bytes(slot, source, names)
        known = self._mapping(mapping, slots, local)
        place = _place.of(of[0], "expert_weights")
        mode = self._at(place)

        def work() -> None:
            for slot, source in zip(to, of):
                self._copy_experts(mode, slot, source, known)

        return self._run(place, previous, [*to, *of], work)

    def _copy_experts(self, mode: HybridMode, slot: Any, source: Any, mapping: list[list[int]]) -> None:
        size, group = self._check_bytes(slot, source, ("slots", "experts")), self._group
        slots, local, first = slot.shape[0], source.shape[0], group.local_rank * source.shape[0]
        if size == 0 or slots == 0 or local == 0:
            return
        columns = _row_bytes(size)
        wanted = [
            [r * slots + c for r, row in enumerate(mapping) for c, expert in enumerate(row) if expert == first + l]
            for l in range(local)
        ]
        counts = [sum(row.count(expert) for row in mapping) for expert in range(local * len(mapping))]
        most = max(*counts, 1)
        idx = [[*each, *[-1] * (most - len(each))] for each in wanted for _ in range(size // columns)]
        mine = [c for c, expert in enumerate(mapping[group.local_rank]) if expert >= 0]
        rows = self._sent(mode, _as_bytes(source, columns), idx, group.size * slots, len(mine) * size // columns)
        came, there = rows.reshape(-1, size), _as_bytes(slot, size)
        for index, c in enumerate(mine):
            there[c].copy_(came[index])

    def reduce(self, redundant: Any, grads: Any, mapping: Any, previous: Any) -> EventOverlap:
        """Adds the gradients of slots to those of their experts: one FP32 addition for each slot, by ascending rank,
        then slot.

        The slots are `redundant`, float32 contiguous [C, H] in the memory for replicas, which stays as it is. The
        experts are `grads`, float32 contiguous [L, H]."""
        for name, tensor in (("redundant_expert_grads", redundant), ("expert_grads", grads)):
            (found,) = _as_sequence([tensor], name)
            if found.dtype is not torch.float32 or found.dim() != 2:
                raise RuntimeError(f"{name} is {found.dtype} {tuple(found.shape)}: expected torch.float32 [rows, H]")
        self._check_inside(redundant, "redundant_expert_grads")
        self._check_bytes(redundant, grads, ("redundant_expert_grads", "expert_grads"))
        known = self._mapping(mapping, redundant.shape[0], grads.shape[0])
        place = _place.of(grads, "expert_grads")
        mode = self._at(place)
        return self._run(place, previous, [redundant, grads], lambda: self._add(mode, redundant, grads, known))

    def _add(self, mode: HybridMode, redundant: Any, grads: Any, mapping: list[list[int]]) -> None:
        group, local = self._group, grads.shape[0]
        size = self._check_bytes(redundant, grads, ("slots", "experts"))
        if size == 0 or local == 0 or redundant.shape[0] == 0:
            return
        columns = _row_bytes(size)
        parts = size // columns
        idx = [[expert] for expert in mapping[group.local_rank] for _ in range(parts)]
        first = group.local_rank * local
        counts = [sum(row.count(first + l) for row in mapping) for l in range(local)]
        x = _as_bytes(redundant, columns)
        rows = self._sent(mode, x, idx, group.size * local, sum(counts) * parts)
        came = rows.reshape(-1, size).view(torch.float32)
        begins = [sum(counts[:l]) for l in range(local)]
        for turn in range(max(counts, default=0)):
            for l in range(local):
                if turn < counts[l]:
                    grads[l].add_(came[begins[l] + turn])
