# SPDX-License-Identifier: Apache-2.0
"""Expected results of calls of `HybridEPBuffer` on every rank, row by row from the definitions."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn


class World(NamedTuple):
    """N ranks with E experts; T is at most `most`. topk: the most experts of a token; 0: any number."""

    ranks: int
    experts: int
    hidden: int
    most: int
    topk: int = 0
    nodes: int = 1


class Row(NamedTuple):
    """A token at an expert, or at a rank (expert -1)."""

    source: int
    token: int
    expert: int = -1


def up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


class Hybrid:
    """The same on every rank that makes it with that seed. tokens: T of each rank, drawn if not given."""

    def __init__(self, world: World, seed: int, tokens: list[int] | None = None) -> None:
        random = torch.Generator().manual_seed(seed)
        self.world, self.local = world, world.experts // world.ranks
        drawn = [int(torch.randint(0, world.most + 1, (), generator=random)) for _ in range(world.ranks)]
        self.tokens = drawn if tokens is None else tokens
        self.x, self.fp8, self.scales, self.maps, self.probs, self.topk_idx, self.weights = [], [], [], [], [], [], []
        for count in self.tokens:
            x = torch.randn((count, world.hidden), generator=random)
            self.x.append(x.bfloat16())
            self.fp8.append(x.to(FP8))
            self.scales.append(torch.rand((count, max(world.hidden // 128, 1)), generator=random))
            self._draw_routing(count, random)

    def _draw_routing(self, count: int, random: torch.Generator) -> None:
        """Some tokens have no expert, one has all. topk_idx is in any order, with gaps."""
        world = self.world
        scores = torch.rand((count, world.experts), generator=random)
        if world.topk:
            idx = scores.argsort(dim=1)[:, : world.topk].clone()
            idx[torch.rand(idx.shape, generator=random) < 0.25] = -1
        else:
            idx = torch.where(scores < torch.rand((count, 1), generator=random), torch.arange(world.experts), -1)
            idx[:1] = torch.arange(world.experts)
        weights = torch.rand(idx.shape, generator=random) + 0.5
        here, probs = torch.zeros_like(scores, dtype=torch.bool), torch.rand(scores.shape, generator=random)
        for token, slot in (idx >= 0).nonzero().tolist():
            here[token, idx[token, slot]] = True
            probs[token, idx[token, slot]] = weights[token, slot]
        self.maps.append(here)
        self.probs.append(probs)  # numbers also where the map is not set
        self.topk_idx.append(idx.contiguous())
        self.weights.append(weights.contiguous())

    # ---- permuted rows -----------------------------------------------------------------------------------------------

    @functools.cache
    def of_expert(self, expert: int) -> list[Row]:
        """By source rank, then token."""
        ranks = range(self.world.ranks)
        return [Row(r, t, expert) for r in ranks for t in range(self.tokens[r]) if self.maps[r][t, expert]]

    @functools.cache
    def permuted(self, rank: int, pad: int) -> list[Row | None]:
        """None for rows that pad."""
        rows: list[Row | None] = []
        for expert in range(rank * self.local, (rank + 1) * self.local):
            rows += self.of_expert(expert)
            rows += [None] * (up(len(rows), pad) - len(rows))
        return rows

    def counts(self, rank: int, pad: int, capacity: int | None = None) -> list[int]:
        """Real counts, cut by the capacity."""
        found, begin = [], 0
        for expert in range(rank * self.local, (rank + 1) * self.local):
            count = len(self.of_expert(expert))
            found.append(count if capacity is None else min(count, max(0, capacity - begin)))
            begin += up(count, pad)
        return found

    @functools.cache
    def places(self, rank: int, pad: int, capacity: int) -> dict[Row, int]:
        """Where rows are that were not dropped."""
        return {row: at for at, row in enumerate(self.permuted(rank, pad)[:capacity]) if row is not None}

    # ---- rows of ranks -----------------------------------------------------------------------------------------------

    @functools.cache
    def plain(self, rank: int) -> list[Row]:
        """One for each token with an expert on the rank."""
        mine = slice(rank * self.local, (rank + 1) * self.local)
        ranks = range(self.world.ranks)
        return [Row(r, t) for r in ranks for t in range(self.tokens[r]) if self.maps[r][t, mine].any()]

    def gathered(self, of_ranks: list[Tensor], rows: list[Row]) -> Tensor:
        found = [of_ranks[row.source][row.token] for row in rows]
        return torch.stack(found) if found else of_ranks[0].new_empty((0, *of_ranks[0].shape[1:]))

    # ---- sums --------------------------------------------------------------------------------------------------------

    def answers(self, rank: int, rows: int, seed: int) -> Tensor:
        """Rows that a rank gives back. Large numbers cancel, so that every order of a sum gives another one."""
        random = torch.Generator().manual_seed(1000 * seed + rank)
        shape = (rows, self.world.hidden)
        large = torch.randint(-1, 2, shape, generator=random) * 2.0**24
        return (large + (large == 0) * torch.randn(shape, generator=random)).bfloat16()

    def _of_rank(self, source: int, token: int, rank: int, answers: Tensor, places: dict[Row, int]) -> Tensor | None:
        """A rank's rounded sum of a token's rows, experts ascending; None without a row."""
        total, any_row = torch.zeros(self.world.hidden), False
        for expert in range(rank * self.local, (rank + 1) * self.local):
            at = places.get(Row(source, token, expert))
            if at is not None:
                total, any_row = total + answers[at].float(), True
        return total.bfloat16().float() if any_row else None

    def combined(self, rank: int, answers: list[Tensor], places: list[dict[Row, int]] | None = None) -> Tensor:
        """y of that rank's tokens. Without places rows are those of `plain`. The own node's ranks ascend, unrounded.
        The rounded sums of the nodes before it follow, and around."""
        nodes = self.world.nodes
        each, own = self.world.ranks // nodes, rank // (self.world.ranks // nodes)
        plain = [{row: at for at, row in enumerate(self.plain(r))} for r in range(self.world.ranks)]
        y = torch.zeros((self.tokens[rank], self.world.hidden), dtype=torch.bfloat16)
        for token in range(self.tokens[rank]):
            total = torch.zeros(self.world.hidden)
            for step in range(nodes):
                node = (own - step) % nodes
                part = torch.zeros(self.world.hidden) if step else total
                for r in range(node * each, (node + 1) * each):
                    if places is not None:
                        found = self._of_rank(rank, token, r, answers[r], places[r])
                    else:
                        at = plain[r].get(Row(rank, token))
                        found = None if at is None else answers[r][at].float()
                    part = part if found is None else part + found
                total = total + part.bfloat16().float() if step else part
            y[token] = total.bfloat16()
        return y

    def returned(self, rank: int, given: list[Tensor], places: list[dict[Row, int]]) -> Tensor:
        """The probs of rows, back at their tokens and experts: [T, E]."""
        found = torch.zeros((self.tokens[rank], self.world.experts))
        for r in range(self.world.ranks):
            for row, at in places[r].items():
                if row.source == rank:
                    found[row.token, row.expert] = given[r][at]
        return found


def floats(rank: int, rows: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(5000 * seed + rank)
    return torch.rand((rows,), generator=random) - 0.5


