# SPDX-License-Identifier: Apache-2.0
"""Expected results of calls of `ElasticBuffer` on every rank, row by row from the definitions; shares nothing with
deep_ep.utils.refs."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn


class World(NamedTuple):
    """N ranks with E experts; M tokens a rank at most, K slots a token, A the alignment."""

    ranks: int
    experts: int
    topk: int
    hidden: int
    most: int  # M
    alignment: int = 1


class Row(NamedTuple):
    """A token that comes to a rank, or to one of its experts by that slot."""

    source: int
    token: int
    slot: int = -1


def up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


class Elastic:
    """The same on every rank that makes it with that seed."""

    def __init__(self, world: World, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.world = world
        self.local = world.experts // world.ranks
        self.tokens = [int(torch.randint(0, world.most + 1, (), generator=random)) for _ in range(world.ranks)]
        self.x, self.topk_idx, self.weights, self.fp8, self.scales, self.biases = [], [], [], [], [], []
        for tokens in self.tokens:
            rows = torch.randn((3, tokens, world.hidden), generator=random)
            self.x.append(rows[0].bfloat16())
            self.biases.append((rows[1].bfloat16(), rows[2].bfloat16()))
            self.fp8.append(rows[0].to(FP8))
            self.scales.append(torch.randn((3, tokens), generator=random).t())
            order = torch.rand((tokens, world.experts), generator=random).argsort(dim=1)
            idx = order[:, : world.topk].clone()
            idx[torch.rand(idx.shape, generator=random) < 0.25] = -1
            self.topk_idx.append(idx.contiguous())
            self.weights.append(torch.rand((tokens, world.topk), generator=random))
        self.experts: list[list[list[int]]] = [idx.tolist() for idx in self.topk_idx]

    # ---- rows --------------------------------------------------------------------------------------------------------

    def rank_of(self, source: int, token: int, slot: int) -> int:
        """-1 without an expert."""
        expert = self.experts[source][token][slot]
        return expert // self.local if expert >= 0 else -1

    def slots_at(self, source: int, token: int, rank: int) -> list[int]:
        return [k for k in range(self.world.topk) if self.rank_of(source, token, k) == rank]

    @functools.cache
    def plain(self, rank: int) -> list[Row]:
        return [
            Row(source, token)
            for source in range(self.world.ranks)
            for token in range(self.tokens[source])
            if self.slots_at(source, token, rank)
        ]

    @functools.cache
    def of_expert(self, rank: int, local: int) -> list[Row]:
        wanted = rank * self.local + local
        return [
            Row(row.source, row.token, k)
            for row in self.plain(rank)
            for k in self.slots_at(row.source, row.token, rank)
            if self.experts[row.source][row.token][k] == wanted
        ]

    @functools.cache
    def counts(self, rank: int) -> list[int]:
        return [len(self.of_expert(rank, local)) for local in range(self.local)]

    @functools.cache
    def aligned(self, rank: int) -> list[int]:
        return [up(count, self.world.alignment) for count in self.counts(rank)]

    @functools.cache
    def expanded(self, rank: int) -> list[Row | None]:
        """None for the rows of a gap."""
        rows: list[Row | None] = []
        for local, aligned in enumerate(self.aligned(rank)):
            rows += self.of_expert(rank, local)
            rows += [None] * (sum(self.aligned(rank)[: local + 1]) - len(rows))
        return rows

    def worst(self, expand: bool) -> int:
        world = self.world
        rows = world.ranks * world.most
        if not expand:
            return rows
        return up(rows * min(world.topk, self.local) + (world.alignment - 1) * self.local, world.alignment)

    # ---- what a dispatch tells ---------------------------------------------------------------------------------------

    @functools.cache
    def local_idx(self, rank: int) -> Tensor:
        rows = [
            [
                self.experts[row.source][row.token][k] - rank * self.local
                if self.rank_of(row.source, row.token, k) == rank
                else -1
                for k in range(self.world.topk)
            ]
            for row in self.plain(rank)
        ]
        return torch.tensor(rows, dtype=torch.int64).view(-1, self.world.topk)

    @functools.cache
    def metadata(self, rank: int, expand: bool) -> tuple[Tensor, Tensor]:
        """g of each row, and where its slots' rows are."""
        places = {row: place for place, row in enumerate(self.expanded(rank)) if row is not None}
        plain = self.plain(rank)
        g = torch.tensor([row.source * self.world.most + row.token for row in plain], dtype=torch.int32)
        where = [
            [places.get(Row(row.source, row.token, k), -1) if expand else -1 for k in range(self.world.topk)]
            for row in plain
        ]
        return g, torch.tensor(where, dtype=torch.int32).view(-1, self.world.topk)

    def ends(self, rank: int, expand: bool) -> list[int]:
        """psum_num_recv_tokens_per_expert"""
        found, end = [], 0
        for count in self.counts(rank):
            begin = up(end, self.world.alignment)
            end = begin + (count if expand else up(count, self.world.alignment))
            found.append(end)
        return found

    def from_ranks(self, rank: int, scaleup: int) -> list[int]:
        """Counts of rows from ranks 0..i of every `scaleup` ranks."""
        return [sum(row.source % scaleup <= source for row in self.plain(rank)) for source in range(scaleup)]

    # ---- combine -----------------------------------------------------------------------------------------------------

    def answers(self, rank: int, rows: int, seed: int) -> Tensor:
        """A rank's output for its rows, whatever they are. Large numbers cancel, so that every order of a sum gives
        another one."""
        random = torch.Generator().manual_seed(1000 * seed + rank)
        shape = (rows, self.world.hidden)
        large = torch.randint(-1, 2, shape, generator=random) * 2.0**24
        return (large + (large == 0) * torch.randn(shape, generator=random)).bfloat16()

    def back_weights(self, rank: int, shape: tuple[int, ...], seed: int) -> Tensor:
        random = torch.Generator().manual_seed(1000 * seed + rank + 500)
        return torch.rand(shape, generator=random)

    def combined(
        self,
        rank: int,
        answers: list[Tensor],
        expand: bool,
        reduces: bool,
        biases: tuple[Tensor, ...],
        nodes: int = 1,
    ) -> Tensor:
        """y of that rank's tokens; answers of all ranks. Of several nodes each has a sum, in order, and rounded; they
        follow each other by their highest slots. Where rows of all nodes are in one order that is 1."""
        places, each = self._places(expand), self.world.ranks // nodes
        y = torch.zeros((self.tokens[rank], self.world.hidden), dtype=torch.bfloat16)
        for token in range(self.tokens[rank]):
            total = torch.zeros(self.world.hidden)
            for bias in biases:
                total = total + bias[token].float()
            of_nodes: dict[int, Tensor] = {}
            for r, row in self._rows_in_order(rank, token, answers, places, expand, reduces):
                if nodes == 1:
                    total = total + row
                else:  # a node stands where its last row does
                    of_nodes[r // each] = of_nodes.pop(r // each, torch.zeros(self.world.hidden)) + row
            for part in of_nodes.values():
                total = total + part.bfloat16().float()
            y[token] = total.bfloat16()
        return y

    @functools.cache
    def _places(self, expand: bool) -> list[dict[Row, int]]:
        ranks = range(self.world.ranks)
        if expand:
            return [{row: i for i, row in enumerate(self.expanded(rank)) if row is not None} for rank in ranks]
        return [{row: i for i, row in enumerate(self.plain(rank))} for rank in ranks]

    def _rows_in_order(
        self, rank: int, token: int, answers: list[Tensor], places: Any, expand: bool, reduces: bool
    ) -> list[tuple[int, Tensor]]:
        """The rows of a token, each with its rank, in the order of the sum."""
        by_slot = [(k, self.rank_of(rank, token, k)) for k in range(self.world.topk)]
        if expand and not reduces:
            return [(r, answers[r][places[r][Row(rank, token, k)]].float()) for k, r in by_slot if r >= 0]
        found = []
        for highest, r in sorted((max(k for k, o in by_slot if o == r), r) for r in {o for _, o in by_slot if o >= 0}):
            if not expand:
                found.append((r, answers[r][places[r][Row(rank, token)]].float()))
                continue
            part = torch.zeros(self.world.hidden)
            for k in self.slots_at(rank, token, r):
                part = part + answers[r][places[r][Row(rank, token, k)]].float()
            found.append((r, part.bfloat16().float()))
        return found

    def combined_weights(self, rank: int, given: list[Tensor], expand: bool) -> Tensor:
        """Weights that the owner of each slot gave for it."""
        places = self._places(expand)
        found = torch.zeros((self.tokens[rank], self.world.topk))
        for token in range(self.tokens[rank]):
            for k in range(self.world.topk):
                r = self.rank_of(rank, token, k)
                if r >= 0 and expand:
                    found[token, k] = given[r][places[r][Row(rank, token, k)]]
                elif r >= 0:
                    found[token, k] = given[r][places[r][Row(rank, token)], k]
        return found
