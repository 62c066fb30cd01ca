# SPDX-License-Identifier: Apache-2.0
"""`BucketBuffer` and `BucketSession`, which expar does not have: collectives over buckets of tensors."""

from __future__ import annotations

from .elastic_others import Missing

_BUCKETS = (
    "collectives over buckets of tensors",
    "torch.distributed has all_gather_into_tensor, reduce_scatter_tensor and all_reduce",
)


class BucketBuffer(Missing):
    """NotImplementedError: expar has no collectives over buckets."""

    _missing = _BUCKETS


class BucketSession(Missing):
    """NotImplementedError: expar has no collectives over buckets."""

    _missing = _BUCKETS
