# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of tests and of engines: rounding up, FP8 with scales, and how far tensors are apart."""

from __future__ import annotations

from typing import Any

import torch

_GROUP = 128  # elements that share a scale
_FP8_MAX = 448.0
_LEAST_AMAX = 1e-4


def ceil_div(x: int, y: int) -> int:
    """x / y, rounded up."""
    return (x + y - 1) // y


def align(x: int, y: int) -> int:
    """x, rounded up to a multiple of y."""
    return ceil_div(x, y) * y


def safe_div(x: Any, y: Any) -> Any:
    """x / y, and 0 for 0 / 0."""
    return 0 if x == 0 and y == 0 else x / y


def calc_diff(x: Any, y: Any) -> float:
    """How far two tensors of one shape and any dtype are apart: 1 - 2Σxy / Σ(x² + y²), in double, with 1 added to all elements; 0: equal."""
    x, y = x.double() + 1, y.double() + 1
    total = (x * x + y * y).sum()
    if total == 0:
        return 0.0
    return float((1 - 2 * (x * y).sum() / total).item())


def count_bytes(*nested: Any) -> int:
    """Of all tensors in tuples and lists, however deep; None has none."""
    total = 0
    for each in nested:
        if isinstance(each, (tuple, list)):
            total += count_bytes(*each)
        elif each is not None:
            total += each.numel() * each.element_size()
    return total


def hash_tensor(t: Any) -> int:
    """The sum of its memory as int32."""
    return int(t.contiguous().view(torch.int32).sum(dtype=torch.int64).item())


# ---- FP8 -------------------------------------------------------------------------------------------------------------


def per_token_cast_to_fp8(x: Any) -> tuple[Any, Any]:
    """(e4m3 [n, H], float32 scales [n, H/128, rounded up]) of x [n, H], bf16 or another: x·(448/amax) and amax/448 of 128 elements each,
    amax at least 1e-4."""
    rows, hidden = x.shape
    groups = ceil_div(hidden, _GROUP)
    wide = torch.nn.functional.pad(x.float(), (0, -hidden % _GROUP)).view(rows, groups, _GROUP)
    amax = wide.abs().amax(dim=2).clamp(min=_LEAST_AMAX)
    # Of a number and a tensor PyTorch would take the reciprocal, and round twice.
    factor = torch.full_like(amax, _FP8_MAX) / amax
    q = (wide * factor[..., None]).to(torch.float8_e4m3fn)
    return q.view(rows, groups * _GROUP)[:, :hidden].contiguous(), amax / _FP8_MAX


def _scales_of(sf: Any, rows: int, groups: int) -> Any:
    """float32 [rows, groups] of as many elements a row, of which int32 packs four exponents, whatever the shape is."""
    packed = 4 if sf.dtype == torch.int32 else 1
    least = ceil_div(groups, packed)
    each, rest = divmod(sf.numel(), rows) if rows else (least, sf.numel())
    if rest or each < least:
        raise AssertionError(
            f"sf has {sf.numel()} elements of {sf.dtype}: expected as many for each of the {rows} rows of q, "
            f"{least} or more"
        )
    flat = sf.reshape(rows, each)  # in the order of elements, as `view` has it
    if packed == 1:
        return flat[:, :groups].float()
    exponents = flat.contiguous().view(torch.uint8)[:, :groups].to(torch.int32) - 127
    return torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents)


def per_token_cast_back(q: Any, sf: Any) -> Any:
    """bf16 [n, H] of q, e4m3 [n, H], and its scales sf: float32 [n, H/128], or int32 with four exponents (UE8M0) each,
    [n, H/512, rounded up]; or the same elements by another shape. AssertionError where they are too few, or not as many
    for each row."""
    rows, hidden = q.shape
    groups = ceil_div(hidden, _GROUP)
    scales = _scales_of(sf, rows, groups)
    wide = torch.nn.functional.pad(q.float(), (0, -hidden % _GROUP)).view(rows, groups, _GROUP)
    return (wide * scales[..., None]).view(rows, groups * _GROUP)[:, :hidden].to(torch.bfloat16).contiguous()


# ---- routing ---------------------------------------------------------------------------------------------------------


def inplace_unique(x: Any, num_slots: int) -> None:
    """Each row of x [n, m], int64 or int32, becomes its distinct values in 0..num_slots-1, descending, and then -1."""
    if x.dim() != 2:
        raise AssertionError(f"x has {x.dim()} dimensions: expected 2")
    ordered = x.masked_fill((x < 0) | (x >= num_slots), -1).sort(dim=1, descending=True).values
    again = torch.zeros_like(ordered, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    x.copy_(ordered.masked_fill(again, -1).sort(dim=1, descending=True).values)


def create_grouped_scores(scores: Any, group_idx: Any, num_groups: int) -> Any:
    """scores [n, E], float32 or another, where an expert's group is among the row's group_idx [n, m], int64 or int32; else
    0."""
    rows, experts = scores.shape
    chosen = torch.zeros((rows, num_groups), dtype=torch.bool, device=scores.device)
    chosen.scatter_(1, group_idx.long(), True)
    return (scores.view(rows, num_groups, -1) * chosen[..., None]).view(rows, experts)
