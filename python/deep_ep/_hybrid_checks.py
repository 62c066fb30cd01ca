# SPDX-License-Identifier: Apache-2.0
"""Checks of `HybridEPBuffer` arguments that the library does not make.

Functions `check_…` raise AssertionError. Functions `wrong_…` return the error's text, or None: other ranks may be in
the call, and must learn of it.
"""

from __future__ import annotations

from typing import Any

import torch

from ._checks import whole

SCALED = 128  # columns that share a scale
_ONE_BYTE = tuple(
    getattr(torch, name) for name in ("uint8", "int8", "float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)
)


def check_tensor(tensor: Any, name: str, needed: bool = False) -> None:
    """AssertionError if it is no tensor. None passes unless it is needed."""
    if tensor is None and not needed:
        return
    if not isinstance(tensor, torch.Tensor):
        raise AssertionError(f"{name} is of type {type(tensor).__name__}: expected a tensor")


def check_padding(pad_multiple: Any) -> int:
    """Returns the alignment of experts."""
    if pad_multiple is None:
        return 1
    if whole(pad_multiple, "pad_multiple") < 0:
        raise AssertionError(f"pad_multiple is {pad_multiple}: expected 0 (no padding) or more")
    return max(int(pad_multiple), 1)


def check_rows(num_permuted_tokens: Any) -> int:
    """Returns the number of rows that the caller wants, given as a number or a tensor with one element."""
    given = num_permuted_tokens
    if isinstance(given, torch.Tensor):
        if given.numel() != 1 or given.dtype.is_floating_point or given.dtype.is_complex:
            raise AssertionError(
                f"num_permuted_tokens is {given.dtype} {tuple(given.shape)}: expected one whole number"
            )
        given = given.item()
    if whole(given, "num_permuted_tokens") < 0:
        raise AssertionError(f"num_permuted_tokens is {given}: expected 0 or more")
    return int(given)


def wrong_hidden(hidden: Any, use_fp8: bool, scaling_factor: Any) -> str | None:
    """Checks rows of a dispatch, and their scales."""
    if hidden.dim() != 2:
        return f"hidden has shape {tuple(hidden.shape)}: expected [T, H]"
    if not use_fp8:
        if hidden.dtype.itemsize != 2:
            return f"hidden is {hidden.dtype}: expected torch.bfloat16 without use_fp8"
        return None
    if hidden.dtype not in _ONE_BYTE:
        return f"hidden is {hidden.dtype}: expected torch.uint8 or torch.float8_e4m3fn with use_fp8"
    tokens, columns = hidden.shape
    if columns % SCALED:
        return f"hidden has {columns} columns: expected a multiple of {SCALED} with use_fp8"
    wanted = (tokens, columns // SCALED)
    if scaling_factor is None:
        return f"scaling_factor is not given: expected torch.float32 {wanted} with use_fp8"
    return _wrong_floats(scaling_factor, "scaling_factor", wanted)


def wrong_map(routing_map: Any, tokens: int, ranks: int) -> str | None:
    if routing_map.dtype is not torch.bool:
        return f"routing_map is {routing_map.dtype}: expected torch.bool"
    if routing_map.dim() != 2 or routing_map.shape[0] != tokens:
        return f"routing_map has shape {tuple(routing_map.shape)}: expected [{tokens}, E]"
    return wrong_experts(routing_map.shape[1], ranks, "routing_map has {} columns")


def wrong_experts(experts: int, ranks: int, text: str = "num_of_experts is {}") -> str | None:
    if experts < 1 or experts % ranks:
        return f"{text.format(experts)}: expected a multiple of the {ranks} ranks"
    return None


def wrong_topk(topk_idx: Any, topk_weights: Any, tokens: int) -> str | None:
    if topk_idx.dtype not in (torch.int64, torch.int32) or topk_idx.dim() != 2 or topk_idx.shape[0] != tokens:
        return f"topk_idx is {topk_idx.dtype} {tuple(topk_idx.shape)}: expected torch.int64 [{tokens}, K]"
    if topk_weights is None:
        return None
    return _wrong_floats(topk_weights, "topk_weights", tuple(topk_idx.shape))


def wrong_probs(probs: Any, tokens: int, experts: int) -> str | None:
    return None if probs is None else _wrong_floats(probs, "probs", (tokens, experts))


def wrong_answers(hidden: Any, probs: Any, columns: int | None = None) -> str | None:
    """Checks the rows of a combine. columns: of probs; None: probs has one element for each row."""
    if hidden.dtype is not torch.bfloat16 or hidden.dim() != 2:
        return f"hidden is {hidden.dtype} {tuple(hidden.shape)}: expected torch.bfloat16 [rows, H]"
    rows = hidden.shape[0]
    return None if probs is None else _wrong_floats(probs, "probs", (rows,) if columns is None else (rows, columns))


def _wrong_floats(tensor: Any, name: str, wanted: tuple[int, ...]) -> str | None:
    if tensor.dtype is torch.float32 and tensor.shape == wanted:
        return None
    return f"{name} is {tensor.dtype} {tuple(tensor.shape)}: expected torch.float32 {wanted}"
