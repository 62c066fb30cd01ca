# SPDX-License-Identifier: Apache-2.0
"""Traffic of all ranks, and what dispatch and combine must give, by NumPy from the definitions alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy

Array = Any  # of NumPy's


class Shape(NamedTuple):
    ranks: int
    experts: int  # E, a multiple of the ranks
    topk: int
    hidden: int
    tokens: int  # T of a rank: 0 to this
    dtype: str  # "f32", "f16", "bf16" (its bits, as uint16)
    index: str = "int64"


def to_float(values: Array, dtype: str) -> Array:
    if dtype == "bf16":
        return (values.astype("uint32") << 16).view("float32")
    return values.astype("float32")


def bits(tensor: Any) -> Array:
    """Its memory without ml_dtypes' types: bfloat16 as uint16, float8 as uint8."""
    return numpy.asarray(tensor)


def from_float(values: Array, dtype: str) -> Array:
    """Rounded to nearest even."""
    if dtype != "bf16":
        return values.astype({"f32": "float32", "f16": "float16"}[dtype])
    bits = values.astype("float32").view("uint32")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("uint16")


class Traffic:
    """The same on every rank that makes it with that seed. distinct: no expert stands twice in a token."""

    def __init__(self, shape: Shape, seed: int, distinct: bool = False) -> None:
        random = numpy.random.default_rng(seed)
        self.shape = shape
        self.local = shape.experts // shape.ranks
        self.x, self.topk_idx, self.weights = [], [], []
        for _ in range(shape.ranks):
            tokens = int(random.integers(0, shape.tokens + 1))
            self.x.append(from_float(random.standard_normal((tokens, shape.hidden)), shape.dtype))
            experts = random.integers(0, shape.experts, (tokens, shape.topk))
            if distinct:
                experts = numpy.argsort(random.random((tokens, shape.experts)), axis=1)[:, : shape.topk]
            experts[random.random(experts.shape) < 0.2] = -1
            self.topk_idx.append(experts.astype(shape.index))
            self.weights.append(random.random((tokens, shape.topk), "float32"))

    def goes_to(self, source: int, rank: int) -> Array:
        """bool [T]"""
        return ((self.topk_idx[source] >= 0) & (self.topk_idx[source] // self.local == rank)).any(axis=1)

    def received(self, rank: int) -> tuple[Array, Array, Array, Array]:
        """x, topk_idx, weights and source tokens of that rank, by source, then token."""
        parts = []
        for source in range(self.shape.ranks):
            tokens = numpy.flatnonzero(self.goes_to(source, rank))
            experts = self.topk_idx[source][tokens]
            here = (experts >= 0) & (experts // self.local == rank)
            local = numpy.where(here, experts - rank * self.local, -1).astype(self.shape.index)
            weights = numpy.where(here, self.weights[source][tokens], 0).astype("float32")
            parts.append((self.x[source][tokens], local, weights, tokens.astype("int32")))
        x, experts, weights, tokens = (numpy.concatenate(each) for each in zip(*parts))
        return x, experts, weights, tokens

    def per_expert(self, rank: int, alignment: int = 1) -> list[int]:
        """[L], rounded up."""
        experts = self.received(rank)[1]
        counts = [int((experts == e).sum()) for e in range(self.local)]
        return [-(-count // alignment) * alignment for count in counts]

    def answer(self, rank: int, rows: Array) -> Array:
        """The output of rank's experts for rows."""
        return from_float(to_float(rows, self.shape.dtype) * numpy.float32(rank + 1.5), self.shape.dtype)

    def combined(self, rank: int, biases: list[Array] | None = None) -> tuple[Array, Array]:
        """y and weights of that rank's tokens: FP32 from 0, biases first, ranks ascending, rounded once."""
        y = numpy.zeros(self.x[rank].shape, "float32")
        weights = numpy.zeros(self.weights[rank].shape, "float32")
        for bias in biases or []:
            y += to_float(bias, self.shape.dtype)
        for other in range(self.shape.ranks):
            tokens = self.goes_to(rank, other)
            y[tokens] += to_float(self.answer(other, self.x[rank][tokens]), self.shape.dtype)
            here = (self.topk_idx[rank] >= 0) & (self.topk_idx[rank] // self.local == other)
            weights += numpy.where(here, self.weights[rank], 0).astype("float32")
        return from_float(y, self.shape.dtype), weights

    def expert_major(self, rank: int, alignment: int) -> tuple[Array, Array]:
        """Row of each slot [R, K], -1 for none; and source row (in `received`) of each of these rows."""
        experts = self.received(rank)[1]
        rows = numpy.full(experts.shape, -1, "int32")
        counts = self.per_expert(rank, alignment)
        sources = numpy.full(sum(counts), -1)
        for expert in range(self.local):
            begin = sum(counts[:expert])
            for index, (token, slot) in enumerate(zip(*numpy.nonzero(experts == expert))):
                rows[token, slot] = begin + index
                sources[begin + index] = token
        return rows, sources

    # ---- low latency: no expert stands twice in a token --------------------------------------------------------------

    def received_by_expert(self, rank: int) -> tuple[list[Array], list[Array], Array]:
        """For each local expert its rows and their tokens, by source, then token; and [L, N] how many of each
        source."""
        rows, tokens = [], []
        counts = numpy.zeros((self.local, self.shape.ranks), "int64")
        for expert in range(self.local):
            chosen = [
                numpy.flatnonzero((experts == rank * self.local + expert).any(axis=1)) for experts in self.topk_idx
            ]
            counts[expert] = [len(each) for each in chosen]
            rows.append(numpy.concatenate([x[each] for x, each in zip(self.x, chosen)]))
            tokens.append(numpy.concatenate(chosen))
        return rows, tokens, counts

    def weighted(self, rank: int, reduced: bool) -> Array:
        """y of that rank's tokens. Exact: slots ascending, FP32, product and addition each rounded. Reduced: so on each
        rank, rounded to the dtype; then ranks ascending."""
        dtype, experts = self.shape.dtype, self.topk_idx[rank]
        y = numpy.zeros(self.x[rank].shape, "float32")
        for others in ([r] for r in range(self.shape.ranks)) if reduced else [range(self.shape.ranks)]:
            part = numpy.zeros_like(y)
            for slot in range(self.shape.topk):
                for other in others:
                    here = (experts[:, slot] >= 0) & (experts[:, slot] // self.local == other)
                    answer = to_float(self.answer(other, self.x[rank][here]), dtype)
                    part[here] += self.weights[rank][here, slot, None] * answer
            y += to_float(from_float(part, dtype), dtype) if reduced else part
        return from_float(y, dtype)
