# SPDX-License-Identifier: Apache-2.0
"""Settings of `Buffer` for masks, with enable_shrink."""

from __future__ import annotations

import contextlib
import math
import os
from typing import NamedTuple

_USUAL_MS = 100_000


class Shrink(NamedTuple):
    """Settings of low-latency buffers with masks."""

    masked: set[int]  # the ranks that the caller has masked
    late_limit_ms: int  # how long a rank that answers is waited for before it is masked
    # Bytes for the shape of the first call, which then needs no other rank to make its buffer; 0: none.
    reserve_bytes: int


def reserve_of(num_rdma_bytes: int) -> int:
    """Returns the bytes to reserve. Size hints are for buffers without masks, and for top-32, or the number of experts
    if smaller. Twice as many bytes hold the masks and half of that top-k."""
    return 2 * num_rdma_bytes


def mask_ms() -> int:
    """Returns the milliseconds that low-latency calls wait for a rank, alive or not, before they mask it.
    EXPAR_DEEP_EP_MASK_TIMEOUT sets it in seconds; else EXPAR_TIMEOUT does; else it is 100 s."""
    for name in ("EXPAR_DEEP_EP_MASK_TIMEOUT", "EXPAR_TIMEOUT"):
        value = os.environ.get(name)
        if not value:
            continue
        with contextlib.suppress(ValueError):
            if 0 < float(value) < math.inf:
                return max(int(float(value) * 1000), 1)
        raise RuntimeError(f"{name} is {value!r}: expected seconds, more than 0")
    return _USUAL_MS
