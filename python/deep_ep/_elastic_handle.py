# SPDX-License-Identifier: Apache-2.0
"""What a dispatch of `ElasticBuffer` leaves: its handle, and what is made of the library's results for it.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N local experts, R rows received,
M tokens of a rank at most, A expert_alignment.
"""

from __future__ import annotations

from ctypes import sizeof
from typing import Any

import torch
from expar import _abi

from . import _handles


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
        self._row_map: Any = None  # expanded: [R, K], or as many rows as recv_x has plain
        self._num_exact_expanded = 0  # rows that came, whatever recv_x has
        self._synced = True
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
        self.dst_buffer_slot_idx: Any = None
        # Of forwarders, which there are across nodes only.
        self.token_metadata_at_forward: Any = None
        self.channel_linked_list: Any = None


class Counts:
    """Where the library writes what this rank receives, at the end of a dispatch."""

    __slots__ = ("per_expert", "expert_prefix", "rank_prefix", "num_recv")

    def __init__(self, ranks: int, local: int) -> None:
        memory = torch.zeros(ranks + 2 * local + 1, dtype=torch.int32, device="cpu")
        self.rank_prefix, self.per_expert = memory[:ranks], memory[ranks : ranks + local]
        self.expert_prefix = memory[ranks + local :]
        self.num_recv = torch.zeros(1, dtype=torch.int64, device="cpu")

    def struct(self) -> _abi.RecvCounts:
        """The argument of a call; this must stay until it is done."""
        return _abi.RecvCounts(
            sizeof(_abi.RecvCounts),
            self.per_expert.data_ptr(),
            self.expert_prefix.data_ptr(),
            self.rank_prefix.data_ptr(),
            self.num_recv.data_ptr(),
        )

    def ends(self, expanded: bool) -> Any:
        """psum_num_recv_tokens_per_expert"""
        return self.expert_prefix[:-1] + self.per_expert if expanded else self.expert_prefix[1:]


def ranks_of(topk_idx: Any, local: int) -> Any:
    """int32 [T, K]: on which rank each slot's expert lives; -1 without one."""
    return torch.where(topk_idx >= 0, topk_idx // local, -1).to(torch.int32)


def fill_metadata(metadata: Any, counts: Counts, src_token: Any, row_map: Any, max_tokens: int) -> None:
    """Of rows that came, ordered by source and token; the others stay as they are."""
    rows = int(counts.num_recv)
    sizes = torch.diff(counts.rank_prefix, prepend=counts.rank_prefix.new_zeros(1))
    source = torch.arange(len(sizes), dtype=torch.int32, device="cpu").repeat_interleave(sizes)
    metadata[:rows, 0] = source * max_tokens + src_token[:rows]
    metadata[:rows, 1] = source
    if row_map is not None:
        metadata[:rows, 2:] = row_map[:rows]


def weights_by_row(weights: Any, row_map: Any, out: Any) -> None:
    """out [expanded rows] gets the weight of each slot, where its row is."""
    here = row_map >= 0
    out[row_map[here].to(torch.int64)] = weights[here]


def column_major(scales: Any) -> Any:
    """[rows, n] with strides (1, rows rounded up to 4)."""
    rows, columns = scales.shape
    memory = torch.empty((columns, (rows + 3) // 4 * 4), dtype=scales.dtype, device="cpu")
    return memory.t()[:rows]
