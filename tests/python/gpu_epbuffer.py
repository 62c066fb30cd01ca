# SPDX-License-Identifier: Apache-2.0
"""Parts of gpu_torch: `EPBuffer`, and low-latency rows of later branches, where PyTorch sees GPUs; but for streams and
graphs on the CPU, too."""

from __future__ import annotations

from typing import Any, Callable

from gpu_elastic import captured
from gpu_times import tell_held

Ranks = Any  # of torch.distributed


def epbuffer(group: Ranks) -> None:
    """Combinations of options, deferred and not."""
    import deep_ep_epbuffer_calls as calls

    calls.every_combination(group, few=True, shapes=1)


def epbuffer_news(group: Ranks) -> None:
    """Tests pending calls in any order, late biases, handles that know of changes, and events."""
    import deep_ep_epbuffer_calls as calls

    for body in calls.EVERYWHERE:
        if body is not calls.trained:
            body(group)


def epbuffer_step(group: Ranks) -> None:
    """A training step by functions of autograd against the dense computation in double."""
    import deep_ep_epbuffer_calls as calls

    calls.trained(group)


def epbuffer_streams(group: Ranks) -> None:
    """Deferred calls after slow work of their stream; waits on another stream, which writes the biases late."""
    import itertools

    import torch
    import torch.distributed as dist
    from deep_ep_elastic_calls import Options, check_rows, dispatch
    from deep_ep_elastic_reference import Elastic, World
    from deep_ep_epbuffer_calls import ASIDE, answers_of, form_of
    from deep_ep_reference import here, same

    import deep_ep

    size = dist.get_world_size(group)
    e = Elastic(World(size, 2 * size, 3, 512, 64, 4), 11)
    buffer = deep_ep.EPBuffer(group, num_max_tokens_per_rank=64, hidden=512)
    rank = buffer.rank_idx
    handle = dispatch(buffer, e, Options())[2]  # kernels are there
    mine, of_all = answers_of(e, handle, rank, False, 3)
    wanted = e.combined(rank, of_all, False, True, (e.biases[rank][0],))
    same(buffer.combine(mine, handle, bias=here(e.biases[rank][0]), **ASIDE).wait()[0], wanted)
    source, idx, other = here(e.x[rank]), here(e.topk_idx[rank]), torch.cuda.Stream()
    for on_other, synced in itertools.product((False, True), repeat=2):
        x, rows = torch.full_like(source, -3.0), torch.full_like(mine, -3.0)
        bias = torch.full_like(source, -3.0)
        torch.cuda.synchronize()
        torch.cuda._sleep(20_000_000)
        x.copy_(source)
        event = buffer.dispatch(x, idx, **form_of(e), **ASIDE, do_cpu_sync=synced)
        torch.cuda._sleep(20_000_000)
        rows.copy_(mine)
        sums = buffer.combine(rows, handle, bias=bias, **ASIDE)
        with torch.cuda.stream(other if on_other else torch.cuda.current_stream()):
            check_rows(e, rank, Options(synced=synced), event.wait()[0], None)
            torch.cuda._sleep(20_000_000)
            bias.copy_(here(e.biases[rank][0]))
            same(sums.wait()[0], wanted)


def epbuffer_graphs(group: Ranks) -> None:
    """Launches and waits without CPU sync, captured once and launched with other tokens, experts and biases."""
    import torch
    import torch.distributed as dist
    from deep_ep_elastic_calls import Options, check_rows
    from deep_ep_elastic_reference import Elastic, World
    from deep_ep_epbuffer_calls import ASIDE
    from deep_ep_reference import same

    import deep_ep

    size = dist.get_world_size(group)
    world = World(size, 2 * size, 2, 256, 12, 4)
    buffer = deep_ep.EPBuffer(group, num_max_tokens_per_rank=12, hidden=256)
    rank = buffer.rank_idx
    x, bias = (torch.zeros((12, 256), dtype=torch.bfloat16, device="cuda") for _ in range(2))
    idx = torch.full((12, 2), -1, dtype=torch.int64, device="cuda")
    weights = torch.zeros((12, 2), device="cuda")
    for expand in (False, True):
        cases = [Elastic(world, seed) for seed in range(31, 34)]
        answers = torch.zeros((cases[0].worst(expand), 256), dtype=torch.bfloat16, device="cuda")

        def step() -> Any:
            event = buffer.dispatch(
                x, idx, weights, None, 2 * size, 12, 4, do_cpu_sync=False, do_expand=expand, **ASIDE
            )
            rows, _, given, handle = event.wait()
            sums = [buffer.combine(answers, handle, bias=each, **ASIDE) for each in (None, bias)]
            return rows, given, [each.wait()[0] for each in reversed(sums)]

        idx.fill_(-1)
        graph, (rows, given, sums) = captured(step)
        for launch, e in enumerate((*cases, cases[0])):
            many, length = e.tokens[rank], len(e.expanded(rank) if expand else e.plain(rank))
            idx.fill_(-1)
            for place, values in zip((x, idx, weights), (e.x[rank], e.topk_idx[rank], e.weights[rank])):
                place[:many] = values.cuda()
            bias[:many] = e.biases[rank][0].cuda()
            lengths = [len(e.expanded(r) if expand else e.plain(r)) for r in range(size)]
            of_all = [e.answers(r, lengths[r], launch) for r in range(size)]
            answers[:length] = of_all[rank].cuda()
            graph.replay()
            check_rows(e, rank, Options(expand, synced=False), rows, given)
            for y, biases in zip(sums, ((e.biases[rank][0],), ())):
                same(y[:many], e.combined(rank, of_all, expand, True, biases))
        torch.cuda.synchronize()


def epbuffer_host_time(group: Ranks) -> None:
    """How long calls of `EPBuffer` hold the host."""
    import torch
    import torch.distributed as dist
    from deep_ep_reference import here

    import deep_ep

    size = dist.get_world_size(group)
    buffer = deep_ep.EPBuffer(group, num_max_tokens_per_rank=16, hidden=2048)
    x = here(torch.randn((12, 2048)).bfloat16())
    idx, weights = here(torch.arange(24).view(12, 2) % (size * 2)), here(torch.rand((12, 2)))
    calls: dict[str, Callable[[], Any]] = {}
    late: dict[str, Any] = dict(async_with_compute_stream=True, defer_epilogue=True)
    for expand in (False, True):
        given: dict[str, Any] = dict(num_experts=2 * size, do_expand=expand)
        rows, _, _, handle, _ = buffer.dispatch(x, idx, weights, **given)
        form = "expanded" if expand else "plain"
        calls[f"dispatch, {form}"] = lambda given=given: buffer.dispatch(x, idx, weights, **given)
        calls[f"dispatch, {form}, handle"] = lambda h=handle, e=expand: buffer.dispatch(x, handle=h, do_expand=e)
        calls[f"combine, {form}"] = lambda h=handle, r=rows: buffer.combine(r, h)
        calls[f"deferred dispatch, {form}"] = lambda given=given: buffer.dispatch(
            x, idx, weights, do_cpu_sync=False, **given, **late
        ).wait()
        calls[f"deferred combine, {form}"] = lambda h=handle, r=rows: buffer.combine(r, h, **late).wait()
        calls[f"deferred combine, {form}, bias"] = lambda h=handle, r=rows: buffer.combine(r, h, bias=x, **late).wait()
    tell_held(calls, x, "EPBuffer ", buffer.rank_idx)


def low_latency_rows(group: Ranks) -> None:
    """NVFP4 rows, and weights and sources of rows, at once, by hooks and by events."""
    import deep_ep_rows_calls

    deep_ep_rows_calls.more_rows(group)


PARTS = (epbuffer, epbuffer_news, epbuffer_step, epbuffer_streams, epbuffer_graphs, epbuffer_host_time, low_latency_rows)
