# SPDX-License-Identifier: Apache-2.0
"""deep_ep: dispatch and combine of expert-parallel models on expar, with the names that engines import.

`Buffer` has normal and low-latency mode; `ElasticBuffer` is the second generation. docs/reference/deep_ep.md has a
table of what is covered, and what differs.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("deep_ep needs PyTorch, which cannot be imported; the package expar does without") from error

if tuple(map(int, _torch.__version__.split(".")[:2])) < (2, 4):
    raise ImportError(f"deep_ep needs PyTorch 2.4 or later: this is {_torch.__version__}")

from ._config import Config
from ._elastic_handle import EPHandle
from ._elastic_sizes import get_logical_domain_size, get_physical_domain_size
from .buffers.elastic import ElasticBuffer
from .buffers.legacy import Buffer, topk_idx_t
from .utils.event import EventHandle, EventOverlap

__version__ = "2.1.0"
__all__ = [
    "Buffer",
    "Config",
    "ElasticBuffer",
    "EPHandle",
    "EventHandle",
    "EventOverlap",
    "get_logical_domain_size",
    "get_physical_domain_size",
    "topk_idx_t",
    "__version__",
]
