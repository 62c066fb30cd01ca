# SPDX-License-Identifier: Apache-2.0
"""Checks of `ElasticBuffer` arguments that the library does not make.

Functions `check_…` raise errors that every rank sees. Functions `wrong_…` return the error's text, or None: other
ranks may be in the call, and must learn of it.
"""

from __future__ import annotations

from typing import Any

import torch

from ._elastic_handle import EPHandle

_MOST_TOPK = 32
_FP8 = torch.float8_e4m3fn


def check_tensors(**tensors: Any) -> None:
    """TypeError if one of them is neither a tensor nor None."""
    for name, tensor in tensors.items():
        if tensor is not None and not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is of type {type(tensor).__name__}: expected a tensor")


def rows_and_scales(x: Any) -> tuple[Any, Any]:
    """Returns (rows, scales); scales are None if x is a tensor. TypeError for anything else."""
    if isinstance(x, torch.Tensor):
        return x, None
    if not isinstance(x, tuple):
        raise TypeError(f"x is of type {type(x).__name__}: expected a tensor, or a tuple of rows and scales")
    if len(x) != 2 or not all(isinstance(each, torch.Tensor) for each in x):
        raise TypeError(f"x is a tuple of {len(x)}: expected two tensors, rows and scales")
    return x[0], x[1]


def two_biases(bias: Any) -> tuple[Any, ...]:
    """Returns the biases that are not None. TypeError if bias is neither a tensor nor a tuple of two."""
    if bias is None:
        return ()
    biases = bias if isinstance(bias, tuple) else (bias,)
    if isinstance(bias, tuple) and len(bias) != 2:
        raise TypeError(f"bias is a tuple of {len(bias)}: expected two tensors")
    for each in biases:
        check_tensors(bias=each)
    return tuple(each for each in biases if each is not None)


def check_handle(
    handle: Any,
    topk_idx: Any,
    num_experts: int | None,
    num_max_tokens_per_rank: int | None,
    expert_alignment: int | None,
    do_cpu_sync: bool | None,
    do_expand: bool,
) -> None:
    """Checks the arguments of a dispatch with a handle."""
    if not isinstance(handle, EPHandle):
        raise TypeError(f"handle is of type {type(handle).__name__}: expected the EPHandle that dispatch gave")
    if topk_idx is not None:
        raise AssertionError("topk_idx does not go with a handle, which has the routing")
    for name, given in (
        ("num_experts", num_experts),
        ("num_max_tokens_per_rank", num_max_tokens_per_rank),
        ("expert_alignment", expert_alignment),
    ):
        if given is not None and given != getattr(handle, name):
            raise AssertionError(f"{name} is {given}: expected the handle's, {getattr(handle, name)}, or none")
    if do_cpu_sync:
        raise AssertionError("do_cpu_sync does not go with a handle, whose rows are known")
    if do_expand and not handle.do_expand:
        raise AssertionError("do_expand needs a handle of a dispatch with do_expand")


# ---- what other ranks have to learn of -------------------------------------------------------------------------------


def wrong_rows(x: Any, scales: Any, max_tokens: int) -> str | None:
    wanted = torch.bfloat16 if scales is None else _FP8
    if x.dtype is not wanted:
        return f"x is {x.dtype}: expected {wanted}{'' if scales is None else ' beside scales'}"
    if x.dim() != 2 or not x.is_contiguous():
        return f"x has shape {tuple(x.shape)} and strides {x.stride()}: expected contiguous [T, H]"
    if x.shape[0] > max_tokens:
        return f"x has {x.shape[0]} tokens: expected at most num_max_tokens_per_rank, {max_tokens}"
    return None


def wrong_routing(topk_idx: Any, topk_weights: Any, tokens: int, topk: int) -> str | None:
    """Checks topk_idx and topk_weights. topk_idx is None with a handle."""
    if topk_idx is not None:
        if topk_idx.dtype is not torch.int64 or topk_idx.dim() != 2 or not topk_idx.is_contiguous():
            return f"topk_idx is {topk_idx.dtype} {tuple(topk_idx.shape)}: expected contiguous torch.int64 [T, K]"
        if topk > _MOST_TOPK:
            return f"topk_idx has {topk} slots: expected at most {_MOST_TOPK}"
    if topk_weights is None:
        return None
    good = topk_weights.dtype is torch.float32 and topk_weights.shape == (tokens, topk)
    if not good or not topk_weights.is_contiguous():
        shape = tuple(topk_weights.shape)
        return f"topk_weights is {topk_weights.dtype} {shape}: expected contiguous torch.float32 {(tokens, topk)}"
    return None


def wrong_stats(stats: Any, handle: EPHandle | None, local_experts: int) -> str | None:
    if stats is None:
        return None
    if handle is not None:
        return "cumulative_local_expert_recv_stats does not go with a handle: its rows have been counted"
    if stats.dtype is not torch.int32 or tuple(stats.shape) != (local_experts,):
        shape = tuple(stats.shape)
        return f"cumulative_local_expert_recv_stats is {stats.dtype} {shape}: expected torch.int32 {(local_experts,)}"
    return None


def wrong_sums(x: Any, handle: EPHandle, topk_weights: Any, biases: tuple[Any, ...]) -> str | None:
    """Checks the arguments of a combine."""
    if x.dtype is not torch.bfloat16 or x.dim() != 2 or not x.is_contiguous():
        return f"x is {x.dtype} {tuple(x.shape)}: expected contiguous torch.bfloat16 [rows, H]"
    rows = x.shape[0]
    lacking = handle._counted and rows < (handle._rows_of_library if handle.do_expand else handle._routing.num_rows)
    if not handle.do_expand and (rows != handle.num_metadata_rows() or lacking):
        named = handle.num_metadata_rows()
        return f"x has {rows} rows: expected as many as recv_src_metadata, {named}, and all that came"
    if handle.do_expand and lacking and rows <= handle.last_row():
        return f"x has {rows} rows: expected all that recv_src_metadata names, to row {handle.last_row()}"
    if topk_weights is not None:
        wanted = (rows,) if handle.do_expand else (rows, handle._routing.num_topk)
        good = topk_weights.dtype is torch.float32 and topk_weights.shape == wanted
        if not good or not topk_weights.is_contiguous():
            shape = tuple(topk_weights.shape)
            return f"topk_weights is {topk_weights.dtype} {shape}: expected contiguous torch.float32 {wanted}"
    for bias in biases:
        wanted = (handle._routing.num_tokens, x.shape[1])
        if bias.dtype is not torch.bfloat16 or tuple(bias.shape) != wanted or not bias.is_contiguous():
            return f"bias is {bias.dtype} {tuple(bias.shape)}: expected contiguous torch.bfloat16 {wanted}"
    return None
