# SPDX-License-Identifier: Apache-2.0
"""Gate scores for tests in which one rank needs more work than the others."""

from __future__ import annotations

import math

import torch

from .math import ceil_div

# The error of a ratio at which smaller numbers of tokens are tried no more, and the one above which ranks get different
# numbers.
_ROUNDING, _NEAR = 0.005, 0.1
# From this number of tokens on a rank, whole numbers come near enough to the ratio.
_MANY = 10


def get_unbalanced_scores(
    num_tokens: int, num_experts: int, num_ranks: int, num_topk: int, ratio: float, precise: bool
) -> torch.Tensor:
    """Returns float32 [T, E]. Its top-K experts give rank 0 `ratio` times as many tokens as any other rank; a token
    counts once for a rank.

    All other ranks get the same number, or numbers that differ by one if that is nearer to the ratio. With few tokens
    the result is the nearest possible. precise: AssertionError if no numbers of tokens have that ratio."""
    if num_experts % num_ranks:
        raise AssertionError(f"num_experts is {num_experts}: expected a multiple of num_ranks, {num_ranks}")
    chosen = _choose_ranks(num_tokens, num_experts // num_ranks, num_ranks, num_topk, ratio, precise)
    device = torch.get_default_device()
    chosen = chosen.to(device)
    scores = torch.rand((num_tokens, num_ranks, num_experts // num_ranks), dtype=torch.float32, device=device)
    # Each chosen rank gets one expert for certain. The other experts are on chosen ranks, too.
    best = torch.zeros_like(scores, dtype=torch.bool)
    if scores.numel():
        best.scatter_(2, scores.argmax(dim=2, keepdim=True), True)
    scores += chosen[..., None] * (1.0 + 2.0 * best)
    return scores.view(num_tokens, num_experts)


def _choose_ranks(tokens: int, local: int, ranks: int, topk: int, ratio: float, precise: bool) -> torch.Tensor:
    """Returns bool [T, N], with ceil(K/L) to min(K, N) ranks for each token."""
    fewest, most = ceil_div(topk, local), min(topk, ranks)
    if fewest > ranks:
        raise AssertionError(f"num_topk is {topk}: expected at most the number of experts, {local * ranks}")
    device = torch.device("cpu")
    chosen = torch.zeros((tokens, ranks), dtype=torch.bool, device=device)
    if ranks == 1:
        return ~chosen
    first, total = _counts(tokens, ranks, fewest, most, ratio, precise)
    order = torch.randperm(tokens, device=device)
    chosen[order[:first], 0] = True
    here = chosen[:, 0].long()
    least = (fewest - here).clamp(min=0)
    room = torch.minimum(most - here, torch.tensor(ranks - 1, device=device)) - least
    number = least + _share(total - int(least.sum()), room)
    # Ranks take turns. So all other ranks get the same number, or one more, and a token never has a rank twice.
    begin = number.cumsum(0) - number
    turn = torch.randperm(ranks - 1, device=device)
    place = (torch.arange(ranks - 1, device=device) - begin[:, None]) % (ranks - 1)
    chosen[:, 1 + turn] = place < number[:, None]
    return chosen


def _counts(tokens: int, ranks: int, fewest: int, most: int, ratio: float, precise: bool) -> tuple[int, int]:
    """Returns the tokens of rank 0, and those of all other ranks together."""
    first, total, off = _even_counts(tokens, ranks, fewest, most, ratio)
    if off > _NEAR:
        first, total, off = _uneven_counts(tokens, ranks, fewest, most, ratio)
    # The least number of tokens on each rank. If it is small, whole numbers cannot come near the ratio.
    each = tokens * fewest * min(ratio, 1) / (ratio + ranks - 1)
    if precise and off > _NEAR and each >= _MANY:
        raise AssertionError(
            f"ratio is {ratio}: expected one that {tokens} tokens on {fewest} to {most} of {ranks} ranks each can have"
        )
    return first, total


def _off(first: int, total: int, ranks: int, ratio: float) -> float:
    """Returns the relative error of rank 0's tokens."""
    wanted = ratio * total / (ranks - 1)
    return abs(first - wanted) / max(wanted, 1)


def _even_counts(tokens: int, ranks: int, fewest: int, most: int, ratio: float) -> tuple[int, int, float]:
    """Returns tokens of rank 0, those of the others, which all have the same number, and the error of the ratio. It
    picks the most tokens with that ratio, else the nearest; the error is infinite if there are none."""
    best = (0, 0, math.inf)
    for others in range(tokens, -1, -1):
        # With those of rank 0, each token has at least its fewest ranks, and at most its most.
        total = others * (ranks - 1)
        low, high = max(tokens * fewest - total, 0), min(tokens * most - total, tokens)
        if low > high:
            continue
        first = min(max(round(ratio * others), low), high)
        off = _off(first, total, ranks, ratio)
        if off < best[2]:
            best = (first, total, off)
        if off < _ROUNDING:
            break
    return best


def _uneven_counts(tokens: int, ranks: int, fewest: int, most: int, ratio: float) -> tuple[int, int, float]:
    """Returns the same if the numbers of the others may differ by one. Rank 0's part of all tokens is as near as
    possible to the wanted one. Of equal choices it takes the one with the most tokens, first on rank 0."""
    part = ratio / (ratio + ranks - 1)
    found = []
    for first in range(tokens + 1):
        rest = tokens - first
        if rest and fewest > ranks - 1:  # each token needs rank 0
            continue
        low = first * (fewest - 1) + rest * fewest
        high = first * min(most - 1, ranks - 1) + rest * min(most, ranks - 1)
        total = min(max(round(first * (1 - part) / part) if part else high, low), high)
        found.append((-abs(first / (first + total) - part), first + total, first))
    _, whole, first = max(found)
    return first, whole - first, _off(first, whole - first, ranks, ratio)


def _share(total: int, room: torch.Tensor) -> torch.Tensor:
    """Spreads total over the tokens evenly, within the limit of each."""
    given = torch.zeros_like(room)
    while total > 0:
        able = (given < room).nonzero()[:, 0]
        if not len(able):
            break
        step = max(total // len(able), 1)
        able = able[torch.randperm(len(able), device=room.device)][: max(total // step, 1)]
        more = (room[able] - given[able]).clamp(max=step)
        given[able] += more
        total -= int(more.sum())
    return given
