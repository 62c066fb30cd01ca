# SPDX-License-Identifier: Apache-2.0
"""The weight and the source of each row that a low-latency dispatch brings.

The library's rows bring neither. So a second dispatch with the same experts carries the weights and indices of each
token, FP32 [T, 2·K rounded up], whose rows come in the same order.

Letters in shapes: T tokens, K top-k, L local experts, N ranks, R = N·B rows of an expert.
"""

from __future__ import annotations

from typing import Any

import torch

_ELEMENTS = 4  # rows are multiples of 16 bytes


def rows_of(topk_idx: Any, topk_weights: Any) -> Any:
    """Returns the rows to send, float32 [T, 2·K rounded up]: weights, then indices, which FP32 holds exactly."""
    tokens, topk = topk_weights.shape
    rows = topk_weights.new_zeros((tokens, -(-2 * topk // _ELEMENTS) * _ELEMENTS))
    rows[:, :topk] = topk_weights
    rows[:, topk : 2 * topk] = topk_idx
    return rows


def fill(rows: Any, topk: int, first_expert: int, ranges: Any, weights: Any, sources: Any) -> None:
    """Fills weights float32 [L, R] and sources int32 [L, R]. A row without a token has weight 0 and source -1.

    rows: as they came, [L, R, 2·K rounded up]. ranges: int64 [L, N] of the handle. If a token names the expert in
    several slots, each row has the first one's weight."""
    local, count, _ = rows.shape
    experts = torch.arange(first_expert, first_expert + local, device=rows.device).view(-1, 1, 1)
    here = rows[..., topk : 2 * topk] == experts  # [L, R, K]
    first = here.int().argmax(dim=2, keepdim=True)
    ends = (ranges >> 32) + (ranges & 0xFFFFFFFF)
    places = torch.arange(count, device=rows.device)
    came = places < ends[:, -1:]
    sources.copy_(torch.where(came, (places[:, None] >= ends[:, None, :]).sum(dim=2), -1))
    weights.copy_(torch.where(came, rows[..., :topk].gather(2, first)[..., 0], 0.0))
