# SPDX-License-Identifier: Apache-2.0
"""SMs that `EPBuffer` reports."""

from __future__ import annotations

from .. import _elastic_sizes as sizes
from .._checks import integer
from ..utils.envs import get_rdma_gbs, get_sm_read_gbs, get_sm_write_gbs
from ..utils.math import align
from .elastic_sizes import Sizes

_SMS_OF_REPLICAS = 16  # moving weights is bound by the links, not by SMs


class EPSizes(Sizes):
    """The part of `EPBuffer` that makes no calls, and differs from `ElasticBuffer`."""

    def get_theoretical_num_sms(
        self,
        num_experts: int,
        num_topk: int,
        num_scaleout_topk: int = 0,
        rdma_gbs: float = 0,
        nvlink_gbs: float = 0,
        sm_read_gbs: float = 0,
        sm_write_gbs: float = 0,
    ) -> int:
        """Returns the number that num_sms=0 stands for, a multiple of 4, or at least 64 unless overlap is preferred. It
        is at most the GPU's number, made even. 0 for a rate stands for the host's, or for the usual one of an SM.
        AssertionError for num_scaleout_topk. ZeroDivisionError across nodes if no RDMA rate is known."""
        if integer(num_scaleout_topk, "num_scaleout_topk") != 0:
            raise AssertionError(f"num_scaleout_topk is {num_scaleout_topk}: expected 0")
        if self.num_scaleout_ranks > 1 and rdma_gbs == 0 and get_rdma_gbs() == 0:
            raise ZeroDivisionError("rdma_gbs is 0, and this host has no active RDMA port: expected a rate")
        number = sizes.theoretical_num_sms(
            self.num_scaleout_ranks,
            self.num_scaleup_ranks,
            num_experts,
            num_topk,
            0,
            rdma_gbs,
            nvlink_gbs,
            get_sm_read_gbs() if sm_read_gbs == 0 else sm_read_gbs,
            get_sm_write_gbs() if sm_write_gbs == 0 else sm_write_gbs,
            self.prefer_overlap_with_compute,
            None,
        )
        number = align(number, 4)
        return number if self._most_sms is None else max(min(number, self._most_sms // 2 * 2), 4)

    def _theoretical_num_sms(self, num_experts: int, num_topk: int) -> int:
        try:
            return self.get_theoretical_num_sms(num_experts, num_topk)
        except ZeroDivisionError:
            return self.get_theoretical_num_sms(num_experts, num_topk, rdma_gbs=sizes.RDMA_GBS)

    def lb_get_theoretical_num_sms(self) -> int:
        """Returns an even number of SMs for moving weights."""
        most = _SMS_OF_REPLICAS if self._most_sms is None else self._most_sms // 2 * 2
        return max(min(most, _SMS_OF_REPLICAS), 2)
