# SPDX-License-Identifier: Apache-2.0
"""Weights of experts to replicas, and gradients back, each against the definition to the bit: bodies for ranks."""

from __future__ import annotations

from typing import Any

import torch
from deep_ep_reference import here, same

from deep_ep._elastic_sizes import group_for
from deep_ep._replicas import Replicas
from deep_ep.utils.event import EventHandle

EXPERTS = 3  # of a rank


def _random(seed: int, *shape: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random)


def mapping_of(each: int, slots: int, seed: int, one: int | None = None) -> torch.Tensor:
    """Experts of the node, own ones and several slots of one among them; some slots are empty. one: that expert in all
    slots."""
    random = torch.Generator().manual_seed(seed)
    found = torch.randint(-1, each * EXPERTS, (each, slots), generator=random, dtype=torch.int32)
    return torch.full_like(found, one) if one is not None else found


def _memory(*tensors: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Storage, and the tensors in it, one after the other."""
    storage = here(torch.zeros(sum(each.numel() * each.element_size() for each in tensors) + 64, dtype=torch.uint8))
    at, found = 0, []
    for each in tensors:
        size = each.numel() * each.element_size()
        found.append(storage[at : at + size].view(each.dtype).view(each.shape))
        found[-1].copy_(each)
        at += size
    return storage, found


def prefetched(key: Any, sizes: tuple[tuple[int, ...], ...], slots: int, seed: int, one: int | None = None) -> None:
    """Weights and scales of several types and shapes in one call."""
    group = group_for(key)
    each, base = group.ranks_per_node, group.node * group.ranks_per_node
    mapping = mapping_of(each, slots, seed + group.node, one)
    dtypes = (torch.bfloat16, torch.float32, torch.uint8)
    weights = [
        [_random(100 * r + i, EXPERTS, *size).mul(9).to(dtypes[i % 3]) for i, size in enumerate(sizes)]
        for r in range(group.size)
    ]
    before = [_random(7 + i, slots, *size).mul(9).to(dtypes[i % 3]) for i, size in enumerate(sizes)]
    storage, to = _memory(*before)
    mine = [here(each) for each in weights[group.rank]]
    moved = Replicas(group, storage)
    for previous in (None, EventHandle()):
        for given, of in ((to, mine), (to[0], mine[0])):
            event = moved.prefetch(given, of, here(mapping), previous)
            assert event.current_stream_wait() is None
            for i in range(len(given) if isinstance(given, list) else 1):
                wanted = before[i].clone()
                for c, expert in enumerate(mapping[group.local_rank].tolist()):
                    if expert >= 0:
                        wanted[c] = weights[base + expert // EXPERTS][i][expert % EXPERTS]
                same(to[i], wanted)
            for i, each_of in enumerate(weights[group.rank]):
                same(mine[i], each_of)


def reduced(key: Any, hidden: int, slots: int, seed: int, one: int | None = None) -> None:
    """One addition for each slot, by rank, then slot. Large numbers cancel, and zeros have signs."""
    group = group_for(key)
    each, base = group.ranks_per_node, group.node * group.ranks_per_node
    mapping = mapping_of(each, slots, seed + group.node, one)
    redundant = [_random(300 + r, slots, hidden) * 2.0 ** (24 * (r % 2)) for r in range(group.size)]
    grads = [_random(400 + r, EXPERTS, hidden) for r in range(group.size)]
    for tensor in (*redundant, *grads):
        tensor[:, :2] = -0.0
    storage, (slot_grads,) = _memory(redundant[group.rank])
    own = here(grads[group.rank].clone())
    event = Replicas(group, storage).reduce(slot_grads, own, here(mapping), None)
    event.current_stream_wait()
    wanted = grads[group.rank].clone()
    for r in range(each):
        for c, expert in enumerate(mapping[r].tolist()):
            if expert >= 0 and expert // EXPERTS == group.local_rank:
                wanted[expert % EXPERTS] += redundant[base + r][c]
    same(own, wanted)
    same(slot_grads, redundant[group.rank])


def first_node_alone(key: Any) -> None:
    """Ranks of the first node call, and no other rank does."""
    group = group_for(key)
    storage, (slots,) = _memory(torch.zeros(1, 8))
    moved = Replicas(group, storage)
    if group.node == 0:
        mapping = torch.full((group.ranks_per_node, 1), EXPERTS * group.ranks_per_node - 1, dtype=torch.int32)
        weights = here(torch.full((EXPERTS, 8), float(group.local_rank)))
        moved.prefetch(slots, weights, here(mapping), None).current_stream_wait()
        same(slots, torch.full((1, 8), float(group.ranks_per_node - 1)))
    group.barrier()
    moved.close()


def everything(key: Any) -> None:
    prefetched(key, ((8, 4), (8,), (16,)), 4, 5)
    prefetched(key, ((8, 4), (4,), (32,)), 1, 6)
    prefetched(key, ((3, 8192), (8,)), 3, 7)  # several rows an expert
    prefetched(key, ((24,),), 2, 8, one=1)
    prefetched(key, ((24,),), 2, 8, one=-1)
    reduced(key, 8, 4, 9)
    reduced(key, 8192, 3, 10)
    reduced(key, 8, 2, 11, one=2)
    reduced(key, 8, 2, 11, one=-1)
