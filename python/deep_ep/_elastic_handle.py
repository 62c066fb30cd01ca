# SPDX-License-Identifier: Apache-2.0
"""What a dispatch of `ElasticBuffer` leaves: its handle, and the counts that go with it.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts, R rows received,
M tokens of a rank at most, A expert_alignment.
"""

from __future__ import annotations

from ctypes import sizeof
from typing import Any

import torch
from expar import _abi

from . import _handles, _place


class EPHandle:
    """The routing of one dispatch: for any number of combines and of later dispatches, on later buffers of the group,
    too. Attributes are for reading, and may be set to equal ones; tensors are int32 on the device of x, and filled when
    the dispatch is done.

    topk_idx [T, K]; num_recv_tokens, num_expanded_tokens: rows, or the most there can be where the host has not waited;
    num_recv_tokens_per_expert_list [L]: rounded up to A, [] where the host has not waited;
    num_unaligned_recv_tokens_per_expert [L]; psum_num_recv_tokens_per_expert [L]: sums of the rounded counts, expanded:
    where the rows of an expert end; psum_num_recv_tokens_per_scaleup_rank [N]: rows from ranks 0..i;
    recv_src_metadata [rows, 2+K]: source rank * M + token, the source rank, and where slots' rows are, expanded, or -1;
    dst_buffer_slot_idx [T, K]: the rank of each slot, or -1.
    """

    def __init__(self, routing: _handles.Handle, topk_idx: Any) -> None:
        self._routing = routing
        self._counts: Any = None
        self._slot_ranks: Any = None  # dst_buffer_slot_idx, once somebody has asked for it
        self._rows_of_library = 0  # expanded ones that it takes back
        self._synced = True  # recv_x has the rows that came, else as many as there can be
        self._counted = True  # the host knows how many came
        self.topk_idx = topk_idx
        self.do_expand = False
        self.num_experts = 0
        self.expert_alignment = 1
        self.num_max_tokens_per_rank = 0
        self.num_sms = 0
        self.num_recv_tokens = 0
        self.num_expanded_tokens = 0
        self.num_recv_tokens_per_expert_list: list[int] = []
        self.psum_num_recv_tokens_per_scaleup_rank: Any = None
        self.psum_num_recv_tokens_per_expert: Any = None
        self.num_unaligned_recv_tokens_per_expert: Any = None
        self.recv_src_metadata: Any = None
        # Of forwarders, which there are across nodes only.
        self.token_metadata_at_forward: Any = None
        self.channel_linked_list: Any = None

    @property
    def dst_buffer_slot_idx(self) -> Any:
        if self._slot_ranks is None:
            local = max(self.num_experts // self._counts.num_ranks, 1)
            self._slot_ranks = torch.where(self.topk_idx >= 0, self.topk_idx // local, -1).to(torch.int32)
        return self._slot_ranks

    @dst_buffer_slot_idx.setter
    def dst_buffer_slot_idx(self, value: Any) -> None:
        self._slot_ranks = value

    def last_row(self) -> int:
        """The last of the expanded rows that some slot has, or -1. On a GPU the host waits for it."""
        counts = self._counts
        ends: list[int] = counts.ends[counts.per_expert > 0].tolist()
        return max(ends, default=0) - 1


class Counts:
    """Where the library writes what this rank receives, at the end of a dispatch. struct: the argument of a call, which
    must stay until it is done."""

    __slots__ = ("num_ranks", "per_expert", "ends", "rank_prefix", "struct", "memory")

    def __init__(self, place: _place.Place, ranks: int, local: int, expanded: bool) -> None:
        memory = place.empty((ranks + 2 * local + 1,), torch.int32)
        self.memory = memory
        self.num_ranks = ranks
        # Of rounded counts the library gives where they begin: 0 first, and then the ends.
        self.rank_prefix, self.per_expert = memory[:ranks], memory[ranks : ranks + local]
        self.ends = memory[ranks + local + 1 :]
        start = memory.data_ptr()
        at_prefix = start + 4 * (ranks + local)
        self.struct = _abi.RecvCounts(
            sizeof(_abi.RecvCounts),
            start + 4 * ranks,
            None if expanded else at_prefix,
            start,
            None,
            at_prefix + 4 if expanded else None,
        )
