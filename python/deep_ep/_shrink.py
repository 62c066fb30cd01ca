# SPDX-License-Identifier: Apache-2.0
"""What `Buffer` says of masks with enable_shrink."""

from __future__ import annotations

import contextlib
import math
import os
from typing import NamedTuple

_USUAL_MS = 100_000


class Shrink(NamedTuple):
    """Of low-latency buffers with masks."""

    masked: set[int]  # by the caller
    late_limit_ms: int  # how long a rank that answers is waited for before it is masked
    reserve_bytes: int  # for the shape of the first call, which nobody is waited for to make; 0: none


def reserve_of(num_rdma_bytes: int) -> int:
    """Hints are of buffers without masks, for top-32, or as many as there are experts. In twice as many bytes there is
    room for masks, and half of that top-k."""
    return 2 * num_rdma_bytes


def mask_ms() -> int:
    """How long low-latency calls wait for a rank before they mask it, alive or not: EXPAR_DEEP_EP_MASK_TIMEOUT seconds,
    else EXPAR_TIMEOUT, else 100."""
    for name in ("EXPAR_DEEP_EP_MASK_TIMEOUT", "EXPAR_TIMEOUT"):
        value = os.environ.get(name)
        if not value:
            continue
        with contextlib.suppress(ValueError):
            if 0 < float(value) < math.inf:
                return max(int(float(value) * 1000), 1)
        raise RuntimeError(f"{name} is {value!r}: expected seconds, more than 0")
    return _USUAL_MS
