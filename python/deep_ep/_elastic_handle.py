# SPDX-License-Identifier: Apache-2.0
"""`EPHandle`, the handle of an `ElasticBuffer` dispatch, and `Routing`, its parameters.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts.
R rows received, M maximum of tokens on a rank, A expert_alignment.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from expar._abi import EpPart
from expar._copies import Shared

from . import _handles
from ._call import Output, Parts, ints_at
from .utils.math import align, ceil_div

_ALIGNED_COUNTS = 32  # int32, of 128 bytes
_METADATA = Parts((int(EpPart.SRC_METADATA),), (torch.int32,))


class Routing:
    """The parameters of fresh dispatches of one form.

    - synced: results have as many rows as come; otherwise as many as num_recv_tokens and num_expanded_tokens.
    - copied: the handle gets its own copy of topk_idx.
    - watched: the handle rejects a topk_idx that was changed since.
    - deferred: the host learns the counts when the caller waits for the results."""

    __slots__ = (
        "topk",
        "num_experts",
        "num_max_tokens_per_rank",
        "alignment",
        "synced",
        "copied",
        "watched",
        "deferred",
        "ranks",
        "local",
        "scaleup",
        "num_recv_tokens",
        "num_counts",
        "count_words",
    )

    def __init__(
        self,
        topk: int,
        num_experts: int,
        max_tokens: int,
        alignment: int,
        ranks: int,
        scaleup: int = 0,
        synced: bool = True,
        copied: bool = True,
        watched: bool = False,
        deferred: bool = False,
    ) -> None:
        """scaleup: the number of scale-up ranks, if it is smaller than all ranks."""
        self.topk = topk
        self.num_experts = num_experts
        self.num_max_tokens_per_rank = max_tokens
        self.alignment = alignment
        self.synced, self.copied, self.watched, self.deferred = synced, copied, watched, deferred
        self.ranks = ranks
        self.local = max(num_experts // ranks, 1)
        self.scaleup = scaleup or ranks
        self.num_recv_tokens = ranks * max_tokens
        # The int32 counts in a handle: rows from ranks 0..i, then real counts of local experts. Then come the places
        # where the rows of each expert begin, by rounded counts: first 0, then the ends.
        self.num_counts = ranks + 2 * self.local + 1
        self.count_words = align(self.num_counts, _ALIGNED_COUNTS) // 2  # in a handle's memory

    @property
    def num_expanded_tokens(self) -> int:
        most = self.num_recv_tokens * min(self.topk, self.local) + (self.alignment - 1) * self.local
        return align(most, self.alignment)

    def worst_rows(self, tokens: int) -> int:
        """Returns the number of expanded rows that the library reserves for this number of tokens."""
        return tokens * self.topk + (self.alignment - 1) * self.local

    def worst_tokens(self, expand: bool) -> int:
        """Returns the number of tokens to reserve for, so that all expanded rows fit. It is at least 1: the library
        takes 0 for "not given". If no rank has a token, that one does not come."""
        tokens = self.num_recv_tokens
        lacking = self.num_expanded_tokens - self.worst_rows(tokens) if expand else 0
        return max(tokens + ceil_div(max(lacking, 0), max(self.topk, 1)), 1)


class _Watch(Shared):
    """The caller's topk_idx, and how often it had been changed when the dispatch read it. Copies share it."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self._version = _version_of(tensor)

    def tensor(self) -> Any:
        """AssertionError if the tensor, or a view of it, was changed in place."""
        if self._version is not None and self._tensor._version != self._version:
            raise AssertionError(
                "topk_idx was changed in place after its dispatch: expected the tensor as the dispatch read it, or a "
                "new one for the next dispatch"
            )
        return self._tensor


def _version_of(tensor: Any) -> int | None:
    """Returns PyTorch's count of changes in place. Tensors of inference mode have none."""
    return None if tensor.is_inference() else int(tensor._version)


class EPHandle:
    """The routing of one dispatch, for any number of combines and later dispatches, also on later buffers of the group.
    Attributes are for reading; setting one to an equal value is allowed. Tensors are int32 on the device of x, and are
    filled when the dispatch is done.

    topk_idx: [T, K]. Of an `EPBuffer` it is the caller's tensor, and reading it is an AssertionError after a change in
        place. So are combines and dispatches with the handle.
    num_experts, expert_alignment, num_max_tokens_per_rank: as given to the dispatch.
    num_recv_tokens, num_expanded_tokens: the number of rows, or the largest possible number if the host has not waited.
    num_recv_tokens_per_expert_list: [L], rounded up to multiples of A; [] if the host has not waited.
    num_unaligned_recv_tokens_per_expert: [L], the real counts.
    psum_num_recv_tokens_per_expert: [L], prefix sums of the rounded counts; if expanded, where each expert's rows end.
    psum_num_recv_tokens_per_scaleup_rank: rows from scale-up ranks 0..i of all nodes.
    recv_src_metadata: [rows, 2+K]: source rank * M + token, the source rank, and, if expanded, the row of each slot,
        else -1.
    dst_buffer_slot_idx: [T, K], the rank of each slot, or -1.
    """

    def __init__(
        self,
        made: _handles.Handle,
        routing: Routing,
        memory: Any,
        expand: bool,
        num_sms: int,
        output: Output,
        aligned: int,
    ) -> None:
        """Makes a handle from the results of a dispatch.

        memory: int64 [count_words] with the counts, then T * K words if topk_idx is copied.

        output: the results of the dispatch.
        aligned: the address of int32 [L], the rounded counts of local experts, which exists as long as output. It is 0
        if the host does not know what came."""
        synced = routing.synced
        self._routing = made
        self._topk_idx: Any = None  # without a watch, the caller's, or a view of the handle's own copy
        self._watch: _Watch | None = None
        self._form = routing
        self._memory = memory
        self._synced = synced  # recv_x has the rows that came; otherwise the largest possible number
        self._counted = aligned != 0  # the host knew how many come when the call returned
        self._unlearnt = synced and not self._counted  # until the first wait of a deferred dispatch
        self._aligned_at = aligned
        self._output: Output | None = output  # it has recv_src_metadata until a caller reads it
        self.do_expand = expand
        self.num_sms = num_sms
        self.num_experts = routing.num_experts
        self.num_recv_tokens = made.num_rows if synced else routing.num_recv_tokens

    # The data of forwarders is opaque, and exists only across nodes.
    token_metadata_at_forward: Any = None
    channel_linked_list: Any = None
    # Rows are always in order, so nothing is kept of an order before.
    cached_recv_src_metadata_before_sort: Any = None

    def _keep(self, topk_idx: Any) -> None:
        """Makes this tensor of the caller's the handle's topk_idx. Reading it is an AssertionError after a change in
        place."""
        self._watch = _Watch(topk_idx)

    @property
    def topk_idx(self) -> Any:
        if self._watch is not None:
            return self._watch.tensor()
        if self._topk_idx is None:
            rows = self._memory[self._form.count_words :]
            self._topk_idx = rows.view(self._routing.num_tokens, self._form.topk)
        return self._topk_idx

    @topk_idx.setter
    def topk_idx(self, given: Any) -> None:
        if self._watch is not None:
            self._keep(given)
        self._topk_idx = given

    def deterministic_sort(
        self,
        do_cpu_sync: bool,
        is_cached_dispatch: bool,
        recv_x: Any,
        recv_sf: Any,
        recv_topk_idx: Any,
        recv_topk_weights: Any,
        channel_linked_list: Any,
    ) -> None:
        """Does nothing: rows are always in the order of their sources."""

    def _learn(self) -> None:
        """Learns how many rows came, for a caller that gets these. The dispatch is done; on a GPU the host waits for
        the counts."""
        if self._unlearnt:
            ranks, local, alignment = self._form.ranks, self._form.local, self._form.alignment
            counts = self._counts[: ranks + local].tolist()
            aligned = counts[ranks:] if alignment == 1 else [align(count, alignment) for count in counts[ranks:]]
            self.num_recv_tokens = counts[ranks - 1]
            self.num_expanded_tokens, self.num_recv_tokens_per_expert_list = sum(aligned), aligned
            self._unlearnt = False

    # Most programs never read these, so each is made when it is first read.

    @functools.cached_property
    def _counts(self) -> Any:
        return self._memory[: self._form.count_words].view(torch.int32)[: self._form.num_counts]

    @functools.cached_property
    def expert_alignment(self) -> int:
        return self._form.alignment

    @functools.cached_property
    def num_max_tokens_per_rank(self) -> int:
        return self._form.num_max_tokens_per_rank

    @functools.cached_property
    def _aligned(self) -> tuple[int, ...]:
        return tuple(ints_at(self._aligned_at, self._form.local)) if self._counted else ()

    @functools.cached_property
    def _rows_of_library(self) -> int:
        """The number of expanded rows that the library expects in a combine."""
        return sum(self._aligned) if self._counted else self._form.worst_rows(self._routing.num_rows)

    @functools.cached_property
    def num_expanded_tokens(self) -> int:
        return self._rows_of_library if self._synced else self._form.num_expanded_tokens

    @functools.cached_property
    def num_recv_tokens_per_expert_list(self) -> list[int]:
        return list(self._aligned) if self._synced else []

    @functools.cached_property
    def psum_num_recv_tokens_per_scaleup_rank(self) -> Any:
        ranks, scaleup = self._form.ranks, self._form.scaleup
        if scaleup == ranks:
            return self._counts[:ranks]
        prefix = self._counts[:ranks]
        from_ranks = torch.diff(prefix, prepend=prefix.new_zeros(1))
        return from_ranks.view(-1, scaleup).sum(0, dtype=torch.int32).cumsum(0, dtype=torch.int32)

    @functools.cached_property
    def psum_num_recv_tokens_per_expert(self) -> Any:
        return self._counts[-self._form.local :]

    @functools.cached_property
    def num_unaligned_recv_tokens_per_expert(self) -> Any:
        ranks = self._form.ranks
        return self._counts[ranks : ranks + self._form.local]

    @functools.cached_property
    def recv_src_metadata(self) -> Any:
        found = self.let_output_go().tensors(_METADATA)[0]
        return found[: self.num_recv_tokens]

    def let_output_go(self) -> Output:
        """Returns the output, and drops the handle's reference to it. The rounded counts are copied first."""
        output, self._output = self._output, None
        assert output is not None and self._aligned is not None
        return output

    def num_metadata_rows(self) -> int:
        """Returns the number of rows of recv_src_metadata. A caller may have set it, or not have read it yet."""
        known = self.__dict__.get("recv_src_metadata")
        return self.num_recv_tokens if known is None else int(known.shape[0])

    @functools.cached_property
    def dst_buffer_slot_idx(self) -> Any:
        return torch.where(self.topk_idx >= 0, self.topk_idx // self._form.local, -1).to(torch.int32)

    def last_row(self) -> int:
        """Returns the index of the last expanded row that belongs to a slot, or -1. On a GPU the host waits for it."""
        counts, local = self._counts, self._form.local
        ends: list[int] = counts[-local:][counts[self._form.ranks :][:local] > 0].tolist()
        return max(ends, default=0) - 1
