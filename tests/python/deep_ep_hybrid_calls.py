# SPDX-License-Identifier: Apache-2.0
"""Calls of `HybridEPBuffer` with all their options, each against the reference: bodies for ranks."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
from deep_ep_hybrid_reference import floats, Hybrid, Row, up, World
from deep_ep_reference import here, indexable, same

import deep_ep


class Options(NamedTuple):
    """capacity: rows of a result, in those that come: none is given, as many, fewer, or more. dense: a map is given,
    not topk_idx."""

    pad: int | None = None
    dense: bool = True
    probs: bool = True
    fp8: bool = False
    non_blocking: bool = False
    capacity: str | None = None

    @property
    def alignment(self) -> int:
        return self.pad or 1


def buffer_of(group: Any, h: Hybrid, **options: Any) -> Any:
    return deep_ep.HybridEPBuffer(group, h.world.hidden, h.world.most, h.local, **options)


def capacity_of(h: Hybrid, rank: int, options: Options) -> int | None:
    needed, pad = len(h.permuted(rank, options.alignment)), options.alignment
    if options.capacity is None:
        return None
    return {"exact": needed, "half": up(needed // 2, pad), "none": 0, "more": needed + 3 * pad}[options.capacity]


def rows_of(h: Hybrid, rank: int, options: Options) -> int:
    given = capacity_of(h, rank, options)
    return len(h.permuted(rank, options.alignment)) if given is None else given


def places_of(h: Hybrid, options: Options) -> list[dict[Row, int]]:
    return [h.places(r, options.alignment, rows_of(h, r, options)) for r in range(h.world.ranks)]


def payload(h: Hybrid, rank: int, options: Options) -> dict[str, Any]:
    if options.fp8:
        return dict(hidden=here(h.fp8[rank]), scaling_factor=here(h.scales[rank]), use_fp8=True)
    return dict(hidden=here(h.x[rank]), scaling_factor=None)


def routing(h: Hybrid, rank: int, options: Options) -> dict[str, Any]:
    """The arguments that say where tokens go."""
    if options.dense:
        return dict(routing_map=here(h.maps[rank]), probs=here(h.probs[rank]) if options.probs else None)
    weights = here(h.weights[rank]) if options.probs else None
    return dict(topk_idx=here(h.topk_idx[rank]), topk_weights=weights, num_of_experts=h.world.experts)


def check_rows(h: Hybrid, rank: int, options: Options, found: Any, probs: Any, scales: Any) -> None:
    """Rows that came, and zeros where they pad."""
    many, pad = rows_of(h, rank, options), options.alignment
    x = h.fp8 if options.fp8 else h.x
    assert found.shape == (many, h.world.hidden) and found.dtype == x[0].dtype, (found.shape, many)
    assert found.is_contiguous()
    expected = h.permuted(rank, pad)[:many]
    at = torch.tensor([place for place, row in enumerate(expected) if row is not None], dtype=torch.int64)
    gaps = torch.tensor([place for place, row in enumerate(expected) if row is None], dtype=torch.int64)
    there = [row for row in expected if row is not None]
    found = indexable(found).cpu()
    same(found[at], h.gathered([indexable(each) for each in x], there))
    assert not found[gaps].view(torch.uint8).any()
    assert (probs is not None) == options.probs and (scales is not None) == options.fp8
    if probs is not None:
        assert probs.shape == (many,) and probs.dtype == torch.float32
        experts = torch.tensor([row.expert for row in there], dtype=torch.int64)
        same(probs.cpu()[at], h.gathered(h.probs, there).gather(1, experts[:, None])[:, 0])
        assert not probs.cpu()[gaps].any()
    if scales is not None:
        assert scales.shape == (many, h.scales[0].shape[1]) and scales.is_contiguous()
        same(scales.cpu()[at], h.gathered(h.scales, there))
        assert not scales.cpu()[gaps].any()


def check_counts(h: Hybrid, rank: int, options: Options, per_expert: Any, handle: Any) -> None:
    cut = capacity_of(h, rank, options) if options.non_blocking else None
    real = h.counts(rank, options.alignment, cut)
    same(per_expert, torch.tensor([up(count, options.alignment) for count in real]))
    if not options.non_blocking:
        assert per_expert.is_cpu and handle[3].is_cpu
    assert isinstance(handle, tuple) and len(handle) == 11
    same(handle[3], torch.tensor([len(h.plain(rank))], dtype=torch.int32))
    same(handle[7], torch.tensor(real, dtype=torch.int32))
    assert handle[8] == h.tokens[rank]
    config = handle[9]
    assert isinstance(config, deep_ep.HybridEpConfigInstance)
    assert (config.hidden_dim, config.num_of_experts_per_rank) == (h.world.hidden, h.local)
    assert config.pad_multiple == options.pad
    assert config.max_num_of_tokens_per_rank >= h.tokens[rank]
    same(handle[-1], torch.tensor([int(real != h.counts(rank, options.alignment))], dtype=torch.int32))


def dispatch(buffer: Any, h: Hybrid, options: Options, **others: Any) -> tuple[Any, tuple[Any, ...]]:
    """A fresh one, with all that it gives. Returns rows and handle."""
    rank = buffer.rank
    found, probs, scales, per_expert, handle = buffer.dispatch_with_permute(
        **payload(h, rank, options),
        **routing(h, rank, options),
        pad_multiple=options.pad,
        num_permuted_tokens=capacity_of(h, rank, options),
        non_blocking=options.non_blocking,
        **others,
    )
    check_rows(h, rank, options, found, probs, scales)
    check_counts(h, rank, options, per_expert, handle)
    return found, handle


def combine(buffer: Any, h: Hybrid, options: Options, handle: Any, seed: int) -> None:
    """Rows that pad, and those after the last one, may hold anything."""
    rank, places = buffer.rank, places_of(h, options)
    answers = [h.answers(r, rows_of(h, r, options), seed) for r in range(h.world.ranks)]
    given = [floats(r, rows_of(h, r, options), seed) for r in range(h.world.ranks)]
    mine, probs = answers[rank].clone(), given[rank].clone()
    named = torch.zeros(len(mine), dtype=torch.bool)
    named[list(places[rank].values())] = True
    mine[~named], probs[~named] = float("nan"), float("nan")
    y, back = buffer.combine_with_unpermute(
        hidden=here(mine), probs=here(probs), handle=handle, pad_multiple=options.pad
    )
    same(y, h.combined(rank, answers, places))
    same(back, h.returned(rank, given, places))
    assert y.is_contiguous() and back.is_contiguous()
    y, back = buffer.combine_with_unpermute(hidden=here(mine), handle=handle)
    same(y, h.combined(rank, answers, places))
    assert back is None


def again(buffer: Any, h: Hybrid, options: Options, handle: Any) -> None:
    """With the handle: the same places and drops, without routing."""
    rank = buffer.rank
    for probs in (None, here(h.probs[rank])):
        rows = rows_of(h, rank, options)
        found, weights, scales, per_expert, same_handle = buffer.dispatch_with_permute(
            **payload(h, rank, options), probs=probs, handle=handle, num_permuted_tokens=rows, pad_multiple=options.pad
        )
        check_rows(h, rank, options._replace(probs=probs is not None), found, weights, scales)
        check_counts(h, rank, options, per_expert, same_handle)
        assert all(one is other for one, other in zip(handle, same_handle))
    found, *_ = buffer.dispatch_with_permute(**payload(h, rank, options), handle=handle)
    check_rows(h, rank, options._replace(probs=False), found, None, scales)


def exchange(buffer: Any, h: Hybrid, options: Options, seed: int, **others: Any) -> None:
    _, handle = dispatch(buffer, h, options, **others)
    combine(buffer, h, options, handle, seed)
    again(buffer, h, options, handle)


def all_options(few: bool = False) -> list[Options]:
    found = []
    for pad, dense, probs, fp8 in itertools.product((None, 4), (True, False), (True, False), (False, True)):
        for non_blocking, capacity in (
            (False, None), (False, "exact"), (False, "more"), (True, "exact"), (True, "half"), (True, "none"), (True, "more")
        ):  # fmt: skip
            found.append(Options(pad, dense, probs, fp8, non_blocking, capacity))
    return found[::9] if few else found


def combinations(group: Any, few: bool = False) -> None:
    """All options, with and without tokens on a rank, with any number of experts a token and with topk."""
    size = group.size() if hasattr(group, "size") and callable(group.size) else group.Get_size()
    h = Hybrid(World(size, 3 * size, 128, 9, 2), 21)
    buffer = buffer_of(group, h)
    for number, options in enumerate(all_options(few)):
        topk = 0 if options.dense and number % 2 else 2
        exchange(buffer, Hybrid(World(size, 3 * size, 128, 9, topk), 30 + number % 5), options, number)
    uneven = Hybrid(World(size, size, 128, 9, 1), 77, [0 if r % 2 else 9 for r in range(size)])
    for options in (Options(), Options(4, non_blocking=True, capacity="half")):
        exchange(buffer, uneven, options, 3)


def plain(group: Any) -> None:
    """dispatch and combine, with and without probs, by a map and by topk_idx, and with a handle."""
    size = group.size() if hasattr(group, "size") and callable(group.size) else group.Get_size()
    for fp8, dense, probs in itertools.product((False, True), repeat=3):
        h = Hybrid(World(size, 2 * size, 128, 9, 0 if dense else 2), 40 + dense)
        exchange_plain(buffer_of(group, h, use_fp8=fp8), h, Options(dense=dense, probs=probs, fp8=fp8))


def exchange_plain(buffer: Any, h: Hybrid, options: Options) -> None:
    rank, rows = buffer.rank, h.plain(buffer.rank)
    given = payload(h, rank, options)
    given.pop("use_fp8", None)
    found, probs, scales, handle = buffer.dispatch(**given, **routing(h, rank, options))
    check_plain(buffer, h, options, found, probs, scales)
    assert isinstance(handle, tuple) and len(handle) == 7 and handle[5] == h.tokens[rank]
    same(handle[3], torch.tensor([len(rows)], dtype=torch.int32))
    first = rank * h.local
    same(handle[4][: len(rows)], h.gathered(h.maps, rows)[:, first : first + h.local])
    combine_plain(buffer, h, handle)
    number = dict(num_of_experts=h.world.experts)
    again = buffer.dispatch(**given, handle=handle, probs=here(h.probs[rank]), **number)
    check_plain(buffer, h, options._replace(probs=True), *again[:3])
    assert again[3] is handle
    check_plain(buffer, h, options._replace(probs=False), *buffer.dispatch(**given, handle=handle, **number)[:3])


def check_plain(buffer: Any, h: Hybrid, options: Options, found: Any, probs: Any, scales: Any) -> None:
    rows = h.plain(buffer.rank)
    same(indexable(found), h.gathered([indexable(each) for each in (h.fp8 if options.fp8 else h.x)], rows))
    assert (probs is not None) == options.probs and (scales is not None) == options.fp8
    if scales is not None:
        same(scales, h.gathered(h.scales, rows))
    if probs is not None:
        many = h.local * buffer.num_of_hybrid_ep_ranks_per_nvlink_domain
        node = slice(buffer.node_rank * many, (buffer.node_rank + 1) * many)
        masked = [torch.where(here, of_rank, 0.0) for here, of_rank in zip(h.maps, h.probs)]
        same(probs, h.gathered(masked, rows)[:, node])


def combine_plain(buffer: Any, h: Hybrid, handle: Any) -> None:
    """Probs of a token at a rank are 1 for each expert of it, so their sum says where it was."""
    rank, many = buffer.rank, h.local * buffer.num_of_hybrid_ep_ranks_per_nvlink_domain
    answers = [h.answers(r, len(h.plain(r)), 8) for r in range(h.world.ranks)]
    probs = torch.zeros((len(answers[rank]), many))
    own = buffer.local_rank * h.local
    probs[:, own : own + h.local] = h.gathered(h.probs, h.plain(rank))[:, rank * h.local : (rank + 1) * h.local]
    y, back = buffer.combine(here(answers[rank]), here(probs), handle)
    same(y, h.combined(rank, answers))
    mine = h.maps[rank].view(-1, h.world.ranks, h.local).any(2, keepdim=True)
    there = mine.expand(-1, -1, h.local).reshape(h.maps[rank].shape)
    same(back, torch.where(there, h.probs[rank], 0.0))
    y, back = buffer.combine(hidden=here(answers[rank]), handle=handle)
    same(y, h.combined(rank, answers))
    assert back is None
