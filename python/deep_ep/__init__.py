# SPDX-License-Identifier: Apache-2.0
"""deep_ep: dispatch and combine of expert-parallel models on expar, with the names that engines import.

`Buffer` has normal and low-latency mode. docs/python.md has a table of what is covered, and what differs.
"""

from __future__ import annotations

from .buffers.legacy import Buffer, Config, topk_idx_t
from .utils.event import EventHandle, EventOverlap

__version__ = "1.2.1"
__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap", "topk_idx_t", "__version__"]
