# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of tests and of engines: rounding up, FP8 with scales, and differences of tensors."""

from __future__ import annotations

from typing import Any

import torch

_GROUP = 128  # elements that share a scale
_FP8_MAX = 448.0
_LEAST_AMAX = 1e-4


def ceil_div(x: int, y: int) -> int:
    """Returns x / y, rounded up."""
    return (x + y - 1) // y


def align(x: int, y: int) -> int:
    """Returns x, rounded up to a multiple of y."""
    return ceil_div(x, y) * y


def safe_div(x: Any, y: Any) -> Any:
    """Returns x / y, and 0 for 0 / 0."""
    return 0 if x == 0 and y == 0 else x / y


def calc_diff(x: Any, y: Any) -> float:
    """Returns the difference of two tensors of one shape and any dtype: 1 - 2Σxy / Σ(x² + y²). It is computed in
    double, with 1 added to all elements; 0 means equal."""
    x, y = x.double() + 1, y.double() + 1
    total = (x * x + y * y).sum()
    if total == 0:
        return 0.0
    return float((1 - 2 * (x * y).sum() / total).item())


def count_bytes(*nested: Any) -> int:
    """Returns the bytes of all tensors in nested tuples and lists. None has none."""
    total = 0
    for each in nested:
        if isinstance(each, (tuple, list)):
            total += count_bytes(*each)
        elif each is not None:
            total += each.numel() * each.element_size()
    return total


def hash_tensor(t: Any) -> int:
    """Returns the sum of the tensor's memory as int32."""
    return int(t.contiguous().view(torch.int32).sum(dtype=torch.int64).item())


# ---- FP8 -------------------------------------------------------------------------------------------------------------


def per_token_cast_to_fp8(x: Any) -> tuple[Any, Any]:
    """Returns (e4m3 [n, H], float32 scales [n, H/128, rounded up]) of x [n, H], bf16 or another. A group of 128
    elements becomes x·(448/amax) with the scale amax/448, where amax is at least 1e-4."""
    rows, hidden = x.shape
    groups = ceil_div(hidden, _GROUP)
    wide = torch.nn.functional.pad(x.float(), (0, -hidden % _GROUP)).view(rows, groups, _GROUP)
    amax = wide.abs().amax(dim=2).clamp(min=_LEAST_AMAX)
    # If one operand were a number, PyTorch would take the reciprocal, and round twice.
    factor = torch.full_like(amax, _FP8_MAX) / amax
    q = (wide * factor[..., None]).to(torch.float8_e4m3fn)
    return q.view(rows, groups * _GROUP)[:, :hidden].contiguous(), amax / _FP8_MAX


def _scales_of(sf: Any, rows: int, groups: int) -> Any:
    """Returns float32 [rows, groups] of scales in any shape with equally many elements for each row. An int32 packs
    four exponents."""
    packed = 4 if sf.dtype == torch.int32 else 1
    least = ceil_div(groups, packed)
    each, rest = divmod(sf.numel(), rows) if rows else (least, sf.numel())
    if rest or each < least:
        raise AssertionError(
            f"sf has {sf.numel()} elements of {sf.dtype}: expected as many for each of the {rows} rows of q, "
            f"{least} or more"
        )
    flat = sf.reshape(rows, each)  # in the order of elements, as `view` does
    if packed == 1:
        return flat[:, :groups].float()
    exponents = flat.contiguous().view(torch.uint8)[:, :groups].to(torch.int32) - 127
    return torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents)


def per_token_cast_back(q: Any, sf: Any) -> Any:
    """Returns bf16 [n, H] of q and its scales. AssertionError if there are too few scales, or not the same number for
    each row.

    q: e4m3 [n, H].
    sf: float32 [n, H/128], or int32 [n, H/512, rounded up] with four exponents (UE8M0) each; another shape may hold the
        same elements."""
    rows, hidden = q.shape
    groups = ceil_div(hidden, _GROUP)
    scales = _scales_of(sf, rows, groups)
    wide = torch.nn.functional.pad(q.float(), (0, -hidden % _GROUP)).view(rows, groups, _GROUP)
    return (wide * scales[..., None]).view(rows, groups * _GROUP)[:, :hidden].to(torch.bfloat16).contiguous()


# ---- routing ---------------------------------------------------------------------------------------------------------


def inplace_unique(x: Any, num_slots: int) -> None:
    """Replaces each row of x [n, m], int64 or int32, by its distinct values in 0..num_slots-1, descending, followed by
    -1."""
    if x.dim() != 2:
        raise AssertionError(f"x has {x.dim()} dimensions: expected 2")
    ordered = x.masked_fill((x < 0) | (x >= num_slots), -1).sort(dim=1, descending=True).values
    again = torch.zeros_like(ordered, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    x.copy_(ordered.masked_fill(again, -1).sort(dim=1, descending=True).values)


def create_grouped_scores(scores: Any, group_idx: Any, num_groups: int) -> Any:
    """Returns scores [n, E], float32 or another, with 0 for experts whose group is not in the row's group_idx [n, m],
    int64 or int32."""
    rows, experts = scores.shape
    chosen = torch.zeros((rows, num_groups), dtype=torch.bool, device=scores.device)
    chosen.scatter_(1, group_idx.long(), True)
    return (scores.view(rows, num_groups, -1) * chosen[..., None]).view(rows, experts)
