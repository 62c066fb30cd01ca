# SPDX-License-Identifier: Apache-2.0
"""Sizes, domains and SMs that `ElasticBuffer` reports."""

from __future__ import annotations

from typing import Any

from expar import Group

from .. import _elastic_sizes as sizes


class Sizes:
    """The part of `ElasticBuffer` that makes no calls."""

    allow_hybrid_mode: bool
    num_allocated_qps: int
    num_scaleout_ranks: int
    num_scaleup_ranks: int
    prefer_overlap_with_compute: bool
    _group: Group
    _most_sms: int | None

    @staticmethod
    def get_buffer_size_hint(
        group: Any,
        num_max_tokens_per_rank: int,
        hidden: int,
        num_topk: int = 0,
        use_fp8_dispatch: bool = False,
        allow_hybrid_mode: bool = True,
        allow_multiple_reduction: bool = True,
    ) -> int:
        """Returns the bytes that the results of a dispatch and a combine take, a multiple of 2 MiB. It is local and
        cheap. Combined rows are always bf16, so use_fp8_dispatch saves nothing."""
        return sizes.buffer_size_hint(group, num_max_tokens_per_rank, hidden, num_topk)

    def get_physical_domain_size(self) -> tuple[int, int]:
        """Returns (nodes, ranks a node)."""
        return sizes.physical_domain_size(self._group)

    def get_logical_domain_size(self) -> tuple[int, int]:
        """Returns (scale-out ranks, scale-up ranks)."""
        return sizes.logical_domain_size(self._group, self.allow_hybrid_mode)

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 200,
        sm_write_gbs: float = 50,
    ) -> int:
        """Returns the number that num_sms=0 stands for. It is even and at least 4, or at least 64 unless overlap is
        preferred. On a CPU it is the number of threads, if a rank has as many cores."""
        return sizes.theoretical_num_sms(
            self.num_scaleout_ranks,
            self.num_scaleup_ranks,
            num_experts,
            num_topk,
            num_scaleout_topk,
            rdma_gbs,
            nvlink_gbs,
            sm_read_gbs,
            sm_write_gbs,
            self.prefer_overlap_with_compute,
            self._most_sms,
        )

    def get_theoretical_num_qps(self, num_sms: int) -> int:
        """Returns the number that num_qps=0 stands for. It depends on allow_hybrid_mode, and is at most
        num_allocated_qps."""
        return sizes.theoretical_num_qps(num_sms, self.allow_hybrid_mode, self.num_allocated_qps)
