# SPDX-License-Identifier: Apache-2.0
"""`Config`: settings of normal calls, and hints about their memory."""

from __future__ import annotations

from ctypes import addressof, byref, c_size_t, sizeof

from expar import _abi
from expar._library import lib

from ._checks import whole
from .utils.math import align

# The top-k that hints assume, because callers do not give it: the largest of low-latency mode.
HINT_TOPK = 32
# Ranks of a node, and experts of all ranks, that hints assume.
_NODE_RANKS, _HINT_EXPERTS = 8, 256


def _buffer_bytes(num_ranks: int, **options: int) -> int:
    """Returns the bytes of a library buffer with these options."""
    config, size = _abi.EpConfig(struct_size=sizeof(_abi.EpConfig), **options), c_size_t()
    lib.expar_ep_get_buffer_size(addressof(config), whole(num_ranks, "num_ranks"), byref(size))
    return size.value


class Config:
    """Settings of normal calls. num_sms has an effect. The sizes of chunks are hints; the library chooses them."""

    def __init__(
        self,
        num_sms: int = 20,
        num_max_nvl_chunked_send_tokens: int = 6,
        num_max_nvl_chunked_recv_tokens: int = 256,
        num_max_rdma_chunked_send_tokens: int = 6,
        num_max_rdma_chunked_recv_tokens: int = 256,
    ) -> None:
        self.num_sms = num_sms
        self.num_max_nvl_chunked_send_tokens = num_max_nvl_chunked_send_tokens
        self.num_max_nvl_chunked_recv_tokens = num_max_nvl_chunked_recv_tokens
        self.num_max_rdma_chunked_send_tokens = num_max_rdma_chunked_send_tokens
        self.num_max_rdma_chunked_recv_tokens = num_max_rdma_chunked_recv_tokens

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Returns the bytes that calls with rows of this size need on each of num_ranks ranks, without their
        results."""
        return _buffer_bytes(num_ranks, max_row_bytes=whole(hidden_bytes, "hidden_bytes"))

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Returns the bytes that calls need in addition for the network, on nodes of eight ranks; 0 for one node."""
        if whole(num_ranks, "num_ranks") <= _NODE_RANKS or num_ranks % _NODE_RANKS:
            return 0
        limits = dict(max_row_bytes=whole(hidden_bytes, "hidden_bytes"), max_topk=HINT_TOPK)
        limits["max_experts"] = align(_HINT_EXPERTS, num_ranks)
        return _buffer_bytes(num_ranks, ranks_per_node=_NODE_RANKS, **limits) - _buffer_bytes(num_ranks, **limits)
