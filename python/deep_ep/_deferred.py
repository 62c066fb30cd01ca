# SPDX-License-Identifier: Apache-2.0
"""Calls of `EPBuffer` with defer_epilogue: they are launched, and their first wait makes the results.

Rows of a deferred dispatch come to memory of the pool that has space for the largest possible number of rows, so the
host need not know how many come. The first wait cuts the results to the rows that came; it copies none. So any number
of calls may be pending, and they may be waited for in any order.

A combine without biases is carried out at once, and the first wait returns its sums. With biases the sums cannot be
made at the call: biases are added first, and the caller may write them until the wait. Then the ranks send a token's
rows back unsummed, by a dispatch, and the first wait sums them with PyTorch, in the order that a combine has.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts, R rows received.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence, TYPE_CHECKING

import torch
from expar._abi import EpPart

from ._call import Output, Parts
from ._elastic_handle import EPHandle
from ._place import Place
from .utils.event import EventHandle

if TYPE_CHECKING:
    from ._elastic import ElasticMode, Form

_ROWS = Parts((int(EpPart.X),), (torch.bfloat16,))
_NAN_BITS = 0x7FFF  # the library's NaN, in bf16


class Launched(NamedTuple):
    """A dispatch after the library's call. own: its results in memory that this package has allocated, or None.
    memory: the counts of a fresh one."""

    handle: EPHandle
    output: Output
    own: dict[str, Any] | None
    memory: Any


class PendingDispatch:
    """The results of a deferred dispatch. A call makes them, once."""

    __slots__ = ("_mode", "_launched", "_form", "_paired")

    def __init__(self, mode: ElasticMode, launched: Launched, form: Form, paired: bool) -> None:
        """paired: x was a tuple of rows and scales."""
        self._mode, self._launched, self._form, self._paired = mode, launched, form, paired

    def __call__(self) -> tuple[Any, Any, Any, EPHandle]:
        rows, scales, idx, weights = self._mode.results(self._launched, self._form)
        return (rows, scales) if self._paired else rows, idx, weights, self._launched.handle


class PendingCombine:
    """The sums of a deferred combine without biases."""

    __slots__ = ("_place", "_y", "_weights")

    def __init__(self, place: Place, y: Any, weights: Any) -> None:
        self._place, self._y, self._weights = place, y, weights

    def __call__(self) -> tuple[Any, Any]:
        self._place.claim([each for each in (self._y, self._weights) if each is not None])
        return self._y, self._weights


# ---- sums with late biases -------------------------------------------------------------------------------------------


def rows_of(x: Any, handle: EPHandle, each_slot: bool) -> tuple[Any, Any]:
    """Returns the rows that this rank sends back [n, H], and their owners, int64 [n, 1] with -1 for none.

    They are one row for each received token, ordered as recv_src_metadata is. With each_slot they are K rows for each,
    ordered by slot. Expanded rows of a token are otherwise summed first, and rounded."""
    metadata = handle.recv_src_metadata.long()
    numbers, most = metadata[:, 0], max(handle.num_max_tokens_per_rank, 1)
    owners = torch.where(numbers >= 0, numbers.div(most, rounding_mode="floor"), -1)
    if not handle.do_expand:
        return x, owners.view(-1, 1)
    places = metadata[:, 2:]
    if x.shape[0] == 0:  # no place is named
        x = x.new_zeros((1, x.shape[1]))
    if each_slot:
        rows = x.index_select(0, places.clamp(min=0).view(-1))
        return rows, torch.where(places >= 0, owners[:, None], -1).reshape(-1, 1)
    sums = torch.zeros((places.shape[0], x.shape[1]), dtype=torch.float32, device=x.device)
    for slot in range(places.shape[1]):
        here = places[:, slot]
        row = x.index_select(0, here.clamp(min=0)).float()
        sums = torch.where((here >= 0)[:, None], sums + row, sums)
    return sums.to(x.dtype), owners.view(-1, 1)


class SumPlan:
    """The rows that a token's sum is made of, as they come back to its rank.

    Rows come by the rank that sends them, then in the order of `rows_of`. So this rank's topk_idx alone says where each
    is.

    - places: int64 [T, K], the row that is added at each slot, or -1.
    - owners: int64 [T, K], the rank of each slot's expert, or -1.
    - most: the largest possible number of rows."""

    __slots__ = ("places", "owners", "nodes", "ranks", "most")

    def __init__(self, handle: EPHandle, each_slot: bool, nodes: int) -> None:
        form = handle._form
        idx = handle.topk_idx
        tokens, topk = idx.shape
        self.nodes, self.ranks = nodes, form.ranks
        self.owners = torch.where(idx >= 0, idx.div(form.local, rounding_mode="floor"), -1)
        every = torch.arange(form.ranks, device=idx.device)
        chosen = self.owners[..., None] == every  # [T, K, N]
        if each_slot:
            self.most = tokens * topk
            sent = chosen.view(-1, form.ranks)
            counted = self._counted(sent)
            row = counted.view(tokens, topk, form.ranks)
        else:
            self.most = tokens * min(topk, form.ranks)
            row = self._counted(chosen.any(dim=1))[:, None, :].expand(-1, topk, -1)
        found = row.gather(2, self.owners.clamp(min=0)[..., None])[..., 0]
        there = self.owners >= 0
        if not each_slot:  # a rank's row is added at its highest slot
            there = there & self._is_last(self.owners)
        self.places = torch.where(there, found, -1)

    @staticmethod
    def _counted(sent: Any) -> Any:
        """Returns the row of each entry that is set, where rows are numbered by columns and then from top to bottom."""
        of_columns = sent.sum(dim=0)
        begins = of_columns.cumsum(0) - of_columns
        return begins + sent.cumsum(dim=0) - 1

    @staticmethod
    def _is_last(groups: Any) -> Any:
        """Returns bool [T, K]: whether no later slot of the token has the same group."""
        last = torch.ones_like(groups, dtype=torch.bool)
        for slot in range(groups.shape[1] - 1):
            last[:, slot] = (groups[:, slot + 1 :] != groups[:, slot : slot + 1]).all(dim=1)
        return last

    @property
    def tensors(self) -> tuple[Any, ...]:
        return self.places, self.owners

    def sums(self, rows: Any, biases: Sequence[Any]) -> Any:
        """Returns bf16 [T, H]: biases, then rows by ascending slot, in FP32 from +0, rounded once. If there are several
        nodes, each has a rounded sum first, and nodes follow each other by their highest slots."""
        tokens, topk = self.places.shape
        shape = (tokens, rows.shape[1])
        total = torch.zeros(shape, dtype=torch.float32, device=rows.device)
        for bias in biases:
            total = total + bias.float()
        if self.nodes == 1:
            for slot in range(topk):
                total = self._added(total, rows, slot, self.places[:, slot] >= 0)
            return rounded(total, rows.dtype)
        of_slots = self.owners.div(self.ranks // self.nodes, rounding_mode="floor")  # the node of each slot
        of_nodes = []
        for node in range(self.nodes):
            part = torch.zeros(shape, dtype=torch.float32, device=rows.device)
            for slot in range(topk):
                part = self._added(part, rows, slot, (self.places[:, slot] >= 0) & (of_slots[:, slot] == node))
            of_nodes.append(part.to(rows.dtype).float())
        last = self._is_last(of_slots)
        for slot in range(topk):
            for node, part in enumerate(of_nodes):
                total = torch.where((last[:, slot] & (of_slots[:, slot] == node))[:, None], total + part, total)
        return rounded(total, rows.dtype)

    def _added(self, total: Any, rows: Any, slot: int, where: Any) -> Any:
        row = rows.index_select(0, self.places[:, slot].clamp(min=0)).float()
        return torch.where(where[:, None], total + row, total)


def rounded(total: Any, dtype: Any) -> Any:
    """Returns sums as the library rounds them: to nearest even, and every NaN with the same bits."""
    y = total.to(dtype)
    y.view(torch.int16).masked_fill_(total.isnan(), _NAN_BITS)
    return y


class PendingSums:
    """The sums of a deferred combine with biases. A call makes them on the current stream.

    event: when the rows have come. before: when the weights have come, whose call was made first."""

    __slots__ = ("_mode", "_output", "_plan", "_biases", "_weights", "_before", "event")

    def __init__(
        self,
        mode: ElasticMode,
        output: Output,
        plan: SumPlan,
        biases: tuple[Any, ...],
        weights: Any,
        before: EventHandle | None,
        event: EventHandle | None,
    ) -> None:
        self._mode, self._output, self._plan, self._biases = mode, output, plan, biases
        self._weights, self._before, self.event = weights, before, event

    def __call__(self) -> tuple[Any, Any]:
        place = self._mode.place
        if self._before is not None:
            self._before.current_stream_wait()
        place.turn(None, False).give(self._output.pointer)
        rows = self._output.tensors(_ROWS)[0]
        y = self._plan.sums(rows, self._biases)
        place.claim([each for each in (*self._plan.tensors, self._weights) if each is not None])
        return y, self._weights
