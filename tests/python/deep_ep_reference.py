# SPDX-License-Identifier: Apache-2.0
"""Traffic of all ranks, and what each call must give, by PyTorch from the definitions alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

GROUP = 128  # elements that share a scale
BATCH = 12  # B of low-latency calls
# Where tensors of calls lie; references are computed on the CPU. Programs for GPUs set it.
place: dict[str, Any] = {"device": "cpu"}


def here(tensor: Any) -> Any:
    """For a call. Of a tuple each; None stays None."""
    if isinstance(tensor, tuple):
        return tuple(here(each) for each in tensor)
    return tensor.to(place["device"]) if tensor is not None else None


def indexable(tensor: Tensor) -> Tensor:
    """Its rows as something that every PyTorch that deep_ep runs with can index: FP8 as its bytes."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


class Shape(NamedTuple):
    ranks: int
    experts: int  # E, a multiple of the ranks
    topk: int
    hidden: int
    tokens: int  # T of a rank: 0 to this
    dtype: torch.dtype = torch.float32
    index: torch.dtype = torch.int64


class Traffic:
    """The same on every rank that makes it with that seed. distinct: no expert stands twice in a token."""

    def __init__(self, shape: Shape, seed: int, distinct: bool = False) -> None:
        random = torch.Generator().manual_seed(seed)
        self.shape = shape
        self.local = shape.experts // shape.ranks
        self.x: list[Tensor] = []
        self.topk_idx: list[Tensor] = []
        self.weights: list[Tensor] = []
        for _ in range(shape.ranks):
            tokens = int(torch.randint(0, shape.tokens + 1, (), generator=random))
            self.x.append(torch.randn((tokens, shape.hidden), generator=random).to(shape.dtype))
            experts = torch.randint(0, shape.experts, (tokens, shape.topk), generator=random)
            if distinct:
                experts = torch.rand((tokens, shape.experts), generator=random).argsort(dim=1)[:, : shape.topk]
            experts[torch.rand(experts.shape, generator=random) < 0.2] = -1
            self.topk_idx.append(experts.to(shape.index).contiguous())
            self.weights.append(torch.rand((tokens, shape.topk), generator=random))

    # ---- normal mode -------------------------------------------------------------------------------------------------

    def goes_to(self, source: int, rank: int) -> Tensor:
        """bool [T]"""
        idx = self.topk_idx[source]
        return ((idx >= 0) & (idx // self.local == rank)).any(dim=1)

    def layout(self, rank: int) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens per rank, per expert, and token in rank."""
        in_rank = torch.stack([self.goes_to(rank, r) for r in range(self.shape.ranks)], dim=1)
        experts = torch.stack([(self.topk_idx[rank] == e).sum() for e in range(self.shape.experts)])
        return in_rank.sum(dim=0).int(), experts.int(), in_rank

    def received(self, rank: int) -> tuple[Tensor, Tensor, Tensor]:
        """x, topk_idx, weights of that rank, by source, then token."""
        parts = []
        for source in range(self.shape.ranks):
            tokens = self.goes_to(source, rank)
            idx = self.topk_idx[source][tokens]
            here = (idx >= 0) & (idx // self.local == rank)
            weights = torch.where(here, self.weights[source][tokens], 0.0)
            parts.append((self.x[source][tokens], torch.where(here, idx - rank * self.local, -1), weights))
        x, idx, weights = (torch.cat(each) for each in zip(*parts))
        return x, idx, weights

    def prefix(self, rank: int) -> Tensor:
        """int32 [N]: what ranks 0..i send to that rank."""
        return torch.tensor([int(self.goes_to(s, rank).sum()) for s in range(self.shape.ranks)]).cumsum(0).int()

    def per_expert(self, rank: int, alignment: int = 1) -> list[int]:
        idx = self.received(rank)[1]
        return [-(-int((idx == e).sum()) // alignment) * alignment for e in range(self.local)]

    @staticmethod
    def answer(rank: int, rows: Tensor) -> Tensor:
        """The output of rank's experts for rows."""
        return (rows.float() * (rank + 1.5)).to(rows.dtype)

    def combined(self, rank: int, biases: tuple[Tensor, ...] = (), nodes: int = 1) -> tuple[Tensor, Tensor]:
        """y and weights of that rank's tokens: FP32 from 0, biases first, ranks ascending, rounded once. Each of
        several nodes has a rounded sum of its own, and those are added."""
        y = torch.zeros(self.x[rank].shape)
        idx, weights = self.topk_idx[rank], torch.zeros(self.weights[rank].shape)
        for bias in biases:
            y += bias.float()
        for node in range(nodes):
            part = y if nodes == 1 else torch.zeros(y.shape)
            each = self.shape.ranks // nodes
            for other in range(node * each, (node + 1) * each):
                tokens = self.goes_to(rank, other)
                part[tokens] += self.answer(other, self.x[rank][tokens]).float()
                weights += torch.where((idx >= 0) & (idx // self.local == other), self.weights[rank], 0.0)
            if nodes > 1:
                y += part.to(self.shape.dtype).float()
        return y.to(self.shape.dtype), weights

    # ---- low latency -------------------------------------------------------------------------------------------------

    def received_by_expert(self, rank: int) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """For each local expert its rows and their tokens, by source, then token; and [L, N]: begin << 32 | count."""
        rows, tokens = [], []
        spans = torch.zeros((self.local, self.shape.ranks), dtype=torch.int64)
        for expert in range(self.local):
            chosen = [(idx == rank * self.local + expert).any(dim=1).nonzero()[:, 0] for idx in self.topk_idx]
            begin = 0
            for source, each in enumerate(chosen):
                spans[expert, source] = begin << 32 | len(each)
                begin += len(each)
            rows.append(torch.cat([x[each] for x, each in zip(self.x, chosen)]))
            tokens.append(torch.cat(chosen).int())
        return rows, tokens, spans

    def weighted(self, rank: int, reduced: bool = False) -> Tensor:
        """y of that rank's tokens. Exact: slots ascending, FP32, product and addition each rounded. Reduced: so on each
        rank, rounded to the dtype; then ranks ascending."""
        idx = self.topk_idx[rank]
        y = torch.zeros(self.x[rank].shape)
        everyone = list(range(self.shape.ranks))
        for others in [[r] for r in everyone] if reduced else [everyone]:
            part = torch.zeros_like(y)
            for slot in range(self.shape.topk):
                for other in others:
                    here = (idx[:, slot] >= 0) & (idx[:, slot] // self.local == other)
                    answer = self.answer(other, self.x[rank][here]).float()
                    part[here] += self.weights[rank][here, slot, None] * answer
            y += part.to(self.shape.dtype).float() if reduced else part
        return y.to(self.shape.dtype)


def quantised(rows: Tensor, round_scale: bool) -> tuple[Tensor, Tensor]:
    """FP8 of rows [n, H] and its scales [n, H/128]."""
    groups = rows.float().view(rows.shape[0], -1, GROUP)
    amax = groups.abs().amax(dim=2).clamp(min=1e-4)
    if round_scale:
        mantissa, exponent = torch.frexp(amax / 448)
        scales = torch.ldexp(torch.ones_like(amax), exponent - (mantissa == 0.5).int())
        q = groups * (1 / scales)[..., None]
    else:
        scales, q = amax / 448, groups * (torch.tensor(448.0) / amax)[..., None]
    return q.clamp(-448, 448).to(torch.float8_e4m3fn).view(rows.shape), scales


def exponents(scales: Tensor) -> Tensor:
    """Powers of two [n, g] as bytes, four in an int32 [n, ceil(g/4)]."""
    found = torch.zeros((scales.shape[0], -(-scales.shape[1] // 4) * 4), dtype=torch.int32)
    found[:, : scales.shape[1]] = scales.contiguous().view(torch.int32) >> 23
    return found.to(torch.uint8).view(torch.int32)


def plain(q: Tensor, scales: Tensor) -> Tensor:
    """The values of FP8 rows, in FP32."""
    return (q.float().view(*q.shape[:-1], -1, GROUP) * scales[..., None]).view(q.shape)


def same(one: Any, other: Any) -> None:
    one, other = one.cpu(), other.cpu()
    assert one.shape == other.shape and one.dtype == other.dtype, (one.shape, other.shape, one.dtype, other.dtype)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    assert torch.equal(one.contiguous().view(bits), other.contiguous().view(bits)), (one, other)


# ---- low-latency calls -----------------------------------------------------------------------------------------------


def ll_traffic(buffer: Any, seed: int, dtype: torch.dtype = torch.bfloat16, hidden: int = 256) -> Traffic:
    size = buffer.group_size
    return Traffic(Shape(size, size * 2, min(3, size * 2), hidden, BATCH, dtype), seed, distinct=True)


def ll_check(traffic: Traffic, rank: int, rows: Any, count: Any, handle: Any, round_scale: bool = False) -> Any:
    """Checks rows and their sources; gives the rows as numbers, and the places after them as zeros."""
    expected, tokens, spans = traffic.received_by_expert(rank)
    same(count, torch.tensor([len(each) for each in expected], dtype=torch.int32))
    same(handle[1], spans)
    assert handle[2:] == (BATCH, traffic.shape.hidden, traffic.shape.experts)
    found = torch.zeros((traffic.local, traffic.shape.ranks * BATCH, traffic.shape.hidden), dtype=traffic.shape.dtype)
    for expert, each in enumerate(expected):
        n = len(each)
        same(handle[0][expert, :n], tokens[expert])
        if isinstance(rows, tuple):
            q, scales = quantised(each, round_scale)
            same(rows[0][expert, :n], q)
            same(rows[1][expert, :n], exponents(scales) if rows[1].dtype == torch.int32 else scales)
            assert rows[1].stride(1) == 1
        else:
            same(rows[expert, :n], each)
        found[expert, :n] = each
    return found
