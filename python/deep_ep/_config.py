# SPDX-License-Identifier: Apache-2.0
"""`Config`: what a program says of normal calls, and what it asks of their memory."""

from __future__ import annotations

from ctypes import addressof, byref, c_size_t, sizeof

from expar import _abi
from expar._library import lib

from ._checks import whole
from .utils.math import align

# What hints assume for tokens' experts, which they are not told: the largest K of low-latency mode.
HINT_TOPK = 32
# And of nodes, of which they are not told either: their ranks; experts of all ranks.
_NODE_RANKS, _HINT_EXPERTS = 8, 256


def _buffer_bytes(num_ranks: int, **options: int) -> int:
    """Of a buffer of the library's with these options."""
    config, size = _abi.EpConfig(struct_size=sizeof(_abi.EpConfig), **options), c_size_t()
    lib.expar_ep_get_buffer_size(addressof(config), whole(num_ranks, "num_ranks"), byref(size))
    return size.value


class Config:
    """How normal calls share out their work. num_sms acts; sizes of chunks are hints, and the library chooses."""

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
        """Bytes that calls with such rows need on each of so many ranks, beside their results."""
        return _buffer_bytes(num_ranks, max_row_bytes=whole(hidden_bytes, "hidden_bytes"))

    def get_rdma_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        """Bytes that they need besides for the network, where that many ranks are on nodes of eight; 0 for one node."""
        if whole(num_ranks, "num_ranks") <= _NODE_RANKS or num_ranks % _NODE_RANKS:
            return 0
        limits = dict(max_row_bytes=whole(hidden_bytes, "hidden_bytes"), max_topk=HINT_TOPK)
        limits["max_experts"] = align(_HINT_EXPERTS, num_ranks)
        return _buffer_bytes(num_ranks, ranks_per_node=_NODE_RANKS, **limits) - _buffer_bytes(num_ranks, **limits)
