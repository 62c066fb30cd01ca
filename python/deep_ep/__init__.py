# SPDX-License-Identifier: Apache-2.0
"""deep_ep: dispatch and combine of expert-parallel models on expar, with the names that engines import.

`Buffer` has normal and low-latency mode; `ElasticBuffer` is the second generation, and `EPBuffer` the third.
`HybridEPBuffer` permutes rows by expert. docs/reference/deep_ep.md has a table of what is covered, and what differs.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("deep_ep needs PyTorch, which cannot be imported; the package expar does without") from error

if tuple(map(int, _torch.__version__.split(".")[:2])) < (2, 4):
    raise ImportError(f"deep_ep needs PyTorch 2.4 or later: this is {_torch.__version__}")

from . import comm
from ._config import Config
from ._elastic_handle import EPHandle
from ._elastic_sizes import get_logical_domain_size, get_physical_domain_size
from .buffers.allocator import ALIGNMENT as _ALLOCATION_ALIGNMENT
from .buffers.allocator import BufferAllocator
from .buffers.base import BufferBase
from .buffers.bucket import BucketBuffer, BucketSession
from .buffers.elastic import ElasticBuffer
from .buffers.engram import EngramBuffer
from .buffers.ep import EPBuffer
from .buffers.legacy import Buffer, topk_idx_t
from .buffers.pp import PPBuffer
from .comm import destroy_all_managed_nccl_comm
from .hybrid_ep_buffer import HybridEPBuffer, HybridEpConfigInstance
from .utils.event import EventHandle, EventOverlap


def get_num_allocation_alignment() -> int:
    """Returns the alignment of buffers and of planned tensors, in bytes."""
    return _ALLOCATION_ALIGNMENT


def get_num_rdma_alignment() -> int:
    """Returns the alignment of what a network carries, in bytes."""
    return 64


def get_num_tma_alignment() -> int:
    """Returns the alignment of rows for TMA, in bytes."""
    return 32


__version__ = "2.1.0"
__all__ = [
    "BucketBuffer",
    "BucketSession",
    "Buffer",
    "BufferAllocator",
    "BufferBase",
    "Config",
    "ElasticBuffer",
    "EngramBuffer",
    "EPBuffer",
    "EPHandle",
    "EventHandle",
    "EventOverlap",
    "HybridEPBuffer",
    "HybridEpConfigInstance",
    "PPBuffer",
    "comm",
    "destroy_all_managed_nccl_comm",
    "get_logical_domain_size",
    "get_num_allocation_alignment",
    "get_num_rdma_alignment",
    "get_num_tma_alignment",
    "get_physical_domain_size",
    "topk_idx_t",
    "__version__",
]
