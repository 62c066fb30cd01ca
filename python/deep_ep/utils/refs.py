# SPDX-License-Identifier: Apache-2.0
"""References of dispatch and combine, written in PyTorch from their definitions. They are for tests, and slow.

Letters in shapes: T tokens on this rank, H hidden, K top-k, E experts, N ranks, L = E/N, R rows received.
M maximum of tokens on a rank; g = source rank * M + token.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
import torch.distributed as dist

from .math import ceil_div


def _from_all(tensor: Any, rows: int, sizes: Sequence[int]) -> list[Any]:
    """Returns that tensor of every rank, [its T, columns]. It travels as bytes, padded to rows."""
    columns = tensor.shape[1] * tensor.element_size()
    own = torch.zeros((rows, columns), dtype=torch.uint8, device=tensor.device)
    own[: tensor.shape[0]] = tensor.contiguous().view(torch.uint8)
    found = [torch.empty_like(own) for _ in sizes]
    dist.all_gather(found, own)
    return [each[:size].contiguous().view(tensor.dtype) for each, size in zip(found, sizes)]


def dispatch(
    x: Any, topk_idx: Any, topk_weights: Any, num_max_tokens_per_rank: int, num_experts: int
) -> tuple[Any, Any, Any, Any, Any]:
    """Returns (recv_x, recv_topk_idx, recv_topk_weights, g int32 [R], rows from each rank int32 [N]), ordered by g.
    Collective, in the default group.

    x: bf16 [T, H], or another dtype, or a tuple with its scales [T, n].
    topk_idx: int64 [T, K]. recv_topk_idx has local experts and -1.
    topk_weights: float32 [T, K]. recv_topk_weights is 0 where recv_topk_idx is -1."""
    if isinstance(x, tuple):
        parts = [dispatch(each, topk_idx, topk_weights, num_max_tokens_per_rank, num_experts) for each in x]
        return (tuple(part[0] for part in parts), *parts[0][1:])
    rank, ranks = dist.get_rank(), dist.get_world_size()
    local, device = num_experts // ranks, x.device
    mine = torch.tensor([x.shape[0]], dtype=torch.int64, device=device)
    lengths = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(lengths, mine)
    sizes = [int(each.item()) for each in lengths]
    rows = max(*sizes, num_max_tokens_per_rank)
    all_idx = torch.cat(_from_all(topk_idx, rows, sizes))
    first, source = rank * local, torch.arange(ranks, device=device).repeat_interleave(torch.cat(lengths))
    token = torch.cat([torch.arange(size, device=device) for size in sizes])
    here = (all_idx >= first) & (all_idx < first + local)
    comes = here.any(dim=1)
    idx = torch.where(here, all_idx - first, -1)[comes].to(topk_idx.dtype)
    weights = None
    if topk_weights is not None:
        weights = torch.where(here, torch.cat(_from_all(topk_weights, rows, sizes)), 0.0)[comes]
    g = (source * num_max_tokens_per_rank + token)[comes].to(torch.int32)
    counts = torch.bincount(source[comes], minlength=ranks).to(torch.int32)
    return torch.cat(_from_all(x, rows, sizes))[comes], idx, weights, g, counts


def generate_pre_combine_data(
    src_token_global_idx: Any, num_max_tokens_per_rank: int, num_topk: int, hidden: int, seed: int = 0
) -> Any:
    """Returns bf16 [n, K, H] in [-1, 1). It is a function of g, slot, column and seed alone, so every rank makes the
    same."""
    device = src_token_global_idx.device
    g = src_token_global_idx.to(torch.int64).view(-1, 1, 1)
    slot = torch.arange(num_topk, dtype=torch.int64, device=device).view(1, -1, 1)
    column = torch.arange(hidden, dtype=torch.int64, device=device)
    mixed = g * 0x9E3779B1 + slot * 0x85EBCA6B + column * 0xC2B2AE35 + seed * 0x27D4EB2F
    # Products of 31 bits and 32 stay within 63.
    for factor in (0x7FEB352D, 0x45D9F3B):
        mixed = ((mixed & 0x7FFFFFFF) ^ ((mixed >> 15) & 0xFFFF)) * factor
    bits = ((mixed & 0x7FFFFFFF) ^ ((mixed >> 15) & 0xFFFF)) & 0xFFFF
    return ((bits - 0x8000).to(torch.float32) / 0x8000).to(torch.bfloat16)


def ordered_accumulate(data: Any, initial: Any = None) -> Any:
    """Returns [T, H] of data's dtype: initial [T, H], bf16 or another, or 0, plus data [T, K, H], bf16 or another, by
    ascending k, in float32, rounded once."""
    total = torch.zeros((data.shape[0], data.shape[2]), dtype=torch.float32, device=data.device)
    if initial is not None:
        total += initial.float()
    for k in range(data.shape[1]):
        total += data[:, k].float()
    return total.to(data.dtype)


def _reduce(y: Any, owner: Any) -> tuple[Any, Any]:
    """Sums the slots of each owner [T, K] by ascending k, and rounds. The sum stands at the owner's highest slot; other
    slots get owner -1."""
    slots = y.shape[1]
    reduced, kept = torch.zeros_like(y), torch.full_like(owner, -1)
    for k in range(slots):
        same = owner[:, : k + 1] == owner[:, k : k + 1]
        last = (owner[:, k] >= 0) & ~(owner[:, k + 1 :] == owner[:, k : k + 1]).any(dim=1)
        total = ordered_accumulate(torch.where(same[..., None], y[:, : k + 1], 0))
        reduced[:, k] = torch.where(last[:, None], total, 0)
        kept[:, k] = torch.where(last, owner[:, k], -1)
    return reduced, kept


def combine(
    y: Any,
    topk_idx: Any,
    num_scaleout_ranks: int,
    num_scaleup_ranks: int,
    num_experts: int,
    bias: Any,
    reduce_in_local: bool,
    reduce_in_scaleup: bool,
) -> Any:
    """Returns [T, H], the sums of y in FP32: bias first, then slots by ascending k, rounded once to y's dtype.

    y: [T, K, H], bf16 or another, the rows of this rank's slots. topk_idx: int64 [T, K].
    bias: one or two [T, H] of y's dtype.
    reduce_in_local: rows of one rank are summed and rounded first, and stand at their highest slot.
    reduce_in_scaleup: the same is done next for rows of one node."""
    local = ceil_div(num_experts, num_scaleout_ranks * num_scaleup_ranks)
    rank = torch.where(topk_idx >= 0, topk_idx // local, -1)
    y = torch.where((rank >= 0)[..., None], y, 0)
    if reduce_in_local:
        y, rank = _reduce(y, rank)
    if reduce_in_scaleup:
        y, _ = _reduce(y, torch.where(rank >= 0, rank // num_scaleup_ranks, -1))
    biases = bias if isinstance(bias, tuple) else (bias,)
    initial = None
    for each in biases:
        if each is not None:
            initial = each.float() if initial is None else initial + each.float()
    return ordered_accumulate(y, initial)
