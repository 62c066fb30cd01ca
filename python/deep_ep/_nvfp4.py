# SPDX-License-Identifier: Apache-2.0
"""NVFP4 rows of low-latency dispatches, by PyTorch.

A block of 16 elements shares a scale s = e4m3(g · amax / 6), where g is the caller's global scale. An element becomes
q = e2m1(x · g / s), rounded to nearest even and saturated, and 0 where s is 0. Its value is q · s / g. All arithmetic
is FP32.

The library carries no such format, so the source packs a row's elements and scales into the beginning of a BF16 row.
The receiver takes them apart.

Letters in shapes: T tokens, H hidden, L local experts, R = N·B rows of an expert.
"""

from __future__ import annotations

from typing import Any

import torch

BLOCK = 16  # elements that share a scale
_MOST = 6.0  # of e2m1
_E4M3_MOST = 448.0
# Above each of these an element is rounded to the next of 0, 0.5, 1, 1.5, 2, 3, 4, 6. At the limit itself the even one
# of both numbers is taken.
_LIMITS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_UP_AT_LIMIT = (False, True, False, True, False, True, False)
_SIGN = 8
_TILE_ROWS, _TILE_SCALES = 128, 4


def coded(x: Any) -> Any:
    """Returns e2m1 of x, as uint8 0 to 15 of the same shape."""
    size = x.abs()
    code = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
    for limit, up in zip(_LIMITS, _UP_AT_LIMIT):
        code += size >= limit if up else size > limit
    return code | (x.signbit().to(torch.uint8) * _SIGN)


def quantised(x: Any, global_scale: Any) -> tuple[Any, Any]:
    """Returns (codes uint8 [T, H/2], element 2i in the low half, and scales e4m3 [T, H/16]) of x [T, H]."""
    tokens, hidden = x.shape
    blocks = x.float().view(tokens, hidden // BLOCK, BLOCK)
    wide = global_scale.float().reshape(())
    wanted = wide * blocks.abs().amax(dim=2) / _MOST
    scales = wanted.clamp(max=_E4M3_MOST).to(torch.float8_e4m3fn)
    s = scales.float()[..., None]
    codes = coded(torch.where(s == 0, 0.0, blocks * wide / s)).view(tokens, hidden)
    return codes[:, 0::2] | (codes[:, 1::2] << 4), scales


def packed(x: Any, global_scale: Any) -> Any:
    """Returns bf16 [T, H], whose bytes begin with the codes and the scales of x [T, H]."""
    codes, scales = quantised(x, global_scale)
    rows = torch.zeros((x.shape[0], 2 * x.shape[1]), dtype=torch.uint8, device=x.device)
    rows[:, : codes.shape[1]] = codes
    rows[:, codes.shape[1] : codes.shape[1] + scales.shape[1]] = scales.view(torch.uint8)
    return rows.view(torch.bfloat16)


def memory(local: int, rows: int, hidden: int, device: Any) -> tuple[Any, Any]:
    """Returns memory for codes uint8 [L, R, H/2] and for scales uint8 [L, R/128, H/64, 32, 4, 4], each rounded up."""
    codes = torch.empty((local, rows, hidden // 2), dtype=torch.uint8, device=device)
    shape = (local, -(-rows // _TILE_ROWS), -(-(hidden // BLOCK) // _TILE_SCALES), 32, 4, 4)
    return codes, torch.zeros(shape, dtype=torch.uint8, device=device)


def shown(codes: Any, scales: Any) -> tuple[Any, Any]:
    """Returns such memory as callers see it: uint8 [R, H/2, L], and e4m3 [32, 4, R/128, 4, H/64, L]."""
    return codes.permute(1, 2, 0), scales.view(torch.float8_e4m3fn).permute(3, 4, 1, 5, 2, 0)


def unpack(rows: Any, codes: Any, scales: Any) -> None:
    """Fills such memory from received rows, bf16 [L, R, H]."""
    local, count, hidden = rows.shape
    given = rows.view(torch.uint8)
    codes.copy_(given[..., : hidden // 2])
    _, tiles, columns, _, _, _ = scales.shape
    whole = torch.zeros((local, tiles * _TILE_ROWS, columns * _TILE_SCALES), dtype=torch.uint8, device=rows.device)
    whole[:, :count, : hidden // BLOCK] = given[..., hidden // 2 : hidden // 2 + hidden // BLOCK]
    scales.copy_(whole.view(local, tiles, 4, 32, columns, _TILE_SCALES).permute(0, 1, 4, 3, 2, 5))
