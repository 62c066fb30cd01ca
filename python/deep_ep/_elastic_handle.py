# SPDX-License-Identifier: Apache-2.0
"""What a dispatch of `ElasticBuffer` leaves: its handle, and the counts that go with it.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts, R rows received,
M tokens of a rank at most, A expert_alignment.
"""

from __future__ import annotations

import functools
from ctypes import sizeof
from typing import Any

import torch
from expar import _abi
from expar._abi import EpPart

from . import _handles, _place
from ._call import Output, Parts
from .utils.math import align, ceil_div

_METADATA = Parts((int(EpPart.SRC_METADATA),), (torch.int32,))


class Routing:
    """What fresh dispatches of one form go by. synced: as many rows as come; else the most that there can be, which are
    num_recv_tokens and num_expanded_tokens. copied: the handle gets a topk_idx of its own."""

    __slots__ = (
        "topk",
        "num_experts",
        "num_max_tokens_per_rank",
        "alignment",
        "synced",
        "copied",
        "local",
        "scaleup",
        "num_recv_tokens",
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
    ) -> None:
        """scaleup: ranks that scale up, where they are fewer than all."""
        self.topk = topk
        self.num_experts = num_experts
        self.num_max_tokens_per_rank = max_tokens
        self.alignment = alignment
        self.synced, self.copied = synced, copied
        self.local = max(num_experts // ranks, 1)
        self.scaleup = scaleup or ranks
        self.num_recv_tokens = ranks * max_tokens

    @property
    def num_expanded_tokens(self) -> int:
        most = self.num_recv_tokens * min(self.topk, self.local) + (self.alignment - 1) * self.local
        return align(most, self.alignment)

    def worst_rows(self, tokens: int) -> int:
        """Expanded rows that the library has room for, of so many tokens."""
        return tokens * self.topk + (self.alignment - 1) * self.local

    def worst_tokens(self, expand: bool) -> int:
        """For how many there is room, that there is enough for the expanded ones."""
        tokens = self.num_recv_tokens
        lacking = self.num_expanded_tokens - self.worst_rows(tokens) if expand else 0
        return tokens + ceil_div(max(lacking, 0), max(self.topk, 1))


class EPHandle:
    """The routing of one dispatch: for any number of combines and of later dispatches, on later buffers of the group,
    too. Attributes are for reading, and may be set to equal ones; tensors are int32 on the device of x, and filled when
    the dispatch is done.

    topk_idx [T, K]; num_recv_tokens, num_expanded_tokens: rows, or the most there can be where the host has not waited;
    num_recv_tokens_per_expert_list [L]: rounded up to A, [] where the host has not waited;
    num_unaligned_recv_tokens_per_expert [L]; psum_num_recv_tokens_per_expert [L]: sums of the rounded counts, expanded:
    where the rows of an expert end; psum_num_recv_tokens_per_scaleup_rank: rows from scale-up ranks 0..i of all nodes;
    recv_src_metadata [rows, 2+K]: source rank * M + token, the source rank, and where slots' rows are, expanded, or -1;
    dst_buffer_slot_idx [T, K]: the rank of each slot, or -1.
    """

    def __init__(
        self,
        made: _handles.Handle,
        routing: Routing,
        topk_idx: Any,
        counts: Counts,
        expand: bool,
        aligned: bytes | None,
    ) -> None:
        """aligned: int32 [L], rows of local experts, rounded up; None where the host does not know what came."""
        synced = routing.synced
        self._routing = made
        self._counts = counts
        self._scaleup = routing.scaleup
        self._output: Output | None = None  # has recv_src_metadata, until somebody asks for it
        self._synced = synced  # recv_x has the rows that came, else as many as there can be
        self._counted = aligned is not None  # the host knows how many came
        self._aligned_bytes = aligned or b""
        # Where the host does not know, or has not waited.
        self._worst_rows = 0 if self._counted else routing.worst_rows(made.num_rows)
        self._most_rows = 0 if synced else routing.num_expanded_tokens
        self.topk_idx = topk_idx
        self.do_expand = expand
        self.num_experts = routing.num_experts
        self.expert_alignment = routing.alignment
        self.num_max_tokens_per_rank = routing.num_max_tokens_per_rank
        self.num_sms = 0
        self.num_recv_tokens = made.num_rows if synced else routing.num_recv_tokens
        # Of forwarders, which there are across nodes only, and opaque.
        self.token_metadata_at_forward: Any = None
        self.channel_linked_list: Any = None

    # What most programs never look at is made when somebody does.

    @functools.cached_property
    def _aligned(self) -> memoryview:
        return memoryview(self._aligned_bytes).cast("i")

    @functools.cached_property
    def _rows_of_library(self) -> int:
        """Expanded ones that the library takes back."""
        return sum(self._aligned) if self._counted else self._worst_rows

    @functools.cached_property
    def num_expanded_tokens(self) -> int:
        return self._rows_of_library if self._synced else self._most_rows

    @functools.cached_property
    def num_recv_tokens_per_expert_list(self) -> list[int]:
        return self._aligned.tolist() if self._synced else []

    @functools.cached_property
    def psum_num_recv_tokens_per_scaleup_rank(self) -> Any:
        counts = self._counts
        if self._scaleup == counts.num_ranks:
            return counts.rank_prefix
        prefix = torch.empty((1, counts.num_ranks), dtype=torch.int32, device="cpu")  # the CPU's: GPUs are on one node
        _handles.read_prefix(self._routing, prefix.data_ptr(), counts.num_ranks)
        from_ranks = torch.diff(prefix[0], prepend=prefix.new_zeros(1))
        return from_ranks.view(-1, self._scaleup).sum(0, dtype=torch.int32).cumsum(0, dtype=torch.int32)

    @functools.cached_property
    def psum_num_recv_tokens_per_expert(self) -> Any:
        return self._counts.ends

    @functools.cached_property
    def num_unaligned_recv_tokens_per_expert(self) -> Any:
        return self._counts.per_expert

    @functools.cached_property
    def recv_src_metadata(self) -> Any:
        output, self._output = self._output, None
        assert output is not None
        return output.tensors(_METADATA)[0][: self.num_recv_tokens]

    def num_metadata_rows(self) -> int:
        """Of recv_src_metadata, which nobody may have asked for yet."""
        return self.num_recv_tokens if self._output is not None else int(self.recv_src_metadata.shape[0])

    @functools.cached_property
    def dst_buffer_slot_idx(self) -> Any:
        local = max(self.num_experts // self._counts.num_ranks, 1)
        return torch.where(self.topk_idx >= 0, self.topk_idx // local, -1).to(torch.int32)

    def last_row(self) -> int:
        """The last of the expanded rows that some slot has, or -1. On a GPU the host waits for it."""
        counts = self._counts
        ends: list[int] = counts.ends[counts.per_expert > 0].tolist()
        return max(ends, default=0) - 1


class Counts:
    """Where the library writes what this rank receives, at the end of a dispatch. struct: the argument of a call, which
    must stay until it is done."""

    __slots__ = ("num_ranks", "struct", "memory", "_local")

    def __init__(self, place: _place.Place, ranks: int, local: int, expanded: bool) -> None:
        # Rows from ranks 0..i; real counts; of rounded ones the library gives where they begin: 0 first, then the ends.
        self.memory = place.vector(ranks + 2 * local + 1, torch.int32)
        self.num_ranks, self._local = ranks, local
        start = self.memory.data_ptr()
        at_prefix = start + 4 * (ranks + local)
        self.struct = _abi.RecvCounts(
            sizeof(_abi.RecvCounts),
            start + 4 * ranks,
            None if expanded else at_prefix,
            start,
            None,
            at_prefix + 4 if expanded else None,
        )

    @property
    def rank_prefix(self) -> Any:
        return self.memory[: self.num_ranks]

    @property
    def per_expert(self) -> Any:
        return self.memory[self.num_ranks : self.num_ranks + self._local]

    @property
    def ends(self) -> Any:
        return self.memory[self.num_ranks + self._local + 1 :]
