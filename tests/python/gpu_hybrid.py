# SPDX-License-Identifier: Apache-2.0
"""Parts of gpu_torch: `HybridEPBuffer` where PyTorch sees GPUs; but for graphs on the CPU, too."""

from __future__ import annotations

from typing import Any, Callable

from gpu_elastic import captured
from gpu_times import tell_held

Ranks = Any  # of torch.distributed


def hybrid(group: Ranks) -> None:
    """With and without permutation, waits and capacity, and with handles; calls as engines make them."""
    import warnings

    import deep_ep_hybrid_calls
    from deep_ep_hybrid_callers import CALLERS

    deep_ep_hybrid_calls.combinations(group, few=True)
    deep_ep_hybrid_calls.plain(group)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for caller in CALLERS:
            caller(group)


def hybrid_step(group: Ranks) -> None:
    """Training steps against the dense computation in double."""
    import torch.distributed as dist
    from deep_ep_hybrid_calls import buffer_of
    from deep_ep_hybrid_layer import training_steps
    from deep_ep_hybrid_reference import Hybrid, World

    size = dist.get_world_size(group)
    h = Hybrid(World(size, 2 * size, 32, 9, min(2 * size, 6)), 50 + size)
    training_steps(buffer_of(group, h), h)


def hybrid_graphs(group: Ranks) -> None:
    """A dispatch of a fixed capacity and its combine, captured once and launched with other tokens and experts. The
    flags of overflow are gathered in place."""
    import torch
    import torch.distributed as dist
    from deep_ep_hybrid_calls import buffer_of, Options, up
    from deep_ep_hybrid_reference import Hybrid, World
    from deep_ep_reference import same

    size = dist.get_world_size(group)
    world, tokens = World(size, 2 * size, 256, 12, 3), 12
    cases = [Hybrid(world, seed, [tokens] * size) for seed in range(31, 34)]
    buffer = buffer_of(group, cases[0])
    rank, needed = buffer.rank, [len(h.permuted(buffer.rank, 4)) for h in cases]
    capacity = up(sorted(needed)[1], 4)  # one of three may not fit
    x = torch.zeros((tokens, 256), dtype=torch.bfloat16, device="cuda")
    here = torch.zeros((tokens, 2 * size), dtype=torch.bool, device="cuda")
    probs = torch.zeros((tokens, 2 * size), device="cuda")
    answers = torch.zeros((capacity, 256), dtype=torch.bfloat16, device="cuda")
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")

    def step() -> Any:
        rows, given, _, counts, handle = buffer.dispatch_with_permute(
            hidden=x, routing_map=here, probs=probs, num_permuted_tokens=capacity, pad_multiple=4, non_blocking=True
        )
        flag.bitwise_or_(handle[-1])
        return rows, given, counts, handle, *buffer.combine_with_unpermute(hidden=answers, probs=given, handle=handle)

    graph, (rows, given, counts, handle, y, back) = captured(step)
    capacities: list[Any] = [None] * size
    dist.all_gather_object(capacities, capacity, group)
    for launch, h in enumerate((*cases, cases[0])):
        for place, values in zip((x, here, probs), (h.x[rank], h.maps[rank], h.probs[rank])):
            place.copy_(values)
        of_all = [h.answers(r, capacities[r], launch) for r in range(size)]
        answers.copy_(of_all[rank])
        flag.zero_()
        graph.replay()
        places = [h.places(r, 4, capacities[r]) for r in range(size)]
        there = torch.tensor(list(places[rank].values()), dtype=torch.int64)
        same(rows.cpu()[there], h.gathered(h.x, list(places[rank])))
        same(y, h.combined(rank, of_all, places))
        found = [torch.zeros(capacities[r]) for r in range(size)]
        for r in range(size):
            for row, at in places[r].items():
                found[r][at] = h.probs[row.source][row.token, row.expert]
        same(back, h.returned(rank, found, places))
        real = h.counts(rank, 4, capacity)
        same(counts, torch.tensor([up(count, 4) for count in real]))
        assert int(flag) == int(real != h.counts(rank, 4))
    torch.cuda.synchronize()


def hybrid_host_time(group: Ranks) -> None:
    """How long calls of `HybridEPBuffer` hold the host."""
    import torch
    import torch.distributed as dist
    from deep_ep_reference import here

    import deep_ep

    size = dist.get_world_size(group)
    buffer = deep_ep.HybridEPBuffer(group, 2048, 12, 2)
    x, idx = here(torch.randn((12, 2048)).bfloat16()), torch.arange(24).view(12, 2) % (size * 2)
    routing_map = here(torch.zeros((12, 2 * size), dtype=torch.bool).scatter(1, idx, True))
    probs = here(torch.rand((12, 2 * size)))
    given: dict[str, Any] = dict(hidden=x, routing_map=routing_map, probs=probs)
    topk: dict[str, Any] = dict(hidden=x, topk_idx=here(idx), topk_weights=probs[:, :2], num_of_experts=2 * size)
    fixed: dict[str, Any] = dict(num_permuted_tokens=64, non_blocking=True)
    rows, weights, _, _, handle = buffer.dispatch_with_permute(**given)
    calls: dict[str, Callable[[], Any]] = {
        "dispatch": lambda: buffer.dispatch_with_permute(**given),
        "dispatch, no wait": lambda: buffer.dispatch_with_permute(**given, **fixed),
        "dispatch, topk, no wait": lambda: buffer.dispatch_with_permute(**topk, **fixed),
        "dispatch, handle": lambda: buffer.dispatch_with_permute(hidden=x, handle=handle),
        "combine": lambda: buffer.combine_with_unpermute(hidden=rows, handle=handle),
        "combine, probs": lambda: buffer.combine_with_unpermute(hidden=rows, probs=weights, handle=handle),
    }
    tell_held(calls, x, "hybrid ", buffer.rank)


def replicas(group: Ranks) -> None:
    """Weights of experts to slots of other ranks, and gradients back, to the bit."""
    from deep_ep_replicas_calls import everything

    everything(group)


PARTS = (hybrid, hybrid_step, hybrid_graphs, hybrid_host_time, replicas)
